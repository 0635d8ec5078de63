//! Replacement of all rules and destinations, with two sets in the maps.

use std::sync::atomic::Ordering;

use ipnet::IpNet;
use taupe_config::application::AppRules;
use taupe_config::destinations::Class;

use super::{Programs, Way, guards};
use crate::fault::Fault;
use crate::reset::{self, Which};
use crate::rules;
use crate::syscall::{self, Target};

impl Programs {
    /// Replaces all rules and destinations. With [`Way::Filters`] it then classifies the sockets
    /// that exist. A socket that is created meanwhile gets the old or the new verdict, and has the
    /// new one when this returns.
    ///
    /// If no rule selects an application any more, its connections in the calling thread's network
    /// namespace are closed and its UDP sockets get an error before the new verdict is in force. A
    /// connection that cannot be closed stays in the tunnel.
    ///
    /// # Errors
    ///
    /// [`Fault::TooMany`], [`Fault::LongName`], [`Fault::User`], [`Fault::Map`], [`Fault::Call`];
    /// [`Fault::Unmarked`]: existing sockets would bypass the tunnel. The old rules stay in force.
    pub fn replace(
        &mut self,
        rules: &AppRules,
        destinations: &[(IpNet, Class)],
    ) -> Result<(), Fault> {
        // Another process may be about to do the same.
        let _lock = self.alone()?;
        let old = self.maps.state.generation.load(Ordering::Relaxed);
        let new = old.wrapping_add(1);
        let rules = rules::compile(rules, new, self.maps.state.key())?;
        // Removes the set before the old one, or the rest of a failed attempt.
        self.maps.clear_rules(new)?;
        self.maps.write_rules(&rules, destinations, new)?;
        if let Err(fault) = self.switch(new) {
            // Report the first failure, not one of the way back.
            let _ = self.switch(new.wrapping_add(1));
            return Err(fault);
        }
        self.put = Some(new);
        Ok(())
    }

    /// Restores the rules that [`replace`](Self::replace) has replaced, unless they have been
    /// replaced again.
    ///
    /// # Errors
    ///
    /// [`Fault::Call`], [`Fault::Unmarked`]: the old rules are in force, but not for all sockets.
    pub fn take_back(&mut self) -> Result<(), Fault> {
        let _lock = self.alone()?;
        let now = self.maps.state.generation.load(Ordering::Relaxed);
        match self.put.take() {
            Some(put) if put == now => self.switch(put.wrapping_add(1)),
            _ => Ok(()),
        }
    }

    /// Makes the rules of a generation in the maps the rules in use. Rules that are restored get a
    /// new generation number, so that verdicts by the abandoned rules are recognised as outdated.
    fn switch(&mut self, generation: u32) -> Result<(), Fault> {
        let in_use = &self.maps.state.generation;
        let learning = self.keep_processes();
        in_use.store(generation, Ordering::Release);
        // No program may still decide by the other rules when the sockets are classified.
        syscall::wait_for_programs().map_err(Fault::call("waiting for programs"))?;
        self.learn_processes(learning)?;
        self.reclassify()?;
        // Wait for programs that have begun with the other rules.
        syscall::wait_for_programs().map_err(Fault::call("waiting for programs"))
    }

    /// Classifies all processes and sockets again by the rules in use, in case hooks have missed
    /// some. The rules get a new generation number, which no verdict has yet.
    ///
    /// # Errors
    ///
    /// [`Fault::Call`]; [`Fault::Unmarked`]: some sockets bypass the tunnel.
    pub(super) fn renew(&mut self) -> Result<(), Fault> {
        self.maps.state.generation.fetch_add(2, Ordering::AcqRel);
        syscall::wait_for_programs().map_err(Fault::call("waiting for programs"))?;
        self.go_through_processes()?;
        self.reclassify()
    }

    /// Gives all sockets that processes have open the verdict of the rules in use, as
    /// [`replace`](Self::replace) does. With [`Way::Marks`] sockets keep their verdict.
    ///
    /// # Errors
    ///
    /// [`Fault::Call`]; [`Fault::Unmarked`]: some sockets bypass the tunnel.
    pub fn reclassify(&mut self) -> Result<(), Fault> {
        if self.way == Way::Marks {
            return Ok(());
        }
        // First classify all selected sockets: a socket shared by several processes must not be
        // released because of one of them. The second pass also finds connections that a listener
        // has accepted during the first one. These have the old verdict, and may have a descriptor
        // number that the first pass had already visited.
        self.look_through("taupe_classify")?;
        self.look_through("taupe_leaving")?;
        self.end_leaving()?;
        let open = self.look_through("taupe_let_go")?;
        let heirs = self.look_through("taupe_heirs")?;
        // End connections that a listener has accepted before its release.
        self.end_leaving()?;
        self.maps.clear_listeners()?;
        match open + heirs {
            0 => Ok(()),
            unmarked => Err(Fault::Unmarked(unmarked)),
        }
    }

    fn end_leaving(&self) -> Result<(), Fault> {
        let leaving = || {
            let mut chosen = self.chosen_sockets()?;
            chosen.retain(|socket| socket.is_leaving);
            Ok(chosen)
        };
        if leaving()?.is_empty() {
            return Ok(());
        }
        reset::end(leaving, Which::Conversations)?;
        guards::drop_what_waits(&self.maps.uplinks()?)
    }

    /// Classifies sockets with an iterator. Returns the number of sockets that cannot be marked.
    pub(super) fn look_through(&self, name: &'static str) -> Result<usize, Fault> {
        Ok(self.list(name, Target::Iterator)?.len())
    }
}
