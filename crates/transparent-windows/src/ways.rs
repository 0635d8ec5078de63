//! Where packets go that are made here: the way to each endpoint, and the home of each
//! address that packets of the tunnel come from.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use taupe_packet::ip::Family;
use taupe_protocol::time::Instant;

use super::{Adapter, Medium, Towards, link::Header, recent::Recent};

/// How long a way is taken for the one that the system would go.
const KNOWN_FOR: Duration = Duration::from_secs(30);

/// Endpoints whose ways are known, and addresses whose homes are.
const MOST: usize = 4096;

/// How the system sends to an endpoint, as it was seen to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Way {
    pub(super) adapter: u32,
    pub(super) header: Header,
    pub(super) source: IpAddr,
    pub(super) hop_limit: u8,
    pub(super) seen: Instant,
}

/// Where packets for an address go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Home {
    pub(super) adapter: u32,
    pub(super) towards: Towards,
    pub(super) header: Header,
}

/// Both.
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

    /// Forgets all: the adapters are others.
    pub(super) fn clear(&mut self) {
        self.ways.clear();
        self.homes.clear();
    }

    pub(super) fn learn(&mut self, endpoint: SocketAddr, way: Way) {
        self.ways.keep(endpoint, way);
    }

    /// The way to an endpoint, if it is known.
    pub(super) fn to(&mut self, now: Instant, endpoint: SocketAddr) -> Option<Way> {
        let way = self.ways.get(&endpoint)?;
        (now.since(way.seen) < KNOWN_FOR).then_some(way)
    }

    /// The adapters that ways lead by, each as often as it does.
    pub(super) fn adapters(&self) -> impl Iterator<Item = u32> {
        self.ways.values().map(|way| way.adapter)
    }

    /// Whether that was news.
    pub(super) fn settle(&mut self, address: IpAddr, home: Home) -> bool {
        let is_new = self.homes.get(&address) != Some(home);
        if is_new {
            self.homes.keep(address, home);
        }
        is_new
    }

    /// Where packets for an address go: where packets from it have come from, or to the
    /// adapter that has it.
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
        // From a station that is nowhere.
        let nobody = [2, 0, 0, 0, 0, 1];
        Some(Home {
            adapter: adapter.index,
            towards: Towards::System,
            header: Header::new(adapter.medium, nobody, adapter.mac).of(version),
        })
    }
}
