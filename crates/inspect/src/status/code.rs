//! Codes of findings.

use serde::{Serialize, Serializer};

/// Stable identifier of a kind of finding, which `status --json` prints.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the names say it")]
pub enum FindingCode {
    ProcessSilent,
    ProcessEnded,
    Changing,
    Down,
    UplinkUnguarded,
    FlowsRefused,
    NameServersSilent,
    KeyShared,
    NoPqPrivateKey,
    NoRoute,
    NoCarrier,
    NextHopSilent,
    NoHandshake,
    PeerSilent,
    HandshakeOld,
    UdpSwallowed,
    EndpointUnresolved,
    NamesPastTunnel,
    UnknownLayout,
    OutOfReach,
    SettingsUnknown,
    LinkChanged,
    MtuChanged,
    AddressesChanged,
    DnsChanged,
    RoutesChanged,
    RulesChanged,
    FirewallChanged,
    MarkChanged,
    SysctlChanged,
    BypassRoute,
}

impl FindingCode {
    /// Returns the identifier as `status --json` prints it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ProcessSilent => "process-silent",
            Self::ProcessEnded => "process-ended",
            Self::Changing => "changing",
            Self::Down => "down",
            Self::UplinkUnguarded => "uplink-unguarded",
            Self::FlowsRefused => "flows-refused",
            Self::NameServersSilent => "name-servers-silent",
            Self::KeyShared => "key-shared",
            Self::NoPqPrivateKey => "no-pq-private-key",
            Self::NoRoute => "no-route",
            Self::NoCarrier => "no-carrier",
            Self::NextHopSilent => "next-hop-silent",
            Self::NoHandshake => "no-handshake",
            Self::PeerSilent => "peer-silent",
            Self::HandshakeOld => "handshake-old",
            Self::UdpSwallowed => "udp-swallowed",
            Self::EndpointUnresolved => "endpoint-unresolved",
            Self::NamesPastTunnel => "names-past-tunnel",
            Self::UnknownLayout => "unknown-layout",
            Self::OutOfReach => "out-of-reach",
            Self::SettingsUnknown => "settings-unknown",
            Self::LinkChanged => "link-changed",
            Self::MtuChanged => "mtu-changed",
            Self::AddressesChanged => "addresses-changed",
            Self::DnsChanged => "dns-changed",
            Self::RoutesChanged => "routes-changed",
            Self::RulesChanged => "rules-changed",
            Self::FirewallChanged => "firewall-changed",
            Self::MarkChanged => "mark-changed",
            Self::SysctlChanged => "sysctl-changed",
            Self::BypassRoute => "bypass-route",
        }
    }
}

impl Serialize for FindingCode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}
