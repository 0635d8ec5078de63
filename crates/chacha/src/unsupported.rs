//! The keys for instructions that no processor of this architecture has: there are none.

use crate::Packet;

/// Defines a key without values.
macro_rules! no_key {
    ($key:ident, $instructions:literal $(, $argument:ident: $kind:ty)?) => {
        #[doc = concat!("A key for ", $instructions, ", which no processor of this architecture has.")]
        pub enum $key {}

        impl $key {
            /// Returns false: this is another architecture.
            #[must_use]
            pub fn is_supported() -> bool {
                false
            }

            /// Returns `None`: this is another architecture.
            #[must_use]
            pub fn new(_key: &[u8; 32] $(, $argument: $kind)?) -> Option<Self> {
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
    };
}

#[cfg(not(target_arch = "x86_64"))]
no_key!(NoAvx2Key, "AVX2");
#[cfg(not(target_arch = "x86_64"))]
no_key!(NoAvx512Key, "AVX-512", _grouping: crate::Grouping);
#[cfg(not(target_arch = "aarch64"))]
no_key!(NoNeonKey, "NEON");
