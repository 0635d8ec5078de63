//! Destinations of frames that are made here: the path to each endpoint, and the adapter and link
//! header for each address that packets of the tunnel come from.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use taupe_packet::ip::Family;
use taupe_protocol::time::Instant;

use super::{Adapter, Medium, Towards, link::Header, recent::Recent};

/// The time for which an observed path is used before the system is asked again.
const KNOWN_FOR: Duration = Duration::from_secs(30);

/// Maximum number of known paths, and of known addresses.
const MOST: usize = 4096;

/// The path to an endpoint, observed in a frame of the system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Way {
    pub(super) adapter: u32,
    pub(super) header: Header,
    pub(super) source: IpAddr,
    pub(super) hop_limit: u8,
    pub(super) seen: Instant,
}

/// The adapter, direction and link header for packets to an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Home {
    pub(super) adapter: u32,
    pub(super) towards: Towards,
    pub(super) header: Header,
}

pub(super) struct Ways {
    ways: Recent<SocketAddr, Way>,
    homes: Recent<IpAddr, Home>,
}

impl Ways {
    pub(super) fn new() -> Self {
        Self {
            ways: Recent::new(MOST),
            homes: Recent::new(MOST),
        }
    }

    /// Removes everything, since the adapters have changed.
    pub(super) fn clear(&mut self) {
        self.ways.clear();
        self.homes.clear();
    }

    pub(super) fn learn(&mut self, endpoint: SocketAddr, way: Way) {
        self.ways.keep(endpoint, way);
    }

    pub(super) fn to(&mut self, now: Instant, endpoint: SocketAddr) -> Option<Way> {
        let way = self.ways.get(&endpoint)?;
        (now.since(way.seen) < KNOWN_FOR).then_some(way)
    }

    /// Returns the adapter of each known path; an adapter may occur several times.
    pub(super) fn adapters(&self) -> impl Iterator<Item = u32> {
        self.ways.values().map(|way| way.adapter)
    }

    /// Records where packets to an address go. Returns true if that was new.
    pub(super) fn settle(&mut self, address: IpAddr, home: Home) -> bool {
        let is_new = self.homes.get(&address) != Some(home);
        if is_new {
            self.homes.keep(address, home);
        }
        is_new
    }

    /// Returns where packets to an address go: to where its packets came from, or to the adapter
    /// that has the address.
    pub(super) fn home(&mut self, address: IpAddr, adapters: &[Adapter]) -> Option<Home> {
        if let Some(home) = self.homes.get(&address) {
            return Some(home);
        }
        let has = |adapter: &&Adapter| {
            adapter.medium != Medium::Unknown
                && adapter.addresses.iter().any(|(own, _)| *own == address)
        };
        let adapter = adapters.iter().find(has)?;
        let version = match address {
            IpAddr::V4(_) => Family::V4,
            IpAddr::V6(_) => Family::V6,
        };
        // A source address that no station has.
        let nobody = [2, 0, 0, 0, 0, 1];
        Some(Home {
            adapter: adapter.index,
            towards: Towards::System,
            header: Header::new(adapter.medium, nobody, adapter.mac).of(version),
        })
    }
}
