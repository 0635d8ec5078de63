//! Two hosts that are each other's peers.

use crate::plan::{Edge, HOUR, Nanos, Pattern};

/// Payload that fits into 1,280 bytes with the headers of IPv6, UDP and transport data.
pub(super) const NARROW_PACKET: u64 = 1200;

/// Two hosts that are each other's peers.
pub(crate) struct Pair {
    pub(crate) hosts: [usize; 2],
    /// Time of the last change of its configuration.
    pub(crate) disturbed: Nanos,
    /// The longest packets that get through.
    pub(super) max_packet: u64,
    pub(super) turn: u64,
    pub(super) flow: Option<(Pattern, usize, Nanos, Nanos)>,
    pub(super) probe: Option<Probe>,
    hours: Vec<Hour>,
}

/// Events of a pair within an hour.
#[derive(Clone, Copy, Default)]
struct Hour {
    rekeyed: bool,
    /// Set after a hybrid handshake.
    hybrid: bool,
    passed: bool,
}

pub(super) struct Probe {
    pub(super) turn: u64,
    pub(super) until: Nanos,
    /// Time since which the pair has been able to exchange packets.
    pub(super) able_since: Option<Nanos>,
    /// Arrival of the last authentic message that was sent before.
    pub(super) late: Nanos,
    pub(super) under_load: bool,
    /// Set when a packet from each side has arrived since.
    pub(super) passed: [bool; 2],
}

impl Pair {
    pub(crate) fn new(edge: &Edge, duration: Nanos) -> Self {
        Self {
            hosts: [edge.a, edge.b],
            disturbed: 0,
            max_packet: if edge.narrow { NARROW_PACKET } else { 1400 },
            turn: 0,
            flow: None,
            probe: None,
            hours: vec![Hour::default(); (duration / HOUR) as usize],
        }
    }

    /// Ends flows and probes.
    pub(crate) fn stop(&mut self) {
        self.flow = None;
        self.probe = None;
    }

    /// Returns the hours that count, those of them with hybrid handshakes, and those that do not
    /// count.
    pub(crate) fn hours(&self) -> (u64, u64, u64) {
        let counts = |hour: &&Hour| hour.rekeyed && hour.passed;
        let counted = self.hours.iter().filter(counts).count();
        let hybrid = self.hours.iter().filter(counts).filter(|hour| hour.hybrid);
        let not = self.hours.len() - counted;
        (counted as u64, hybrid.count() as u64, not as u64)
    }

    pub(crate) fn rekeyed(&mut self, now: Nanos, hybrid: bool) {
        if let Some(hour) = self.hours.get_mut((now / HOUR) as usize) {
            hour.rekeyed = true;
            hour.hybrid |= hybrid;
        }
    }

    /// Records an authentic message that was sent before the pair was able to exchange packets. Its
    /// receiver considers the other side alive, although this may have lost its sessions since, and
    /// restarts its wait for answers.
    pub(crate) fn alive(&mut self, sent: Nanos, now: Nanos) {
        if let Some(probe) = &mut self.probe
            && probe.able_since.is_some_and(|since| sent < since)
        {
            probe.late = now;
        }
    }

    pub(super) fn passed(&mut self, from: usize, now: Nanos) {
        if let Some(hour) = self.hours.get_mut((now / HOUR) as usize) {
            hour.passed = true;
        }
        if let Some(probe) = &mut self.probe
            && probe.able_since.is_some()
        {
            probe.passed[usize::from(self.hosts[1] == from)] = true;
        }
    }
}
