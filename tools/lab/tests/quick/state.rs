//! The system state that a tunnel may change, as text.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use taupe_lab::Result;
use taupe_lab::host::Host;

/// The output of all commands that show the state.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct State(BTreeMap<&'static str, String>);

const COMMANDS: [&str; 11] = [
    "ip -4 rule",
    "ip -6 rule",
    "ip -4 -d route show table all",
    "ip -6 -d route show table all",
    "ip -d address show",
    "nft list ruleset",
    "cat /proc/sys/net/ipv4/conf/all/src_valid_mark",
    "readlink /etc/resolv.conf",
    "cat /etc/resolv.conf",
    "ls -A /etc/resolv.conf.before-taupe",
    "find /run/taupe -name *.journal",
];

impl State {
    pub(crate) fn of(host: &Host) -> Result<Self> {
        let show = |command: &'static str| {
            let words: Vec<_> = command.split(' ').collect();
            Ok((command, uniform(&host.attempt(&words)?.stdout)))
        };
        COMMANDS
            .into_iter()
            .map(show)
            .collect::<Result<_>>()
            .map(Self)
    }

    /// Returns the state without Taupe's journal for `down`.
    pub(crate) fn of_the_network(host: &Host) -> Result<Self> {
        let mut state = Self::of(host)?;
        state.0.remove("find /run/taupe -name *.journal");
        Ok(state)
    }

    /// Replaces text in all outputs.
    pub(crate) fn replacing(&self, from: &str, to: &str) -> Self {
        let texts = self.0.iter();
        Self(
            texts
                .map(|(command, text)| (*command, text.replace(from, to)))
                .collect(),
        )
    }

    /// Returns the lines that only `self` has, after `-`, and those that only `other` has, after
    /// `+`; empty if they are equal.
    pub(crate) fn difference(&self, other: &Self) -> String {
        let mut text = String::new();
        for (command, ours) in &self.0 {
            let theirs = other.0.get(command).map_or("", String::as_str);
            for (sign, these, those) in [('-', ours.as_str(), theirs), ('+', theirs, ours)] {
                let mut others: Vec<_> = those.lines().collect();
                for line in these.lines() {
                    match others.iter().position(|other| *other == line) {
                        Some(index) => drop(others.swap_remove(index)),
                        None => drop(writeln!(text, "{sign} {command}: {line}")),
                    }
                }
            }
        }
        text
    }
}

/// Removes details that differ from interface to interface: index, random link-local address, and
/// state of address detection.
fn uniform(text: &str) -> String {
    let mut lines: Vec<String> = text
        .lines()
        .map(|line| {
            let line = match line.split_once(": ") {
                Some((number, rest)) if number.parse::<u32>().is_ok() && rest.contains(" mtu ") => {
                    rest
                }
                _ => line,
            };
            let words = line.split_whitespace().filter(|word| *word != "tentative");
            words
                .map(|word| match word.split_once('/') {
                    Some((address, length)) if address.starts_with("fe80::") && length == "64" => {
                        if address == "fe80::" {
                            word.to_owned()
                        } else {
                            "fe80::*/64".to_owned()
                        }
                    }
                    None if word.starts_with("fe80::") && word.len() > 7 => "fe80::*".to_owned(),
                    _ => word.to_owned(),
                })
                .collect::<Vec<_>>()
                .join(" ")
        })
        .collect();
    if lines.iter().any(|line| line.contains(" dev ")) {
        lines.sort();
    }
    lines.join("\n")
}
