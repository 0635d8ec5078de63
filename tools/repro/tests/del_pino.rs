//! Handshakes that authenticate by signature, with Ed25519 instead of Rainbow, which is not built
//! by default.

mod common;

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use common::{LABEL, assert_agreed, random, refuses_changes, shake};
use taupe_crypto::AWS_LC;
use taupe_repro::del_pino::{DelPino, Scheme};
use taupe_repro::pke::TKYBER512;
use taupe_repro::{End, Error, Initiator, Responder};

enum Ed25519 {}

impl Scheme for Ed25519 {
    type PrivateKey = Ed25519KeyPair;
    type PublicKey = Vec<u8>;

    const SIGNATURE_LEN: usize = 64;

    fn sign(key: &Ed25519KeyPair, message: &[u8]) -> Vec<u8> {
        key.sign(message).as_ref().to_vec()
    }

    fn verify(key: &Vec<u8>, message: &[u8], signature: &[u8]) -> bool {
        let key = UnparsedPublicKey::new(&ED25519, key);
        key.verify(message, signature).is_ok()
    }
}

fn private(seed: u8) -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap()
}

fn public(seed: u8) -> Vec<u8> {
    private(seed).public_key().as_ref().to_vec()
}

/// Creates an end that signs as `signer`, claims to be `local` and knows `remote`.
fn end(signer: u8, local: u8, remote: u8) -> End {
    let authentication = DelPino::<Ed25519> {
        private: private(signer),
        local: public(local),
        remote: public(remote),
    };
    End::new(&AWS_LC, TKYBER512, Box::new(authentication), None)
}

#[test]
fn both_ends_agree() {
    let exchange = shake(&[end(1, 1, 2), end(2, 2, 1)]);
    // Ed25519 signatures are 2 bytes shorter than the published ones of 66 bytes.
    assert_eq!(exchange.initiation.len(), 980);
    assert_eq!(exchange.response.len(), 732);
    assert_agreed(&exchange.sessions);
}

#[test]
fn changed_messages_are_refused() {
    let ends = [end(1, 1, 2), end(2, 2, 1)];
    refuses_changes(&ends, [&public(1), &public(2)], 1);
}

/// The published responder continues after a bad signature: anyone who knows both public keys can
/// impersonate the initiator.
#[test]
fn a_bad_signature_is_refused_by_both_ends() {
    let (impostor, responder) = (end(3, 1, 2), end(2, 2, 1));
    let (_, initiation) = Initiator::start(&impostor, 1, LABEL, &mut random(1));
    let refused = Responder::accept(&responder, &initiation).err();
    assert_eq!(refused, Some(Error::Signature));

    let (initiator, impostor) = (end(1, 1, 2), end(3, 2, 1));
    let (state, initiation) = Initiator::start(&initiator, 1, LABEL, &mut random(1));
    let taken = Responder::accept(&impostor, &initiation).unwrap();
    let (response, _) = taken.respond(2, &mut random(2));
    let refused = state.finish(&initiator, &response).err();
    assert_eq!(refused, Some(Error::Signature));
}
