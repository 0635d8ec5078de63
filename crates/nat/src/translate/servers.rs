//! Which of the tunnel's name servers is asked.
//!
//! One of each family at a time, the first of them to begin with, until it is silent: a
//! question comes when another has waited for [`PATIENCE`] and nothing has been heard
//! since, or it says that nobody listens there. Then the next one's turn is; behind the
//! last comes the first again. Resolvers ask again after 5 s or sooner, so that a server
//! which is gone costs one question that time, and the others nothing.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use taupe_packet::ip::Family;
use taupe_protocol::time::Instant;

use super::number;

/// How long a server may be silent. Most answers take less than a tenth of that; who asks
/// two questions at once is not asking again.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Servers {
    v4: FamilyServers,
    v6: FamilyServers,
}

/// The servers of one family.
#[derive(Debug)]
struct FamilyServers {
    all: Vec<u128>,
    /// Whose turn it is.
    turn: usize,
    /// When the first question was sent to it that came after all that has been heard of it.
    asked: Option<Instant>,
    /// Since anything was heard of any of them.
    silence: Option<Tries>,
}

/// Questions that nobody has answered.
#[derive(Clone, Copy, Debug)]
struct Tries {
    first: Instant,
    last: Instant,
    /// Those that came within [`PATIENCE`] of each other count as one.
    count: usize,
}

/// All name servers of a family that a tunnel has, when none of them answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Silence {
    /// In the order of the file.
    pub servers: Vec<IpAddr>,
    /// For how long they have been asked.
    pub time: Duration,
}

impl Servers {
    pub(super) fn new(all: &[IpAddr]) -> Self {
        let family = |wanted| {
            let all = all.iter().map(|&address| number(address));
            let all = all.filter(|&(version, _)| version == wanted);
            FamilyServers {
                all: all.map(|(_, ip)| ip).collect(),
                turn: 0,
                asked: None,
                silence: None,
            }
        };
        Self {
            v4: family(Family::V4),
            v6: family(Family::V6),
        }
    }

    fn family(&mut self, version: Family) -> &mut FamilyServers {
        match version {
            Family::V4 => &mut self.v4,
            Family::V6 => &mut self.v6,
        }
    }

    /// Who gets a question now that an application has for `asked`: that one, if it is a
    /// server of the tunnel.
    pub(super) fn ask(&mut self, now: Instant, version: Family, asked: u128) -> u128 {
        let family = self.family(version);
        family.note_question(now);
        if family.all.contains(&asked) {
            return asked;
        }
        if family
            .asked
            .is_some_and(|since| now.since(since) >= PATIENCE)
        {
            family.next();
        }
        let Some(&server) = family.all.get(family.turn) else {
            return asked;
        };
        family.asked.get_or_insert(now);
        server
    }

    /// Something has come from a server.
    pub(super) fn hear(&mut self, version: Family, server: u128) {
        let family = self.family(version);
        if family.is_turn_of(server) {
            family.asked = None;
        }
        if family.all.contains(&server) {
            family.silence = None;
        }
    }

    /// Nobody listens there.
    pub(super) fn pass(&mut self, version: Family, server: u128) {
        let family = self.family(version);
        if family.is_turn_of(server) {
            family.next();
        }
    }
}

impl Servers {
    /// The families of which nobody answers: each of the servers has had its turn, and
    /// questions were asked twice at least, for a packet may be lost.
    pub(super) fn silent(&self, now: Instant) -> Vec<Silence> {
        let v4 = |ip| Ipv4Addr::from_bits(ip as u32).into();
        let v6 = |ip| Ipv6Addr::from_bits(ip).into();
        let families: [(&FamilyServers, &dyn Fn(u128) -> IpAddr); 2] =
            [(&self.v4, &v4), (&self.v6, &v6)];
        let silent = families.into_iter().filter_map(|(family, address)| {
            Some(Silence {
                time: family.silent_for(now)?,
                servers: family.all.iter().copied().map(address).collect(),
            })
        });
        silent.collect()
    }
}

impl FamilyServers {
    fn note_question(&mut self, now: Instant) {
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
        self.asked = None;
    }
}
