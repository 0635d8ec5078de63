//! Capabilities (`capabilities(7)`).

use rustix::io::{Errno, Result};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities,
};

/// Drops the calling thread's capabilities except `kept`, and those that it could gain by executing a
/// program.
pub(crate) fn drop_all_but(kept: CapabilitySet) -> Result<()> {
    for number in 0..u64::BITS {
        match remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << number)) {
            Ok(()) => {}
            // The kernel has no capability of a higher number.
            Err(Errno::INVAL) => break,
            // Without `CAP_SETPCAP` the bounding set stays. With `no_new_privs` it gives nothing.
            Err(Errno::PERM) => break,
            Err(error) => return Err(error),
        }
    }
    clear_ambient_capability_set()?;
    let left = kept & capabilities(None)?.permitted;
    let sets = CapabilitySets {
        effective: left,
        permitted: left,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, sets)
}
