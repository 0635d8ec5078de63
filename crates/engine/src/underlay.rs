//! The network that carries the datagrams of a device, as its threads know it.

mod changes;
#[cfg(all(test, target_arch = "x86_64"))]
mod model;
mod sources;
#[cfg(test)]
mod tests;

pub(crate) use changes::Changes;
pub(crate) use sources::{Source, Sources};

/// The locks and atomics of the modules that `model` compiles with loom's.
mod sync {
    pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
    pub(super) use std::sync::{Mutex, MutexGuard};
}
