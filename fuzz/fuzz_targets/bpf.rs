//! See [`taupe_fuzz::bpf`].

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| taupe_fuzz::bpf(data));

#[cfg(not(fuzzing))]
fn main() {}
