//! ML-KEM by AWS-LC, whose code for it is mlkem-native: assembly where the
//! processor has AVX2 and BMI2, or NEON, else C. It chooses at run time.
//!
//! `aws_lc_rs::kem` has safe functions, but they take neither a seed nor coins.
//!
//! A key is an object on AWS-LC's heap, which is cleared when it is freed.
//! mlkem-native clears its own stack. Only registers are not.

#![allow(unsafe_code)]

use crate::{
    DecapsulationKey, EncapsulationKey, InvalidKemInput, Kem, KemParameters, Secret, SharedSecret,
    kem::check_len,
};
use aws_lc_sys::{EVP_PKEY, EVP_PKEY_CTX};
use std::{
    ffi::c_int,
    ptr::{self, NonNull},
};

/// The backend.
pub(crate) struct MlKem;

impl Kem for MlKem {
    fn decapsulation_key(
        &self,
        parameters: KemParameters,
        seed: &Secret<64>,
    ) -> Box<dyn DecapsulationKey> {
        Box::new(Key::from_seed(parameters, seed))
    }

    fn encapsulation_key(
        &self,
        parameters: KemParameters,
        bytes: &[u8],
    ) -> Result<Box<dyn EncapsulationKey>, InvalidKemInput> {
        check_len(
            "the encapsulation key",
            bytes,
            parameters.encapsulation_key_len(),
        )?;
        let key = Key::from_public(parameters, bytes);
        // Of the right length, so that only the modulus check is left to fail.
        if key.is_reduced() {
            Ok(Box::new(key))
        } else {
            Err(InvalidKemInput::Modulus)
        }
    }
}

/// A public key, or a pair if it came from a seed.
struct Key {
    parameters: KemParameters,
    /// Ours, until it is dropped.
    key: NonNull<EVP_PKEY>,
}

// SAFETY: nothing in the object belongs to the thread that made it.
unsafe impl Send for Key {}

// SAFETY: AWS-LC lets several threads use a key by functions that do not mutate it.
// Those here do not: a context adds a reference, which is documented not to count as
// mutating (`EVP_PKEY_up_ref`), and operations read the key through it.
unsafe impl Sync for Key {}

impl Drop for Key {
    fn drop(&mut self) {
        // SAFETY: the reference is ours, and is not used again.
        unsafe { aws_lc_sys::EVP_PKEY_free(self.key.as_ptr()) };
    }
}

impl Key {
    fn from_seed(parameters: KemParameters, seed: &Secret<64>) -> Self {
        let context = Context::for_key_generation(parameters);
        let seed = seed.expose();
        let mut seed_len = seed.len();
        let mut key = ptr::null_mut();
        // SAFETY: the context was made for this; it reads `seed_len` bytes at the
        // pointer, and `key` is where it puts a reference that is ours from then on.
        demand(unsafe {
            aws_lc_sys::EVP_PKEY_keygen_deterministic(
                context.0.as_ptr(),
                &raw mut key,
                seed.as_ptr(),
                &raw mut seed_len,
            )
        });
        let key = NonNull::new(key).expect(NO_MEMORY);
        Self { parameters, key }
    }

    /// Of a public key of the right length, not checked any further.
    fn from_public(parameters: KemParameters, bytes: &[u8]) -> Self {
        // SAFETY: it copies what the slice holds, and returns a reference that is
        // ours, or null.
        let key = unsafe {
            aws_lc_sys::EVP_PKEY_kem_new_raw_public_key(
                nid(parameters),
                bytes.as_ptr(),
                bytes.len(),
            )
        };
        let key = NonNull::new(key).expect(NO_MEMORY);
        Self { parameters, key }
    }

    /// Whether the public key passes the modulus check (FIPS 203 §7.2).
    fn is_reduced(&self) -> bool {
        // SAFETY: the context is of a key that has its public part.
        unsafe { aws_lc_sys::EVP_PKEY_public_check(self.context().0.as_ptr()) == 1 }
    }

    fn context(&self) -> Context {
        // SAFETY: it takes a reference to the key of its own, and no engine is
        // needed.
        Context::new(unsafe { aws_lc_sys::EVP_PKEY_CTX_new(self.key.as_ptr(), ptr::null_mut()) })
    }
}

impl DecapsulationKey for Key {
    fn encapsulation_key(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.parameters.encapsulation_key_len()];
        let mut len = bytes.len();
        // SAFETY: it writes at most `len` bytes at the pointer, which the vector has.
        demand(unsafe {
            aws_lc_sys::EVP_PKEY_get_raw_public_key(
                self.key.as_ptr(),
                bytes.as_mut_ptr(),
                &raw mut len,
            )
        });
        bytes
    }

    fn decapsulate(&self, ciphertext: &[u8]) -> Result<SharedSecret, InvalidKemInput> {
        check_len(
            "the ciphertext",
            ciphertext,
            self.parameters.ciphertext_len(),
        )?;
        let mut shared = SharedSecret::zeroed();
        let output = shared.expose_mut();
        let mut output_len = output.len();
        // SAFETY: it writes at most `output_len` bytes at the first pointer and
        // reads the ciphertext, whose length it is told, at the second. They do not
        // overlap. The context is of a key that came from a seed, so that it has its
        // private part.
        demand(unsafe {
            aws_lc_sys::EVP_PKEY_decapsulate(
                self.context().0.as_ptr(),
                output.as_mut_ptr(),
                &raw mut output_len,
                ciphertext.as_ptr(),
                ciphertext.len(),
            )
        });
        Ok(shared)
    }
}

impl EncapsulationKey for Key {
    fn encapsulate(&self, coins: &Secret<32>) -> (Vec<u8>, SharedSecret) {
        let mut ciphertext = vec![0; self.parameters.ciphertext_len()];
        let mut ciphertext_len = ciphertext.len();
        let mut shared = SharedSecret::zeroed();
        let output = shared.expose_mut();
        let mut output_len = output.len();
        let coins = coins.expose();
        let mut coins_len = coins.len();
        // SAFETY: it writes at most so many bytes as it is told at the first two
        // pointers, and reads as many at the third. None overlap.
        demand(unsafe {
            aws_lc_sys::EVP_PKEY_encapsulate_deterministic(
                self.context().0.as_ptr(),
                ciphertext.as_mut_ptr(),
                &raw mut ciphertext_len,
                output.as_mut_ptr(),
                &raw mut output_len,
                coins.as_ptr(),
                &raw mut coins_len,
            )
        });
        (ciphertext, shared)
    }
}

/// What an operation is done with; of one thread, for one operation.
struct Context(NonNull<EVP_PKEY_CTX>);

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it is ours, and is not used again.
        unsafe { aws_lc_sys::EVP_PKEY_CTX_free(self.0.as_ptr()) };
    }
}

impl Context {
    fn new(context: *mut EVP_PKEY_CTX) -> Self {
        Self(NonNull::new(context).expect(NO_MEMORY))
    }

    fn for_key_generation(parameters: KemParameters) -> Self {
        // SAFETY: the number is that of the KEMs, and no engine is needed.
        let context = Self::new(unsafe {
            aws_lc_sys::EVP_PKEY_CTX_new_id(aws_lc_sys::EVP_PKEY_KEM, ptr::null_mut())
        });
        // SAFETY: the context is of a KEM, and new.
        demand(unsafe {
            aws_lc_sys::EVP_PKEY_CTX_kem_set_params(context.0.as_ptr(), nid(parameters))
        });
        // SAFETY: the context can make keys, as every one of a KEM can.
        demand(unsafe { aws_lc_sys::EVP_PKEY_keygen_init(context.0.as_ptr()) });
        context
    }
}

/// AWS-LC's number of a parameter set.
const fn nid(parameters: KemParameters) -> c_int {
    match parameters {
        KemParameters::MlKem512 => aws_lc_sys::NID_MLKEM512,
        KemParameters::MlKem768 => aws_lc_sys::NID_MLKEM768,
        KemParameters::MlKem1024 => aws_lc_sys::NID_MLKEM1024,
    }
}

/// Every length is checked before, and implicit rejection is a success, so that
/// nothing else is left that a call could fail by.
const NO_MEMORY: &str = "AWS-LC has no memory for an operation of ML-KEM";

fn demand(success: c_int) {
    assert!(success == 1, "{NO_MEMORY}");
}
