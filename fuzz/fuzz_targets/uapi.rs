//! See [`taupe_fuzz::uapi`].

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| taupe_fuzz::uapi(data));

#[cfg(not(fuzzing))]
fn main() {}
