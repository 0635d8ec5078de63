//! See [`taupe_fuzz::proxy`].

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| taupe_fuzz::proxy(data));

#[cfg(not(fuzzing))]
fn main() {}
