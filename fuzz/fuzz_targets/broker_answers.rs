//! See [`taupe_fuzz::broker_answers`].

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| taupe_fuzz::broker_answers(data));

#[cfg(not(fuzzing))]
fn main() {}
