//! What is to become of a packet: by whose it is and where it goes.

use std::net::IpAddr;

use taupe_config::{
    application::{self, AppRules, Application, Decision, Rule},
    destinations::{Class, class_of, is_link_local},
};
use taupe_uapi::prefix::Prefix;
use thiserror::Error;

use super::{
    owners::{Owner, Process},
    packet::Flow,
};

/// Which applications use the tunnel, and for which destinations.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    apps: AppRules,
    destinations: Vec<(Prefix, Class)>,
}

/// A rule that can mean nothing where processes are told by their executables alone.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error(
    "line {line}: `{application}' stands for no application here, where applications are told by \
     their names and paths alone; write its name, such as firefox, its path, such as \
     C:\\Games\\game.exe, or its folder with a \\ at the end"
)]
pub struct Unsuitable {
    /// The line of the file.
    pub line: usize,
    /// What is written there.
    pub application: Application,
}

/// What is to become of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Choice {
    Direct,
    Tunnel,
    Refuse,
    Drop,
}

impl Rules {
    /// Those of a file: its applications, and the table of its destinations
    /// ([`taupe_config::destinations::of_peers`]).
    ///
    /// # Errors
    ///
    /// The first rule that no process of Windows could ever fit, which might otherwise lead
    /// past the tunnel whom somebody wants in it.
    pub fn new(apps: AppRules, destinations: Vec<(Prefix, Class)>) -> Result<Self, Unsuitable> {
        let is_told = |rule: &&Rule| {
            !matches!(
                rule.application,
                Application::Name(_) | Application::Windows(_)
            )
        };
        if let Some(rule) = apps.allowed.iter().chain(&apps.disallowed).find(is_told) {
            return Err(Unsuitable {
                line: rule.line,
                application: rule.application.clone(),
            });
        }
        Ok(Self { apps, destinations })
    }

    /// Whether it matters whose a packet is.
    pub(super) fn depend_on_owner(&self) -> bool {
        !self.apps.is_empty()
    }

    /// Whether an owner's packets use the tunnel; `None` where that cannot be told. A program of
    /// which nothing is known is none of those that go past a tunnel which all others use.
    pub(super) fn decide(&self, owner: &Owner) -> Option<Decision> {
        let process = match owner {
            Owner::Process(process) => return Some(self.decide_process(process)),
            Owner::System => &Process {
                path: String::new(),
                name: "System".into(),
                started: 0,
            },
            Owner::Anybody => return Some(Decision::Tunnel),
            Owner::Unknown | Owner::NotYet => {
                return self.apps.allowed.is_empty().then_some(Decision::Tunnel);
            }
        };
        Some(self.decide_process(process))
    }

    /// Whether a process uses the tunnel.
    pub(super) fn choose_process(&self, process: &Process) -> bool {
        self.decide_process(process) == Decision::Tunnel
    }

    fn decide_process(&self, process: &Process) -> Decision {
        let process = application::Process {
            path: process.path.as_bytes(),
            name: process.name.as_bytes(),
            cgroup: b"",
            // Nobody's.
            uid: u32::MAX,
        };
        self.apps.decide(&process).0
    }

    /// What becomes of the packets of an owner in a flow. `has_servers`: questions for names
    /// are the tunnel's, wherever they go. `is_for_group`: it is for more than one host.
    pub(super) fn choose(
        &self,
        owner: &Owner,
        flow: &Flow,
        has_servers: bool,
        is_for_group: bool,
    ) -> Choice {
        let unless_direct = |choice| match choice {
            Choice::Direct => Choice::Direct,
            _ => Choice::Drop,
        };
        match self.decide(owner) {
            Some(Decision::Bypass) => Choice::Direct,
            // Names of the network, and what else its hosts tell each other.
            Some(Decision::Tunnel) if is_for_group && *owner == Owner::System => Choice::Direct,
            Some(Decision::Tunnel) if is_for_group => {
                unless_direct(self.choose_destination(flow, false))
            }
            Some(Decision::Tunnel) => self.choose_destination(flow, has_servers),
            // Whoever it is, past the tunnel it goes only where all go past it.
            None => unless_direct(self.choose_destination(flow, has_servers && !is_for_group)),
        }
    }

    /// What becomes of the packets of somebody who is chosen.
    pub(super) fn choose_destination(&self, flow: &Flow, has_servers: bool) -> Choice {
        if has_servers && flow.is_question() && !flow.remote.ip().is_loopback() {
            return Choice::Tunnel;
        }
        self.class(flow.remote.ip())
    }

    fn class(&self, destination: IpAddr) -> Choice {
        match class_of(&self.destinations, destination) {
            _ if is_link_local(destination) => Choice::Direct,
            Class::Tunnel => Choice::Tunnel,
            Class::Direct => Choice::Direct,
            Class::Refuse => Choice::Refuse,
            Class::Drop => Choice::Drop,
        }
    }
}
