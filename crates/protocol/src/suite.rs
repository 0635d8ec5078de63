//! Suites of hybrid handshakes.

use taupe_crypto::KemParameters;

/// Suite of a hybrid handshake: the key types it combines.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Suite {
    /// An ephemeral ML-KEM-512 key beside X25519. Protects recorded traffic from later
    /// decryption; only X25519 authenticates the peers.
    Light = 1,
    /// Static and ephemeral ML-KEM-512 keys beside X25519.
    Hybrid512 = 2,
    /// Static and ephemeral ML-KEM-768 keys beside X25519.
    Hybrid768 = 3,
}

impl Suite {
    /// Every suite.
    pub const ALL: [Self; 3] = [Self::Light, Self::Hybrid512, Self::Hybrid768];

    /// Returns the name used in files and output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Light => "hybrid-light",
            Self::Hybrid512 => "hybrid-512",
            Self::Hybrid768 => "hybrid-768",
        }
    }

    /// Returns the parameter set of the suite's KEM keys.
    #[must_use]
    pub const fn parameters(self) -> KemParameters {
        match self {
            Self::Light | Self::Hybrid512 => KemParameters::MlKem512,
            Self::Hybrid768 => KemParameters::MlKem768,
        }
    }

    /// Checks whether peers have static KEM keys. Messages of such a suite have two parts.
    #[must_use]
    pub const fn has_static_keys(self) -> bool {
        !matches!(self, Self::Light)
    }

    /// Returns the string that the chaining key is initialised with. It differs for each suite,
    /// so that keys and messages of one suite are invalid in every other.
    #[must_use]
    pub const fn construction(self) -> &'static [u8] {
        match self {
            Self::Light => b"Noise_IKpsk1+psk2_25519+MLKEM512_ChaChaPoly_BLAKE2s hybrid-light",
            Self::Hybrid512 => b"Noise_IKpsk1+psk2_25519+MLKEM512_ChaChaPoly_BLAKE2s hybrid-512",
            Self::Hybrid768 => b"Noise_IKpsk1+psk2_25519+MLKEM768_ChaChaPoly_BLAKE2s hybrid-768",
        }
    }
}
