//! Replacement of all rules and destinations, with two sets in the maps.

use std::sync::atomic::Ordering;

use ipnet::IpNet;
use rustix::system::uname;
use taupe_config::application::AppRules;
use taupe_config::destinations::Class;

use super::switch::{self, MemoryOrder};
use super::{CaptureMode, Programs, guards, wait_for_programs};
use crate::error::TransparentError;
use crate::reset::{self, SocketKinds};
use crate::rules;
use crate::state::{Lock, NO_PASS, Pass, SELECTED, UNMARKED, permission};

impl Programs {
    /// Replaces all rules and destinations. With [`CaptureMode::TrafficControl`] it then classifies
    /// the sockets that exist. A socket that is created meanwhile gets the old or the new verdict,
    /// and has the new one when this returns.
    ///
    /// If no rule selects an application any more, its connections in the calling thread's network
    /// namespace are closed and its UDP sockets get an error before the new verdict is in force. A
    /// connection that cannot be closed stays in the tunnel.
    ///
    /// # Errors
    ///
    /// [`TransparentError::TooMany`], [`TransparentError::NameTooLong`],
    /// [`TransparentError::UnknownUser`], [`TransparentError::Map`], [`TransparentError::Call`];
    /// [`TransparentError::UnmarkedSockets`]: existing sockets would bypass the tunnel. The old
    /// rules stay in force.
    pub fn replace(
        &mut self,
        rules: &AppRules,
        destinations: &[(IpNet, Class)],
    ) -> Result<(), TransparentError> {
        self.replace_with_lock(rules, destinations, None)
    }

    /// As [`replace`](Self::replace). It also sets the kill switch, unless `lock` is `None`, as
    /// [`set_lock`](Self::set_lock) does.
    ///
    /// # Errors
    ///
    /// As [`replace`](Self::replace): the old rules and the old kill switch stay in force.
    pub(crate) fn replace_with_lock(
        &mut self,
        rules: &AppRules,
        destinations: &[(IpNet, Class)],
        lock: Option<Lock>,
    ) -> Result<(), TransparentError> {
        // Another process may be about to do the same.
        let _lock = self.lock_for_changes()?;
        // Read before `switch_to` waits for the programs that run: if the kill switch is set already,
        // none acts by another value afterwards.
        let old_lock = self.lock();
        let new_lock = lock.filter(|&lock| lock != old_lock);
        let old = self.maps.state.generation.load(Ordering::Relaxed);
        let new = old.wrapping_add(1);
        let rules = rules::compile(rules, new, self.maps.state.key())?;
        // Removes the set before the old one, or the rest of a failed attempt.
        self.tunnel.maps.clear_rules(new)?;
        self.tunnel.maps.write_rules(&rules, destinations, new)?;
        let switched = self.switch_to(new).and_then(|()| match new_lock {
            Some(lock) => self.change_lock(lock),
            None => Ok(()),
        });
        if let Err(error) = switched {
            // Report the first failure, not one of the clean-up.
            if new_lock.is_some() {
                let _ = self.change_lock(old_lock);
            }
            let _ = self.switch_to(new.wrapping_add(1));
            return Err(error);
        }
        self.written_generation = Some(new);
        Ok(())
    }

    /// Restores the rules that [`replace`](Self::replace) has replaced, unless they have been
    /// replaced again.
    ///
    /// # Errors
    ///
    /// [`TransparentError::Call`], [`TransparentError::UnmarkedSockets`]: the old rules are in
    /// force, but not for all sockets.
    pub fn restore(&mut self) -> Result<(), TransparentError> {
        let _lock = self.lock_for_changes()?;
        let now = self.maps.state.generation.load(Ordering::Relaxed);
        match self.written_generation.take() {
            Some(written) if written == now => self.switch_to(written.wrapping_add(1)),
            _ => Ok(()),
        }
    }

    /// Makes the rules of a generation in the maps the rules in use. Rules that are restored get a
    /// new generation number, so that verdicts by the abandoned rules are recognised as outdated.
    fn switch_to(&mut self, generation: u32) -> Result<(), TransparentError> {
        let learning = self.begin_learning();
        let in_use = &self.maps.state.generation;
        // The kernel's machine: the program itself may be emulated.
        let order = MemoryOrder::of(uname().machine().to_bytes());
        switch::switch(in_use, generation, order, wait_for_programs)?;
        self.learn_processes(learning)?;
        self.reclassify()
    }

    /// Classifies all processes and sockets again by the rules in use, in case hooks have missed
    /// some. The rules get a new generation number, which no verdict has yet.
    ///
    /// # Errors
    ///
    /// [`TransparentError::Call`]; [`TransparentError::UnmarkedSockets`]: some sockets bypass the
    /// tunnel.
    pub(super) fn reclassify_all(&mut self) -> Result<(), TransparentError> {
        self.maps.state.generation.fetch_add(2, Ordering::AcqRel);
        wait_for_programs()?;
        self.run_learn_passes()?;
        self.reclassify()
    }

    /// Gives all sockets that processes have open the verdict of the rules in use, as
    /// [`replace`](Self::replace) does. When this returns, no program lets a packet of a newly selected
    /// socket bypass the tunnel. With [`CaptureMode::Fwmark`] sockets keep their verdict.
    ///
    /// # Errors
    ///
    /// [`TransparentError::Call`]; [`TransparentError::UnmarkedSockets`]: some sockets bypass the
    /// tunnel.
    pub fn reclassify(&mut self) -> Result<(), TransparentError> {
        if self.mode == CaptureMode::Fwmark {
            return wait_for_programs();
        }
        // First classify all selected sockets: a socket shared by several processes must not be
        // released because of one of them. The second pass also finds connections that a listener
        // has accepted during the first one. These have the old verdict, and may have a descriptor
        // number that the first pass had already visited.
        self.run_pass(Pass::Select)?;
        self.run_pass(Pass::MarkLeaving)?;
        // Programs that run may still send packets by a verdict from before the passes. Besides, a
        // socket that somebody else's run of the last pass marks now would be released without being
        // ended.
        wait_for_programs()?;
        self.end_leaving_sockets()?;
        let open = self.run_pass(Pass::Release)?;
        let pending = self.run_pass(Pass::Pending)?;
        // End connections that a listener has accepted before its release.
        self.end_leaving_sockets()?;
        self.tunnel.maps.clear_listeners()?;
        if open.has_selected || pending.has_selected {
            wait_for_programs()?;
        }
        match open.unmarked + pending.unmarked {
            0 => Ok(()),
            unmarked => Err(TransparentError::UnmarkedSockets(unmarked)),
        }
    }

    fn end_leaving_sockets(&self) -> Result<(), TransparentError> {
        let leaving = || {
            let mut sockets = self.selected_sockets()?;
            sockets.retain(|socket| socket.is_leaving);
            Ok(sockets)
        };
        if leaving()?.is_empty() {
            return Ok(());
        }
        reset::end(leaving, SocketKinds::ConnectionsAndUdp)?;
        guards::drop_unresolved_packets(&self.maps.uplinks()?)
    }

    /// Runs a pass over open sockets, and permits it meanwhile. Call it only if other processes are locked
    /// out.
    pub(super) fn run_pass(&self, pass: Pass) -> Result<PassReport, TransparentError> {
        let state = &self.maps.state;
        let generation = state.generation.load(Ordering::Relaxed);
        let permitted = &state.permitted_pass;
        permitted.store(permission(pass, generation), Ordering::Release);
        let reports = self.iterators.read(pass.iterator());
        permitted.store(NO_PASS, Ordering::Release);
        Ok(PassReport::of(&reports?))
    }
}

/// The result of a pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PassReport {
    /// Number of sockets that cannot be marked.
    unmarked: usize,
    /// True if one of the last two passes has selected a socket, which programs that run may not know.
    has_selected: bool,
}

impl PassReport {
    fn of(reports: &[u8]) -> Self {
        let unmarked = reports.iter().filter(|report| **report == UNMARKED);
        Self {
            unmarked: unmarked.count(),
            has_selected: reports.contains(&SELECTED),
        }
    }
}
