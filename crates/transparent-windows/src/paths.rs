//! Destinations of frames that are made here: the path to each endpoint, and the adapter and link
//! header for each address that packets of the tunnel come from.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use taupe_packet::ip::Family;
use taupe_protocol::time::Instant;

use super::{Adapter, Medium, Towards, cache::Cache, link::Header};

/// The time for which an observed path is used before the system chooses the path again.
const KNOWN_FOR: Duration = Duration::from_secs(30);

/// Maximum number of known paths, and of known addresses.
const MOST: usize = 4096;

/// The path to an endpoint, observed in a frame of the system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct EndpointPath {
    pub(super) adapter: u32,
    pub(super) header: Header,
    pub(super) source: IpAddr,
    pub(super) hop_limit: u8,
    pub(super) seen: Instant,
}

/// The adapter, direction and link header for packets to an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ReturnPath {
    pub(super) adapter: u32,
    pub(super) towards: Towards,
    pub(super) header: Header,
}

pub(super) struct Paths {
    paths: Cache<SocketAddr, EndpointPath>,
    return_paths: Cache<IpAddr, ReturnPath>,
}

impl Paths {
    pub(super) fn new() -> Self {
        Self {
            paths: Cache::new(MOST),
            return_paths: Cache::new(MOST),
        }
    }

    /// Removes everything, since the adapters have changed.
    pub(super) fn clear(&mut self) {
        self.paths.clear();
        self.return_paths.clear();
    }

    pub(super) fn learn(&mut self, endpoint: SocketAddr, path: EndpointPath) {
        self.paths.insert(endpoint, path);
    }

    pub(super) fn to(&mut self, now: Instant, endpoint: SocketAddr) -> Option<EndpointPath> {
        let path = self.paths.get(&endpoint)?;
        (now.since(path.seen) < KNOWN_FOR).then_some(path)
    }

    /// Returns the adapter of each known path; an adapter may occur several times.
    pub(super) fn adapters(&self) -> impl Iterator<Item = u32> {
        self.paths.values().map(|path| path.adapter)
    }

    /// Records where packets to an address go. Returns true if that was new.
    pub(super) fn set_return_path(&mut self, address: IpAddr, return_path: ReturnPath) -> bool {
        let is_new = self.return_paths.get(&address) != Some(return_path);
        if is_new {
            self.return_paths.insert(address, return_path);
        }
        is_new
    }

    /// Returns where packets to an address go: to where its packets came from, or to the adapter
    /// that has the address.
    pub(super) fn return_path(
        &mut self,
        address: IpAddr,
        adapters: &[Adapter],
    ) -> Option<ReturnPath> {
        if let Some(return_path) = self.return_paths.get(&address) {
            return Some(return_path);
        }
        let has = |adapter: &&Adapter| {
            adapter.medium != Medium::Unknown
                && adapter.addresses.iter().any(|own| own.addr() == address)
        };
        let adapter = adapters.iter().find(has)?;
        // A source address that no station has.
        let nobody = [2, 0, 0, 0, 0, 1];
        Some(ReturnPath {
            adapter: adapter.index,
            towards: Towards::System,
            header: Header::new(adapter.medium, nobody, adapter.mac)
                .with_family(Family::of(address)),
        })
    }
}
