//! See [`taupe_fuzz::inner`].

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| taupe_fuzz::inner(data));

#[cfg(not(fuzzing))]
fn main() {}
