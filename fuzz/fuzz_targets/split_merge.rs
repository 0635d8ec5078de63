//! See [`taupe_fuzz::split_merge`].

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| taupe_fuzz::split_merge(data));

#[cfg(not(fuzzing))]
fn main() {}
