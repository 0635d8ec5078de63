//! See [`taupe_fuzz::handshake`].

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| taupe_fuzz::handshake(data));

#[cfg(not(fuzzing))]
fn main() {}
