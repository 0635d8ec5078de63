//! Checks the hooks of sockets and processes, and restores them.
//!
//! A hook ends when somebody removes the pin of its link, or detaches the link (`bpftool link
//! detach`). Until it is restored, sockets may have no verdict and their packets bypass the tunnel.

use std::collections::BTreeSet;
use std::os::fd::AsFd as _;

use super::{Place, Programs};
use crate::cgroup;
use crate::fault::Fault;
use crate::syscall;

impl Programs {
    /// Returns the programs whose links are pinned and attached: those at the root cgroup, at
    /// tracepoints and at kernel functions.
    #[must_use]
    pub fn attached_hooks(&self) -> BTreeSet<&'static str> {
        let is_attached = |name, place| match place {
            Place::Cgroup(link, _) => {
                let link = syscall::open(&self.pins.link(link));
                link.is_ok_and(|link| syscall::has_cgroup(link.as_fd()).unwrap_or(false))
            }
            // These links end only with their pins.
            Place::Tracepoint(_) | Place::Entry(_) | Place::Security(_) => {
                self.pins.link(name).exists()
            }
            Place::Iterator(_) | Place::Filter => false,
        };
        let programs = self.way.programs().iter();
        let attached = programs.filter(|(name, place, _)| is_attached(name, *place));
        attached.map(|(name, ..)| *name).collect()
    }

    /// Attaches programs that have been detached, and classifies the processes and sockets that
    /// these have missed.
    ///
    /// # Errors
    ///
    /// [`Fault::Call`]; [`Fault::Unmarked`]: some sockets bypass the tunnel.
    pub fn attach_again(&mut self, names: &BTreeSet<&'static str>) -> Result<(), Fault> {
        // Another process may be about to remove everything.
        let _lock = self.alone()?;
        let cgroup = cgroup::root().map_err(Fault::call("opening the root of cgroup2"))?;
        let programs = self.way.programs().iter();
        for &(name, place, _) in programs.filter(|(name, ..)| names.contains(name)) {
            self.attach_hook(name, place, cgroup.as_fd())?;
        }
        self.renew()
    }
}
