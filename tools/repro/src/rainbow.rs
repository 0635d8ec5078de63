//! Rainbow, a signature scheme that was broken in 2022: its keys are recovered in 53 hours on a
//! laptop (Beullens 2022, eprint 2022/214).
//!
//! **For comparison only. It authenticates nobody.** It uses PQClean's implementation of Rainbow's
//! third round with “classic” keys; the public ones are 162 kB and 882 kB long. Private keys are
//! not zeroised, because the library copies them.

#![expect(
    deprecated,
    reason = "the library marks a broken scheme so, which is what is compared here"
)]

use crate::del_pino::{DelPino, Scheme};
use crate::handshake::End;
use crate::pke::TKYBER512;
use pqcrypto_rainbow::{rainbowiclassic, rainbowiiiclassic};
use pqcrypto_traits::sign::{DetachedSignature, PublicKey};
use std::sync::Arc;
use taupe_crypto::Provider;

/// Stack for the generation of level III keys, of which only a part is touched.
const STACK_LEN: usize = 800 << 20;

/// Rainbow at the lowest level (`rainbowI-classic`), with signatures of 66 bytes.
pub enum RainbowI {}

/// Rainbow at level 3 (`rainbowIII-classic`), with signatures of 164 bytes.
pub enum RainbowIii {}

/// A public key, shared because it is too large to move.
pub struct Key<K>(Arc<K>);

impl<K: PublicKey> AsRef<[u8]> for Key<K> {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl<K> Clone for Key<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

macro_rules! implement {
    ($scheme:ident, $library:ident) => {
        impl Scheme for $scheme {
            type PrivateKey = Box<$library::SecretKey>;
            type PublicKey = Key<$library::PublicKey>;

            const SIGNATURE_LEN: usize = $library::signature_bytes();

            fn sign(key: &Self::PrivateKey, message: &[u8]) -> Vec<u8> {
                $library::detached_sign(message, key).as_bytes().to_vec()
            }

            fn verify(key: &Self::PublicKey, message: &[u8], signature: &[u8]) -> bool {
                $library::DetachedSignature::from_bytes(signature).is_ok_and(|signature| {
                    $library::verify_detached_signature(&signature, message, &key.0).is_ok()
                })
            }
        }

        impl $scheme {
            /// Generates a key pair with the library's own randomness, which takes seconds at level
            /// III. `None` if there is no memory for a thread with the required stack.
            #[must_use]
            pub fn generate() -> Option<(Box<$library::SecretKey>, Key<$library::PublicKey>)> {
                let thread = std::thread::Builder::new().stack_size(STACK_LEN).spawn(|| {
                    let (public, private) = $library::keypair();
                    (Box::new(private), Key(Arc::new(public)))
                });
                thread.ok()?.join().ok()
            }

            /// Creates two ends that know each other.
            pub(crate) fn ends(crypto: &'static Provider) -> Option<[End; 2]> {
                let (one, other) = (Self::generate()?, Self::generate()?);
                let publics = [other.1.clone(), one.1.clone()];
                let mut publics = publics.into_iter();
                Some([one, other].map(|(private, local)| {
                    let remote = publics.next().expect("there is one for each");
                    let ends = DelPino::<Self> {
                        private,
                        local,
                        remote,
                    };
                    End::new(crypto, TKYBER512, Box::new(ends), None)
                }))
            }
        }
    };
}

implement!(RainbowI, rainbowiclassic);
implement!(RainbowIii, rainbowiiiclassic);
