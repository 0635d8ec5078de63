//! See [`taupe_fuzz::frames`].

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| taupe_fuzz::frames(data));

#[cfg(not(fuzzing))]
fn main() {}
