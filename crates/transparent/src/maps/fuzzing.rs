//! The contents of maps, for fuzzers.

use std::collections::HashSet;
use std::net::IpAddr;

use super::{alias_number, loopback_of_alias, octets, resolver_alias};
use crate::maps::flows::{EVICTION_DIVISOR, UNANSWERED_IDLE_MIN, evicted};
use crate::records;
use crate::state::{Flow, FlowKey};

/// A flow with its key, as the kernel lists it.
const ENTRY: usize = size_of::<FlowKey>() + size_of::<Flow>();

/// Reads bytes as the table of flows, in a table with 16 entries.
pub(crate) fn flows(bytes: &[u8]) {
    const CAPACITY: usize = 16;
    let (now, bytes) = bytes.split_first_chunk().unwrap_or((&[0; 8], &[]));
    let now = u64::from_le_bytes(*now);
    let mut keys = HashSet::new();
    let mut listed = Vec::new();
    for entry in bytes.chunks_exact(ENTRY).take(2 * CAPACITY) {
        let (key, flow) = entry.split_at(size_of::<FlowKey>());
        let pair = records::parse::<FlowKey>(key).zip(records::parse::<Flow>(flow));
        // The kernel lists a key once.
        listed.extend(pair.filter(|(key, _)| keys.insert(*key)));
    }
    let gone = evicted(&listed, CAPACITY, now);
    let once: HashSet<_> = gone.iter().collect();
    assert_eq!(once.len(), gone.len(), "a flow is evicted twice");
    for key in &gone {
        let of = |key: &FlowKey| listed.iter().find(|(it, _)| it == key).map(|it| it.1);
        let flow = of(key).expect("a flow of the list");
        assert!(flow.idle(now) >= UNANSWERED_IDLE_MIN);
        let is_same = |key: &FlowKey| of(key).is_some_and(|it| it.owner == flow.owner);
        let owned = listed.iter().filter(|(key, _)| is_same(key)).count();
        let lost = gone.iter().filter(|key| is_same(key)).count();
        assert!(lost <= owned.div_ceil(EVICTION_DIVISOR));
    }
    for (key, _) in listed {
        let tuple = key.tuple();
        assert_eq!(tuple.local.port.to_be_bytes(), key.local_port);
        assert_eq!(tuple.remote.port.to_be_bytes(), key.remote_port);
    }
}

/// Reads bytes as addresses of the map of resolver aliases.
pub(crate) fn aliases(bytes: &[u8]) {
    for address in bytes.as_chunks::<16>().0 {
        let ip = IpAddr::from(*address).to_canonical();
        assert_eq!(octets(ip), *address);
        if let Some(number) = alias_number(*address) {
            assert_eq!(resolver_alias(number, *address), *address);
            assert_eq!(loopback_of_alias(ip), None, "an alias of one kind only");
        }
        if let Some(own) = loopback_of_alias(ip) {
            assert!(own.is_loopback());
        }
    }
}
