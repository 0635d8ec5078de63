//! See [`taupe_fuzz::c_surface`].

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| taupe_fuzz::c_surface(data));

#[cfg(not(fuzzing))]
fn main() {}
