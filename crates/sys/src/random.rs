//! Randomness from the kernel.

use rustix::io::{Errno, Result};
use rustix::rand::{GetRandomFlags, getrandom};
use std::io::Write as _;

/// Fills `buffer` with randomness fit for keys.
///
/// The source is `getrandom(2)` (Linux 3.17), which waits until the kernel's
/// generator has been seeded once after boot and cannot run dry afterwards.
///
/// # Aborts
///
/// Ends the process when the kernel refuses, as a system-call filter without
/// `getrandom` does. Every key made afterwards could be guessed, so that there
/// is nothing to fall back to.
pub fn fill(buffer: &mut [u8]) {
    if let Err(error) = fill_from(buffer, |rest| getrandom(rest, GetRandomFlags::empty())) {
        // Not `eprintln`, which panics when standard error is a closed pipe.
        let _ = writeln!(
            std::io::stderr(),
            "taupe: the kernel gives no randomness: getrandom: {error}; no key can be made \
             without it, so the process ends (does a system-call filter forbid getrandom?)"
        );
        std::process::abort();
    }
}

/// A call may be interrupted, or give less than was asked for, from 257 bytes
/// on (`getrandom(2)`).
fn fill_from(buffer: &mut [u8], mut source: impl FnMut(&mut [u8]) -> Result<usize>) -> Result<()> {
    let mut rest = buffer;
    while !rest.is_empty() {
        match source(rest) {
            Ok(0) => return Err(Errno::IO),
            Ok(given) => rest = rest.get_mut(given..).ok_or(Errno::IO)?,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{fill, fill_from};
    use rustix::io::Errno;

    #[test]
    fn every_part_of_a_long_buffer_is_filled() {
        let mut buffer = [0; 4096];
        fill(&mut buffer);
        // A block of 16 bytes stays zero once in 2^120 runs.
        assert!(
            buffer
                .chunks(16)
                .all(|block| block.iter().any(|&byte| byte != 0))
        );
    }

    #[test]
    fn nothing_is_asked_of_the_kernel_for_an_empty_buffer() {
        let source = |_: &mut [u8]| -> Result<usize, Errno> { Err(Errno::NOSYS) };
        assert_eq!(fill_from(&mut [], source), Ok(()));
    }

    #[test]
    fn short_and_interrupted_calls_are_continued() {
        let mut calls = 0;
        let mut buffer = [0; 5];
        let filled = fill_from(&mut buffer, |rest| {
            calls += 1;
            if calls == 2 {
                return Err(Errno::INTR);
            }
            let given = rest.len().min(2);
            rest[..given].fill(calls);
            Ok(given)
        });
        assert_eq!((filled, buffer), (Ok(()), [1, 1, 3, 3, 4]));
    }

    #[test]
    fn a_refusal_is_an_error_and_so_is_a_kernel_that_gives_nothing() {
        let refused = |_: &mut [u8]| -> Result<usize, Errno> { Err(Errno::NOSYS) };
        assert_eq!(fill_from(&mut [0], refused), Err(Errno::NOSYS));
        assert_eq!(fill_from(&mut [0], |_: &mut [u8]| Ok(0)), Err(Errno::IO));
        assert_eq!(fill_from(&mut [0], |_: &mut [u8]| Ok(2)), Err(Errno::IO));
    }
}
