//! See [`taupe_fuzz::file`].

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| taupe_fuzz::file(data));

#[cfg(not(fuzzing))]
fn main() {}
