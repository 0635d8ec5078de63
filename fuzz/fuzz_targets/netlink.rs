//! See [`taupe_fuzz::netlink`].

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| taupe_fuzz::netlink(data));

#[cfg(not(fuzzing))]
fn main() {}
