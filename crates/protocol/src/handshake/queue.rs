//! Queue of handshake messages for the owner of a [`crate::Device`].
//!
//! After a pause of its process, a device finds all recent initiations of a peer in its queue.
//! The peer waits for the answer to the last one only, and the device refuses an initiation
//! within 20 ms of another accepted one of that peer. So the queue returns the newest handshake
//! first.

use core::cmp::Reverse;
use core::net::SocketAddr;
use std::collections::{HashMap, VecDeque};
use std::vec::Drain;

use crate::endpoint::Endpoint;
use crate::limits::MAX_QUEUED_HANDSHAKES;
use crate::message::{Initiation, LONGEST_HANDSHAKE};

/// Identity of a handshake among those in the queue: the sender of its messages and the index in
/// them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct HandshakeId {
    from: SocketAddr,
    index: Option<[u8; 4]>,
}

impl HandshakeId {
    /// Returns the identity of the handshake that `message` belongs to.
    #[must_use]
    pub fn of(from: SocketAddr, message: &[u8]) -> Self {
        let index = message.get(4..).and_then(|rest| rest.first_chunk());
        Self {
            from,
            index: index.copied(),
        }
    }
}

/// Sorts messages, oldest first on input, for [`crate::Device::handle_message`]: handshakes in
/// the order of their last messages, the newest first. Messages of one handshake keep their
/// order.
pub fn newest_first<T>(messages: &mut [T], handshake: impl Fn(&T) -> HandshakeId) {
    let mut last = HashMap::new();
    for (place, message) in messages.iter().enumerate() {
        last.insert(handshake(message), place);
    }
    messages.sort_by_cached_key(|message| Reverse(last.get(&handshake(message)).copied()));
}

/// A handshake message in the queue.
pub struct HandshakeMessage {
    /// The sender.
    pub from: Endpoint,
    bytes: Bytes,
}

/// Bytes of a message. Ordinary messages are stored in arrays of one size, so that a flood of
/// them does not allocate. Parts of hybrid messages are up to eight times as long.
enum Bytes {
    Ordinary([u8; size_of::<Initiation>()], usize),
    Part(Box<[u8]>),
}

impl HandshakeMessage {
    fn new(from: Endpoint, message: &[u8]) -> Self {
        let mut place = [0; size_of::<Initiation>()];
        let bytes = match place.get_mut(..message.len()) {
            Some(start) => {
                start.copy_from_slice(message);
                Bytes::Ordinary(place, message.len())
            }
            None => Bytes::Part(message.into()),
        };
        Self { from, bytes }
    }

    /// Returns the message.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Ordinary(place, length) => place.get(..*length).unwrap_or_default(),
            Bytes::Part(bytes) => bytes,
        }
    }
}

/// Queue of at most [`MAX_QUEUED_HANDSHAKES`] handshake messages. When it is full, the oldest
/// message is dropped.
#[derive(Default)]
pub struct HandshakeQueue(VecDeque<HandshakeMessage>);

impl HandshakeQueue {
    /// Adds a message. Returns the number of dropped messages, which the caller counts as
    /// [`crate::DropReason::BacklogFull`].
    pub fn push(&mut self, from: Endpoint, message: &[u8]) -> u64 {
        if message.len() > LONGEST_HANDSHAKE {
            return 1;
        }
        let is_full = self.0.len() >= MAX_QUEUED_HANDSHAKES;
        if is_full {
            self.0.pop_front();
        }
        self.0.push_back(HandshakeMessage::new(from, message));
        is_full.into()
    }

    /// Moves the newest messages, at most `count`, to `taken`. Returns the number of messages
    /// that remain.
    pub fn take(&mut self, count: usize, taken: &mut TakenHandshakes) -> usize {
        let left = self.0.len().saturating_sub(count);
        taken.0.extend(self.0.drain(left..));
        left
    }

    /// Returns the number of messages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Checks whether the queue is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Releases memory beyond what `places` messages need.
    pub fn shrink_to(&mut self, places: usize) {
        self.0.shrink_to(places);
    }
}

/// Handshake messages taken from their queue.
#[derive(Default)]
pub struct TakenHandshakes(Vec<HandshakeMessage>);

impl TakenHandshakes {
    /// Returns the number of messages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Checks whether there are no messages.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes all messages and returns them in the order of [`newest_first`].
    pub fn drain(&mut self) -> Drain<'_, HandshakeMessage> {
        self.sort();
        self.0.drain(..)
    }

    /// Brings the messages into the order of [`newest_first`].
    pub(crate) fn sort(&mut self) -> &[HandshakeMessage] {
        newest_first(&mut self.0, |message| {
            HandshakeId::of(message.from.remote, message.bytes())
        });
        &self.0
    }

    /// Removes all messages.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sender(number: u8) -> Endpoint {
        SocketAddr::from(([192, 0, 2, number], 51_820)).into()
    }

    /// Returns a message of `length` bytes with the handshake index `index`.
    fn message(index: u8, length: usize) -> Vec<u8> {
        let mut message = vec![0xff; length];
        message[4..8].copy_from_slice(&[index, 0, 0, 0]);
        message
    }

    /// Takes at most `count` messages. Returns the index and the length of each, and the number
    /// of messages that remain.
    fn take(queue: &mut HandshakeQueue, count: usize) -> (Vec<(u8, usize)>, usize) {
        let mut taken = TakenHandshakes::default();
        let left = queue.take(count, &mut taken);
        let messages = taken.drain();
        let shown = messages.map(|message| (message.bytes()[4], message.bytes().len()));
        (shown.collect(), left)
    }

    #[test]
    fn the_newest_handshake_comes_first_and_its_parts_in_order() {
        let mut queue = HandshakeQueue::default();
        for (index, length) in [(1, 148), (2, 92), (3, 1232), (3, 149), (4, 64), (3, 148)] {
            assert_eq!(queue.push(sender(1), &message(index, length)), 0);
        }
        assert_eq!(
            take(&mut queue, 4),
            (vec![(3, 1232), (3, 149), (3, 148), (4, 64)], 2)
        );
        assert_eq!(take(&mut queue, 4), (vec![(2, 92), (1, 148)], 0));
    }

    #[test]
    fn handshakes_of_two_senders_are_two_though_they_have_one_index() {
        let mut queue = HandshakeQueue::default();
        queue.push(sender(1), &message(1, 148));
        queue.push(sender(2), &message(1, 92));
        assert_eq!(take(&mut queue, 2), (vec![(1, 92), (1, 148)], 0));
    }

    #[test]
    fn a_full_queue_drops_the_oldest() {
        let mut queue = HandshakeQueue::default();
        for _ in 0..MAX_QUEUED_HANDSHAKES {
            assert_eq!(queue.push(sender(1), &message(1, 148)), 0);
        }
        for _ in 0..3 {
            assert_eq!(queue.push(sender(1), &message(2, 148)), 1);
        }
        let (taken, left) = take(&mut queue, 4);
        assert_eq!(left, MAX_QUEUED_HANDSHAKES - 4);
        assert_eq!(taken, [(2, 148), (2, 148), (2, 148), (1, 148)]);
        assert_eq!(queue.push(sender(1), &message(2, 148)), 0);
    }

    #[test]
    fn a_message_that_is_longer_than_any_is_dropped() {
        let mut queue = HandshakeQueue::default();
        assert_eq!(queue.push(sender(1), &message(1, LONGEST_HANDSHAKE + 1)), 1);
        assert!(queue.is_empty());
        assert_eq!(queue.push(sender(1), &[1]), 0);
        let mut taken = TakenHandshakes::default();
        queue.take(1, &mut taken);
        let bytes: Vec<_> = taken.drain().map(|it| it.bytes().to_vec()).collect();
        assert_eq!(bytes, [[1]]);
    }
}
