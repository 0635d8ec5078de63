//! The keys of transparent mode: which applications use the tunnel, and how.
//! They are about the whole tunnel, whichever section they stand in.

use core::fmt;

use super::diagnostic::DiagnosticKind;
use super::draft::set;
use super::line::{Piece, quotable_application};
use super::report::Report;
use super::seen::Seen;
use super::value::{self, Value};
use super::word::Key;
use crate::application::{AppRules, Children, Rule};

/// How many applications a list can have, and how many bytes altogether: as many
/// as WireSock's.
pub(super) const MOST: usize = 1024;
pub(super) const MOST_BYTES: usize = 64 << 10;

/// What concerns transparent mode alone.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Transparent {
    /// `AllowedApps` and `DisallowedApps`.
    pub apps: AppRules,
    /// `BypassLanTraffic`: whether local networks are reached past the tunnel;
    /// they are not without it.
    pub bypass_lan: Option<bool>,
    /// `KillSwitch`.
    pub kill_switch: Option<KillSwitch>,
    /// `Forwarded`.
    pub forwarded: Option<Forwarded>,
    /// `SystemBus`.
    pub system_bus: Option<SystemBus>,
    /// `Children`; `apps` has it too, or the default.
    pub children: Option<Children>,
    /// The first of these keys and its line, if there is one.
    pub first: Option<(Key, usize)>,
    /// What makes that line a comment to other programs, if anything does.
    pub mark: Option<&'static str>,
}

/// What is held back while the tunnel is down.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum KillSwitch {
    /// What the applications send that use the tunnel.
    #[default]
    App,
    /// What anybody sends.
    All,
    /// Nothing: all goes past the tunnel.
    Off,
}

/// Where packets go that other machines send through this one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum Forwarded {
    /// Through the tunnel.
    Tunnel,
    /// Past it.
    #[default]
    Direct,
}

/// Whether chosen applications reach the system's D-Bus, by which names can be asked past
/// the tunnel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum SystemBus {
    /// They do.
    Allow,
    /// They do not where the tunnel has name servers.
    #[default]
    Refuse,
}

impl fmt::Display for SystemBus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allow => "allow",
            Self::Refuse => "refuse",
        })
    }
}

impl fmt::Display for Children {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Inherit => "inherit",
            Self::Own => "own",
        })
    }
}

impl fmt::Display for KillSwitch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::App => "app",
            Self::All => "all",
            Self::Off => "off",
        })
    }
}

impl fmt::Display for Forwarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tunnel => "tunnel",
            Self::Direct => "direct",
        })
    }
}

/// The keys while a file is read.
#[derive(Default)]
pub(super) struct TransparentDraft<'a> {
    pub(super) seen: Seen,
    plain: Transparent,
    allowed: List<'a>,
    disallowed: List<'a>,
    /// Those that stand in a `[Peer]`.
    in_peers: Vec<(Key, Piece<'a>)>,
}

/// Where the applications of a list stand, in its order.
#[derive(Default)]
struct List<'a> {
    pieces: Vec<Piece<'a>>,
    bytes: usize,
    too_long: bool,
}

impl<'a> TransparentDraft<'a> {
    /// Takes a value. `mark` makes its line a comment to others.
    pub(super) fn value(
        &mut self,
        key: Key,
        value: Piece<'a>,
        mark: Option<&'static str>,
        in_peer: bool,
        report: &mut Report,
    ) {
        let first = self.seen.note(key, value.number);
        let plain = &mut self.plain;
        if plain.first.is_none() {
            plain.first = Some((key, value.number));
            plain.mark = mark;
        }
        if in_peer {
            self.in_peers.push((key, value));
        }
        match key {
            Key::AllowedApps => {
                self.allowed
                    .extend(&mut plain.apps.allowed, key, value, report);
            }
            Key::DisallowedApps => {
                self.disallowed
                    .extend(&mut plain.apps.disallowed, key, value, report);
            }
            Key::BypassLanTraffic => {
                let read = value::truth(key, value);
                set(&mut plain.bypass_lan, key, value, first, read, report);
            }
            Key::KillSwitch => {
                let read = kill_switch(value);
                set(&mut plain.kill_switch, key, value, first, read, report);
            }
            Key::Forwarded => {
                let read = forwarded(value);
                set(&mut plain.forwarded, key, value, first, read, report);
            }
            Key::SystemBus => {
                let read = system_bus(value);
                set(&mut plain.system_bus, key, value, first, read, report);
            }
            Key::Children => {
                let read = children(value);
                set(&mut plain.children, key, value, first, read, report);
                plain.apps.children = plain.children.unwrap_or_default();
            }
            _ => {}
        }
    }

    /// Finds what is wrong with all of them together, in a file with so many
    /// peers.
    pub(super) fn check(&self, peers: usize, report: &mut Report) {
        if peers > 1 {
            for (key, at) in &self.in_peers {
                report.add(*at, DiagnosticKind::OfAllPeers { key: *key, peers });
            }
        }
        let AppRules {
            allowed,
            disallowed,
            ..
        } = &self.plain.apps;
        let whole = |list: &List, rules: &[Rule]| list.pieces.len() == rules.len();
        if !whole(&self.allowed, allowed) || !whole(&self.disallowed, disallowed) {
            // One that is wrong may be the very one that matters.
            return;
        }
        if let (Some(rule), Some(at)) = (allowed.first(), self.disallowed.pieces.first()) {
            let allowed = rule.line;
            report.add(*at, DiagnosticKind::NothingToDisallow { allowed });
        }
        covered(allowed, &self.allowed, report);
        covered(disallowed, &self.disallowed, report);
        for (rule, at) in disallowed.iter().zip(&self.disallowed.pieces) {
            let mut above = allowed.iter();
            if let Some(by) = above.find(|by| by.application.covers(&rule.application)) {
                let value = quotable_application(at.text);
                let allowed = by.line;
                report.add(*at, DiagnosticKind::AllowedWins { value, allowed });
            }
        }
    }

    pub(super) fn finish(self) -> Transparent {
        self.plain
    }
}

impl<'a> List<'a> {
    fn extend(&mut self, rules: &mut Vec<Rule>, key: Key, value: Piece<'a>, report: &mut Report) {
        self.bytes += value.text.len();
        for part in value.split(|c| c == ',') {
            if self.pieces.len() >= MOST || self.bytes > MOST_BYTES {
                if !self.too_long {
                    report.add(part, DiagnosticKind::TooManyApplications { key });
                }
                self.too_long = true;
                return;
            }
            self.pieces.push(part);
            match part.text.parse() {
                Ok(application) => rules.push(Rule::new(application, part.number)),
                Err(problem) => {
                    let value = quotable_application(part.text);
                    report.add(part, DiagnosticKind::Application { problem, value });
                }
            }
        }
    }
}

/// Tells of each application that belongs to another one of its list; of two
/// that are the same, the later.
fn covered(rules: &[Rule], list: &List<'_>, report: &mut Report) {
    for (index, (rule, at)) in rules.iter().zip(&list.pieces).enumerate() {
        let mut others = rules.iter().enumerate();
        let wider = others.find(|(other, by)| {
            let by = &by.application;
            *other != index
                && by.covers(&rule.application)
                && (*other < index || !rule.application.covers(by))
        });
        if let Some((_, by)) = wider {
            let value = quotable_application(at.text);
            let first = by.line;
            report.add(*at, DiagnosticKind::Covered { value, first });
        }
    }
}

fn kill_switch(value: Piece<'_>) -> Value<'_, KillSwitch> {
    let all = [KillSwitch::App, KillSwitch::All, KillSwitch::Off];
    value::word(value, &all).ok_or((value, DiagnosticKind::KillSwitch))
}

fn forwarded(value: Piece<'_>) -> Value<'_, Forwarded> {
    let all = [Forwarded::Tunnel, Forwarded::Direct];
    value::word(value, &all).ok_or((value, DiagnosticKind::Forwarded))
}

fn system_bus(value: Piece<'_>) -> Value<'_, SystemBus> {
    let all = [SystemBus::Allow, SystemBus::Refuse];
    value::word(value, &all).ok_or((value, DiagnosticKind::SystemBus))
}

fn children(value: Piece<'_>) -> Value<'_, Children> {
    let all = [Children::Inherit, Children::Own];
    value::word(value, &all).ok_or((value, DiagnosticKind::Children))
}
