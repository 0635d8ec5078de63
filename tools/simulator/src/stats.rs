//! Counters of the simulation.

use core::fmt;
use core::ops::AddAssign;

use crate::plan::{HOUR, Nanos};

macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counters of one or many episodes.
        #[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl AddAssign for Stats {
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

stats! {
    /// Episodes.
    episodes,
    /// Hours in which a pair rekeyed and passed data.
    pair_hours,
    /// Those of them in which the pair rekeyed by a hybrid handshake.
    hybrid_hours,
    /// Hours of pairs without rekeying or data.
    uncounted_hours,
    /// Nanoseconds of virtual time.
    virtual_time,
    /// Events of the queue.
    events,
    /// Inner packets that applications have sent.
    sent,
    /// Inner packets that have arrived.
    delivered,
    /// Packets that waited for a session and were then sent.
    staged,
    /// Messages from the devices' handshake and timer code.
    messages,
    /// Initiations among them.
    initiations,
    /// Cookie replies among them.
    cookies,
    /// Sessions, counted on both sides.
    sessions,
    /// Parts of hybrid messages sent.
    parts,
    /// Sessions of hybrid handshakes, counted at the initiator.
    hybrid_sessions,
    /// Handshakes begun by the attacker with everyone's X25519 secrets.
    impersonations,
    /// Datagrams that hosts have received from the network.
    datagrams,
    /// Datagrams lost by the network.
    lost,
    /// Datagrams duplicated by the network.
    duplicated,
    /// Datagrams changed or truncated by the network.
    corrupted,
    /// Datagrams delayed by the network for up to five minutes.
    delayed,
    /// Hostile datagrams.
    hostile,
    /// Crashes.
    crashes,
    /// Changes of a wall clock.
    clock_jumps,
    /// Suspends.
    suspends,
    /// Changes of a host's address.
    roams,
    /// Changes of configuration.
    changes,
    /// Probes started.
    probes,
    /// Probes that succeeded.
    probes_passed,
    /// Deadlines handled.
    wakes,
    /// Deadlines at which there was nothing to do.
    idle_wakes,
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "pair-hours: {} counted, {} not; {} episodes, {} simulated hours",
            self.pair_hours,
            self.uncounted_hours,
            self.episodes,
            self.virtual_time / HOUR as Nanos
        )?;
        writeln!(
            f,
            "events: {}; deadlines: {} ({} of them idle); sessions: {}; initiations: {}; cookies: {}",
            self.events, self.wakes, self.idle_wakes, self.sessions, self.initiations, self.cookies
        )?;
        writeln!(
            f,
            "packets: {} sent, {} delivered, {} staged; datagrams: {} received, {} lost, {} duplicated, {} corrupted, {} delayed",
            self.sent,
            self.delivered,
            self.staged,
            self.datagrams,
            self.lost,
            self.duplicated,
            self.corrupted,
            self.delayed
        )?;
        writeln!(
            f,
            "hybrid: {} pair-hours, {} parts, {} sessions, {} impersonations",
            self.hybrid_hours, self.parts, self.hybrid_sessions, self.impersonations
        )?;
        write!(
            f,
            "hostile datagrams: {}; crashes: {}; clock jumps: {}; suspends: {}; roams: {}; changes: {}; probes: {} ({} passed)",
            self.hostile,
            self.crashes,
            self.clock_jumps,
            self.suspends,
            self.roams,
            self.changes,
            self.probes,
            self.probes_passed
        )
    }
}
