//! Helpers for testing both kinds of handshakes.

use sha3::{Digest, Sha3_256};
use taupe_crypto::AWS_LC;
use taupe_repro::{End, Error, Initiator, Responder, Session};

pub(crate) const LABEL: [u8; 12] = *b"a TAI64N one";
pub(crate) const INDICES: [u32; 2] = [0x0403_0201, 0x0807_0605];

/// Returns deterministic bytes that look random.
pub(crate) fn random(seed: u32) -> impl FnMut(&mut [u8]) {
    let mut number = 0_u32;
    move |bytes| {
        for chunk in bytes.chunks_mut(32) {
            let mut state = Sha3_256::new();
            state.update(seed.to_le_bytes());
            state.update(number.to_le_bytes());
            chunk.copy_from_slice(&state.finalize()[..chunk.len()]);
            number += 1;
        }
    }
}

/// Messages of a handshake and the resulting sessions.
pub(crate) struct Exchange {
    pub(crate) initiator: Initiator,
    pub(crate) initiation: Vec<u8>,
    pub(crate) response: Vec<u8>,
    pub(crate) sessions: [Session; 2],
}

pub(crate) fn shake([one, other]: &[End; 2]) -> Exchange {
    let (initiator, initiation) = Initiator::start(one, INDICES[0], LABEL, &mut random(1));
    let responder = Responder::accept(other, &initiation).unwrap();
    assert_eq!(responder.label(), LABEL);
    let (response, theirs) = responder.respond(INDICES[1], &mut random(2));
    let ours = initiator.finish(one, &response).unwrap();
    Exchange {
        initiator,
        initiation,
        response,
        sessions: [ours, theirs],
    }
}

pub(crate) fn assert_agreed([ours, theirs]: &[Session; 2]) {
    assert!(ours.send == theirs.receive && ours.receive == theirs.send);
    assert!(ours.send != ours.receive);
    assert_eq!([ours.local_index, ours.remote_index], INDICES);
    assert_eq!([theirs.remote_index, theirs.local_index], INDICES);
}

/// Recomputes mac1, which takes only the public key.
pub(crate) fn repair(message: &mut [u8], receiver: &[u8]) {
    let key = AWS_LC.hash.hash(&[b"mac1----", receiver]);
    let covered = message.len() - 32;
    let mac = AWS_LC.hash.mac(&key, &[&message[..covered]]);
    message[covered..covered + 16].copy_from_slice(&mac);
}

/// Function with which an end processes a message.
type Take<'a> = &'a dyn Fn(&[u8]) -> Result<(), Error>;

/// Changes single bytes: those of the header and every `step`th after it. Both ends must reject
/// every change, also with a valid mac1, except for unprotected fields: only mac1 covers the
/// sender's index, and mac2 is not checked. `publics` are the ends' public keys.
pub(crate) fn refuses_changes(ends: &[End; 2], publics: [&[u8]; 2], step: usize) {
    let Exchange {
        initiator,
        initiation,
        response,
        ..
    } = shake(ends);
    let takes_initiation = |message: &[u8]| Responder::accept(&ends[1], message).map(|_| ());
    let takes_response = |message: &[u8]| initiator.finish(&ends[0], message).map(|_| ());
    let sides: [(&[u8], &[u8], Take<'_>); 2] = [
        (&initiation, publics[1], &takes_initiation),
        (&response, publics[0], &takes_response),
    ];
    for (message, receiver, take) in sides {
        assert_eq!(take(message), Ok(()));
        let macs = message.len() - 32;
        for at in (0..16).chain((16..message.len()).step_by(step)) {
            let mut changed = message.to_vec();
            changed[at] ^= 0x11;
            let unseen = at >= macs + 16;
            assert_eq!(
                take(&changed),
                if unseen { Ok(()) } else { Err(Error::Mac) }
            );
            if at < macs {
                repair(&mut changed, receiver);
                assert_eq!(take(&changed).is_ok(), (4..8).contains(&at), "{at}");
            }
        }
        let lengths = [0, 4, message.len() - 1, message.len() + 1];
        for length in lengths {
            let mut wrong = message.to_vec();
            wrong.resize(length, 0);
            assert!(matches!(take(&wrong), Err(Error::Length { actual, .. }) if actual == length));
        }
    }
}
