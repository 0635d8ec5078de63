//! The order in which words of the state change that eBPF programs read.
//!
//! Programs read these words without barriers, and AArch64 may execute two reads of a program in
//! another order. Only a wait for the programs that run orders the reads of all programs: a program
//! that begins after the wait has begun reads what was written before it, and all others have ended.

use super::sync::{AtomicU32, Ordering};

/// The order in which a processor sees what another one has written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MemoryOrder {
    /// The order in which it was written (total store order).
    Total,
    /// Any order.
    Weak,
}

impl MemoryOrder {
    /// Returns the order on a machine, by its name (`uname -m`). x86-64: Intel's Software Developer's
    /// Manual, volume 3, "Memory Ordering".
    pub(super) fn of(machine: &[u8]) -> Self {
        match machine {
            b"x86_64" => Self::Total,
            _ => Self::Weak,
        }
    }
}

/// Puts the rules of `generation`, which are in the maps, into force. `wait` waits until the eBPF
/// programs that run have ended.
///
/// # Errors
///
/// Those of `wait`.
pub(super) fn switch<E>(
    in_use: &AtomicU32,
    generation: u32,
    order: MemoryOrder,
    wait: impl Fn() -> Result<(), E>,
) -> Result<(), E> {
    // A program that reads the generation first, and then the rules, could otherwise find rules from
    // before they were written.
    if order == MemoryOrder::Weak {
        wait()?;
    }
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
