//! Probes, which check that a pair that can exchange packets does so.

use super::World;
use super::pair::Probe;
use super::queue::Event;
use super::traffic::Packets;
use crate::plan::{Nanos, SECOND};
use crate::violation::{Invariant, Violation};

/// Interval of a probe's checks.
const PROBE_STEP: Nanos = 2 * SECOND;

/// Longest time for which a probe waits until a pair can exchange packets.
const PROBE_TIMEOUT: Nanos = 600 * SECOND;

/// Time limit for a pair that can exchange packets: a dead-peer handshake (15.3 s) that may have to
/// wait for Rekey-Timeout and its jitter, and the transit time of packets.
const RECOVERY: Nanos = 24 * SECOND;

/// The same under load: a cookie costs each side another Rekey-Timeout.
const RECOVERY_UNDER_LOAD: Nanos = RECOVERY + 16 * SECOND;

impl World<'_> {
    pub(crate) fn start_probe(&mut self, edge: usize) {
        self.stats.probes += 1;
        let pair = &mut self.pairs[edge];
        let turn = pair.probe.as_ref().map_or(0, |probe| probe.turn) + 1;
        pair.probe = Some(Probe {
            turn,
            until: self.now + PROBE_TIMEOUT,
            able_since: None,
            late: 0,
            under_load: false,
            passed: [false; 2],
        });
        self.schedule(self.now, Event::Probe { edge, turn });
    }

    /// Carries out one step of a probe.
    pub(crate) fn probe(&mut self, edge: usize, turn: u64) -> Result<(), Violation> {
        let able = self.can_exchange(edge);
        let disturbed = self.last_disturbance(edge);
        let now = self.now;
        let hosts = self.pairs[edge].hosts;
        let other_kind_delay = self.handshake_delay(hosts[0], hosts[1]).unwrap_or(0);
        let loaded = hosts
            .iter()
            .any(|host| now <= self.hosts[*host].loaded_until + SECOND);
        let Some(probe) = self.pairs[edge]
            .probe
            .as_mut()
            .filter(|probe| probe.turn == turn)
        else {
            return Ok(());
        };
        if probe.able_since.is_none_or(|since| since < disturbed) || !able {
            probe.able_since = able.then_some(now);
            probe.passed = [false; 2];
            probe.under_load = false;
        }
        probe.under_load |= loaded;
        let limit = other_kind_delay
            + if probe.under_load {
                RECOVERY_UNDER_LOAD
            } else {
                RECOVERY
            };
        match probe.able_since {
            Some(_) if probe.passed == [true; 2] => {
                self.stats.probes_passed += 1;
                self.pairs[edge].probe = None;
                return Ok(());
            }
            Some(since) if now - since.max(probe.late) > limit => {
                return Err(Violation::new(
                    Invariant::Liveness,
                    format!(
                        "hosts {} and {} can exchange packets for {} s and do not (arrived from each: {:?})",
                        hosts[0],
                        hosts[1],
                        (now - since) / SECOND,
                        probe.passed
                    ),
                ));
            }
            None if now > probe.until => {
                self.pairs[edge].probe = None;
                return Ok(());
            }
            _ => {}
        }
        self.schedule(now + PROBE_STEP, Event::Probe { edge, turn });
        if able {
            self.send(hosts[0], hosts[1], &Packets::one(80, false))?;
            self.send(hosts[1], hosts[0], &Packets::one(80, false))?;
        }
        Ok(())
    }

    /// Returns true if nothing keeps a pair from exchanging packets.
    pub(super) fn can_exchange(&mut self, edge: usize) -> bool {
        let [a, b] = self.pairs[edge].hosts;
        let n = self.hosts.len();
        let good = |from: usize, to: usize| self.links[from * n + to].is_good(self.now);
        if !good(a, b) || !good(b, a) {
            return false;
        }
        self.handshake_delay(a, b).is_some()
            && self.is_configured_for(a, b)
            && self.is_configured_for(b, a)
            && (self.can_initiate(a, b) || self.can_initiate(b, a))
    }

    fn is_configured_for(&self, host: usize, other: usize) -> bool {
        let (Some(own), Some(theirs)) =
            (self.hosts[host].peers[other], self.hosts[other].peers[host])
        else {
            return false;
        };
        self.hosts[host].runs()
            && self.hosts[host]
                .node
                .as_ref()
                .is_some_and(|node| node.device.is_up())
            && own.present
            && own.allowed
            && own.key == self.hosts[other].public
            && own.preshared == theirs.preshared
    }

    fn can_initiate(&mut self, host: usize, other: usize) -> bool {
        let address = self.hosts[other].address;
        !self.hosts[host].locked_out(self.now)
            && self.hosts[host].endpoint_of(other) == Some(address)
    }

    /// Returns the last time at which something kept a pair from exchanging packets.
    fn last_disturbance(&self, edge: usize) -> Nanos {
        let [a, b] = self.pairs[edge].hosts;
        let pair = self.pairs[edge].disturbed;
        pair.max(self.hosts[a].disturbed)
            .max(self.hosts[b].disturbed)
    }
}
