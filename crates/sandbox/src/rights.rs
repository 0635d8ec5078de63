//! Rights that the command loses, even if root started it.

use rustix::io::{Errno, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

/// Drops every capability over the sandbox and clears the bounding set, so that no program started
/// from here can gain one (`capabilities(7)`), whether by being root or by file capabilities. Needs
/// `CAP_SETPCAP` in the sandbox's user namespace.
pub(crate) fn drop_all() -> Result<()> {
    for number in 0..u64::BITS {
        let one = CapabilitySet::from_bits_retain(1 << number);
        match remove_capability_from_bounding_set(one) {
            Ok(()) => {}
            // The kernel has no capability of a higher number.
            Err(Errno::INVAL) => break,
            Err(error) => return Err(error),
        }
    }
    clear_ambient_capability_set()?;
    set_no_new_privs(true)?;
    let none = CapabilitySet::empty();
    let sets = CapabilitySets {
        effective: none,
        permitted: none,
        inheritable: none,
    };
    set_capabilities(None, sets)
}

/// The core file limit before [`limit_core`].
pub(crate) struct CoreLimit(Rlimit);

/// Prevents core files of this process: it still holds a copy of the keys that its parent has read.
/// `PR_SET_DUMPABLE` is not usable, because a non-dumpable process may not write its user mapping.
pub(crate) fn limit_core() -> CoreLimit {
    let before = getrlimit(Resource::Core);
    // With a limit of exactly 1 byte the kernel writes no core file and runs no core pattern
    // program (core(5)). If the hard limit is 0, no core file is written either, and the failure
    // does not matter.
    let _ = setrlimit(
        Resource::Core,
        Rlimit {
            current: Some(1),
            maximum: before.maximum,
        },
    );
    CoreLimit(before)
}

impl CoreLimit {
    /// Restores the limit for the command.
    pub(crate) fn restore(self) -> Result<()> {
        setrlimit(Resource::Core, self.0)
    }
}
