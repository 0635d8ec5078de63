//! Suites of hybrid handshakes.

use taupe_crypto::KemParameters;

/// A hybrid handshake, by what it is made of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Suite {
    /// An ephemeral ML-KEM-512 key beside X25519: protects what is recorded today, while
    /// only X25519 says who the peers are.
    Light = 1,
    /// Static and ephemeral keys of ML-KEM-512 beside X25519.
    Hybrid512 = 2,
    /// Static and ephemeral keys of ML-KEM-768 beside X25519.
    Hybrid768 = 3,
}

impl Suite {
    /// Every suite.
    pub const ALL: [Self; 3] = [Self::Light, Self::Hybrid512, Self::Hybrid768];

    /// The name that people know it by.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Light => "hybrid-light",
            Self::Hybrid512 => "hybrid-512",
            Self::Hybrid768 => "hybrid-768",
        }
    }

    /// The parameter set of its KEM keys.
    #[must_use]
    pub const fn parameters(self) -> KemParameters {
        match self {
            Self::Light | Self::Hybrid512 => KemParameters::MlKem512,
            Self::Hybrid768 => KemParameters::MlKem768,
        }
    }

    /// Whether peers have static KEM keys, so that messages have two parts.
    #[must_use]
    pub const fn has_static_keys(self) -> bool {
        !matches!(self, Self::Light)
    }

    /// What the chaining key begins with: one string for each suite, so that nothing of one
    /// means anything in another.
    #[must_use]
    pub const fn construction(self) -> &'static [u8] {
        match self {
            Self::Light => b"Noise_IKpsk1+psk2_25519+MLKEM512_ChaChaPoly_BLAKE2s hybrid-light",
            Self::Hybrid512 => b"Noise_IKpsk1+psk2_25519+MLKEM512_ChaChaPoly_BLAKE2s hybrid-512",
            Self::Hybrid768 => b"Noise_IKpsk1+psk2_25519+MLKEM768_ChaChaPoly_BLAKE2s hybrid-768",
        }
    }
}
