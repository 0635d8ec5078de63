//! The text that Taupe writes into `/etc/resolv.conf`.
//!
//! A comment in the file contains everything that is needed to restore the original: the owner, the
//! tunnels, and the boot id of the system. A separate record could disagree with the file.

use super::super::Settings;
use super::ORIGINAL;
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::net::IpAddr;

const MARK: &str = "# Made by taupe for the tunnel";
const STATE: &str = "#taupe ";

/// The content of the comment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileState {
    /// The kernel's boot id (`/proc/sys/kernel/random/boot_id`).
    pub(super) boot: String,
    /// The name, in the same folder, of the original file or link; `None` if there was none.
    pub(super) original: Option<String>,
    /// The tunnels, oldest first. The servers of the last one are used.
    pub(super) tunnels: Vec<Tunnel>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tunnel {
    pub(super) interface: String,
    #[serde(flatten)]
    pub(super) settings: Settings,
}

impl FileState {
    /// Makes these settings of the interface the ones in use.
    pub(super) fn put(&mut self, interface: &str, settings: &Settings) {
        self.remove(interface);
        self.tunnels.push(Tunnel {
            interface: interface.to_owned(),
            settings: settings.clone(),
        });
    }

    pub(super) fn remove(&mut self, interface: &str) {
        self.tunnels.retain(|tunnel| tunnel.interface != interface);
    }
}

/// Returns the file's text. `original` is the text that it replaces, whose resolver options stay in
/// use.
pub(super) fn print(state: &FileState, original: &str) -> String {
    let mut text = String::new();
    let mut line = |line: std::fmt::Arguments<'_>| {
        let _ = text.write_fmt(line);
        text.push('\n');
    };
    let newest = state.tunnels.last();
    let interface = newest.map_or("", |tunnel| &tunnel.interface);
    line(format_args!(
        "{MARK} {interface}. Changes made here are lost when it goes down."
    ));
    match &state.original {
        Some(name) => line(format_args!(
            "# What was here is in /etc/{name}, and comes back then."
        )),
        None => line(format_args!("# There was no such file before.")),
    }
    // This structure can always be converted to JSON.
    let json = serde_json::to_string(state).unwrap_or_default();
    line(format_args!("{STATE}{json}"));
    if let Some(Tunnel { settings, .. }) = newest {
        for server in &settings.servers {
            line(format_args!("nameserver {server}"));
        }
        let search: Vec<&str> = settings.searched().collect();
        if !search.is_empty() {
            line(format_args!("search {}", search.join(" ")));
        }
    }
    let options: Vec<&str> = kept_options(original).collect();
    if !options.is_empty() {
        line(format_args!("options {}", options.join(" ")));
    }
    text
}

/// Parses the comment; `None` if the file is not Taupe's. If the comment of a file of Taupe was
/// changed, the file is treated as one from before a restart of the system.
pub(super) fn parse(text: &str) -> Option<FileState> {
    let mut lines = text.lines();
    if !lines.next()?.starts_with(MARK) {
        return None;
    }
    let comment = lines.take_while(|line| line.starts_with('#'));
    let state = comment
        .filter_map(|line| line.strip_prefix(STATE))
        .find_map(|json| serde_json::from_str(json).ok())
        .filter(|state: &FileState| state.original.as_deref().is_none_or(is_name));
    Some(state.unwrap_or_else(|| FileState {
        original: Some(ORIGINAL.to_owned()),
        ..FileState::default()
    }))
}

/// Returns the name servers in a file (`resolv.conf(5)`).
pub(super) fn servers(text: &str) -> Vec<IpAddr> {
    let server = |line: &str| {
        let mut words = line.split_whitespace();
        let is_server = words.next() == Some("nameserver");
        // The address of a link-local server may include its interface.
        let address = words.next().filter(|_| is_server)?.split('%').next()?;
        address.parse().ok()
    };
    text.lines().filter_map(server).collect()
}

/// Returns true if the original can have this name.
fn is_name(name: &str) -> bool {
    let number = |rest: &str| {
        rest.bytes()
            .all(|byte| byte == b'.' || byte.is_ascii_digit())
    };
    name.strip_prefix(ORIGINAL).is_some_and(number)
}

/// Returns the options (`resolv.conf(5)`) that concern this machine's resolver. `trust-ad` is
/// removed because it concerns the previous servers: the tunnel's servers are not trusted to
/// validate.
fn kept_options(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .filter_map(|line| line.strip_prefix("options"))
        .filter(|rest| rest.starts_with([' ', '\t']))
        .flat_map(str::split_whitespace)
        .filter(|option| *option != "trust-ad")
}
