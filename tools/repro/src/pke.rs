//! K-PKE (FIPS 203 §5; Kyber, round 3, §1.2): the public-key encryption inside Kyber and ML-KEM,
//! with their parameters and others.
//!
//! **For comparison only.** K-PKE alone is no secure KEM: it is secure only against attackers who
//! cannot have ciphertexts decrypted. Use a key pair for one message only.
//!
//! [`Parameters`] determine the number of polynomials in a key, the width of the noise, and the
//! number of bits to which a ciphertext is rounded. More rounding makes the ciphertext shorter and
//! decryption failures more frequent, as in [`TKYBER512`].
//!
//! Noise polynomials on the stack of a running operation are not erased from memory.

mod encode;
mod ring;
mod sample;

pub use sample::Eta;
pub(crate) use sample::sha3_512;

use crate::error::Error;
use ring::{Multiplicand, Poly, inner_product};
use sample::{noise, uniform};
use taupe_crypto::Secret;
use zeroize::Zeroizing;

/// Bytes of a polynomial that is not rounded.
const POLY_LEN: usize = 384;

/// A parameter set. The noise of a ciphertext is ±2 in each (η₂).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    rank: u8,
    eta1: Eta,
    du: u8,
    dv: u8,
}

/// Kyber-512 and ML-KEM-512.
pub const KYBER512: Parameters = Parameters::new(2, Eta::Three, 10, 4);

/// Kyber-768 and ML-KEM-768.
pub const KYBER768: Parameters = Parameters::new(3, Eta::Two, 10, 4);

/// Kyber-1024 and ML-KEM-1024.
pub const KYBER1024: Parameters = Parameters::new(4, Eta::Two, 11, 5);

/// “Tweaked” Kyber-512 (Kudelski Security, 2021): a ciphertext of 608 bytes instead of 768, with
/// one decryption failure in 2.6 million.
pub const TKYBER512: Parameters = Parameters::new(2, Eta::Three, 8, 3);

impl Parameters {
    /// Creates a set with `rank` (k) polynomials and noise up to `eta1` in keys, rounded to `du`
    /// and `dv` bits in ciphertexts.
    ///
    /// # Panics
    ///
    /// If there are no or more than 4 polynomials, or if coefficients are rounded to fewer than 1
    /// or more than 11 bits.
    #[must_use]
    pub const fn new(rank: u8, eta1: Eta, du: u8, dv: u8) -> Self {
        assert!(rank >= 1 && rank <= 4, "one to four polynomials");
        assert!(du >= 1 && du <= 11 && dv >= 1 && dv <= 11, "1 to 11 bits");
        Self { rank, eta1, du, dv }
    }

    /// Returns the length of a public key in bytes.
    #[must_use]
    pub const fn public_key_len(&self) -> usize {
        POLY_LEN * self.rank as usize + 32
    }

    /// Returns the length of a ciphertext in bytes.
    #[must_use]
    pub const fn ciphertext_len(&self) -> usize {
        32 * (self.rank as usize * self.du as usize + self.dv as usize)
    }
}

/// Derivation of a key pair's seeds from 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seeding {
    /// SHA3-512 of the bytes: Kyber, round 3.
    Round3,
    /// SHA3-512 of the bytes and of k, the number of polynomials: FIPS 203.
    Fips203,
}

/// A private key, zeroised on drop.
pub struct PrivateKey {
    parameters: Parameters,
    secret: Zeroizing<Vec<Multiplicand>>,
}

/// A public key, with its matrix.
pub struct PublicKey {
    parameters: Parameters,
    /// t: the transforms of the key.
    vector: Vec<Poly>,
    /// Â transposed, row by row: expanded from the key's seed.
    matrix: Vec<Poly>,
}

/// Creates a key pair from 32 uniformly random bytes (FIPS 203, algorithm 13): the private key, and
/// the encoded public key.
#[must_use]
pub fn key_pair(
    parameters: &Parameters,
    seeding: Seeding,
    random: &Secret<32>,
) -> (PrivateKey, Vec<u8>) {
    let seeds = match seeding {
        Seeding::Round3 => sha3_512(&[random.expose()]),
        Seeding::Fips203 => sha3_512(&[random.expose(), &[parameters.rank]]),
    };
    let [public_seed, noise_seed] = &*seeds;
    let rank = parameters.rank;

    let secret = multiplicands(rank, parameters.eta1, noise_seed);
    let mut public = Vec::with_capacity(parameters.public_key_len());
    for i in 0..rank {
        let row: Vec<_> = (0..rank).map(|j| uniform(public_seed, [j, i])).collect();
        let mut t = inner_product(row.iter(), &secret);
        t.restore_product();
        let mut error = Zeroizing::new(noise(parameters.eta1, noise_seed, rank + i));
        error.transform();
        t.add(&error);
        t.normalise();
        encode::write_whole(&t, &mut public);
    }
    public.extend_from_slice(public_seed);
    let private = PrivateKey {
        parameters: *parameters,
        secret,
    };
    (private, public)
}

impl PublicKey {
    /// Reads a received key, and expands its seed to the matrix.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], or [`Error::Modulus`] for a coefficient that is not reduced (FIPS 203
    /// §7.2), which round 3 of Kyber accepts.
    pub fn read(parameters: &Parameters, bytes: &[u8]) -> Result<Self, Error> {
        Error::check_length("the Kyber key", bytes, parameters.public_key_len())?;
        let (polys, seed) = bytes
            .split_last_chunk()
            .expect("the length was checked: a seed is at the end");
        let vector: Vec<_> = polys
            .chunks_exact(POLY_LEN)
            .map(encode::read_whole)
            .collect();
        if !vector.iter().all(encode::is_reduced) {
            return Err(Error::Modulus);
        }
        let rank = parameters.rank;
        let places = (0..rank).flat_map(|i| (0..rank).map(move |j| [i, j]));
        Ok(Self {
            parameters: *parameters,
            vector,
            matrix: places.map(|place| uniform(seed, place)).collect(),
        })
    }

    /// Encrypts 32 bytes (FIPS 203, algorithm 14) with 32 uniformly random `coins`, which are used
    /// once.
    #[must_use]
    pub fn encrypt(&self, message: &Secret<32>, coins: &Secret<32>) -> Vec<u8> {
        let Parameters { rank, du, dv, .. } = self.parameters;
        let mut ciphertext = Vec::with_capacity(self.parameters.ciphertext_len());
        let blinding = multiplicands(rank, self.parameters.eta1, coins.expose());

        for (i, row) in (0..).zip(self.matrix.chunks_exact(rank.into())) {
            let mut u = inner_product(row.iter(), &blinding);
            u.invert_product();
            u.add(&noise(Eta::Two, coins.expose(), rank + i));
            u.normalise();
            encode::write_rounded(du, &u, &mut ciphertext);
        }

        let mut v = Zeroizing::new(inner_product(self.vector.iter(), &blinding));
        v.invert_product();
        v.add(&noise(Eta::Two, coins.expose(), 2 * rank));
        v.add(&Zeroizing::new(encode::read_rounded(1, message.expose())));
        v.normalise();
        encode::write_rounded(dv, &v, &mut ciphertext);
        ciphertext
    }
}

impl PrivateKey {
    /// Reads the bytes of [`to_bytes`](Self::to_bytes).
    ///
    /// # Errors
    ///
    /// [`Error::Length`] or [`Error::Modulus`].
    pub fn read(parameters: &Parameters, bytes: &[u8]) -> Result<Self, Error> {
        let expected = POLY_LEN * usize::from(parameters.rank);
        Error::check_length("the private Kyber key", bytes, expected)?;
        let mut secret = Zeroizing::new(Vec::with_capacity(parameters.rank.into()));
        for bytes in bytes.chunks_exact(POLY_LEN) {
            let mut poly = Zeroizing::new(encode::read_whole(bytes));
            if !encode::is_reduced(&poly) {
                return Err(Error::Modulus);
            }
            poly.centre();
            secret.push(Multiplicand::new(&poly));
        }
        Ok(Self {
            parameters: *parameters,
            secret,
        })
    }

    /// Returns the key in the encoding of FIPS 203.
    #[must_use]
    pub fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        let len = POLY_LEN * self.secret.len();
        let mut bytes = Zeroizing::new(Vec::with_capacity(len));
        for multiplicand in self.secret.iter() {
            let mut poly = Zeroizing::new(multiplicand.poly());
            poly.normalise();
            encode::write_whole(&poly, &mut bytes);
        }
        bytes
    }

    /// Decrypts a ciphertext (FIPS 203, algorithm 15). It cannot detect a wrong message.
    ///
    /// # Errors
    ///
    /// [`Error::Length`]; the length is public.
    pub fn decrypt(&self, ciphertext: &[u8]) -> Result<Secret<32>, Error> {
        let Parameters { rank, du, dv, .. } = self.parameters;
        let expected = self.parameters.ciphertext_len();
        Error::check_length("the Kyber ciphertext", ciphertext, expected)?;
        let poly_len = 32 * usize::from(du);
        let (u, v) = ciphertext.split_at(usize::from(rank) * poly_len);

        let u: Vec<_> = u
            .chunks_exact(poly_len)
            .map(|bytes| {
                let mut u = encode::read_rounded(du, bytes);
                u.transform();
                u
            })
            .collect();
        let mut message = Zeroizing::new(inner_product(u.iter(), &self.secret));
        message.invert_product();
        message.subtract_from(&encode::read_rounded(dv, v));
        message.normalise();

        let mut bytes = Zeroizing::new(Vec::with_capacity(32));
        encode::write_rounded(1, &message, &mut bytes);
        let mut secret = Secret::zeroed();
        secret.expose_mut().copy_from_slice(&bytes);
        Ok(secret)
    }
}

/// Returns the transforms of `rank` noise polynomials, numbered from 0.
fn multiplicands(rank: u8, eta: Eta, seed: &[u8; 32]) -> Zeroizing<Vec<Multiplicand>> {
    let polys = (0..rank).map(|number| {
        let mut poly = Zeroizing::new(noise(eta, seed, number));
        poly.transform();
        Multiplicand::new(&poly)
    });
    Zeroizing::new(polys.collect())
}
