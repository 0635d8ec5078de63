//! A backend for each trait.

#[cfg(feature = "aws-lc")]
use crate::aws_lc::{AwsLc, Batches};
use crate::{Aead, Dh, Hash, Kem};

/// One backend for each trait, chosen at run time when a device is made.
pub struct Provider {
    /// A short name for logs and reports, such as `aws-lc`.
    pub name: &'static str,
    /// ChaCha20-Poly1305 and XChaCha20-Poly1305.
    pub aead: &'static dyn Aead,
    /// X25519.
    pub dh: &'static dyn Dh,
    /// BLAKE2s.
    pub hash: &'static dyn Hash,
    /// ML-KEM.
    pub kem: &'static dyn Kem,
}

/// ChaCha20-Poly1305, X25519 and, on Linux on x86-64 and AArch64, ML-KEM from
/// AWS-LC (assembly, needs a C compiler to build), the rest in Rust.
#[cfg(feature = "aws-lc")]
pub static AWS_LC: Provider = Provider {
    name: "aws-lc",
    ..aws_lc(&AwsLc {
        batches: Batches::Fastest,
    })
};

/// [`AWS_LC`], but without vector code beside AWS-LC's: every packet by itself, and X25519 by its
/// ladder.
#[cfg(feature = "aws-lc")]
pub static AWS_LC_SINGLE: Provider = Provider {
    name: "aws-lc-single",
    ..aws_lc(&AwsLc {
        batches: Batches::Single,
    })
};

/// [`AWS_LC`], but with packets grouped in AVX-512 also where one by one is faster: for tests.
#[cfg(all(feature = "aws-lc", feature = "testing"))]
pub static AWS_LC_GROUPED: Provider = Provider {
    name: "aws-lc-grouped",
    ..aws_lc(&AwsLc {
        batches: Batches::Grouped,
    })
};

/// [`AWS_LC`], but with AVX2 also if the processor has AVX-512: for tests.
#[cfg(all(feature = "aws-lc", feature = "testing"))]
pub static AWS_LC_AVX2: Provider = Provider {
    name: "aws-lc-avx2",
    ..aws_lc(&AwsLc {
        batches: Batches::Avx2,
    })
};

#[cfg(feature = "aws-lc")]
const fn aws_lc(backend: &'static AwsLc) -> Provider {
    Provider {
        name: "",
        aead: backend,
        dh: backend,
        #[cfg(target_arch = "x86_64")]
        hash: backend,
        #[cfg(not(target_arch = "x86_64"))]
        hash: &crate::hash::Blake2s,
        kem: &crate::aws_lc::AwsLcMlKem,
    }
}

/// Everything in Rust, without C or assembly.
#[cfg(feature = "portable")]
pub static PORTABLE: Provider = Provider {
    name: "portable",
    aead: &crate::portable::Portable,
    dh: &crate::portable::Portable,
    hash: &crate::hash::Blake2s,
    kem: &crate::kem::RustCryptoMlKem,
};

/// No cryptography: fast, deterministic stand-ins that protect nothing, for
/// simulation.
///
/// They still discriminate: a message sealed with one key, counter,
/// associated data and content opens with no other. What they do not give is
/// confidentiality, unforgeability, one-wayness, or resistance to anyone who
/// tries. Private keys and secrets can be computed from what is on the wire.
#[cfg(feature = "fake")]
pub static FAKE: Provider = Provider {
    name: "fake",
    aead: &crate::fake::Fake,
    dh: &crate::fake::Fake,
    hash: &crate::fake::Fake,
    kem: &crate::fake::Fake,
};

/// `AWS_LC` where it is built, else `PORTABLE`.
#[cfg(feature = "aws-lc")]
pub fn default_provider() -> &'static Provider {
    &AWS_LC
}

/// `AWS_LC` where it is built, else `PORTABLE`.
#[cfg(all(feature = "portable", not(feature = "aws-lc")))]
pub fn default_provider() -> &'static Provider {
    &PORTABLE
}

/// [`default_provider`], but without our own vector code (AVX-512, AVX2, NEON) and X25519 with
/// AVX-512: `AWS_LC_SINGLE` where it is built, else `PORTABLE`. Libraries beneath it choose
/// their instructions by themselves.
#[cfg(feature = "aws-lc")]
pub fn provider_without_avx512() -> &'static Provider {
    &AWS_LC_SINGLE
}

/// [`default_provider`], but without our own vector code (AVX-512, AVX2, NEON) and X25519 with
/// AVX-512: `AWS_LC_SINGLE` where it is built, else `PORTABLE`. Libraries beneath it choose
/// their instructions by themselves.
#[cfg(all(feature = "portable", not(feature = "aws-lc")))]
pub fn provider_without_avx512() -> &'static Provider {
    &PORTABLE
}
