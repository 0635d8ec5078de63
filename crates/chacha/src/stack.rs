//! Dead stack: memory of functions that have returned, which still has their values.

/// Overwrites `LEN` bytes of stack below the caller's frame with zeros. Call it in the function that
/// has called functions with secrets.
///
/// Compilers spill registers to the stack, moves of values leave copies there, and AWS-LC does not
/// clear the frames of its ciphers.
#[inline(never)]
pub fn erase_dead_stack<const LEN: usize>() {
    let mut room = [0_u8; LEN];
    // The optimiser must assume that somebody reads the zeros.
    core::hint::black_box(&mut room);
}
