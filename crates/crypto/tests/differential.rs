//! The two real providers against each other.
#![cfg(all(feature = "aws-lc", feature = "portable", not(miri)))]

mod common;

use common::with_room;
use proptest::{
    array::{uniform24, uniform32},
    collection::vec,
    prelude::*,
};
use taupe_crypto::{AWS_LC, PORTABLE, Packet, Secret, TAG_LEN};

proptest! {
    #[test]
    fn batches_are_sealed_alike_and_opened_by_the_other(
        key in uniform32(any::<u8>()),
        batch in vec((any::<u64>(), vec(any::<u8>(), 0..1500)), 0..70),
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
    }
}
