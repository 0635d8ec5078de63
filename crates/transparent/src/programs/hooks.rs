//! Checks the hooks of sockets and processes, and restores them.
//!
//! A hook ends when somebody removes the pin of its link, or detaches the link (`bpftool link
//! detach`). Until it is restored, sockets may have no verdict and their packets bypass the tunnel.

use std::collections::BTreeSet;
use std::os::fd::AsFd as _;

use super::{AttachPoint, Programs};
use crate::cgroup;
use crate::error::{TransparentError, is_exhaustion};
use crate::syscall;

impl Programs {
    /// Returns the programs whose links are pinned and attached: those at the root cgroup, at
    /// tracepoints and at kernel functions.
    ///
    /// # Errors
    ///
    /// [`TransparentError::Call`]: a link cannot be examined.
    pub fn attached_hooks(&self) -> Result<BTreeSet<&'static str>, TransparentError> {
        let mut attached = BTreeSet::new();
        for program in self.mode.programs() {
            let is_attached = match program.attach_point {
                AttachPoint::Cgroup(link, _) => match syscall::open(&self.pins.link(link)) {
                    Ok(link) => syscall::has_cgroup(link.as_fd()).unwrap_or(false),
                    Err(error) if is_exhaustion(&error) => {
                        let what = format!("looking for the link of {}", program.name);
                        return Err(TransparentError::call(what)(error));
                    }
                    Err(_) => false,
                },
                // These links end only with their pins.
                AttachPoint::Tracepoint(_) | AttachPoint::Entry(_) | AttachPoint::Security(_) => {
                    self.pins.link(program.name).exists()
                }
                AttachPoint::Iterator(_) | AttachPoint::MapIterator(_) | AttachPoint::Filter => {
                    false
                }
            };
            if is_attached {
                attached.insert(program.name);
            }
        }
        Ok(attached)
    }

    /// Attaches programs that have been detached, and classifies the processes and sockets that
    /// these have missed.
    ///
    /// # Errors
    ///
    /// [`TransparentError::Call`]; [`TransparentError::UnmarkedSockets`]: some sockets bypass the
    /// tunnel.
    pub fn reattach(&mut self, names: &BTreeSet<&'static str>) -> Result<(), TransparentError> {
        // Another process may be about to remove everything.
        let _lock = self.lock_for_changes()?;
        let cgroup =
            cgroup::root().map_err(TransparentError::call("opening the root of cgroup2"))?;
        let programs = self.mode.programs().iter();
        for program in programs.filter(|program| names.contains(program.name)) {
            self.attach_hook(program, cgroup.as_fd())?;
        }
        self.reclassify_all()
    }
}
