//! Outgoing fragments: finds the rewrite of a later fragment.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use taupe_packet::ip::Family;
use taupe_protocol::time::Instant;

use super::{rewrite::Rewrite, view::View};

/// Maximum number of packets whose later fragments are expected.
const CAPACITY: usize = 1024;
/// Time to wait for later fragments, as on Linux (`ipfrag_time`).
const TIMEOUT: Duration = Duration::from_secs(30);

/// The fields that all fragments of a packet share (RFC 791 section 3.2, RFC 8200 section 4.5).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Key {
    source: u128,
    destination: u128,
    identification: u32,
    /// `None` for IPv6, where it does not distinguish packets.
    protocol: Option<u8>,
}

impl Key {
    pub(super) fn of(view: &View) -> Option<Self> {
        Some(Self {
            source: view.source,
            destination: view.destination,
            identification: view.fragment?.identification,
            protocol: (view.family == Family::V4).then_some(view.protocol),
        })
    }
}

#[derive(Debug)]
struct Known {
    rewrite: Rewrite,
    at: Instant,
}

/// The rewrites of first fragments, for later ones. When it is full, the oldest is removed.
#[derive(Debug, Default)]
pub(super) struct FragmentRewrites {
    known: HashMap<Key, Known>,
    /// Keys in the order of arrival. A key that arrives again has another entry.
    order: VecDeque<(Key, Instant)>,
}

impl FragmentRewrites {
    /// Records a first fragment. Ignores any other packet.
    pub(super) fn learn(&mut self, now: Instant, view: &View, rewrite: &Rewrite) {
        let Some(key) = Key::of(view) else {
            return;
        };
        while let Some(&(oldest, at)) = self.order.front()
            && (self.order.len() >= CAPACITY || now.since(at) >= TIMEOUT)
        {
            self.order.pop_front();
            if self.known.get(&oldest).is_some_and(|known| known.at == at) {
                self.known.remove(&oldest);
            }
        }
        let known = Known {
            rewrite: *rewrite,
            at: now,
        };
        self.known.insert(key, known);
        self.order.push_back((key, now));
    }

    pub(super) fn find(&self, now: Instant, view: &View) -> Option<Rewrite> {
        let known = self.known.get(&Key::of(view)?)?;
        (now.since(known.at) < TIMEOUT).then_some(known.rewrite)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{flows::End, translate::view::View};

    /// The "more fragments" bit of the word that contains the offset.
    const MORE: u16 = 0x2000;

    fn fragment(identification: u16, offset: u16, more: bool) -> View {
        let word = (offset / 8) | if more { MORE } else { 0 };
        let mut packet = vec![0x45, 0, 0, 28];
        packet.extend(identification.to_be_bytes());
        packet.extend(word.to_be_bytes());
        packet.extend([64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        packet.extend([0, 1, 0, 2, 0, 8, 0, 0]);
        View::parse(&packet).unwrap()
    }

    fn rewrite() -> Rewrite {
        let end = End { ip: 1, port: 0 };
        Rewrite::new((end, end), (end, end))
    }

    #[test]
    fn known_for_thirty_seconds_after_the_first() {
        let mut fragments = FragmentRewrites::default();
        let (rewrite, start) = (rewrite(), Instant(1_000_000_000));
        fragments.learn(start, &fragment(1, 0, true), &rewrite);
        let later = fragment(1, 8, false);
        let end = start + TIMEOUT;
        let just_before = end - Duration::from_nanos(1);
        assert!(fragments.find(just_before, &later).is_some());
        assert!(fragments.find(end, &later).is_none());
        assert!(fragments.find(start, &fragment(2, 8, false)).is_none());
        let mut of_another_protocol = later;
        of_another_protocol.protocol = 6;
        assert!(fragments.find(start, &of_another_protocol).is_none());
        // A key that arrives again has a new lifetime.
        fragments.learn(just_before, &fragment(1, 0, true), &rewrite);
        fragments.learn(end, &fragment(3, 0, true), &rewrite);
        assert!(fragments.find(end, &later).is_some());
        assert_eq!(fragments.known.len(), 2);
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let mut fragments = FragmentRewrites::default();
        let rewrite = rewrite();
        for id in 0..3 * CAPACITY as u16 {
            fragments.learn(Instant(id.into()), &fragment(id, 0, true), &rewrite);
            assert!(fragments.known.len() <= CAPACITY && fragments.order.len() <= CAPACITY);
        }
        let now = Instant(0);
        assert!(
            fragments
                .find(now, &fragment(2 * CAPACITY as u16 - 1, 8, false))
                .is_none()
        );
        assert!(
            fragments
                .find(now, &fragment(2 * CAPACITY as u16, 8, false))
                .is_some()
        );
    }
}
