//! See [`taupe_fuzz::message`].

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| taupe_fuzz::message(data));

#[cfg(not(fuzzing))]
fn main() {}
