//! See [`taupe_fuzz::dns`].

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| taupe_fuzz::dns(data));

#[cfg(not(fuzzing))]
fn main() {}
