//! Handshakes that withstand quantum computers: docs/post-quantum.md is their specification.

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

    /// The suite between peers whose static ML-KEM keys are of `parameters`, or who have none.
    #[must_use]
    pub const fn of(parameters: Option<KemParameters>) -> Self {
        match parameters {
            None => Self::Light,
            Some(KemParameters::MlKem512) => Self::Hybrid512,
            Some(KemParameters::MlKem768) => Self::Hybrid768,
        }
    }
}
