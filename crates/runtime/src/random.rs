//! Randomness from the operating system.

use std::io::Write as _;

use taupe_protocol::Random;

/// The operating system's randomness, as a device's [`Random`].
#[derive(Clone, Copy, Debug)]
pub struct SystemRandom;

impl Random for SystemRandom {
    fn fill(&mut self, bytes: &mut [u8]) {
        fill(bytes);
    }
}

/// Fills `buffer` with randomness fit for keys.
///
/// The source is the operating system: `getrandom(2)` on Linux, which waits until the kernel's
/// generator has been seeded after boot; `ProcessPrng` on Windows; for other systems see the crate
/// `getrandom`.
///
/// # Aborts
///
/// Ends the process if the system returns an error: without randomness, keys could be guessed.
pub fn fill(buffer: &mut [u8]) {
    if let Err(error) = getrandom::fill(buffer) {
        // `eprintln` would panic if standard error is a closed pipe.
        let _ = writeln!(
            std::io::stderr(),
            "taupe: the system provides no randomness: {error}; keys need it, so the process ends"
        );
        std::process::abort();
    }
}

#[cfg(test)]
mod tests {
    use super::fill;

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
}
