//! The keys on other architectures than x86-64: there are none.

use crate::{Grouping, Packet};

/// A key for AVX2, which no processor of this architecture has.
pub enum NoAvx2Key {}

impl NoAvx2Key {
    /// Returns false: this is another architecture.
    #[must_use]
    pub fn is_supported() -> bool {
        false
    }

    /// Returns `None`: this is another architecture.
    #[must_use]
    pub fn new(_key: &[u8; 32]) -> Option<Self> {
        None
    }

    /// Cannot be called.
    pub fn seal(&self, _packets: &mut [Packet<'_>]) {
        match *self {}
    }

    /// Cannot be called.
    pub fn open(&self, _packets: &mut [Packet<'_>], _authentic: &mut [bool]) {
        match *self {}
    }
}

/// A key for AVX-512, which no processor of this architecture has.
pub enum NoAvx512Key {}

impl NoAvx512Key {
    /// Returns false: this is another architecture.
    #[must_use]
    pub fn is_supported() -> bool {
        false
    }

    /// Returns `None`: this is another architecture.
    #[must_use]
    pub fn new(_key: &[u8; 32], _grouping: Grouping) -> Option<Self> {
        None
    }

    /// Cannot be called.
    pub fn seal(&self, _packets: &mut [Packet<'_>]) {
        match *self {}
    }

    /// Cannot be called.
    pub fn open(&self, _packets: &mut [Packet<'_>], _authentic: &mut [bool]) {
        match *self {}
    }
}
