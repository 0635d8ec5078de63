//! See [`taupe_fuzz::broker`].

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| taupe_fuzz::broker(data));

#[cfg(not(fuzzing))]
fn main() {}
