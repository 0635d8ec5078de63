//! The guarantees of a batch, on every provider.

mod common;

use common::{Random, all_providers, with_room};
use taupe_crypto::{AeadKey, NotAuthentic, Packet, Secret, TAG_LEN};

/// Batches of every size up to this many packets.
const PACKETS: usize = if cfg!(miri) { 3 } else { 70 };
/// Plaintexts of up to this many bytes.
const PACKET_LEN: usize = if cfg!(miri) { 200 } else { 1500 };
/// Plaintexts of up to this many bytes may be encrypted together.
const SHORT: usize = 140;

#[test]
fn sealing_a_batch_equals_sealing_its_packets() {
    for provider in all_providers() {
        let mut random = Random(1);
        let key = provider.aead.key(&Secret::new(random.array()));
        for n in 0..=PACKETS {
            let (counters, plain) = batch(&mut random, n);

            let mut together = plain.clone();
            key.seal(&mut packets(&counters, &mut together));

            let mut single = plain.clone();
            for (counter, data) in counters.iter().zip(&mut single) {
                let counter = *counter;
                key.seal(&mut [Packet { counter, data }]);
            }
            assert_eq!(together, single, "{}: {n} packets", provider.name);

            for (sealed, plain) in together.iter().zip(&plain) {
                let text = ..plain.len() - TAG_LEN;
                let visible = plain.len() > 2 * TAG_LEN && sealed[text] == plain[text];
                assert!(!visible, "{}: not encrypted", provider.name);
                assert_ne!(sealed[plain.len() - TAG_LEN..], [0xaa; TAG_LEN]);
            }
        }
    }
}

#[test]
fn opening_a_batch_tells_exactly_which_packets_were_changed() {
    for provider in all_providers() {
        let mut random = Random(2);
        let key = provider.aead.key(&Secret::new(random.array()));
        for n in 0..=PACKETS {
            let (mut counters, plain) = batch(&mut random, n);
            let mut data = plain.clone();
            key.seal(&mut packets(&counters, &mut data));

            let untouched: Vec<bool> = (0..n)
                .map(|i| match random.below(4) {
                    0 => {
                        let bit = random.below(data[i].len() * 8);
                        data[i][bit / 8] ^= 1 << (bit % 8);
                        false
                    }
                    1 => {
                        counters[i] ^= 1 << random.below(64);
                        false
                    }
                    _ => true,
                })
                .collect();

            // Begins with what must not be the answer.
            let mut authentic: Vec<bool> = untouched.iter().map(|yes| !yes).collect();
            key.open(&mut packets(&counters, &mut data), &mut authentic);
            assert_eq!(authentic, untouched, "{}: {n} packets", provider.name);
            for i in (0..n).filter(|i| untouched[*i]) {
                let text = ..plain[i].len() - TAG_LEN;
                assert_eq!(data[i][text], plain[i][text], "{}", provider.name);
            }
        }
    }
}

#[test]
fn every_bit_of_a_sealed_packet_counts() {
    for provider in all_providers() {
        let key = Secret::new([3; 32]);
        let mut sealed = with_room(b"nineteen bytes long");
        provider.aead.seal_with(&key, 5, b"ad", &mut sealed);
        for bit in 0..sealed.len() * 8 {
            let mut changed = sealed.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let opened = provider.aead.open_with(&key, 5, b"ad", &mut changed);
            assert_eq!(opened, Err(NotAuthentic), "{}: bit {bit}", provider.name);
        }
    }
}

#[test]
fn key_counter_and_associated_data_all_count() {
    for provider in all_providers() {
        let aead = provider.aead;
        let key = Secret::new([3; 32]);
        let mut sealed = with_room(b"text");
        aead.seal_with(&key, 5, b"ad", &mut sealed);
        let open = |key: &Secret<32>, counter, ad: &[u8]| {
            let mut data = sealed.clone();
            aead.open_with(key, counter, ad, &mut data)
                .map(|()| data[..data.len() - TAG_LEN].to_vec())
        };
        assert_eq!(open(&key, 5, b"ad"), Ok(b"text".to_vec()));

        for bit in 0..256 {
            let mut other = key.clone();
            other.expose_mut()[bit / 8] ^= 1 << (bit % 8);
            let opened = open(&other, 5, b"ad");
            assert_eq!(opened, Err(NotAuthentic), "{}", provider.name);
        }
        for bit in 0..64 {
            let opened = open(&key, 5 ^ (1 << bit), b"ad");
            assert_eq!(opened, Err(NotAuthentic), "{}", provider.name);
        }
        for ad in [&b""[..], b"a", b"aD", b"ad\0", b"add"] {
            assert_eq!(open(&key, 5, ad), Err(NotAuthentic), "{}", provider.name);
        }
    }
}

#[test]
fn xchacha_key_nonce_and_associated_data_all_count() {
    for provider in all_providers() {
        let aead = provider.aead;
        let (key, nonce) = (Secret::new([3; 32]), [4; 24]);
        let mut sealed = with_room(b"sixteen byte mac");
        aead.xseal_with(&key, &nonce, b"mac1", &mut sealed);
        let open = |key: &Secret<32>, nonce: &[u8; 24], ad: &[u8]| {
            let mut data = sealed.clone();
            aead.xopen_with(key, nonce, ad, &mut data)
                .map(|()| data[..data.len() - TAG_LEN].to_vec())
        };
        let opened = open(&key, &nonce, b"mac1");
        assert_eq!(
            opened,
            Ok(b"sixteen byte mac".to_vec()),
            "{}",
            provider.name
        );

        for bit in 0..24 * 8 {
            let mut other = nonce;
            other[bit / 8] ^= 1 << (bit % 8);
            let opened = open(&key, &other, b"mac1");
            assert_eq!(opened, Err(NotAuthentic), "{}", provider.name);
        }
        let other = Secret::new([5; 32]);
        for (key, ad) in [(&other, &b"mac1"[..]), (&key, b"mac2"), (&key, b"")] {
            let opened = open(key, &nonce, ad);
            assert_eq!(opened, Err(NotAuthentic), "{}", provider.name);
        }
    }
}

#[test]
fn buffers_without_room_for_a_tag_are_refused_and_left_alone() {
    for provider in all_providers() {
        let aead = provider.aead;
        let (key, nonce) = (Secret::new([9; 32]), [9; 24]);
        let batch_key = aead.key(&key);
        for len in 0..TAG_LEN {
            let short = vec![0x5a; len];
            let unchanged = |operation: &dyn Fn(&mut [u8])| {
                let mut data = short.clone();
                operation(&mut data);
                assert_eq!(data, short, "{}: {len} bytes", provider.name);
            };
            unchanged(&|data| batch_key.seal(&mut [Packet { counter: 0, data }]));
            unchanged(&|data| aead.seal_with(&key, 0, b"ad", data));
            unchanged(&|data| aead.xseal_with(&key, &nonce, b"ad", data));

            let mut data = short.clone();
            assert!(!open_one(&*batch_key, &mut data), "{}", provider.name);
            assert_eq!(aead.open_with(&key, 0, b"ad", &mut data), Err(NotAuthentic));
            assert_eq!(
                aead.xopen_with(&key, &nonce, b"ad", &mut data),
                Err(NotAuthentic)
            );
        }

        // A tag and no text is a keepalive.
        let mut keepalive = with_room(&[]);
        batch_key.seal(&mut [Packet {
            counter: 0,
            data: &mut keepalive,
        }]);
        assert!(open_one(&*batch_key, &mut keepalive), "{}", provider.name);
    }
}

#[test]
fn more_flags_than_packets_and_more_packets_than_flags() {
    for provider in all_providers() {
        let key = provider.aead.key(&Secret::new([1; 32]));
        let counters = [10, 11, 12];
        let mut data = vec![with_room(b"a"), with_room(b"b"), with_room(b"c")];
        key.seal(&mut packets(&counters, &mut data));

        let mut flags = [true; 5];
        key.open(&mut packets(&counters, &mut data.clone()), &mut flags);
        assert_eq!(flags, [true, true, true, false, false], "{}", provider.name);

        let mut opened = data.clone();
        let mut flags = [false; 2];
        key.open(&mut packets(&counters, &mut opened), &mut flags);
        assert_eq!(flags, [true; 2], "{}", provider.name);
        assert_eq!(opened[2], data[2], "{}: not to be opened", provider.name);

        key.open(&mut packets(&counters, &mut data), &mut []);
        let mut flags = [true; 2];
        key.open(&mut [], &mut flags);
        assert_eq!(flags, [false; 2], "{}", provider.name);
    }
}

/// `n` counters and plaintexts with room for the tag, of any length.
fn batch(random: &mut Random, n: usize) -> (Vec<u64>, Vec<Vec<u8>>) {
    (0..n)
        .map(|_| {
            // Most are short: on some processors, these are encrypted together.
            let longest = [SHORT, SHORT, SHORT, PACKET_LEN][random.below(4)];
            let len = random.below(longest + 1);
            (random.next(), with_room(&random.bytes(len)))
        })
        .unzip()
}

fn packets<'a>(counters: &[u64], data: &'a mut [Vec<u8>]) -> Vec<Packet<'a>> {
    counters
        .iter()
        .zip(data)
        .map(|(counter, data)| Packet {
            counter: *counter,
            data,
        })
        .collect()
}

fn open_one(key: &dyn AeadKey, data: &mut [u8]) -> bool {
    let mut authentic = [true];
    key.open(&mut [Packet { counter: 0, data }], &mut authentic);
    authentic[0]
}
