//! The sockets of this network namespace, by which packets are attributed.

use super::packet::PacketFlow;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

/// Sockets that are remembered, including those that were closed meanwhile.
const MAX_SOCKETS: usize = 65_536;

/// Samples after which a closed socket is forgotten.
const MAX_AGE: u64 = 240;

/// Owner of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketOwner {
    /// A process of the application.
    Application,
    /// Another process, or none.
    Other,
}

/// A socket as the kernel lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketTuple {
    /// Protocol number of IP.
    pub protocol: u8,
    /// The local end.
    pub local: SocketAddr,
    /// The remote end of a connected socket.
    pub remote: Option<SocketAddr>,
    /// Its owner.
    pub owner: SocketOwner,
}

/// Protocol, local address (`None`: any), local port, remote end.
type SocketKey = (u8, Option<IpAddr>, u16, Option<SocketAddr>);

/// A remembered socket.
#[derive(Clone, Copy, Debug)]
struct KnownSocket {
    owner: SocketOwner,
    /// Number of the last sample that had it.
    sample: u64,
}

/// The socket that fits a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SocketMatch {
    pub(super) owner: SocketOwner,
    /// True if the last sample has the socket. Another socket may have the port of a closed one.
    pub(super) is_current: bool,
}

/// Sockets of the last samples.
#[derive(Debug, Default)]
pub(super) struct SocketTable {
    sockets: HashMap<SocketKey, KnownSocket>,
    /// Number of samples.
    samples: u64,
    /// True if there were more sockets than it holds.
    pub(super) is_full: bool,
}

impl SocketTable {
    /// Adds a sample. Sockets that it lacks stay for a while: their last packets may still come.
    pub(super) fn sample(&mut self, sockets: &[SocketTuple]) {
        self.samples += 1;
        let sample = self.samples;
        self.sockets
            .retain(|_, known| known.sample + MAX_AGE >= sample);
        let key = |one: &SocketTuple| -> SocketKey {
            let address = one.local.ip().to_canonical();
            let address = Some(address).filter(|address| !address.is_unspecified());
            let remote = one.remote.map(canonical);
            (one.protocol, address, one.local.port(), remote)
        };
        let of = |owner| sockets.iter().filter(move |one| one.owner == owner);
        // Among several sockets with one key, the application's counts.
        for one in of(SocketOwner::Other).chain(of(SocketOwner::Application)) {
            let key = key(one);
            if self.sockets.len() >= MAX_SOCKETS && !self.sockets.contains_key(&key) {
                self.is_full = true;
                continue;
            }
            let owner = one.owner;
            self.sockets.insert(key, KnownSocket { owner, sample });
        }
    }

    /// Returns the socket that fits a packet best. One of the last sample fits better than a closed
    /// one. `None` if none fits.
    pub(super) fn find(&self, flow: &PacketFlow) -> Option<SocketMatch> {
        let (address, port) = (flow.source.ip(), flow.source.port());
        if port == 0 {
            return None;
        }
        let remote = Some(flow.destination);
        let keys: [SocketKey; 4] = [
            (flow.protocol, Some(address), port, remote),
            (flow.protocol, None, port, remote),
            (flow.protocol, Some(address), port, None),
            (flow.protocol, None, port, None),
        ];
        let mut closed = None;
        for known in keys.iter().filter_map(|key| self.sockets.get(key)) {
            let found = SocketMatch {
                owner: known.owner,
                is_current: known.sample == self.samples,
            };
            if found.is_current {
                return Some(found);
            }
            closed = closed.or(Some(found));
        }
        closed
    }
}

fn canonical(end: SocketAddr) -> SocketAddr {
    SocketAddr::new(end.ip().to_canonical(), end.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use SocketOwner::{Application, Other};

    fn socket(local: &str, remote: Option<&str>, owner: SocketOwner) -> SocketTuple {
        SocketTuple {
            protocol: 17,
            local: local.parse().unwrap(),
            remote: remote.map(|text| text.parse().unwrap()),
            owner,
        }
    }

    fn flow(source: &str, destination: &str) -> PacketFlow {
        PacketFlow {
            protocol: 17,
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
        }
    }

    #[test]
    fn the_socket_that_fits_best_decides() {
        let mut table = SocketTable::default();
        table.sample(&[
            socket("0.0.0.0:1000", None, Application),
            socket("192.0.2.1:1000", Some("198.51.100.1:53"), Other),
            socket("[::]:2000", Some("[::ffff:198.51.100.1]:53"), Application),
        ]);
        let owner = |source, destination| Some(table.find(&flow(source, destination))?.owner);
        assert_eq!(
            owner("192.0.2.1:1000", "198.51.100.2:53"),
            Some(Application)
        );
        assert_eq!(owner("192.0.2.1:1000", "198.51.100.1:53"), Some(Other));
        assert_eq!(
            owner("192.0.2.1:2000", "198.51.100.1:53"),
            Some(Application)
        );
        assert_eq!(owner("192.0.2.1:2000", "198.51.100.2:53"), None);
        assert_eq!(owner("192.0.2.1:0", "198.51.100.2:53"), None);
        let mut tcp = flow("192.0.2.1:1000", "198.51.100.2:53");
        tcp.protocol = 6;
        assert_eq!(table.find(&tcp), None);
    }

    #[test]
    fn closed_sockets_are_remembered_and_reused_ports_have_a_new_owner() {
        let mut table = SocketTable::default();
        let of = |owner| [socket("192.0.2.1:1000", None, owner)];
        table.sample(&of(Application));
        table.sample(&[]);
        let packet = flow("192.0.2.1:1000", "198.51.100.1:1");
        let found = |owner, is_current| Some(SocketMatch { owner, is_current });
        assert_eq!(table.find(&packet), found(Application, false));
        table.sample(&of(Other));
        assert_eq!(table.find(&packet), found(Other, true));
        let shared = [of(Application), of(Other)].concat();
        table.sample(&shared);
        assert_eq!(table.find(&packet), found(Application, true));
    }

    #[test]
    fn an_open_socket_fits_better_than_a_closed_one_that_is_forgotten_later() {
        let mut table = SocketTable::default();
        let closed = socket("192.0.2.1:1000", Some("198.51.100.1:53"), Other);
        table.sample(&[closed]);
        let packet = flow("192.0.2.1:1000", "198.51.100.1:53");
        let open = [socket("0.0.0.0:1000", None, Application)];
        table.sample(&open);
        let found = table.find(&packet).unwrap();
        assert_eq!((found.owner, found.is_current), (Application, true));
        for _ in 0..=MAX_AGE {
            table.sample(&[]);
        }
        assert!(table.sockets.is_empty());
    }

    #[test]
    fn the_table_is_bounded() {
        let mut table = SocketTable::default();
        let number = u32::try_from(MAX_SOCKETS).unwrap() + 10;
        let all = (0..number).map(|number| {
            let address = std::net::Ipv4Addr::from(0x0a00_0000 + number);
            socket(&format!("{address}:1"), None, Other)
        });
        let all: Vec<_> = all.collect();
        table.sample(&all);
        assert!(table.is_full);
        assert_eq!(table.sockets.len(), MAX_SOCKETS);
    }
}
