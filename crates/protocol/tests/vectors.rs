//! The handshake against published vectors and an independent implementation.
//!
//! - The Noise vector `Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s` of the cacophony project, as
//!   shipped in the crate snow 0.10.0. Its prologue and payloads differ from those that WireGuard
//!   fixes, so that a generic Noise state made of the same primitives runs it.
//! - The handshake of this crate, and a complete device, against snow, an independent
//!   implementation of Noise: byte for byte and in both roles.

mod common;

use snow::{Builder, HandshakeState, StatelessTransportState};
use taupe_protocol::crypto::{Packet, Provider, Secret};
use taupe_protocol::key::{PresharedKey, PrivateKey, PublicKey};
use taupe_protocol::message::{DATA_HEADER_LEN, Kind, data_header};
use taupe_protocol::testing::noise::{
    Claim, InitiationFields, Initiator, Precomputed, ResponseFields, StaticKeys, TransportKeys,
};
use taupe_protocol::time::Tai64N;

use common::packets::ipv4;
use common::raw::{chunk, stamp_for, word};
use common::{RAW_INNER, label, private_key, with_stranger};

const NAME: &str = "Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s";
const PROLOGUE: &[u8] = b"WireGuard v1 zx2c4 Jason@zx2c4.com";

/// Noise's CipherState and SymmetricState (Noise revision 34 §5.1, §5.2), written as in the
/// specification.
struct Symmetric {
    crypto: &'static Provider,
    chaining_key: [u8; 32],
    hash: [u8; 32],
    key: Option<[u8; 32]>,
    nonce: u64,
}

impl Symmetric {
    fn new(crypto: &'static Provider, prologue: &[u8], responder: &[u8; 32]) -> Self {
        // The protocol name is longer than a hash, so it is hashed.
        let hash = crypto.hash.hash(&[NAME.as_bytes()]);
        let mut state = Self {
            crypto,
            chaining_key: hash,
            hash,
            key: None,
            nonce: 0,
        };
        state.mix_hash(prologue);
        state.mix_hash(responder);
        state
    }

    fn mix_hash(&mut self, data: &[u8]) {
        self.hash = self.crypto.hash.hash(&[&self.hash, data]);
    }

    fn hkdf(&self, input: &[u8]) -> [[u8; 32]; 3] {
        let hmac = |key: &[u8], parts: &[&[u8]]| *self.crypto.hash.hmac(key, parts).expose();
        let secret = hmac(&self.chaining_key, &[input]);
        let one = hmac(&secret, &[&[1]]);
        let two = hmac(&secret, &[&one, &[2]]);
        let three = hmac(&secret, &[&two, &[3]]);
        [one, two, three]
    }

    fn mix_key(&mut self, input: &[u8]) {
        let [chaining_key, key, _] = self.hkdf(input);
        self.chaining_key = chaining_key;
        self.key = Some(key);
        self.nonce = 0;
    }

    fn mix_dh(&mut self, private: &[u8; 32], public: &[u8; 32]) {
        let shared = self.crypto.dh.agree(private, public).expect("a good key");
        self.mix_key(shared.expose());
    }

    fn mix_key_and_hash(&mut self, input: &[u8]) {
        let [chaining_key, hash, key] = self.hkdf(input);
        self.chaining_key = chaining_key;
        self.mix_hash(&hash);
        self.key = Some(key);
        self.nonce = 0;
    }

    /// The token `e`, which a handshake with preshared keys mixes twice (Noise revision 34 §9.2).
    fn mix_ephemeral(&mut self, public: &[u8; 32]) {
        self.mix_hash(public);
        self.mix_key(public);
    }

    fn encrypt(&mut self, plaintext: &[u8]) -> Vec<u8> {
        let key = Secret::new(self.key.expect("a key has been mixed"));
        let mut data = plaintext.to_vec();
        data.extend_from_slice(&[0; 16]);
        self.crypto
            .aead
            .seal_with(&key, self.nonce, &self.hash, &mut data);
        self.nonce += 1;
        self.mix_hash(&data);
        data
    }

    fn split(&self) -> [[u8; 32]; 2] {
        let [one, two, _] = self.hkdf(&[]);
        [one, two]
    }
}

fn hex<const N: usize>(text: &str) -> [u8; N] {
    unhex(text).try_into().expect("the length fits")
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(&text[i..i + 2], 16).expect("hex"))
        .collect()
}

/// Payload and ciphertext of each message.
const MESSAGES: [(&str, &str); 6] = [
    (
        "4c756477696720766f6e204d69736573",
        "ca35def5ae56cec33dc2036731ab14896bc4c75dbb07a61f879f8e3afa4c7944001e21de9f98ddd8e2ad57527207feb56253c9c94a9e496782ecfcb2a75fbcaf1b52948cc48daefe660c62119ab5000980c84831215f2441eba616548e832985464cf17e51ee93109008399a21f7e13f",
    ),
    (
        "4d757272617920526f746862617264",
        "95ebc60d2b1fa672c1f46a8aa265ef51bfe38e7ccb39ec5be34069f144808843cb765f2caef0751b8f007572dab0322217755c0632f365717edbf34d33e87a",
    ),
    (
        "462e20412e20486179656b",
        "8153ca9833bc3c1b91a7e66e5f4d4f5b59bf9e64c2f20d15f0bba7",
    ),
    (
        "4361726c204d656e676572",
        "07af0c9c86e1b4e80f36b04ff7688d51141af3debd0332f0a705ef",
    ),
    (
        "4a65616e2d426170746973746520536179",
        "6ab1467c0448cc78394494abaaf23afce0e234315d6e2624dcbfa8a21c1c4d073d",
    ),
    (
        "457567656e2042f6686d20766f6e2042617765726b",
        "dfc346c0d2296ae6cf1acf6f12b8456a1dba228cf8d8b774aacf1c47fc53aa80ebc7a4c292",
    ),
];

fn snow_builder<'a>(private: &'a [u8; 32], preshared: &'a [u8; 32]) -> Builder<'a> {
    Builder::new(NAME.parse().expect("a pattern snow knows"))
        .prologue(PROLOGUE)
        .and_then(|b| b.local_private_key(private))
        .and_then(|b| b.psk(2, preshared))
        .expect("each is set once")
}

fn snow_initiator(
    private: &PrivateKey,
    remote: &PublicKey,
    preshared: &[u8; 32],
    ephemeral: &[u8; 32],
) -> HandshakeState {
    snow_builder(private.expose(), preshared)
        .remote_public_key(&remote.0)
        .expect("set once")
        .fixed_ephemeral_key_for_testing_only(ephemeral)
        .build_initiator()
        .expect("everything is set")
}

fn snow_responder(
    private: &PrivateKey,
    preshared: &[u8; 32],
    ephemeral: &[u8; 32],
) -> HandshakeState {
    snow_builder(private.expose(), preshared)
        .fixed_ephemeral_key_for_testing_only(ephemeral)
        .build_responder()
        .expect("everything is set")
}

fn write(state: &mut HandshakeState, payload: &[u8]) -> Vec<u8> {
    let mut message = vec![0; 256];
    let length = state
        .write_message(payload, &mut message)
        .expect("its turn to write");
    message.truncate(length);
    message
}

fn read(state: &mut HandshakeState, message: &[u8]) -> Vec<u8> {
    let mut payload = vec![0; 256];
    let length = state
        .read_message(message, &mut payload)
        .expect("a valid message");
    payload.truncate(length);
    payload
}

fn initiation_fields(message: &[u8]) -> InitiationFields {
    InitiationFields {
        ephemeral: chunk(message, 0),
        static_key: chunk(message, 32),
        timestamp: chunk(message, 80),
    }
}

fn initiation_bytes(fields: &InitiationFields) -> Vec<u8> {
    let parts: [&[u8]; 3] = [&fields.ephemeral, &fields.static_key, &fields.timestamp];
    parts.concat()
}

fn seal(crypto: &Provider, key: &Secret<32>, counter: u64, plaintext: &[u8]) -> Vec<u8> {
    let mut data = plaintext.to_vec();
    data.extend_from_slice(&[0; 16]);
    let packet = Packet {
        counter,
        data: &mut data,
    };
    crypto.aead.key(key).seal(&mut [packet]);
    data
}

/// Asserts that both sides have the same keys for both directions, at several counters.
fn assert_same_keys(crypto: &Provider, ours: &TransportKeys, theirs: &StatelessTransportState) {
    for counter in [0, 1, 255, 1 << 32, u64::MAX - 8193] {
        for plaintext in [&b""[..], b"sixteen bytes...", &[7; 700]] {
            let mut sealed = vec![0; 1024];
            let length = theirs
                .write_message(counter, plaintext, &mut sealed)
                .expect("room for it");
            sealed.truncate(length);
            assert_eq!(seal(crypto, &ours.receive, counter, plaintext), sealed);
            let mut opened = vec![0; 1024];
            let length = theirs
                .read_message(
                    counter,
                    &seal(crypto, &ours.send, counter, plaintext),
                    &mut opened,
                )
                .expect("our message verifies");
            assert_eq!(&opened[..length], plaintext);
        }
    }
}

const LABEL: [u8; 12] = *b"@label at tm";
const PRESHARED: [[u8; 32]; 2] = [[0; 32], [0x42; 32]];

each_backend! {
    fn the_published_vector(crypto) {
        let psk = hex::<32>("54686973206973206d7920417573747269616e20706572737065637469766521");
        let prologue = unhex("4a6f686e2047616c74");
        let init_static = hex("e61ef9919cde45dd5f82166404bd08e38bceb5dfdfded0a34c8df7ed542214d1");
        let init_ephemeral = hex("893e28b9dc6ca8d611ab664754b8ceb7bac5117349a4439a6b0569da977c464a");
        let resp_static = hex("4a3acbfdb163dec651dfa3194dece676d437029c62a408b4c5ea9114246e4893");
        let resp_ephemeral = hex("bbdb4cdbd309f1a1f2e1456967fe288cadd6f712d65dc7b7793d5e63da6b375b");
        let public = |private: &[u8; 32]| crypto.dh.public(private);
        assert_eq!(
            public(&resp_static),
            hex("31e0303fd6418d2f8c0e78b91f22e8caed0fbe48656dcf4767e4834f701b8f62"),
        );

        // -> e, es, s, ss
        let mut state = Symmetric::new(crypto, &prologue, &public(&resp_static));
        state.mix_ephemeral(&public(&init_ephemeral));
        state.mix_dh(&init_ephemeral, &public(&resp_static));
        let mut message = public(&init_ephemeral).to_vec();
        message.extend(state.encrypt(&public(&init_static)));
        state.mix_dh(&init_static, &public(&resp_static));
        message.extend(state.encrypt(&unhex(MESSAGES[0].0)));
        assert_eq!(message, unhex(MESSAGES[0].1));

        // <- e, ee, se, psk
        state.mix_ephemeral(&public(&resp_ephemeral));
        state.mix_dh(&resp_ephemeral, &public(&init_ephemeral));
        state.mix_dh(&resp_ephemeral, &public(&init_static));
        state.mix_key_and_hash(&psk);
        let mut message = public(&resp_ephemeral).to_vec();
        message.extend(state.encrypt(&unhex(MESSAGES[1].0)));
        assert_eq!(message, unhex(MESSAGES[1].1));
        assert_eq!(
            state.hash,
            hex("f5191b875290abcd41347ac3622d9679688a7e980229cb937ef748336cfde0e5"),
        );

        // Transport: no associated data, one counter per direction.
        let keys = state.split().map(Secret::new);
        for (i, (payload, ciphertext)) in MESSAGES[2..].iter().enumerate() {
            let sealed = seal(crypto, &keys[i % 2], i as u64 / 2, &unhex(payload));
            assert_eq!(sealed, unhex(ciphertext), "message {}", i + 2);
        }
    }

    fn our_initiation_is_snows(crypto) {
        for preshared in PRESHARED {
            let local = StaticKeys::new(crypto, private_key(1));
            let remote = StaticKeys::new(crypto, private_key(2));
            let precomputed = Precomputed::new(crypto, &local, &remote.public).expect("good");
            let (initiator, fields) = Initiator::start(
                crypto,
                &local,
                &remote.public,
                &precomputed,
                Secret::new([0x11; 32]),
                Tai64N(LABEL),
            )
            .expect("good keys");
            let ours = initiation_bytes(&fields);
            let mut snow =
                snow_initiator(&local.private, &remote.public, &preshared, &[0x11; 32]);
            assert_eq!(ours, write(&mut snow, &LABEL));

            // Snow responds, and this crate finishes.
            let mut responder = snow_responder(&remote.private, &preshared, &[0x22; 32]);
            assert_eq!(read(&mut responder, &ours), LABEL);
            assert_eq!(responder.get_remote_static(), Some(&local.public.0[..]));
            let response = write(&mut responder, &[]);
            assert_eq!(response.len(), 48);
            let fields = ResponseFields {
                ephemeral: chunk(&response, 0),
                empty: chunk(&response, 32),
            };
            let keys = initiator
                .finish(crypto, &local, &PresharedKey::new(preshared), &fields)
                .expect("snow's response verifies");
            let transport = responder.into_stateless_transport_mode().expect("finished");
            assert_same_keys(crypto, &keys, &transport);
        }
    }

    fn our_response_is_snows(crypto) {
        for preshared in PRESHARED {
            let initiator = StaticKeys::new(crypto, private_key(1));
            let local = StaticKeys::new(crypto, private_key(2));
            let mut snow =
                snow_initiator(&initiator.private, &local.public, &preshared, &[0x11; 32]);
            let initiation = write(&mut snow, &LABEL);
            let ephemeral = Secret::new([0x22; 32]);
            let claim = Claim::open(crypto, &local, initiation_fields(&initiation), ephemeral)
                .expect("snow's initiation verifies");
            assert_eq!(*claim.public_key(), initiator.public);
            let precomputed = Precomputed::new(crypto, &local, &initiator.public).expect("good");
            let responder = claim.verify(crypto, &precomputed).expect("snow has the key");
            assert_eq!(responder.timestamp(), Tai64N(LABEL));
            let (fields, keys) = responder
                .respond(crypto, &PresharedKey::new(preshared))
                .expect("good keys");
            let ours = [&fields.ephemeral[..], &fields.empty].concat();

            let mut other = snow_responder(&local.private, &preshared, &[0x22; 32]);
            read(&mut other, &initiation);
            assert_eq!(ours, write(&mut other, &[]));
            assert_eq!(read(&mut snow, &ours), []);
            let transport = snow.into_stateless_transport_mode().expect("finished");
            assert_same_keys(crypto, &keys, &transport);
        }
    }

    fn a_device_initiates_to_snow(crypto) {
        for preshared in PRESHARED {
            let (mut net, raw) = with_stranger(crypto);
            let mut update = taupe_protocol::update::PeerUpdate::new(raw.keys.public);
            update.preshared_key = Some(PresharedKey::new(preshared));
            net.update(0, update);
            let packet = ipv4(net.nodes[0].inner, RAW_INNER, b"twelve bytes");
            net.send(0, &packet);
            let initiation = net.last(0, Kind::Initiation);
            let mut snow = snow_responder(&raw.keys.private, &preshared, &[0x33; 32]);
            let payload = read(&mut snow, &initiation.bytes[8..116]);
            assert_eq!(Tai64N(chunk(&payload, 0)), label(0));

            let mut response = vec![2, 0, 0, 0, 9, 9, 9, 9];
            response.extend_from_slice(&initiation.bytes[4..8]);
            response.extend(write(&mut snow, &[]));
            response.extend_from_slice(&[0; 32]);
            stamp_for(crypto, &net.nodes[0].public, &mut response);
            let transport = snow.into_stateless_transport_mode().expect("finished");
            net.inject(0, raw.address, &response);
            exchange(&mut net, &transport, word(&initiation.bytes, 4), &packet);
        }
    }

    fn a_device_answers_snow(crypto) {
        for preshared in PRESHARED {
            let (mut net, raw) = with_stranger(crypto);
            let mut update = taupe_protocol::update::PeerUpdate::new(raw.keys.public);
            update.preshared_key = Some(PresharedKey::new(preshared));
            net.update(0, update);
            let mut snow =
                snow_initiator(&raw.keys.private, &raw.remote, &preshared, &[0x33; 32]);
            let mut initiation = vec![1, 0, 0, 0, 9, 9, 9, 9];
            initiation.extend(write(&mut snow, &label(3).0));
            initiation.extend_from_slice(&[0; 32]);
            raw.stamp(&mut initiation);
            net.inject(0, raw.address, &initiation);
            let response = net.last(0, Kind::Response);
            assert_eq!(response.bytes[8..12], [9; 4]);
            assert_eq!(read(&mut snow, &response.bytes[12..60]), []);
            let transport = snow.into_stateless_transport_mode().expect("finished");
            let packet = ipv4(net.nodes[0].inner, RAW_INNER, b"twelve bytes");
            net.send(0, &packet);
            exchange(&mut net, &transport, word(&response.bytes, 4), &packet);
        }
    }
}

/// Exchanges one packet in each direction. The device's packet is staged, or sent on
/// confirmation.
fn exchange(net: &mut common::Net, snow: &StatelessTransportState, index: u32, packet: &[u8]) {
    let inner = ipv4(RAW_INNER, net.nodes[0].inner, b"twelve bytes");
    let mut message = vec![0; 16 + 32 + 16];
    taupe_protocol::testing::write_data_header(&mut message, index, 0);
    snow.write_message(0, &inner, &mut message[DATA_HEADER_LEN..])
        .expect("room for it");
    net.inject(0, common::stranger(), &message);
    assert_eq!(net.nodes[0].delivered, [inner]);

    let data = net.last(0, Kind::Data);
    let (receiver, counter) = data_header(&data.bytes).expect("data has a header");
    assert_eq!((receiver, counter), (0x0909_0909, 0));
    let mut opened = [0; 64];
    let length = snow
        .read_message(counter, &data.bytes[DATA_HEADER_LEN..], &mut opened)
        .expect("the device's message verifies");
    assert_eq!(&opened[..length], packet);
}
