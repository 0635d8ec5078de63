//! The order in which words of the state change that eBPF programs read.
//!
//! Programs read these words without barriers, and AArch64 may execute two reads of a program in
//! another order. Only a wait for the programs that run orders the reads of all programs: a program
//! that begins after the wait has begun reads what was written before it, and all others have ended.

use super::sync::{AtomicU32, Ordering};

/// Puts the rules of `generation`, which are in the maps, into force. `wait` waits until the eBPF
/// programs that run have ended.
///
/// # Errors
///
/// Those of `wait`.
pub(super) fn switch<E>(
    in_use: &AtomicU32,
    generation: u32,
    wait: impl Fn() -> Result<(), E>,
) -> Result<(), E> {
    // Otherwise a program could read the new generation, but rules from before they were written.
    wait()?;
    in_use.store(generation, Ordering::Release);
    // No program may still decide by the other rules when the sockets are classified.
    wait()
}

/// Sets a word of the state. When this returns, no program acts by another value, also if the word
/// had this value: who set it may still be waiting.
///
/// # Errors
///
/// Those of `wait`: the word is set.
pub(super) fn set<E>(
    word: &AtomicU32,
    value: u32,
    wait: impl Fn() -> Result<(), E>,
) -> Result<(), E> {
    word.store(value, Ordering::Release);
    wait()
}
