//! See [`taupe_fuzz::service`].

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| taupe_fuzz::service(data));

#[cfg(not(fuzzing))]
fn main() {}
