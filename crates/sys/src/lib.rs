//! Safe wrappers for what an operating system makes unsafe or easy to get
//! wrong: clocks, randomness, memory, interfaces, namespaces, mounts, processes, signals,
//! descriptors that another program passed on. Each one names the fact about the kernel that it
//! rests on. Nothing here decides anything; that is its callers' part.

#![cfg(target_os = "linux")]

pub mod clock;
pub mod descriptor;
pub mod interface;
pub mod memory;
pub mod mounts;
pub mod namespace;
pub mod process;
pub mod random;
pub mod run_directory;
pub mod schedule;
pub mod signals;
