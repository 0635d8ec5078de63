//! The hooks of sockets and processes, looked after.
//!
//! A hook ends with its pinned link, when somebody removes the pin, or at once, when
//! somebody detaches the link (`bpftool link detach`). Until it is back, sockets may have
//! no verdict and packets leave in clear.

use std::collections::BTreeSet;
use std::os::fd::AsFd as _;

use super::{Place, Programs};
use crate::cgroup;
use crate::fault::Fault;
use crate::syscall;

impl Programs {
    /// The programs at the root cgroup, at tracepoints and at functions of the kernel whose
    /// links are there and attached.
    #[must_use]
    pub fn attached_hooks(&self) -> BTreeSet<&'static str> {
        let is_attached = |name, place| match place {
            Place::Cgroup(link, _) => {
                let link = syscall::open(&self.pins.link(link));
                link.is_ok_and(|link| syscall::has_cgroup(link.as_fd()).unwrap_or(false))
            }
            // Links of these end with their pins alone.
            Place::Tracepoint(_) | Place::Entry(_) | Place::Security(_) => {
                self.pins.link(name).exists()
            }
            Place::Iterator(_) | Place::Filter => false,
        };
        let programs = self.way.programs().iter();
        let attached = programs.filter(|(name, place, _)| is_attached(name, *place));
        attached.map(|(name, ..)| *name).collect()
    }

    /// Attaches programs that are attached no more, and gives processes and sockets the
    /// verdicts that these have missed.
    ///
    /// # Errors
    ///
    /// [`Fault::Call`]; [`Fault::Unmarked`]: some sockets go past the tunnel.
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
