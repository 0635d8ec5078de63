//! ML-KEM with private keys in their expanded encoding, which some vectors have.
//! The trait takes only seeds, so this goes to the libraries beneath it.

use taupe_crypto::KemParameters;

/// The shared secret of an expanded key and a ciphertext, or `None` if either is
/// refused.
type Decapsulate = fn(KemParameters, &[u8], &[u8]) -> Option<Vec<u8>>;

/// Each library by its name.
pub(crate) const LIBRARIES: &[(&str, Decapsulate)] = &[
    #[cfg(feature = "aws-lc")]
    ("aws-lc", aws_lc),
    ("ml-kem", ml_kem),
];

#[cfg(feature = "aws-lc")]
fn aws_lc(parameters: KemParameters, key: &[u8], ciphertext: &[u8]) -> Option<Vec<u8>> {
    use aws_lc_rs::kem::{DecapsulationKey, ML_KEM_512, ML_KEM_768, ML_KEM_1024};
    let algorithm = match parameters {
        KemParameters::MlKem512 => &ML_KEM_512,
        KemParameters::MlKem768 => &ML_KEM_768,
        KemParameters::MlKem1024 => &ML_KEM_1024,
    };
    let key = DecapsulationKey::new(algorithm, key).ok()?;
    let shared = key.decapsulate(ciphertext.into()).ok()?;
    Some(shared.as_ref().to_vec())
}

fn ml_kem(parameters: KemParameters, key: &[u8], ciphertext: &[u8]) -> Option<Vec<u8>> {
    #[allow(deprecated, reason = "Taupe takes seeds alone; these vectors do not")]
    fn with<K>(key: &[u8], ciphertext: &[u8]) -> Option<Vec<u8>>
    where
        K: ml_kem::ExpandedKeyEncoding + ml_kem::Decapsulate,
    {
        let key = K::from_expanded_bytes(key.try_into().ok()?).ok()?;
        let shared = key.decapsulate_slice(ciphertext).ok()?;
        Some(shared.to_vec())
    }
    match parameters {
        KemParameters::MlKem512 => with::<ml_kem::DecapsulationKey512>(key, ciphertext),
        KemParameters::MlKem768 => with::<ml_kem::DecapsulationKey768>(key, ciphertext),
        KemParameters::MlKem1024 => with::<ml_kem::DecapsulationKey1024>(key, ciphertext),
    }
}
