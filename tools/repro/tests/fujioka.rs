//! Handshakes that authenticate by KEM, and the message sizes of all variants.

mod common;

use common::{Exchange, INDICES, LABEL, assert_agreed, random, refuses_changes, repair, shake};
use sha3::{Digest, Sha3_512};
use taupe_crypto::{AWS_LC, KemParameters, Secret};
use taupe_repro::fujioka::KeyPair;
use taupe_repro::pke::{self, PublicKey, Seeding, TKYBER512};
use taupe_repro::variant::VARIANTS;
use taupe_repro::{End, Error, Initiator, Responder, published_preshared_key};

/// A key pair for K512+tK512.
fn key_pair(seed: u8) -> KeyPair {
    KeyPair::new(&AWS_LC, KemParameters::MlKem512, &Secret::new([seed; 64]))
}

fn end(local: KeyPair, remote: &[u8]) -> End {
    let fujioka = local.with(remote).unwrap();
    End::new(&AWS_LC, TKYBER512, Box::new(fujioka), None)
}

fn ends() -> ([End; 2], [Vec<u8>; 2]) {
    let publics = [1, 2].map(|seed| key_pair(seed).public().to_vec());
    let ends = [end(key_pair(1), &publics[1]), end(key_pair(2), &publics[0])];
    (ends, publics)
}

#[test]
fn messages_are_as_long_as_published() {
    let mut built = 0;
    for variant in VARIANTS {
        let published = variant.published;
        let payload: usize = published.messages.iter().sum();
        let printed = match variant.name {
            // Includes an IPv6 and a UDP header for each packet.
            "K+K" => payload + published.packets * 48,
            // The post prints 3172; the program sends 52 bytes less, a difference that headers do
            // not explain.
            "K512+tK512" => payload + 52,
            _ => payload,
        };
        assert_eq!(printed, published.traffic, "{}", variant.name);

        let Some(ends) = variant.ends(&AWS_LC, &mut random(0)) else {
            assert!(variant.warning.is_some(), "{}", variant.name);
            continue;
        };
        let lens = [ends[0].initiation_len(), ends[0].response_len()];
        assert_eq!(lens, published.messages, "{}", variant.name);
        let exchange = shake(&ends);
        let sent = [exchange.initiation.len(), exchange.response.len()];
        assert_eq!(sent, published.messages, "{}", variant.name);
        assert_agreed(&exchange.sessions);
        built += 1;
    }
    assert_eq!(built, if cfg!(feature = "rainbow") { 5 } else { 3 });
}

#[test]
fn changed_messages_are_refused() {
    let (ends, [one, other]) = ends();
    refuses_changes(&ends, [&one, &other], 11);
}

#[test]
fn an_unknown_initiator_is_refused() {
    let (ends, [_, responder]) = ends();
    let stranger = end(key_pair(3), &responder);
    let (_, initiation) = Initiator::start(&stranger, 1, LABEL, &mut random(1));
    let refused = Responder::accept(&ends[1], &initiation).err();
    assert_eq!(refused, Some(Error::Stranger));
}

#[test]
fn an_initiation_to_another_is_refused() {
    let (ends, [one, _]) = ends();
    let elsewhere = end(key_pair(3), &one);
    let (_, initiation) = Initiator::start(&ends[0], 1, LABEL, &mut random(1));
    let refused = Responder::accept(&elsewhere, &initiation).err();
    assert_eq!(refused, Some(Error::Mac));
}

#[test]
fn another_preshared_key_is_refused() {
    let (ends, [_, other]) = ends();
    let fujioka = key_pair(1).with(&other).unwrap();
    let preshared = Some(Secret::new([9; 32]));
    let one = End::new(&AWS_LC, TKYBER512, Box::new(fujioka), preshared);
    let (_, initiation) = Initiator::start(&one, 1, LABEL, &mut random(1));
    let refused = Responder::accept(&ends[1], &initiation).err();
    assert_eq!(refused, Some(Error::NotAuthentic));
}

/// An impostor without the long-term key can neither read the initiator's identity nor answer.
#[test]
fn an_initiation_to_another_with_a_right_mac_is_not_understood() {
    let (ends, [one, _]) = ends();
    let impostor = end(key_pair(3), &one);
    let (_, mut initiation) = Initiator::start(&ends[0], 1, LABEL, &mut random(1));
    repair(&mut initiation, key_pair(3).public());
    let refused = Responder::accept(&impostor, &initiation).err();
    assert_eq!(refused, Some(Error::NotAuthentic));
}

#[test]
fn a_response_to_another_handshake_is_refused() {
    let (ends, [one, _]) = ends();
    let Exchange {
        initiator,
        mut response,
        ..
    } = shake(&ends);
    let (second, _) = Initiator::start(&ends[0], 77, LABEL, &mut random(3));
    assert_eq!(
        second.finish(&ends[0], &response).err(),
        Some(Error::Receiver {
            actual: INDICES[0],
            expected: 77
        })
    );
    response[8..12].copy_from_slice(&77_u32.to_le_bytes());
    repair(&mut response, &one);
    let refused = second.finish(&ends[0], &response).err();
    assert_eq!(refused, Some(Error::NotAuthentic));
    // The rejected responses have changed nothing.
    response[8..12].copy_from_slice(&INDICES[0].to_le_bytes());
    repair(&mut response, &one);
    assert!(initiator.finish(&ends[0], &response).is_ok());
}

#[test]
fn a_message_of_the_other_kind_is_refused() {
    let (ends, [_, other]) = ends();
    let mut initiation = shake(&ends).initiation;
    initiation[0] = 2;
    repair(&mut initiation, &other);
    let refused = Responder::accept(&ends[1], &initiation).err();
    let expected = "initiation";
    assert_eq!(refused, Some(Error::Type { expected }));
}

#[test]
fn an_ephemeral_key_that_is_not_reduced_is_refused() {
    let parameters = TKYBER512;
    let (_, mut public) = pke::key_pair(&parameters, Seeding::Round3, &Secret::new([1; 32]));
    assert!(PublicKey::read(&parameters, &public).is_ok());
    public[0] = 0xff;
    public[1] |= 0x0f;
    let refused = PublicKey::read(&parameters, &public).err();
    assert_eq!(refused, Some(Error::Modulus));
}

/// Computes the key schedule of the published program line by line, from the secrets of both ends.
#[test]
fn the_key_schedule_is_the_published_one() {
    let hash = |parts: &[&[u8]]| AWS_LC.hash.hash(parts);
    let hmac = |key: &[u8], parts: &[&[u8]]| *AWS_LC.hash.hmac(key, parts).expose();
    let kdf = |key: [u8; 32], input: &[u8]| {
        let extracted = hmac(&key, &[input]);
        let first = hmac(&extracted, &[&[1]]);
        let second = hmac(&extracted, &[&first, &[2]]);
        let third = hmac(&extracted, &[&second, &[3]]);
        [first, second, third]
    };
    let seal = |key: [u8; 32], text: &[u8], ad: &[u8]| {
        let mut sealed = [text, &[0; 16]].concat();
        AWS_LC.aead.seal_with(&Secret::new(key), 0, ad, &mut sealed);
        sealed
    };
    let (ends, [spk_i, spk_r]) = ends();
    let exchange = shake(&ends);
    let psk = published_preshared_key(&AWS_LC, &spk_r, &spk_i);
    let psk = psk.expose();

    // Randomness of the initiator: for the ephemeral key, and the coins to S_r.
    let secret = |random: &mut dyn FnMut(&mut [u8])| {
        let mut secret = Secret::zeroed();
        random(secret.expose_mut());
        secret
    };
    let mut coins = random(1);
    let (_, epk) = pke::key_pair(&TKYBER512, Seeding::Round3, &secret(&mut coins));
    let encapsulate = |spk: &[u8], coins: &Secret<32>| {
        let key = AWS_LC.kem.encapsulation_key(KemParameters::MlKem512, spk);
        key.unwrap().encapsulate(coins)
    };
    let (ct1, shk1) = encapsulate(&spk_r, &secret(&mut coins));

    let c = hash(&[b"Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s"]);
    let h = hash(&[&c, b"WireGuard v1 zx2c4 Jason@zx2c4.com"]);
    let [c, ..] = kdf(c, &epk);
    let h = hash(&[&h, &spk_r]);
    let h = hash(&[&h, &epk]);
    let [c, k, _] = kdf(c, shk1.expose());
    let sealed_identity = seal(k, &hash(&[&spk_i]), &h);
    let h = hash(&[&h, &sealed_identity]);
    let [c, k, _] = kdf(c, psk);
    let [c, ..] = kdf(c, psk);
    let sealed_label = seal(k, &LABEL, &h);
    let h = hash(&[&h, &sealed_label]);
    let initiation = [
        &[1, 0, 0, 0],
        &INDICES[0].to_le_bytes()[..],
        &epk,
        &sealed_identity,
        &sealed_label,
        &ct1,
        &exchange.initiation[exchange.initiation.len() - 32..],
    ];
    assert_eq!(exchange.initiation, initiation.concat());

    // Randomness of the responder: coins to the ephemeral key, and to S_i.
    let mut coins = random(2);
    let stretched = Sha3_512::digest(secret(&mut coins).expose());
    let [m, r] = [0, 32].map(|at| Secret::new(stretched[at..at + 32].try_into().unwrap()));
    let ct2 = PublicKey::read(&TKYBER512, &epk).unwrap().encrypt(&m, &r);
    let shk2 = hash(&[m.expose()]);
    let (ct3, shk3) = encapsulate(&spk_i, &secret(&mut coins));

    let [c, ..] = kdf(c, &ct2);
    let [c, ..] = kdf(c, &shk2);
    let h = hash(&[&h, &ct2]);
    let [c, ..] = kdf(c, shk3.expose());
    let [c, tau, k] = kdf(c, psk);
    let h = hash(&[&h, &tau]);
    let response = [
        &[2, 0, 0, 0],
        &INDICES[1].to_le_bytes()[..],
        &INDICES[0].to_le_bytes(),
        &ct2,
        &ct3,
        &seal(k, &[], &h),
        &exchange.response[exchange.response.len() - 32..],
    ];
    assert_eq!(exchange.response, response.concat());

    let [send, receive, _] = kdf(c, &[]);
    assert_eq!(*exchange.sessions[0].send.expose(), send);
    assert_eq!(*exchange.sessions[0].receive.expose(), receive);
    assert_agreed(&exchange.sessions);
}
