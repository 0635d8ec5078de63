//! See [`taupe_fuzz::transport`].

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| taupe_fuzz::transport(data));

#[cfg(not(fuzzing))]
fn main() {}
