//! The unit of work of the outbound path: messages for one peer that one system call sends.
//!
//! The messages lie back to back in one buffer. The kernel cuts it into datagrams every `stride`
//! bytes (`UDP_SEGMENT`), so all messages have the same length, except that the last may be
//! shorter.

use std::sync::Arc;

use taupe_os_linux::udp::{self, Header};
use taupe_protocol::message::{DATA_HEADER_LEN, DATA_OVERHEAD};

/// Bytes after which a batch takes no more sends. Two sends of full-size messages exceed it: they
/// wake the receiver half as often as single sends. A third send gains nothing and adds latency.
const ENOUGH: usize = 120 << 10;

/// Sends in one batch, at most. One system call takes all of them.
const MAX_SENDS: usize = 4;

/// Messages for one peer. `P` is the type of a peer; tests use an integer.
pub(crate) struct Batch<P> {
    buffer: Vec<u8>,
    /// `None` while the batch is empty.
    peer: Option<Arc<P>>,
    /// Fields of the outer IP header.
    header: Header,
    /// Bytes of every message but the last.
    stride: usize,
    count: usize,
    /// Number of messages that fill whole sends. Further packets begin the next batch, because a
    /// small send costs nearly as much as a large one.
    full: usize,
    /// Bytes of all messages.
    bytes: usize,
}

impl<P> Batch<P> {
    pub(crate) fn new() -> Self {
        Self {
            buffer: Vec::new(),
            peer: None,
            header: Header::default(),
            stride: 0,
            count: 0,
            full: 0,
            bytes: 0,
        }
    }

    /// Returns true if a packet of `padded` bytes can join the batch.
    pub(crate) fn takes(&self, peer: &Arc<P>, header: Header, padded: usize) -> bool {
        let Some(present) = &self.peer else {
            return true;
        };
        let message = padded + DATA_OVERHEAD;
        // Nothing follows a shorter message.
        let open = self.bytes == self.count * self.stride;
        open && message <= self.stride
            && self.count < self.full
            && header == self.header
            && Arc::ptr_eq(peer, present)
    }

    /// Adds a message for which [`Self::takes`] is true. Returns the buffer for its padded packet,
    /// which holds arbitrary bytes.
    pub(crate) fn push(&mut self, peer: &Arc<P>, header: Header, padded: usize) -> &mut [u8] {
        let message = padded + DATA_OVERHEAD;
        if self.peer.is_none() {
            self.peer = Some(Arc::clone(peer));
            self.header = header;
            self.stride = message;
            let one = udp::max_segments(message);
            let sends = ENOUGH.div_ceil(one * message).clamp(1, MAX_SENDS);
            self.full = one * sends;
        }
        let start = self.bytes;
        self.count += 1;
        self.bytes += message;
        if self.buffer.len() < self.bytes {
            self.buffer.resize(self.bytes, 0);
        }
        let packet = start + DATA_HEADER_LEN;
        &mut self.buffer[packet..packet + padded]
    }

    /// Returns the bytes of packets, like those in the batch, until its sends are full. An empty
    /// batch does not know them.
    pub(crate) fn room(&self) -> usize {
        if self.peer.is_none() {
            return usize::MAX;
        }
        let packet = self.stride.saturating_sub(DATA_OVERHEAD);
        self.full.saturating_sub(self.count) * packet
    }

    pub(crate) fn peer(&self) -> Option<&Arc<P>> {
        self.peer.as_ref()
    }

    pub(crate) fn header(&self) -> Header {
        self.header
    }

    pub(crate) fn stride(&self) -> usize {
        self.stride
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns all messages, to be sealed and sent.
    pub(crate) fn messages(&mut self) -> &mut [u8] {
        &mut self.buffer[..self.bytes]
    }

    /// Returns the padded packets, before the messages are sealed.
    pub(crate) fn packets(&self) -> impl Iterator<Item = &[u8]> {
        let messages = self.buffer[..self.bytes].chunks(self.stride.max(1));
        messages.map(|message| {
            let end = message.len() - (DATA_OVERHEAD - DATA_HEADER_LEN);
            &message[DATA_HEADER_LEN..end]
        })
    }

    pub(crate) fn clear(&mut self) {
        self.peer = None;
        self.count = 0;
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds packets of these lengths as long as they fit; returns how many did.
    fn fill(batch: &mut Batch<u8>, peer: &Arc<u8>, lengths: &[usize]) -> usize {
        let fits = |length: &&usize| {
            let takes = batch.takes(peer, 0.into(), **length);
            if takes {
                batch.push(peer, 0.into(), **length).fill(**length as u8);
            }
            takes
        };
        lengths.iter().take_while(fits).count()
    }

    #[test]
    fn nothing_follows_a_shorter_message() {
        let (mut batch, peer) = (Batch::new(), Arc::new(1));
        assert_eq!(fill(&mut batch, &peer, &[1408, 1408, 64, 64]), 3);
        assert_eq!((batch.count(), batch.stride()), (3, 1440));
        assert_eq!(batch.bytes(), 2 * 1440 + 96);
        let packets: Vec<_> = batch.packets().map(<[u8]>::to_vec).collect();
        assert_eq!(packets, [vec![128; 1408], vec![128; 1408], vec![64; 64]]);
    }

    #[test]
    fn nothing_longer_than_the_first_follows() {
        let (mut batch, peer) = (Batch::new(), Arc::new(1));
        assert_eq!(fill(&mut batch, &peer, &[64, 80]), 1);
        batch.clear();
        assert_eq!(fill(&mut batch, &peer, &[80, 64]), 2);
    }

    #[test]
    fn another_peer_or_mark_needs_another_batch() {
        let (mut batch, peer) = (Batch::new(), Arc::new(1));
        batch.push(&peer, 2.into(), 64);
        assert!(batch.takes(&peer, 2.into(), 64));
        assert!(!batch.takes(&peer, 0.into(), 64));
        assert!(!batch.takes(&Arc::new(1), 2.into(), 64));
        batch.clear();
        assert!(batch.takes(&Arc::new(1), 0.into(), 64));
        assert!(batch.peer().is_none());
    }

    #[test]
    fn a_batch_is_full_when_its_sends_are() {
        let peer = Arc::new(1);
        for (length, one, sends) in [(0, 64, 4), (64, 64, 4), (1420, 45, 2), (9000, 7, 2)] {
            let mut batch = Batch::new();
            assert_eq!(fill(&mut batch, &peer, &[length; 300]), one * sends);
            assert!(batch.bytes() <= MAX_SENDS * 65_507);
        }
        // A message larger than a send is a batch of its own.
        let mut batch = Batch::new();
        assert_eq!(fill(&mut batch, &peer, &[300_000, 0]), 1);
    }
}
