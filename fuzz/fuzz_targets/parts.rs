//! See [`taupe_fuzz::parts`].

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| taupe_fuzz::parts(data));

#[cfg(not(fuzzing))]
fn main() {}
