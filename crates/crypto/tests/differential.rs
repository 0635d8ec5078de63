//! The two real providers against each other.
#![cfg(all(feature = "aws-lc", feature = "portable", not(miri)))]

mod common;

use common::{Random, with_room};
use proptest::{
    array::{uniform24, uniform32},
    collection::vec,
    prelude::*,
};
use taupe_crypto::{
    AWS_LC, AWS_LC_SINGLE, Agreement, BASE_POINT, InvalidKemInput, KemParameters, PORTABLE, Packet,
    Secret, TAG_LEN,
};

#[test]
fn every_length_up_to_2048_bytes() {
    let mut random = Random(3);
    for len in 0..=2048 {
        let (key, text) = (Secret::new(random.array()), random.bytes(len));
        let counter = random.next();
        let run = |provider: &taupe_crypto::Provider| {
            let mut data = with_room(&text);
            let key = provider.aead.key(&key);
            key.seal(&mut [Packet {
                counter,
                data: &mut data,
            }]);
            let sealed = data.clone();
            let packet = Packet {
                counter,
                data: &mut data,
            };
            let mut authentic = [false];
            key.open(&mut [packet], &mut authentic);
            assert_eq!(authentic, [true], "{}: {len} B", provider.name);
            assert_eq!(data[..len], text, "{}: {len} B", provider.name);
            sealed
        };
        assert_eq!(run(&PORTABLE), run(&AWS_LC_SINGLE), "{len} B");
    }
}

proptest! {
    #[test]
    fn batches_are_sealed_alike_and_opened_by_the_other(
        key in uniform32(any::<u8>()),
        // Short packets are encrypted together on some processors, and not where a long one is between.
        batch in vec((any::<u64>(), prop_oneof![3 => vec(any::<u8>(), 0..140), 1 => vec(any::<u8>(), 0..1500)]), 0..70),
    ) {
        let key = Secret::new(key);
        let seal = |provider: &taupe_crypto::Provider| {
            let mut data: Vec<_> = batch.iter().map(|(_, text)| with_room(text)).collect();
            let mut packets: Vec<_> = batch
                .iter()
                .zip(&mut data)
                .map(|((counter, _), data)| Packet { counter: *counter, data })
                .collect();
            provider.aead.key(&key).seal(&mut packets);
            data
        };
        let (ours, theirs) = (seal(&AWS_LC), seal(&PORTABLE));
        prop_assert_eq!(&ours, &theirs);

        for (sealed, provider) in [(ours, &PORTABLE), (theirs, &AWS_LC)] {
            let mut sealed = sealed;
            let mut packets: Vec<_> = batch
                .iter()
                .zip(&mut sealed)
                .map(|((counter, _), data)| Packet { counter: *counter, data })
                .collect();
            let mut authentic = vec![false; batch.len()];
            provider.aead.key(&key).open(&mut packets, &mut authentic);
            prop_assert!(authentic.iter().all(|yes| *yes));
            for (opened, (_, text)) in sealed.iter().zip(&batch) {
                prop_assert_eq!(&opened[..opened.len() - TAG_LEN], &text[..]);
            }
        }
    }

    #[test]
    fn associated_data_is_bound_alike(
        key in uniform32(any::<u8>()),
        counter in any::<u64>(),
        nonce in uniform24(any::<u8>()),
        ad in vec(any::<u8>(), 0..200),
        text in vec(any::<u8>(), 0..300),
    ) {
        let key = Secret::new(key);
        let (mut ours, mut theirs) = (with_room(&text), with_room(&text));
        AWS_LC.aead.seal_with(&key, counter, &ad, &mut ours);
        PORTABLE.aead.seal_with(&key, counter, &ad, &mut theirs);
        prop_assert_eq!(&ours, &theirs);
        prop_assert_eq!(PORTABLE.aead.open_with(&key, counter, &ad, &mut ours), Ok(()));
        prop_assert_eq!(AWS_LC.aead.open_with(&key, counter, &ad, &mut theirs), Ok(()));
        prop_assert_eq!(&ours[..text.len()], &text[..]);
        prop_assert_eq!(&theirs[..text.len()], &text[..]);

        let (mut ours, mut theirs) = (with_room(&text), with_room(&text));
        AWS_LC.aead.xseal_with(&key, &nonce, &ad, &mut ours);
        PORTABLE.aead.xseal_with(&key, &nonce, &ad, &mut theirs);
        prop_assert_eq!(&ours, &theirs);
        prop_assert_eq!(PORTABLE.aead.xopen_with(&key, &nonce, &ad, &mut ours), Ok(()));
        prop_assert_eq!(&ours[..text.len()], &text[..]);
    }

    #[test]
    fn arbitrary_bytes_are_judged_alike(
        key in uniform32(any::<u8>()),
        counter in any::<u64>(),
        ad in vec(any::<u8>(), 0..40),
        text in vec(any::<u8>(), 0..100),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..2),
        cut in 0..40_usize,
    ) {
        let key = Secret::new(key);
        let mut sealed = with_room(&text);
        AWS_LC.aead.seal_with(&key, counter, &ad, &mut sealed);
        let original = sealed.clone();
        for (index, change) in changes {
            let index = index.index(sealed.len());
            sealed[index] ^= change;
        }
        sealed.truncate(sealed.len().saturating_sub(cut));

        let (mut ours, mut theirs) = (sealed.clone(), sealed.clone());
        let verdict = AWS_LC.aead.open_with(&key, counter, &ad, &mut ours);
        prop_assert_eq!(verdict, PORTABLE.aead.open_with(&key, counter, &ad, &mut theirs));
        prop_assert_eq!(verdict.is_ok(), sealed == original);
    }

    #[test]
    fn x25519_is_the_same_for_any_private_and_public_key(
        private in uniform32(any::<u8>()),
        public in uniform32(any::<u8>()),
    ) {
        prop_assert_eq!(AWS_LC.dh.public(&private), PORTABLE.dh.public(&private));
        let ours = AWS_LC.dh.agree(&private, &public);
        prop_assert!(ours == PORTABLE.dh.agree(&private, &public));
        for provider in [&AWS_LC, &AWS_LC_SINGLE, &PORTABLE] {
            let [own, base] = [&public, &BASE_POINT].map(|public| Agreement { private: &private, public });
            let mut shared = [const { None }; 3];
            provider.dh.agree_many(&[own, base, own], &mut shared);
            prop_assert!(shared[0] == ours && shared[2] == ours);
            let public = provider.dh.public(&private);
            prop_assert_eq!(shared[1].as_ref().map(|it| *it.expose()), Some(public));
        }
    }

    #[test]
    fn ml_kem_is_the_same_for_any_seed_coins_and_ciphertext(
        parameters in prop::sample::select(&KemParameters::ALL[..]),
        (d, z) in (uniform32(any::<u8>()), uniform32(any::<u8>())),
        coins in uniform32(any::<u8>()),
        arbitrary in vec(any::<u8>(), KemParameters::MlKem1024.ciphertext_len()),
        change in (any::<prop::sample::Index>(), 1_u8..),
    ) {
        let mut seed = Secret::zeroed();
        seed.expose_mut()[..32].copy_from_slice(&d);
        seed.expose_mut()[32..].copy_from_slice(&z);
        let coins = Secret::new(coins);
        let [ours, theirs] =
            [&AWS_LC, &PORTABLE].map(|provider| provider.kem.decapsulation_key(parameters, &seed));
        let public = ours.encapsulation_key();
        prop_assert_eq!(&public, &theirs.encapsulation_key());

        let [(ciphertext, shared), (text, secret)] = [&AWS_LC, &PORTABLE].map(|provider| {
            let key = provider.kem.encapsulation_key(parameters, &public);
            key.unwrap_or_else(|error| panic!("{error}")).encapsulate(&coins)
        });
        prop_assert_eq!(&ciphertext, &text);
        prop_assert!(shared == secret);
        prop_assert!(ours.decapsulate(&ciphertext).unwrap() == shared);
        prop_assert!(theirs.decapsulate(&ciphertext).unwrap() == shared);

        // Implicit rejection, of what is almost right and of what is not at all.
        let mut changed = ciphertext.clone();
        changed[change.0.index(ciphertext.len())] ^= change.1;
        for wrong in [&changed[..], &arbitrary[..ciphertext.len()]] {
            let rejected = ours.decapsulate(wrong).unwrap();
            prop_assert!(rejected == theirs.decapsulate(wrong).unwrap());
            prop_assert!(rejected != shared);
        }
    }

    /// Hardly any arbitrary key passes the modulus check, so that those here are
    /// valid ones with one coefficient of any value.
    #[test]
    fn public_keys_of_ml_kem_are_judged_alike(
        parameters in prop::sample::select(&KemParameters::ALL[..]),
        seed in uniform32(any::<u8>()),
        at in any::<prop::sample::Index>(),
        coefficient in prop_oneof![3300_u32..3350, 0_u32..4096],
    ) {
        let mut whole = Secret::zeroed();
        whole.expose_mut()[..32].copy_from_slice(&seed);
        let mut public = AWS_LC.kem.decapsulation_key(parameters, &whole).encapsulation_key();
        // Two coefficients of twelve bits in three bytes; the second is changed.
        let at = at.index((public.len() - 32) / 3) * 3;
        public[at + 1] = public[at + 1] & 0x0f | (coefficient << 4) as u8;
        public[at + 2] = (coefficient >> 4) as u8;
        for provider in [&AWS_LC, &PORTABLE] {
            let verdict = provider.kem.encapsulation_key(parameters, &public).err();
            let expected = (coefficient >= 3329).then_some(InvalidKemInput::Modulus);
            prop_assert_eq!(verdict, expected, "{}", provider.name);
        }
    }
}
