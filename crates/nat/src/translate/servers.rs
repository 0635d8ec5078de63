//! Choice of the tunnel's name server for a DNS query.
//!
//! One server of each family is in use at a time, initially the first. The next one takes over if
//! the server is silent: a query comes, an earlier one has waited for [`PATIENCE`], and nothing has
//! been received since. It also takes over if the server's port is unreachable. After the last
//! server comes the first again. Resolvers repeat a query after at most 5 s, so a dead server
//! delays one query by that time, and no others.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use taupe_packet::ip::Family;
use taupe_protocol::time::Instant;

use super::number;

/// The time for which a server may be silent. Most replies take less than a tenth of it. Two
/// simultaneous queries do not count as a repetition.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Servers {
    v4: FamilyServers,
    v6: FamilyServers,
}

#[derive(Debug)]
struct FamilyServers {
    all: Vec<u128>,
    /// Index of the server in use.
    turn: usize,
    /// The time of the first query to it since it was last heard.
    queried: Option<Instant>,
    /// Queries since any server of the family was last heard.
    silence: Option<Tries>,
}

/// Queries without a reply.
#[derive(Clone, Copy, Debug)]
struct Tries {
    first: Instant,
    last: Instant,
    /// Queries within [`PATIENCE`] of each other count as one.
    count: usize,
}

/// All name servers of a family, when none of them answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SilentServers {
    /// The servers in the order of the file.
    pub servers: Vec<IpAddr>,
    /// The time for which they have been queried.
    pub time: Duration,
}

impl Servers {
    pub(super) fn new(all: &[IpAddr]) -> Self {
        let family = |wanted| {
            let all = all.iter().map(|&address| number(address));
            let all = all.filter(|&(family, _)| family == wanted);
            FamilyServers {
                all: all.map(|(_, ip)| ip).collect(),
                turn: 0,
                queried: None,
                silence: None,
            }
        };
        Self {
            v4: family(Family::V4),
            v6: family(Family::V6),
        }
    }

    fn of_family(&mut self, family: Family) -> &mut FamilyServers {
        match family {
            Family::V4 => &mut self.v4,
            Family::V6 => &mut self.v6,
        }
    }

    /// Returns the server for a query that an application sends to `original`. If `original` is a server
    /// of the tunnel, that one is used.
    pub(super) fn server_for(&mut self, now: Instant, family: Family, original: u128) -> u128 {
        let servers = self.of_family(family);
        servers.note_query(now);
        if servers.all.contains(&original) {
            return original;
        }
        if servers
            .queried
            .is_some_and(|since| now.since(since) >= PATIENCE)
        {
            servers.next();
        }
        let Some(&server) = servers.all.get(servers.turn) else {
            return original;
        };
        servers.queried.get_or_insert(now);
        server
    }

    /// Records that a packet has come from a server.
    pub(super) fn note_reply(&mut self, family: Family, server: u128) {
        let servers = self.of_family(family);
        if servers.is_turn_of(server) {
            servers.queried = None;
        }
        if servers.all.contains(&server) {
            servers.silence = None;
        }
    }

    /// Records that the server's port is unreachable.
    pub(super) fn note_unreachable(&mut self, family: Family, server: u128) {
        let servers = self.of_family(family);
        if servers.is_turn_of(server) {
            servers.next();
        }
    }
}

impl Servers {
    /// Returns the families in which no server answers: each server has had its turn, and there
    /// were at least two queries, since a packet may be lost.
    pub(super) fn silent(&self, now: Instant) -> Vec<SilentServers> {
        let v4 = |ip| Ipv4Addr::from_bits(ip as u32).into();
        let v6 = |ip| Ipv6Addr::from_bits(ip).into();
        let servers: [(&FamilyServers, &dyn Fn(u128) -> IpAddr); 2] =
            [(&self.v4, &v4), (&self.v6, &v6)];
        let silent = servers.into_iter().filter_map(|(servers, address)| {
            Some(SilentServers {
                time: servers.silent_for(now)?,
                servers: servers.all.iter().copied().map(address).collect(),
            })
        });
        silent.collect()
    }
}

impl FamilyServers {
    fn note_query(&mut self, now: Instant) {
        if self.all.is_empty() {
            return;
        }
        let tries = self.silence.get_or_insert(Tries {
            first: now,
            last: now,
            count: 1,
        });
        if now.since(tries.last) >= PATIENCE {
            tries.last = now;
            tries.count = tries.count.saturating_add(1);
        }
    }

    fn silent_for(&self, now: Instant) -> Option<Duration> {
        let tries = self.silence?;
        let is_recent = now.since(tries.last) < PATIENCE;
        let lost = tries.count - usize::from(is_recent);
        (lost >= self.all.len().max(2)).then(|| now.since(tries.first))
    }

    fn is_turn_of(&self, server: u128) -> bool {
        self.all.get(self.turn) == Some(&server)
    }

    fn next(&mut self) {
        self.turn = (self.turn + 1) % self.all.len().max(1);
        self.queried = None;
    }
}
