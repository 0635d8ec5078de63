//! Keys of transparent mode: selection of applications, and how they use the tunnel. These keys
//! concern the whole tunnel, whichever section they are in.

use core::fmt;

use serde::{Deserialize, Serialize};

use super::diagnostic::DiagnosticKind;
use super::draft::set_once;
use super::keys::Key;
use super::line::{Span, quotable_application};
use super::present_keys::PresentKeys;
use super::report::Report;
use super::value::{self, Value};
use crate::application::{AppRules, Application, AppsOfUser, Children, Rule};

/// The most applications in a list, and the most bytes of them, as in WireSock.
pub(super) const MAX_APPLICATIONS: usize = 1024;
pub(super) const MAX_APPLICATION_BYTES: usize = 64 << 10;

/// Settings of transparent mode.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Transparent {
    /// `AllowedApps`, `DisallowedApps` and `AppsOfUser`.
    pub apps: AppRules,
    /// `BypassLanTraffic`: true if local networks bypass the tunnel. By default they do not.
    pub bypass_lan: Option<bool>,
    /// `KillSwitch`.
    pub kill_switch: Option<KillSwitch>,
    /// `Forwarded`.
    pub forwarded: Option<Forwarded>,
    /// `SystemBus`.
    pub system_bus: Option<SystemBus>,
    /// `Children`. `apps` has the value too, or the default.
    pub children: Option<Children>,
    /// The first of these keys and its line.
    pub first: Option<(Key, usize)>,
    /// The prefix that makes that line a comment to other programs.
    pub comment_prefix: Option<&'static str>,
}

/// Traffic that is blocked while the tunnel is down.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum KillSwitch {
    /// Traffic of applications that use the tunnel.
    #[default]
    App,
    /// All traffic.
    All,
    /// None: traffic bypasses the tunnel.
    Off,
}

/// Path of forwarded packets, which come from other machines.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug, Serialize, Deserialize)]
pub enum Forwarded {
    /// Through the tunnel.
    Tunnel,
    /// They bypass the tunnel.
    #[default]
    Direct,
}

/// Access of selected applications to the system D-Bus, through which names can be resolved outside
/// of the tunnel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum SystemBus {
    /// They have access.
    Allow,
    /// They have no access if the tunnel has name servers.
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

/// Keys read so far.
#[derive(Default)]
pub(super) struct TransparentDraft<'a> {
    pub(super) present: PresentKeys,
    settings: Transparent,
    allowed: ApplicationList<'a>,
    disallowed: ApplicationList<'a>,
    /// Position of `AppsOfUser`.
    of_user: Option<Span<'a>>,
    /// Keys in a `[Peer]`.
    in_peers: Vec<(Key, Span<'a>)>,
}

/// Positions of a list's applications, in order.
#[derive(Default)]
struct ApplicationList<'a> {
    spans: Vec<Span<'a>>,
    bytes: usize,
    too_long: bool,
}

impl<'a> TransparentDraft<'a> {
    /// Handles a value. `comment_prefix` makes its line a comment to other programs.
    pub(super) fn value(
        &mut self,
        key: Key,
        value: Span<'a>,
        comment_prefix: Option<&'static str>,
        in_peer: bool,
        report: &mut Report,
    ) {
        let first = self.present.record(key, value.number);
        let settings = &mut self.settings;
        if settings.first.is_none() {
            settings.first = Some((key, value.number));
            settings.comment_prefix = comment_prefix;
        }
        if in_peer {
            self.in_peers.push((key, value));
        }
        match key {
            Key::AllowedApps => {
                self.allowed
                    .extend(&mut settings.apps.allowed, key, value, report);
            }
            Key::DisallowedApps => {
                self.disallowed
                    .extend(&mut settings.apps.disallowed, key, value, report);
            }
            Key::BypassLanTraffic => {
                let read = value::boolean(key, value);
                set_once(&mut settings.bypass_lan, key, value, first, read, report);
            }
            Key::KillSwitch => {
                let read = kill_switch(value);
                set_once(&mut settings.kill_switch, key, value, first, read, report);
            }
            Key::Forwarded => {
                let read = forwarded(value);
                set_once(&mut settings.forwarded, key, value, first, read, report);
            }
            Key::SystemBus => {
                let read = system_bus(value);
                set_once(&mut settings.system_bus, key, value, first, read, report);
            }
            Key::Children => {
                let read = children(value);
                set_once(&mut settings.children, key, value, first, read, report);
                settings.apps.children = settings.children.unwrap_or_default();
            }
            Key::AppsOfUser => {
                self.of_user = Some(value);
                let read = apps_of_user(value);
                set_once(&mut settings.apps.of_user, key, value, first, read, report);
            }
            _ => {}
        }
    }

    /// Checks all keys together, in a file with `peers` peers.
    pub(super) fn check(&self, peers: usize, report: &mut Report) {
        if peers > 1 {
            for (key, at) in &self.in_peers {
                report.add(*at, DiagnosticKind::TunnelKeyInPeer { key: *key, peers });
            }
        }
        self.check_user(report);
        let AppRules {
            allowed,
            disallowed,
            ..
        } = &self.settings.apps;
        let is_complete = |list: &ApplicationList, rules: &[Rule]| list.spans.len() == rules.len();
        if !is_complete(&self.allowed, allowed) || !is_complete(&self.disallowed, disallowed) {
            // An invalid entry may be the relevant one, so the lists are not compared.
            return;
        }
        if let (Some(rule), Some(at)) = (allowed.first(), self.disallowed.spans.first()) {
            let allowed = rule.line;
            report.add(*at, DiagnosticKind::DisallowedAppsWithoutEffect { allowed });
        }
        report_covered(allowed, &self.allowed, report);
        report_covered(disallowed, &self.disallowed, report);
        for (rule, at) in disallowed.iter().zip(&self.disallowed.spans) {
            let mut above = allowed.iter();
            if let Some(by) = above.find(|by| by.application.covers(&rule.application)) {
                let value = quotable_application(at.text);
                let allowed = by.line;
                report.add(*at, DiagnosticKind::AllowedWins { value, allowed });
            }
        }
    }

    /// Checks that `AppsOfUser` restricts something, and that nothing else concerns other users.
    fn check_user(&self, report: &mut Report) {
        let Transparent {
            kill_switch,
            forwarded,
            apps,
            ..
        } = &self.settings;
        let (Some(at), Some(only)) = (self.of_user, &apps.of_user) else {
            return;
        };
        if self.allowed.spans.is_empty() && self.disallowed.spans.is_empty() {
            report.add(at, DiagnosticKind::NoAppsOfUser);
        }
        for (concerns_others, setting) in [
            (*kill_switch == Some(KillSwitch::All), "KillSwitch = all"),
            (*forwarded == Some(Forwarded::Tunnel), "Forwarded = tunnel"),
        ] {
            if concerns_others {
                report.add(at, DiagnosticKind::NotOfOneUser { setting });
            }
        }
        for (list, rules) in [
            (&self.allowed, &apps.allowed),
            (&self.disallowed, &apps.disallowed),
        ] {
            if list.spans.len() != rules.len() {
                continue;
            }
            for (rule, at) in rules.iter().zip(&list.spans) {
                if let Application::User(user) = &rule.application
                    && user.is_other_than(&only.user)
                {
                    let value = quotable_application(at.text);
                    let only = only.line;
                    report.add(*at, DiagnosticKind::OtherUser { value, only });
                }
            }
        }
    }

    pub(super) fn finish(self) -> Transparent {
        self.settings
    }
}

impl<'a> ApplicationList<'a> {
    fn extend(&mut self, rules: &mut Vec<Rule>, key: Key, value: Span<'a>, report: &mut Report) {
        self.bytes += value.text.len();
        for part in value.split(|c| c == ',') {
            if self.spans.len() >= MAX_APPLICATIONS || self.bytes > MAX_APPLICATION_BYTES {
                if !self.too_long {
                    report.add(part, DiagnosticKind::TooManyApplications { key });
                }
                self.too_long = true;
                return;
            }
            self.spans.push(part);
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

/// Reports each application that another entry of its list includes. Of two equal ones, reports the
/// later.
fn report_covered(rules: &[Rule], list: &ApplicationList<'_>, report: &mut Report) {
    for (index, (rule, at)) in rules.iter().zip(&list.spans).enumerate() {
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

fn kill_switch(value: Span<'_>) -> Value<'_, KillSwitch> {
    let all = [KillSwitch::App, KillSwitch::All, KillSwitch::Off];
    value::one_of(value, &all).ok_or((value, DiagnosticKind::KillSwitch))
}

fn forwarded(value: Span<'_>) -> Value<'_, Forwarded> {
    let all = [Forwarded::Tunnel, Forwarded::Direct];
    value::one_of(value, &all).ok_or((value, DiagnosticKind::Forwarded))
}

fn system_bus(value: Span<'_>) -> Value<'_, SystemBus> {
    let all = [SystemBus::Allow, SystemBus::Refuse];
    value::one_of(value, &all).ok_or((value, DiagnosticKind::SystemBus))
}

fn children(value: Span<'_>) -> Value<'_, Children> {
    let all = [Children::Inherit, Children::Own];
    value::one_of(value, &all).ok_or((value, DiagnosticKind::Children))
}

fn apps_of_user(value: Span<'_>) -> Value<'_, AppsOfUser> {
    let user = value.text.parse();
    let user = user.map_err(|_| (value, DiagnosticKind::AppsOfUser))?;
    let line = value.number;
    Ok(AppsOfUser { user, line })
}
