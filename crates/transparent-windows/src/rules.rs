//! Verdicts on packets, by owner and destination.

use std::net::IpAddr;

use ipnet::IpNet;
use taupe_config::{
    application::{self, AppRules, Application, Decision, Rule},
    destinations::{Class, class_of, is_link_local},
};
use thiserror::Error;

use super::{
    owners::{Owner, Process},
    packet::Flow,
};

/// Rules that select applications, and the classes of destinations.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    apps: AppRules,
    destinations: Vec<(IpNet, Class)>,
}

/// A rule that can match no process here, where processes are recognised only by their executables.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error(
    "line {line}: `{application}' cannot match on Windows, where applications are recognised by name \
     and path; write the application's name, such as firefox, its path, such as \
     C:\\Games\\game.exe, or its folder with a \\ at the end"
)]
pub struct UnsuitableRule {
    /// The line in the file.
    pub line: usize,
    /// The application in the rule.
    pub application: Application,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PacketVerdict {
    Direct,
    Tunnel,
    Refuse,
    Drop,
}

impl Rules {
    /// Creates the rules from a file's applications and its table of destinations
    /// ([`taupe_config::destinations::table_for_peers`]).
    ///
    /// # Errors
    ///
    /// The first rule that can match no process on Windows. If it were ignored, an application that
    /// the user wants in the tunnel could bypass it.
    pub fn new(apps: AppRules, destinations: Vec<(IpNet, Class)>) -> Result<Self, UnsuitableRule> {
        let is_readable = |rule: &&Rule| {
            !matches!(
                rule.application,
                Application::Name(_) | Application::Windows(_)
            )
        };
        if let Some(rule) = apps
            .allowed
            .iter()
            .chain(&apps.disallowed)
            .find(is_readable)
        {
            return Err(UnsuitableRule {
                line: rule.line,
                application: rule.application.clone(),
            });
        }
        Ok(Self { apps, destinations })
    }

    /// Returns true if verdicts depend on the owner.
    pub(super) fn depend_on_owner(&self) -> bool {
        !self.apps.is_empty()
    }

    /// Returns the decision for an owner, or `None` if it cannot be made. If there are only rules
    /// about applications that bypass the tunnel, an unknown program uses the tunnel.
    pub(super) fn decide(&self, owner: &Owner) -> Option<Decision> {
        let process = match owner {
            Owner::Process(process) => return Some(self.decide_process(process)),
            Owner::System => &Process {
                path: String::new(),
                name: "System".into(),
                started: 0,
            },
            Owner::NotNeeded => return Some(Decision::Tunnel),
            Owner::Unknown | Owner::Pending => {
                return self.apps.allowed.is_empty().then_some(Decision::Tunnel);
            }
        };
        Some(self.decide_process(process))
    }

    pub(super) fn selects(&self, process: &Process) -> bool {
        self.decide_process(process) == Decision::Tunnel
    }

    fn decide_process(&self, process: &Process) -> Decision {
        let process = application::Process {
            path: process.path.as_bytes(),
            name: process.name.as_bytes(),
            cgroup: b"",
            // No user.
            uid: u32::MAX,
        };
        self.apps.decide(&process).0
    }

    /// Returns the verdict on a packet of an owner in a flow. `has_servers`: DNS queries go to the
    /// tunnel's servers, whatever their destination. `is_for_group`: the packet is for more than
    /// one host.
    pub(super) fn verdict(
        &self,
        owner: &Owner,
        flow: &Flow,
        has_servers: bool,
        is_for_group: bool,
    ) -> PacketVerdict {
        let unless_direct = |verdict| match verdict {
            PacketVerdict::Direct => PacketVerdict::Direct,
            _ => PacketVerdict::Drop,
        };
        match self.decide(owner) {
            Some(Decision::Bypass) => PacketVerdict::Direct,
            // Name resolution and discovery in the local network.
            Some(Decision::Tunnel) if is_for_group && *owner == Owner::System => {
                PacketVerdict::Direct
            }
            Some(Decision::Tunnel) if is_for_group => {
                unless_direct(self.verdict_by_destination(flow, false))
            }
            Some(Decision::Tunnel) => self.verdict_by_destination(flow, has_servers),
            // An unknown owner's packet bypasses the tunnel only if those of all owners would.
            None => unless_direct(self.verdict_by_destination(flow, has_servers && !is_for_group)),
        }
    }

    /// Returns the verdict on packets of a selected owner.
    pub(super) fn verdict_by_destination(&self, flow: &Flow, has_servers: bool) -> PacketVerdict {
        if has_servers && flow.is_dns_query() && !flow.remote.ip().is_loopback() {
            return PacketVerdict::Tunnel;
        }
        self.class(flow.remote.ip())
    }

    fn class(&self, destination: IpAddr) -> PacketVerdict {
        match class_of(&self.destinations, destination) {
            _ if is_link_local(destination) => PacketVerdict::Direct,
            Class::Tunnel => PacketVerdict::Tunnel,
            Class::Direct => PacketVerdict::Direct,
            Class::Refuse => PacketVerdict::Refuse,
            Class::Drop => PacketVerdict::Drop,
        }
    }
}
