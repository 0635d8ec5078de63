//! Tests of the cache of sources.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use taupe_protocol::time::Instant;

use super::sources::{LIFETIME, MAX_SOURCES, Source, Sources};

const NEAR: Source = Source::Address(IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)));
const START: Instant = Instant(1_000_000_000);

fn remote(number: u16) -> SocketAddr {
    ([198, 51, 100, 1], number).into()
}

/// Sources, and the number of look-ups so far.
#[derive(Default)]
struct Counted(Sources, u32);

impl Counted {
    fn find(&mut self, changes: u64, now: Instant, remote: SocketAddr, found: Source) {
        let source = self.0.find(changes, now, remote, || {
            self.1 += 1;
            found
        });
        assert_eq!(source, found);
    }
}

#[test]
fn a_source_is_looked_up_once_until_the_network_changes() {
    let mut sources = Counted::default();
    for _ in 0..100 {
        sources.find(1, START, remote(1), NEAR);
    }
    assert_eq!(sources.1, 1);
    sources.find(1, START, remote(2), Source::Unavailable);
    sources.find(1, START, remote(1), NEAR);
    assert_eq!(sources.1, 2, "of each endpoint");
    for _ in 0..100 {
        sources.find(2, START, remote(1), Source::Kernel);
    }
    assert_eq!(sources.1, 3, "after a change");
}

#[test]
fn a_cached_source_expires_and_can_be_forgotten() {
    let mut sources = Counted::default();
    sources.find(0, START, remote(1), NEAR);
    let end = START + LIFETIME;
    sources.find(0, end - Duration::from_nanos(1), remote(1), NEAR);
    assert_eq!(sources.1, 1);
    sources.find(0, end, remote(1), Source::Kernel);
    sources.find(0, end, remote(1), Source::Kernel);
    assert_eq!(sources.1, 2);
    sources.0.forget(remote(1));
    sources.find(0, end, remote(1), NEAR);
    assert_eq!(sources.1, 3);
}

#[test]
fn a_source_from_before_a_network_change_is_not_cached() {
    let mut sources = Counted::default();
    let during = sources.0.find(1, START, remote(1), || {
        sources.0.find(2, START, remote(2), || NEAR);
        Source::Unavailable
    });
    assert_eq!(during, Source::Unavailable);
    sources.find(2, START, remote(1), NEAR);
    sources.find(1, START, remote(2), Source::Kernel);
    assert_eq!(sources.1, 2);
    sources.find(2, START, remote(2), NEAR);
    assert_eq!(sources.1, 2);
}

#[test]
fn cached_sources_are_bounded() {
    let mut sources = Counted::default();
    for number in 0..=u16::MAX {
        sources.find(0, START, remote(number), NEAR);
    }
    assert!(sources.0.len() <= MAX_SOURCES);
}
