//! What a command may not do, whoever started it.

use rustix::io::{Errno, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

/// Gives up every capability over the cell, so that no program that is started from here
/// on has one (`capabilities(7)`): neither root's, nor one with capabilities of its file.
/// It takes `CAP_SETPCAP` in the cell's user namespace.
pub(crate) fn give_up() -> Result<()> {
    for number in 0..u64::BITS {
        let one = CapabilitySet::from_bits_retain(1 << number);
        match remove_capability_from_bounding_set(one) {
            Ok(()) => {}
            // The kernel has no more.
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

/// What a core file may have, before [`without_core`].
pub(crate) struct Core(Rlimit);

/// Has this process leave no core file, which would hold a copy of the keys that its
/// parent has read. Not by `PR_SET_DUMPABLE`, without which it may not map its user.
pub(crate) fn without_core() -> Core {
    let before = getrlimit(Resource::Core);
    // A file that may have one byte is not written, and with this very limit nothing is
    // sent to a program either (core(5)). Where even that is too much, there is none.
    let _ = setrlimit(
        Resource::Core,
        Rlimit {
            current: Some(1),
            maximum: before.maximum,
        },
    );
    Core(before)
}

impl Core {
    /// For the command it is as it was.
    pub(crate) fn restore(self) -> Result<()> {
        setrlimit(Resource::Core, self.0)
    }
}
