//! See [`taupe_fuzz::translate`].

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| taupe_fuzz::translate(data));

#[cfg(not(fuzzing))]
fn main() {}
