//! Kyber of round 3, and its tweaked variant, compared with the published program's library: keys,
//! ciphertexts and secrets are equal bit by bit.

use sha3::{Digest, Sha3_512};
use taupe_crypto::{AWS_LC, Secret};
use taupe_repro::pke::{KYBER768, PublicKey, Seeding, TKYBER512, key_pair};

#[test]
fn keys_ciphertexts_and_secrets_are_those_of_the_published_library() {
    let mut count = 0;
    for line in include_str!("vectors/kyber-round3.txt").lines() {
        let mut fields = line.split(' ');
        let parameters = match fields.next().unwrap() {
            "K768" => KYBER768,
            "tK512" => TKYBER512,
            other => panic!("{other}"),
        };
        let mut next = || base16ct::lower::decode_vec(fields.next().unwrap()).unwrap();
        let seed = Secret::new(next().try_into().unwrap());
        let digest = Sha3_512::digest(next());
        let [message, coins] =
            [0, 32].map(|at| Secret::new(digest[at..at + 32].try_into().unwrap()));

        let (private, public) = key_pair(&parameters, Seeding::Round3, &seed);
        assert_eq!(public, next());
        let key = PublicKey::read(&parameters, &public).unwrap();
        let ciphertext = key.encrypt(&message, &coins);
        assert_eq!(ciphertext, next());
        let decrypted = private.decrypt(&ciphertext).unwrap();
        assert!(decrypted == message);
        assert_eq!(AWS_LC.hash.hash(&[decrypted.expose()])[..], next());
        count += 1;
    }
    assert_eq!(count, 4);
}
