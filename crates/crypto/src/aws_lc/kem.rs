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
pub(crate) struct AwsLcMlKem;

impl Kem for AwsLcMlKem {
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
        // The length is right, so that only the modulus check can fail.
        if key.is_reduced() {
            Ok(Box::new(key))
        } else {
            Err(InvalidKemInput::Modulus)
        }
    }
}

/// An object of AWS-LC's that is freed with this.
struct Owned<T: Object>(NonNull<T>);

/// An object on AWS-LC's heap.
trait Object {
    /// AWS-LC's function that gives up one reference to it.
    const FREE: unsafe extern "C" fn(*mut Self);
}

impl Object for EVP_PKEY {
    const FREE: unsafe extern "C" fn(*mut Self) = aws_lc_sys::EVP_PKEY_free;
}

/// The context of one operation, used by one thread.
impl Object for EVP_PKEY_CTX {
    const FREE: unsafe extern "C" fn(*mut Self) = aws_lc_sys::EVP_PKEY_CTX_free;
}

impl<T: Object> Owned<T> {
    /// Takes the result of a function that makes such an object, or null if it cannot.
    ///
    /// # Safety
    ///
    /// The reference, unless it is null, belongs to nobody else.
    unsafe fn new(object: *mut T) -> Self {
        Self(NonNull::new(object).expect(FAILED))
    }

    fn as_ptr(&self) -> *mut T {
        self.0.as_ptr()
    }
}

impl<T: Object> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: the reference is ours, as `new` demands, and is not used again.
        unsafe { (T::FREE)(self.as_ptr()) };
    }
}

// SAFETY: nothing in the object belongs to the thread that made it.
unsafe impl Send for Owned<EVP_PKEY> {}

// SAFETY: AWS-LC lets several threads use a key by functions that do not mutate it.
// Those here do not: a context adds a reference, which is documented not to count as
// mutating (`EVP_PKEY_up_ref`), and operations read the key through it.
unsafe impl Sync for Owned<EVP_PKEY> {}

/// A public key, or a pair if it came from a seed.
struct Key {
    parameters: KemParameters,
    key: Owned<EVP_PKEY>,
}

impl Key {
    fn from_seed(parameters: KemParameters, seed: &Secret<64>) -> Self {
        let context = key_generation(parameters);
        let seed = seed.expose();
        let mut seed_len = seed.len();
        let mut key = ptr::null_mut();
        // SAFETY: the context was made for this; it reads `seed_len` bytes at the
        // pointer, and `key` is where it puts a reference that is ours from then on.
        demand(unsafe {
            aws_lc_sys::EVP_PKEY_keygen_deterministic(
                context.as_ptr(),
                &raw mut key,
                seed.as_ptr(),
                &raw mut seed_len,
            )
        });
        // SAFETY: as above.
        let key = unsafe { Owned::new(key) };
        Self { parameters, key }
    }

    /// Makes a key from a public key of the right length, which is not checked further.
    fn from_public(parameters: KemParameters, bytes: &[u8]) -> Self {
        // SAFETY: it copies what the slice holds, and returns a reference that is
        // ours, or null.
        let key = unsafe {
            Owned::new(aws_lc_sys::EVP_PKEY_kem_new_raw_public_key(
                nid(parameters),
                bytes.as_ptr(),
                bytes.len(),
            ))
        };
        Self { parameters, key }
    }

    /// Returns whether the public key passes the modulus check (FIPS 203 §7.2).
    fn is_reduced(&self) -> bool {
        // SAFETY: the context is of a key that has its public part.
        unsafe { aws_lc_sys::EVP_PKEY_public_check(self.context().as_ptr()) == 1 }
    }

    fn context(&self) -> Owned<EVP_PKEY_CTX> {
        // SAFETY: it takes a reference to the key of its own, and no engine is
        // needed. What it returns is ours, or null.
        unsafe {
            Owned::new(aws_lc_sys::EVP_PKEY_CTX_new(
                self.key.as_ptr(),
                ptr::null_mut(),
            ))
        }
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
                self.context().as_ptr(),
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
                self.context().as_ptr(),
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

/// A context that can make keys.
fn key_generation(parameters: KemParameters) -> Owned<EVP_PKEY_CTX> {
    // SAFETY: the number is that of the KEMs, and no engine is needed. What it returns is
    // ours, or null.
    let context = unsafe {
        Owned::new(aws_lc_sys::EVP_PKEY_CTX_new_id(
            aws_lc_sys::EVP_PKEY_KEM,
            ptr::null_mut(),
        ))
    };
    // SAFETY: the context is of a KEM, and new.
    demand(unsafe { aws_lc_sys::EVP_PKEY_CTX_kem_set_params(context.as_ptr(), nid(parameters)) });
    // SAFETY: the context can make keys, as every one of a KEM can.
    demand(unsafe { aws_lc_sys::EVP_PKEY_keygen_init(context.as_ptr()) });
    context
}

/// AWS-LC's number of a parameter set.
const fn nid(parameters: KemParameters) -> c_int {
    match parameters {
        KemParameters::MlKem512 => aws_lc_sys::NID_MLKEM512,
        KemParameters::MlKem768 => aws_lc_sys::NID_MLKEM768,
        KemParameters::MlKem1024 => aws_lc_sys::NID_MLKEM1024,
    }
}

/// Every length is checked before, and implicit rejection is a success: what is left is a lack
/// of memory, or that AWS-LC is not as its documentation says.
const FAILED: &str = "AWS-LC has failed in an operation of ML-KEM whose inputs are right, for \
                      want of memory or by a defect";

fn demand(success: c_int) {
    assert!(success == 1, "{FAILED}");
}
