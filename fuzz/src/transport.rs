//! Genuine and changed transport data for a device with a session. The delivered packets are
//! compared with a simple model.

use std::collections::BTreeSet;

use taupe_protocol::crypto::default_provider;
use taupe_protocol::inner;
use taupe_protocol::limits::REJECT_AFTER_MESSAGES;
use taupe_protocol::message::DATA_OVERHEAD;
use taupe_protocol::testing::replay::WINDOW_LEN;

use crate::common::packets::ipv4;
use crate::common::{RAW_INNER, stranger, with_raw};
use crate::input::Input;

const MAX_BATCHES: usize = 8;

/// Reads `data` as a list of batches of messages of one length: their counters, plaintexts and
/// changes.
///
/// The device delivers, in order, exactly the messages that the peer has sealed and nobody has
/// changed, whose counter is new and within the window, and that contain a valid inner packet from
/// an allowed source. The endpoint follows authentic new messages and nothing else.
pub fn transport(data: &[u8]) {
    let (mut net, session, raw) = with_raw(default_provider());
    let mut input = Input(data);
    // Counter 0 was the keepalive that confirmed the session.
    let mut model = Model {
        seen: BTreeSet::from([0]),
        greatest: 0,
    };
    let mut expected = Vec::new();
    let mut endpoint = raw.address;
    for _ in 0..MAX_BATCHES {
        if input.is_empty() {
            break;
        }
        let control = input.byte();
        let plaintext_len = usize::from(input.byte());
        let segment = plaintext_len + DATA_OVERHEAD;
        let mut batch = Vec::new();
        let mut any = false;
        for _ in 0..=control & 7 {
            let choice = input.byte();
            let counter = match choice & 7 {
                0 => input.long(),
                1 => REJECT_AFTER_MESSAGES - 2 + u64::from(input.byte() % 4),
                2 => model
                    .greatest
                    .saturating_sub(WINDOW_LEN - 2 + u64::from(input.byte() % 4)),
                3 => model.greatest,
                4 => model.greatest.saturating_sub(input.number().into()),
                _ => model.greatest.saturating_add(1 + u64::from(input.byte())),
            };
            let mut plaintext = if choice & 8 != 0 {
                ipv4(RAW_INNER, net.nodes[0].inner, &[])
            } else {
                input.take(plaintext_len).to_vec()
            };
            plaintext.resize(plaintext_len, 0);
            if choice & 0x10 != 0 {
                input.mutate(&mut plaintext);
                plaintext.resize(plaintext_len, 0);
            }
            let sealed = session.seal(counter, &plaintext);
            let mut message = sealed.clone();
            if choice & 0x20 != 0 {
                input.mutate(&mut message);
                message.resize(segment, 0);
            }
            if message == sealed && model.accepts(counter) {
                any = true;
                expected.extend(delivered(&plaintext));
            }
            batch.extend_from_slice(&message);
        }
        let source = if control & 8 != 0 {
            stranger()
        } else {
            raw.address
        };
        net.inject_batch(0, source, &batch, segment);
        assert_eq!(net.nodes[0].delivered, expected);
        if any {
            endpoint = source;
        }
        let status = net.nodes[0].device.status();
        assert_eq!(status.peers[0].endpoint, Some(endpoint));
    }
}

/// Model of the replay window: all counters accepted so far.
struct Model {
    seen: BTreeSet<u64>,
    greatest: u64,
}

impl Model {
    fn accepts(&mut self, counter: u64) -> bool {
        let late = self.greatest.saturating_sub(counter) > WINDOW_LEN;
        if counter >= REJECT_AFTER_MESSAGES || late || !self.seen.insert(counter) {
            return false;
        }
        self.greatest = self.greatest.max(counter);
        true
    }
}

fn delivered(plaintext: &[u8]) -> Option<Vec<u8>> {
    let view = inner::parse(plaintext)?;
    (view.source == RAW_INNER).then(|| plaintext[..view.length].to_vec())
}
