//! Cases: the tunnel, the victim and the moment.

use fastrand::Rng;

use super::victims::Victim;

/// A kind of tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TunnelKind {
    /// `taupe device`, configured by `wg`.
    Device,
    /// Adapter mode, for all applications.
    Adapter,
    /// Adapter mode, for the selected application.
    Marks,
    /// Transparent mode.
    Transparent,
}

pub(super) const KINDS: [TunnelKind; 4] = [
    TunnelKind::Device,
    TunnelKind::Adapter,
    TunnelKind::Marks,
    TunnelKind::Transparent,
];

impl TunnelKind {
    /// Checks whether the kind blocks packets outside the tunnel.
    pub(super) fn has_kill_switch(self) -> bool {
        matches!(self, Self::Marks | Self::Transparent)
    }

    /// Checks whether the kind has a packet process. With selected applications the device is in the
    /// broker's process.
    pub(super) fn has_packet_process(self) -> bool {
        matches!(self, Self::Device | Self::Adapter)
    }
}

/// A thing that happens when a process is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KillMoment {
    Start,
    Traffic,
    Reload,
    ListenPort,
    Rekey,
    Down,
}

pub(super) const MOMENTS: [KillMoment; 6] = [
    KillMoment::Start,
    KillMoment::Traffic,
    KillMoment::Reload,
    KillMoment::ListenPort,
    KillMoment::Rekey,
    KillMoment::Down,
];

#[derive(Clone, Copy, Debug)]
pub(super) struct KillCase {
    pub(super) kind: TunnelKind,
    pub(super) moment: KillMoment,
    pub(super) victim: Victim,
    /// The selected application is blocked before the start.
    pub(super) is_locked_before: bool,
    /// `down` keeps the selected application blocked.
    pub(super) keeps_closed: bool,
    /// The tunnel comes up again before it is taken down.
    pub(super) comes_back: bool,
    /// Part of the longest delay before the kill.
    pub(super) delay: f64,
}

impl KillCase {
    pub(super) fn random(rng: &mut Rng) -> Self {
        let kind = KINDS[rng.usize(..KINDS.len())];
        let moment = loop {
            // There are more steps to interrupt in a start.
            let moment = MOMENTS[rng.usize(..MOMENTS.len() + 2).saturating_sub(2)];
            if kind != TunnelKind::Device || moment != KillMoment::Reload {
                break moment;
            }
        };
        let has_command = kind != TunnelKind::Device
            && matches!(
                moment,
                KillMoment::Start | KillMoment::Reload | KillMoment::Down
            );
        let mut victims = vec![Victim::Broker];
        victims.extend(kind.has_packet_process().then_some(Victim::PacketProcess));
        victims.extend(has_command.then_some(Victim::UserCommand));
        Self {
            kind,
            moment,
            victim: victims[rng.usize(..victims.len())],
            is_locked_before: rng.bool() && kind == TunnelKind::Transparent,
            keeps_closed: rng.bool() && kind.has_kill_switch(),
            comes_back: rng.bool(),
            delay: rng.f64(),
        }
    }
}
