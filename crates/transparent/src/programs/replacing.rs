//! Rules and destinations, replaced as a whole.

use std::sync::atomic::Ordering;

use taupe_config::application::AppRules;
use taupe_config::destinations::Class;
use taupe_uapi::prefix::Prefix;

use super::{Programs, Way, guards};
use crate::fault::Fault;
use crate::reset::{self, Which};
use crate::rules;
use crate::syscall::{self, Target};

impl Programs {
    /// Replaces rules and destinations as a whole, then, with [`Way::Filters`], looks at the
    /// sockets that exist. A socket that is made meanwhile gets either the old or the new verdict,
    /// and has the new one when this returns.
    ///
    /// The conversations of an application that no rule selects any more end in the tunnel: its
    /// connections in the calling thread's network namespace are closed, and its UDP sockets get
    /// an error, before they have the new verdict. A connection that cannot be closed stays in the
    /// tunnel.
    ///
    /// # Errors
    ///
    /// [`Fault::TooMany`], [`Fault::LongName`], [`Fault::User`], [`Fault::Map`],
    /// [`Fault::Call`]; [`Fault::Unmarked`]: sockets that there were would not be in the
    /// tunnel. The old rules hold.
    pub fn replace(
        &mut self,
        rules: &AppRules,
        destinations: &[(Prefix, Class)],
    ) -> Result<(), Fault> {
        // Another process may be about to do the same.
        let _lock = self.alone()?;
        let old = self.maps.state.generation.load(Ordering::Relaxed);
        let new = old.wrapping_add(1);
        let rules = rules::compile(rules, new, self.maps.state.key())?;
        // Those before the old ones, or what an attempt has left.
        self.maps.clear_rules(new)?;
        self.maps.write_rules(&rules, destinations, new)?;
        if let Err(fault) = self.switch(new) {
            // The first failure is the one to report.
            let _ = self.switch(new.wrapping_add(1));
            return Err(fault);
        }
        self.put = Some(new);
        Ok(())
    }

    /// Puts the rules back that [`replace`](Self::replace) has replaced, unless somebody
    /// has replaced them again.
    ///
    /// # Errors
    ///
    /// [`Fault::Call`], [`Fault::Unmarked`]: they hold, but not for all sockets.
    pub fn take_back(&mut self) -> Result<(), Fault> {
        let _lock = self.alone()?;
        let now = self.maps.state.generation.load(Ordering::Relaxed);
        match self.put.take() {
            Some(put) if put == now => self.switch(put.wrapping_add(1)),
            _ => Ok(()),
        }
    }

    /// Has the rules of a generation hold, which are in the maps. The same rules come back under
    /// a new number: what was decided by the rules that are given up has the other one.
    fn switch(&mut self, generation: u32) -> Result<(), Fault> {
        let in_use = &self.maps.state.generation;
        let learning = self.keep_processes();
        in_use.store(generation, Ordering::Release);
        // No program still decides by the other rules when sockets are looked through.
        syscall::wait_for_programs().map_err(Fault::call("waiting for programs"))?;
        self.learn_processes(learning)?;
        self.reclassify()?;
        // Until programs that had begun with the others have ended.
        syscall::wait_for_programs().map_err(Fault::call("waiting for programs"))
    }

    /// Has the rules in use decide again about all processes and sockets, whatever was missed of
    /// these. The same rules get a new number, which nothing has been decided by.
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
    /// [`replace`](Self::replace) does; with [`Way::Marks`] they keep theirs.
    ///
    /// # Errors
    ///
    /// [`Fault::Call`]; [`Fault::Unmarked`]: some sockets go past the tunnel.
    pub fn reclassify(&mut self) -> Result<(), Fault> {
        if self.way == Way::Marks {
            return Ok(());
        }
        // All that are chosen first: one that several processes have does not leave because
        // of one of them. The second finds, too, what a listener has accepted while the first
        // looked at it: that has the old verdict, and may have a number that has been looked
        // at.
        self.look_through("taupe_classify")?;
        self.look_through("taupe_leaving")?;
        self.end_leaving()?;
        let open = self.look_through("taupe_let_go")?;
        let heirs = self.look_through("taupe_heirs")?;
        // Connections that a listener has accepted before it was let go.
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

    /// Has sockets looked through; so many cannot be marked.
    pub(super) fn look_through(&self, name: &'static str) -> Result<usize, Fault> {
        Ok(self.list(name, Target::Iterator)?.len())
    }
}
