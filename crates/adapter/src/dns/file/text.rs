//! What Taupe writes into `/etc/resolv.conf`.
//!
//! The file itself holds everything that is needed to take it back, in a
//! comment: whose it is, which tunnels it serves, and since which start of the
//! system. So it cannot disagree with a record elsewhere.

use super::super::Settings;
use super::ORIGINAL;
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::net::IpAddr;

const MARK: &str = "# Made by taupe for the tunnel";
const STATE: &str = "#taupe ";

/// What the comment says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileState {
    /// The kernel's random name for the time since the system started.
    pub(super) boot: String,
    /// Where in the same folder the file (or link) is that was there before.
    /// None if there was none.
    pub(super) original: Option<String>,
    /// The oldest first. The last one's servers are in force.
    pub(super) tunnels: Vec<Tunnel>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tunnel {
    pub(super) interface: String,
    #[serde(flatten)]
    pub(super) settings: Settings,
}

impl FileState {
    /// Makes these settings of the interface the ones in force.
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

/// The file's text. `original` is the text that it replaces, whose options for
/// the resolver stay in force.
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
    // A map of strings and lists of strings always has a JSON form.
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

/// The comment's content, or nothing when the file is not Taupe's. A file that
/// is, but whose comment was tampered with, counts as from an earlier start of
/// the system.
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

/// The name servers in a file (`resolv.conf(5)`).
pub(super) fn servers(text: &str) -> Vec<IpAddr> {
    let server = |line: &str| {
        let mut words = line.split_whitespace();
        let is_server = words.next() == Some("nameserver");
        // A link-local one may name its interface.
        let address = words.next().filter(|_| is_server)?.split('%').next()?;
        address.parse().ok()
    };
    text.lines().filter_map(server).collect()
}

/// Whether the original can have this name.
fn is_name(name: &str) -> bool {
    let number = |rest: &str| {
        rest.bytes()
            .all(|byte| byte == b'.' || byte.is_ascii_digit())
    };
    name.strip_prefix(ORIGINAL).is_some_and(number)
}

/// The options (`resolv.conf(5)`) that are about this machine's resolver.
/// `trust-ad` is about the servers that were there: whoever runs the tunnel's
/// has not been trusted to validate.
fn kept_options(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .filter_map(|line| line.strip_prefix("options"))
        .filter(|rest| rest.starts_with([' ', '\t']))
        .flat_map(str::split_whitespace)
        .filter(|option| *option != "trust-ad")
}
