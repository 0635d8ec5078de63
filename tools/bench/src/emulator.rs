//! A link in user space that delays, loses, reorders, duplicates and corrupts packets, because many
//! kernels lack `netem`.
//!
//! Each of the two machines gets a TUN interface as its network card. The emulator reads the
//! packets that one machine sends, passes them through a [`LinkDirection`], and writes them to the
//! other machine. One thread per direction sleeps until a packet arrives or is due.

pub mod direction;
mod forwarder;

pub use self::direction::Counters;

use self::direction::{Conditions, LinkDirection, MILLION};
use self::forwarder::Forwarder;
use crate::side::{PORT, Side};
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use taupe_lab::ensure;
use taupe_lab::error::{Error, Result};
use taupe_lab::host::{self, Host};
use taupe_os_linux::tun::{Offloads, Tun};

/// Properties of the link in each direction.
///
/// A packet waits at the bottleneck until all earlier packets have been sent, occupies the
/// bottleneck for its length divided by the rate, and then travels for the delay. Losses and
/// duplicates are drawn behind the bottleneck, as in radio networks: a lost packet has occupied the
/// bottleneck like any other, and a duplicate does not occupy it.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// Rate from client to server, in bit/s of IP packets; `None` for no limit.
    pub up: Option<u64>,
    /// Rate from server to client, in bit/s of IP packets; `None` for no limit.
    pub down: Option<u64>,
    /// Capacity of the bottleneck's queue in bytes of IP packets; packets beyond it are dropped.
    /// `None` for the amount sent in 100 ms, at least 64 KiB.
    pub queue: Option<usize>,
    /// Delay of one direction.
    pub delay: Duration,
    /// Range of the delay, which is drawn uniformly from `delay ± jitter`. Packets keep their
    /// order: a packet with a shorter delay than its predecessor arrives together with it. Under
    /// load, delays therefore gather near the upper end.
    pub jitter: Duration,
    /// Lost packets per million.
    pub loss: u32,
    /// Packets per million that overtake earlier packets, because they are not delayed behind the
    /// bottleneck.
    pub reorder: u32,
    /// Packets per million that are delivered twice, one directly after the other.
    pub duplicate: u32,
    /// Packets per million that are delivered with one flipped bit, anywhere behind the IP header.
    /// The header is spared: with a wrong IPv4 header checksum the receiver would drop the packet,
    /// as if it were lost, and a changed IPv6 header could belong to another connection.
    pub corrupt: u32,
    /// Seed of the random numbers. The same seed and packets give the same results regardless of
    /// timing, except for packets dropped at a full queue. Another version of the generator may
    /// give other results.
    pub seed: u64,
}

impl Profile {
    /// A link without any impairment, as a base for other profiles.
    pub const PERFECT: Self = Self {
        up: None,
        down: None,
        queue: None,
        delay: Duration::ZERO,
        jitter: Duration::ZERO,
        loss: 0,
        reorder: 0,
        duplicate: 0,
        corrupt: 0,
        seed: 0,
    };

    /// An 802.11b network of 1999 at some distance: 5 Mbit/s of its 11 for packets, 4 ± 3 ms and 2
    /// % loss in each direction.
    ///
    /// In a real network both directions share the air; here they do not.
    pub const WIFI_80211B: Self = Self {
        up: Some(5_000_000),
        down: Some(5_000_000),
        delay: Duration::from_millis(4),
        jitter: Duration::from_millis(3),
        loss: 20_000,
        ..Self::PERFECT
    };

    /// A mobile network: 30 Mbit/s down, 10 Mbit/s up, 45 ± 15 ms and 0.5 % loss in each direction.
    pub const LTE: Self = Self {
        up: Some(10_000_000),
        down: Some(30_000_000),
        delay: Duration::from_millis(45),
        jitter: Duration::from_millis(15),
        loss: 5_000,
        ..Self::PERFECT
    };

    /// Returns the conditions for packets from this side.
    fn conditions(&self, from: Side) -> Result<Conditions> {
        const LONGEST: Duration = Duration::from_secs(60);
        for (what, share) in [
            ("loss", self.loss),
            ("reorder", self.reorder),
            ("duplicate", self.duplicate),
            ("corrupt", self.corrupt),
        ] {
            ensure!(
                share <= MILLION,
                "a link's {what} is of a million, but {share}"
            );
        }
        ensure!(
            self.delay <= LONGEST,
            "a link's delay of {:?} is more than {LONGEST:?}",
            self.delay
        );
        ensure!(
            self.jitter <= self.delay,
            "a link's jitter of {:?} is more than its delay of {:?}",
            self.jitter,
            self.delay
        );
        let rate = match from {
            Side::Client => self.up,
            Side::Server => self.down,
        };
        let nothing = || Error::unmet("a link's rate is 0 bit/s: nothing would pass");
        let rate = rate.map(|rate| NonZeroU64::new(rate).ok_or_else(nothing));
        Ok(Conditions {
            rate: rate.transpose()?,
            queue: self.queue,
            delay: self.delay,
            jitter: self.jitter,
            loss: self.loss,
            reorder: self.reorder,
            duplicate: self.duplicate,
            corrupt: self.corrupt,
        })
    }
}

/// A running link between two machines. Dropping it removes both interfaces.
#[derive(Debug)]
pub struct Emulator {
    up: Arc<Mutex<LinkDirection>>,
    down: Arc<Mutex<LinkDirection>>,
    /// Held for its `Drop`, which stops the threads.
    _carrier: Forwarder,
}

impl Emulator {
    /// Gives both machines an interface [`PORT`] with the address of [`Side::outer`], connected by
    /// a link with this profile.
    ///
    /// # Errors
    ///
    /// [`Error::Unmet`] for an invalid profile, [`Error::Io`] without `/dev/net/tun`,
    /// [`Error::Command`] if a machine already has such an interface.
    pub fn start(client: &Host, server: &Host, profile: &Profile) -> Result<Self> {
        let mut random = fastrand::Rng::with_seed(profile.seed);
        let mut direction = |from| -> Result<_> {
            let direction = LinkDirection::new(profile.conditions(from)?, random.fork());
            Ok(Arc::new(Mutex::new(direction)))
        };
        let (up, down) = (direction(Side::Client)?, direction(Side::Server)?);
        let port = |host, side| port(host, side).map(Arc::new);
        let (client, server) = (port(client, Side::Client)?, port(server, Side::Server)?);
        let forwarder = Forwarder::start([
            (client.clone(), server.clone(), up.clone()),
            (server, client, down.clone()),
        ])?;
        Ok(Self {
            up,
            down,
            _carrier: forwarder,
        })
    }

    /// Applies another profile to all later packets. Packets under way are not affected, later
    /// packets do not overtake them, and the random numbers are not seeded again.
    ///
    /// # Errors
    ///
    /// [`Error::Unmet`] for an invalid profile; the old one stays.
    pub fn change(&self, profile: &Profile) -> Result<()> {
        let [up, down] = [Side::Client, Side::Server].map(|side| profile.conditions(side));
        let (up, down) = (up?, down?);
        self.direction(Side::Client).change(up);
        self.direction(Side::Server).change(down);
        Ok(())
    }

    /// Returns the counters of packets from this side.
    pub fn counters(&self, from: Side) -> Counters {
        self.direction(from).counters()
    }

    fn direction(&self, from: Side) -> MutexGuard<'_, LinkDirection> {
        let direction = match from {
            Side::Client => &self.up,
            Side::Server => &self.down,
        };
        direction.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Creates a machine's interface of the link.
fn port(host: &Host, side: Side) -> Result<Tun> {
    let tun = host.enter(|| {
        // Single packets with complete checksums.
        Tun::create(PORT, Offloads::NONE)
            .map_err(|error| Error::unmet(format!("{} of {}: {error}", PORT, host.name())))
    })?;
    host::add_address(host, PORT, &format!("{}/24", side.outer()))?;
    // The kernel drops packets beyond the queue without counting them.
    host.ip(&[
        "link",
        "set",
        PORT,
        "mtu",
        "1500",
        "txqueuelen",
        "4096",
        "up",
    ])?;
    Ok(tun)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(profile: &Profile) -> bool {
        Side::BOTH
            .iter()
            .any(|side| profile.conditions(*side).is_err())
    }

    #[test]
    fn presets_make_sense() {
        for preset in [Profile::PERFECT, Profile::WIFI_80211B, Profile::LTE] {
            assert!(!refused(&preset), "{preset:?}");
        }
    }

    #[test]
    fn up_is_what_the_client_sends() {
        let rate = |side| Profile::LTE.conditions(side).unwrap().rate;
        assert_eq!(rate(Side::Client).map(NonZeroU64::get), Some(10_000_000));
        assert_eq!(rate(Side::Server).map(NonZeroU64::get), Some(30_000_000));
    }

    #[test]
    fn invalid_profiles_are_refused() {
        let nonsense: [fn(&mut Profile); 8] = [
            |profile| profile.up = Some(0),
            |profile| profile.down = Some(0),
            |profile| profile.delay = Duration::MAX,
            |profile| profile.jitter = profile.delay + Duration::from_nanos(1),
            |profile| profile.loss = 1_000_001,
            |profile| profile.reorder = 1_000_001,
            |profile| profile.duplicate = 1_000_001,
            |profile| profile.corrupt = u32::MAX,
        ];
        for (index, change) in nonsense.iter().enumerate() {
            let mut profile = Profile::LTE;
            change(&mut profile);
            assert!(refused(&profile), "{index}: {profile:?}");
        }
    }
}
