//! The source address of datagrams to a peer that has sent nothing yet.
//!
//! If a datagram names no source address, the kernel chooses one from all interfaces. If the uplink
//! has no routable address of the right family (for example an IPv6 uplink with link-local
//! addresses only), the kernel may choose the tunnel's own address. Answers would then be lost, and
//! the outer network would see an address that is used inside the tunnel. So this module asks the
//! kernel for its choice, and if that is the tunnel's address, selects another.
//!
//! A look-up costs several system calls, so its result is cached until addresses, routes or the
//! mark change.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use taupe_os_linux::netlink::{Address, Netlink};
use taupe_protocol::time::Instant;
use taupe_runtime::udp;
use tracing::debug;

/// Lifetime of a cached result. The kernel does not report changes of routing rules, which may
/// select another uplink.
const LIFETIME: Duration = Duration::from_secs(10);

/// Cached results, at most.
const MAX_SOURCES: usize = 1024;

/// Source address of datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    /// The kernel chooses.
    Kernel,
    Address(IpAddr),
    /// None: every usable address is the tunnel's own.
    Unavailable,
}

/// Cache of look-ups.
#[derive(Default)]
pub(crate) struct Sources(Mutex<Cache>);

#[derive(Default)]
struct Cache {
    /// The number of network changes before these look-ups.
    changes: u64,
    /// Each result with the time of its look-up.
    sources: HashMap<SocketAddr, (Source, Instant)>,
}

impl Sources {
    /// Returns the source for `remote`. Calls `look_up` if the cache has no result from after the
    /// last network change. `changes` is the number of network changes so far.
    pub(crate) fn find(
        &self,
        changes: u64,
        now: Instant,
        remote: SocketAddr,
        look_up: impl FnOnce() -> Source,
    ) -> Source {
        let mut known = self.lock();
        if known.changes < changes {
            *known = Cache {
                changes,
                ..Cache::default()
            };
        }
        if let Some((source, at)) = known.sources.get(&remote)
            && known.changes == changes
            && now.since(*at) < LIFETIME
        {
            return *source;
        }
        // The lock is not held during system calls.
        drop(known);
        let source = look_up();
        debug!(%remote, ?source, "looked up the source address");
        let mut known = self.lock();
        if known.changes == changes {
            if known.sources.len() >= MAX_SOURCES {
                known.sources.clear();
            }
            known.sources.insert(remote, (source, now));
        }
        source
    }

    pub(crate) fn forget(&self, remote: SocketAddr) {
        self.lock().sources.remove(&remote);
    }

    fn lock(&self) -> MutexGuard<'_, Cache> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asks the kernel for the source of datagrams to `remote`.
pub(crate) fn look_up(interface: &str, remote: SocketAddr, mark: u32) -> Source {
    let chosen = udp::connect(remote, mark).and_then(|socket| socket.local_addr());
    // Without a route, the send itself fails with the right error.
    let Ok(chosen) = chosen else {
        return Source::Kernel;
    };
    let Some((index, addresses)) = look(interface, remote.ip(), mark) else {
        return Source::Kernel;
    };
    let (own, others): (Vec<_>, Vec<_>) = addresses
        .into_iter()
        .partition(|address| address.interface == index);
    let is_among = |addresses: &[Address], ip| addresses.iter().any(|a| a.network.addr() == ip);
    if !is_among(&own, chosen.ip()) || is_among(&others, chosen.ip()) {
        return Source::Kernel;
    }
    let mut candidates: Vec<IpAddr> = others
        .iter()
        .map(|address| address.network.addr())
        .filter(|ip| ip.is_ipv4() == remote.is_ipv4() && is_routable(*ip))
        .collect();
    candidates.sort_by_key(|ip| std::cmp::Reverse(common_bits(*ip, remote.ip())));
    let usable = |ip: &IpAddr| udp::connect_from(*ip, remote, mark).is_ok();
    let usable = candidates.into_iter().find(usable);
    usable.map_or(Source::Unavailable, Source::Address)
}

/// Returns the index of the interface and all addresses of this network. Returns `None` if
/// datagrams to `remote` enter the tunnel itself, for example to a peer behind another peer: there
/// the tunnel's address is the right source.
fn look(interface: &str, remote: IpAddr, mark: u32) -> Option<(u32, Vec<Address>)> {
    let mut system = Netlink::open().ok()?;
    let index = system.link(interface).ok()??.index;
    let enters = system
        .route_to(remote, mark)
        .is_ok_and(|route| route.interface == index);
    let addresses = system.addresses().ok()?;
    (!enters).then_some((index, addresses))
}

/// Checks whether an address can be reached from other networks.
fn is_routable(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local(),
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
    }
}

/// Returns the number of leading bits that two addresses share (RFC 6724 §5, rule 8).
fn common_bits(a: IpAddr, b: IpAddr) -> u32 {
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(sources.0.lock().sources.len() <= MAX_SOURCES);
    }
}
