//! Replacement of all rules and destinations, with two sets in the maps.

use std::sync::atomic::Ordering;

use ipnet::IpNet;
use taupe_config::application::AppRules;
use taupe_config::destinations::Class;

use super::{CaptureMode, Programs, guards, switch, wait_for_programs};
use crate::error::TransparentError;
use crate::reset::{self, SocketKinds};
use crate::rules;
use crate::state::{NO_PASS, Pass, permission};

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
        // Another process may be about to do the same.
        let _lock = self.lock_for_changes()?;
        let old = self.maps.state.generation.load(Ordering::Relaxed);
        let new = old.wrapping_add(1);
        let rules = rules::compile(rules, new, self.maps.state.key())?;
        // Removes the set before the old one, or the rest of a failed attempt.
        self.tunnel.maps.clear_rules(new)?;
        self.tunnel.maps.write_rules(&rules, destinations, new)?;
        if let Err(error) = self.switch_to(new) {
            // Report the first failure, not one of the clean-up.
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
        switch::switch(in_use, generation, wait_for_programs)?;
        self.learn_processes(learning)?;
        self.reclassify()?;
        // Wait for programs that have begun with the other rules.
        wait_for_programs()
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
    /// [`replace`](Self::replace) does. With [`CaptureMode::Fwmark`] sockets keep their verdict.
    ///
    /// # Errors
    ///
    /// [`TransparentError::Call`]; [`TransparentError::UnmarkedSockets`]: some sockets bypass the
    /// tunnel.
    pub fn reclassify(&mut self) -> Result<(), TransparentError> {
        if self.mode == CaptureMode::Fwmark {
            return Ok(());
        }
        // First classify all selected sockets: a socket shared by several processes must not be
        // released because of one of them. The second pass also finds connections that a listener
        // has accepted during the first one. These have the old verdict, and may have a descriptor
        // number that the first pass had already visited.
        self.run_pass(Pass::Select)?;
        self.run_pass(Pass::MarkLeaving)?;
        // A socket that somebody else's run of that pass marks now would be released without being
        // ended.
        wait_for_programs()?;
        self.end_leaving_sockets()?;
        let open = self.run_pass(Pass::Release)?;
        let pending = self.run_pass(Pass::Pending)?;
        // End connections that a listener has accepted before its release.
        self.end_leaving_sockets()?;
        self.tunnel.maps.clear_listeners()?;
        match open + pending {
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
    /// out. Returns the number of sockets that cannot be marked.
    pub(super) fn run_pass(&self, pass: Pass) -> Result<usize, TransparentError> {
        let state = &self.maps.state;
        let generation = state.generation.load(Ordering::Relaxed);
        let permitted = &state.permitted_pass;
        permitted.store(permission(pass, generation), Ordering::Release);
        let unmarked = self.iterators.read(pass.iterator());
        permitted.store(NO_PASS, Ordering::Release);
        Ok(unmarked?.len())
    }
}
