//! See [`taupe_fuzz::differential`].

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| taupe_fuzz::differential(data));

#[cfg(not(fuzzing))]
fn main() {}
