//! A link that delays, loses, reorders, duplicates and corrupts, in user space,
//! because many kernels lack `netem`.
//!
//! Both machines get a TUN for a network card. What one sends is read there, meets its
//! fate on a [`mod@line`] of its own, and is written to the other: a thread for each
//! direction, which sleeps until a packet comes or one is due.

mod carrier;
pub mod line;

pub use self::line::Counters;

use self::carrier::Carrier;
use self::line::{Conditions, Line, MILLION};
use crate::side::{PORT, Side};
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use taupe_lab::ensure;
use taupe_lab::error::{Error, Result};
use taupe_lab::host::{self, Host};
use taupe_os_linux::tun::{Offloads, Tun};

/// What the link does to packets, each way.
///
/// A packet waits at the bottleneck until those before it have been sent, takes the time
/// there that its length takes at the given rate, and is then under way for the delay.
/// Chance decides behind the bottleneck, as on the air: a packet that gets lost has taken
/// its time like any other, and a copy takes none.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// In bit/s of IP packets, from client to server; `None` for no limit.
    pub up: Option<u64>,
    /// In bit/s, from server to client.
    pub down: Option<u64>,
    /// In bytes of IP packets that may be at the bottleneck; whatever more comes is
    /// dropped. `None` for what takes 100 ms there, or 64 KiB if that is more.
    pub queue: Option<usize>,
    /// One way.
    pub delay: Duration,
    /// The delay is drawn evenly from `delay ± jitter`, and keeps the order of packets: one
    /// that drew less than the packet before arrives together with it. So under load
    /// delays gather near the upper end.
    pub jitter: Duration,
    /// Of a million: packets lost.
    pub loss: u32,
    /// Of a million: packets that overtake those before them, because they are not delayed
    /// behind the bottleneck at all.
    pub reorder: u32,
    /// Of a million: packets delivered twice, one right behind the other.
    pub duplicate: u32,
    /// Of a million: packets delivered with one bit flipped, anywhere behind the IP header.
    /// The header itself is spared: whoever receives the packet would drop it for the
    /// header's checksum, which makes it a lost one, or as IPv6 take it for another's.
    pub corrupt: u32,
    /// The same seed and the same packets have the same fates, whatever the time between
    /// them, but for those dropped because the queue is full. Which fates belong to a seed
    /// may change with the version of the generator.
    pub seed: u64,
}

impl Profile {
    /// Does nothing to packets; to be filled in.
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

    /// A wireless network of 1999 at some distance: 5 of its 11 Mbit/s are left for
    /// packets, with 4 ± 3 ms and 2 % loss each way.
    ///
    /// The air is shared by both directions there, and here it is not.
    pub const WIFI_80211B: Self = Self {
        up: Some(5_000_000),
        down: Some(5_000_000),
        delay: Duration::from_millis(4),
        jitter: Duration::from_millis(3),
        loss: 20_000,
        ..Self::PERFECT
    };

    /// A telephone's network: 30 Mbit/s down, 10 up, with 45 ± 15 ms and 0.5 % loss each
    /// way.
    pub const LTE: Self = Self {
        up: Some(10_000_000),
        down: Some(30_000_000),
        delay: Duration::from_millis(45),
        jitter: Duration::from_millis(15),
        loss: 5_000,
        ..Self::PERFECT
    };

    /// What happens to the packets that this side sends.
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

/// A running link between two machines. Dropping it takes both interfaces away.
#[derive(Debug)]
pub struct Emulator {
    up: Arc<Mutex<Line>>,
    down: Arc<Mutex<Line>>,
    /// Only held: it stops when it is dropped.
    _carrier: Carrier,
}

impl Emulator {
    /// Gives both machines an interface [`PORT`] with the address of [`Side::outer`],
    /// joined by a link of that profile.
    ///
    /// # Errors
    ///
    /// [`Error::Unmet`] for a profile that makes no sense, [`Error::Io`] without
    /// `/dev/net/tun`, [`Error::Command`] when a machine has such an interface already.
    pub fn start(client: &Host, server: &Host, profile: &Profile) -> Result<Self> {
        let mut chance = fastrand::Rng::with_seed(profile.seed);
        let mut line = |from| -> Result<_> {
            let line = Line::new(profile.conditions(from)?, chance.fork());
            Ok(Arc::new(Mutex::new(line)))
        };
        let (up, down) = (line(Side::Client)?, line(Side::Server)?);
        let port = |host, side| port(host, side).map(Arc::new);
        let (client, server) = (port(client, Side::Client)?, port(server, Side::Server)?);
        let carrier = Carrier::start([
            (client.clone(), server.clone(), up.clone()),
            (server, client, down.clone()),
        ])?;
        Ok(Self {
            up,
            down,
            _carrier: carrier,
        })
    }

    /// Does that from now on to packets that are sent. Those under way keep their fates,
    /// those to come do not overtake them, and the seed is not sown again.
    ///
    /// # Errors
    ///
    /// [`Error::Unmet`] for a profile that makes no sense; the former stays.
    pub fn change(&self, profile: &Profile) -> Result<()> {
        let [up, down] = [Side::Client, Side::Server].map(|side| profile.conditions(side));
        let (up, down) = (up?, down?);
        self.line(Side::Client).change(up);
        self.line(Side::Server).change(down);
        Ok(())
    }

    /// What has become of the packets that this side sent.
    pub fn counters(&self, from: Side) -> Counters {
        self.line(from).counters()
    }

    fn line(&self, from: Side) -> MutexGuard<'_, Line> {
        let line = match from {
            Side::Client => &self.up,
            Side::Server => &self.down,
        };
        line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Gives a machine its end of the link.
fn port(host: &Host, side: Side) -> Result<Tun> {
    let tun = host.enter(|| {
        // Every packet alone, with its checksums complete.
        Tun::create(PORT, Offloads::NONE)
            .map_err(|error| Error::unmet(format!("{} of {}: {error}", PORT, host.name())))
    })?;
    host::add_address(host, PORT, &format!("{}/24", side.outer()))?;
    // What does not fit there would be lost without being counted.
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
    fn nonsense_is_refused() {
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
