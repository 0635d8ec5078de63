//! State that all requests share: tunnels, their owners, and root's list.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::executor::{Executor, Outcome, Running, Target};
use crate::listed::Listed;
use crate::message::Class;
use crate::name::TunnelName;
use crate::registry::{Record, Registry};

/// Tunnels of a user, at most.
const MAX_TUNNELS: usize = 4;

/// Tunnels of all users, at most.
const MAX_ALL_TUNNELS: usize = 32;

/// State that all requests share.
pub(crate) struct Context<'a> {
    pub(crate) registry: &'a Registry,
    pub(crate) listed: &'a Listed,
    pub(crate) executor: &'a dyn Executor,
    /// Tunnels that a request changes now.
    pub(crate) changing: &'a Mutex<BTreeSet<TunnelName>>,
    /// Locked from the check of a new tunnel until its owner is written. Otherwise two requests could both
    /// get a user's last place.
    pub(crate) admission: &'a Mutex<()>,
}

/// Relation of a caller to a tunnel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Relation {
    /// The caller has brought it up from a file of the caller.
    Own(Record),
    /// Root lists it for the caller.
    Listed(Record),
    /// Another user has brought it up by a request.
    OfUser(Record),
    /// No request has brought it up.
    OfRoot,
    /// It is not up.
    Down,
}

impl Context<'_> {
    pub(crate) fn running(&self) -> Result<BTreeMap<String, Running>, String> {
        let tunnels = self.executor.tunnels();
        tunnels.map_err(|error| format!("the tunnels are unknown: {error}"))
    }

    /// Returns the record of a tunnel that is up from the file of the record. Root may have taken the
    /// tunnel down since, and brought another of this name up.
    fn valid_record(&self, tunnel: &TunnelName, running: &Running) -> Option<Record> {
        let record = self.registry.record(tunnel)?;
        let file = match record.is_listed {
            true => self.listed.path(tunnel)?,
            false => self.registry.copy(tunnel),
        };
        (running.file.as_deref() == Some(&file)).then_some(record)
    }

    pub(crate) fn relation(&self, tunnel: &TunnelName, caller: u32) -> Result<Relation, String> {
        let running = self.running()?;
        let Some(running) = running.get(tunnel.as_str()) else {
            return Ok(Relation::Down);
        };
        Ok(match self.valid_record(tunnel, running) {
            None => Relation::OfRoot,
            Some(record) if record.is_listed => match self.listed.for_user(tunnel, caller) {
                Some(_) => Relation::Listed(record),
                None => Relation::OfUser(record),
            },
            Some(record) if record.owner == caller => Relation::Own(record),
            Some(record) => Relation::OfUser(record),
        })
    }

    /// Fails if a tunnel is up, or was killed and not taken down.
    pub(crate) fn is_free(&self, tunnel: &TunnelName) -> Result<(), String> {
        match self.running()?.contains_key(tunnel.as_str()) {
            true => Err(format!("{tunnel} is up already")),
            false => Ok(()),
        }
    }

    /// Fails if a user has as many tunnels as are permitted.
    pub(crate) fn has_room(&self, tunnel: &TunnelName, caller: u32) -> Result<(), String> {
        let running = self.running()?;
        let changing = self.changing();
        let mut records = self.registry.records();
        // Another tunnel may have an owner, and be on its way up.
        records.retain(|(name, _)| {
            name != tunnel && (running.contains_key(name.as_str()) || changing.contains(name))
        });
        let own = records.iter().filter(|(_, record)| record.owner == caller);
        match (own.count(), records.len()) {
            (MAX_TUNNELS.., _) => Err(format!("you have {MAX_TUNNELS} tunnels already")),
            (_, MAX_ALL_TUNNELS..) => Err(format!("users have {MAX_ALL_TUNNELS} tunnels already")),
            _ => Ok(()),
        }
    }

    /// Returns the reason why a user's tunnel could take applications from another tunnel, or give them
    /// away. Tunnels of class `user` select only processes of their owners.
    pub(crate) fn other_selections(
        &self,
        tunnel: &TunnelName,
        caller: u32,
    ) -> Result<Option<String>, String> {
        let running = self.running()?;
        let mut others = running.iter().filter(|(name, running)| {
            let name = name.parse::<TunnelName>();
            let record = name.ok().and_then(|name| self.valid_record(&name, running));
            let is_of_user = record.is_some_and(|it| it.class == Class::User && !it.is_listed);
            let is_of_other = running.only_user.is_some_and(|user| user != caller);
            running.selects && !is_of_user && !is_of_other
        });
        let other = others.find(|(name, _)| *name != tunnel.as_str());
        let other = other.map(|(name, _)| name.clone());
        let reason = |name| format!("{name} selects applications that may be yours");
        Ok(other
            .or_else(|| self.beginning(tunnel, &running))
            .map(reason))
    }

    /// Returns another tunnel that is on its way up and may select applications of everybody.
    fn beginning(
        &self,
        tunnel: &TunnelName,
        running: &BTreeMap<String, Running>,
    ) -> Option<String> {
        let changing = self.changing();
        let mut records = self.registry.records().into_iter();
        let other = records.find(|(name, record)| {
            let is_of_user = record.class == Class::User && !record.is_listed;
            let is_beginning = changing.contains(name) && !running.contains_key(name.as_str());
            name != tunnel && is_beginning && !is_of_user
        });
        other.map(|(name, _)| name.to_string())
    }

    /// Returns the tunnels that a user may see.
    pub(crate) fn visible(&self, caller: u32) -> Result<BTreeSet<TunnelName>, String> {
        let mut visible = BTreeSet::new();
        for (name, _) in self.registry.records() {
            if let Relation::Own(_) | Relation::Listed(_) = self.relation(&name, caller)? {
                visible.insert(name);
            }
        }
        Ok(visible)
    }

    /// Returns the file of a tunnel that a request has brought up, or the tunnel's name.
    pub(crate) fn target(&self, tunnel: &TunnelName) -> Target {
        let running = self.running().unwrap_or_default();
        let running = running.get(tunnel.as_str());
        match running.and_then(|running| self.valid_record(tunnel, running)) {
            Some(record) if !record.is_listed => Target::File(self.registry.copy(tunnel)),
            Some(_) => match self.listed.path(tunnel) {
                Some(path) => Target::File(path),
                None => Target::Name(tunnel.clone()),
            },
            None => Target::Name(tunnel.clone()),
        }
    }

    pub(crate) fn edit(
        &self,
        tunnel: &TunnelName,
        application: &str,
        is_allowed: bool,
        needed: Class,
    ) -> Outcome {
        let target = self.target(tunnel);
        let outcome = self.executor.edit(&target, application, is_allowed);
        // Its rules may match other users from now on.
        if needed == Class::Admin
            && let Some(record) = self.registry.record(tunnel)
        {
            let class = Class::Admin;
            // The owner stays. If the class cannot be written, the tunnel counts as the owner's only.
            let _ = self
                .registry
                .write(tunnel, Record { class, ..record }, None);
        }
        outcome
    }

    pub(crate) fn list(&self, caller: u32) -> Result<Outcome, String> {
        let running = self.running()?;
        let mut text = String::new();
        for name in self.visible(caller)? {
            let is_listed = self.registry.record(&name).is_some_and(|it| it.is_listed);
            let whose = if is_listed { "listed" } else { "yours" };
            let _ = writeln!(text, "{name} up {whose}");
        }
        for name in self.listed.names(caller) {
            if !running.contains_key(name.as_str()) {
                let _ = writeln!(text, "{name} down listed");
            }
        }
        Ok(Outcome {
            output: text.into_bytes(),
            ..Outcome::default()
        })
    }

    fn changing(&self) -> BTreeSet<TunnelName> {
        let changing = self.changing.lock();
        changing.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until no other request checks a new tunnel.
    pub(crate) fn admit(&self) -> MutexGuard<'_, ()> {
        self.admission
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the copies and owners of all tunnels that do not exist any more, because root has taken them
    /// down. The copies have keys.
    pub(crate) fn tidy_all(&self) {
        if let Ok(running) = self.running() {
            let changing = self.changing();
            self.registry
                .tidy(|name| running.contains_key(name.as_str()) || changing.contains(name));
        }
    }

    /// Removes the copy and the owner of a tunnel that does not exist any more.
    pub(crate) fn tidy(&self, tunnel: &TunnelName) {
        if let Ok(running) = self.running()
            && !running.contains_key(tunnel.as_str())
        {
            self.registry.remove(tunnel);
        }
    }
}
