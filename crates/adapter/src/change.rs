//! One step on the system, with what it takes to undo it.

use core::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use taupe_os_linux::netlink::{Mark, Route, RouteKind, Rule};
use taupe_packet::ip::Family;

use crate::dns::Dns;

/// One step on the system. No step holds a key.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Change {
    /// Runs a command of the file's owner. There is no undoing it; what comes
    /// down runs commands of its own.
    Hook(Hook),
    /// Starts the device. Undone by deleting its interface.
    Device,
    /// Gives the device its keys and peers. Ends with the device.
    Configure,
    /// Adds an address, with the length of its network.
    Address(IpNet),
    /// Sets the MTU in bytes and the interface up. Ends with the device.
    Up {
        /// The MTU in bytes.
        mtu: u32,
    },
    /// Makes name servers known.
    Dns(Dns),
    /// Marks the device's own datagrams. Ends with the device.
    Mark(u32),
    /// Leads a network into the tunnel.
    Route {
        /// Where to.
        destination: IpNet,
        /// The number of the table.
        table: u32,
    },
    /// Refuses packets for a network in a table when the tunnel's route to it
    /// is gone: nothing leaves in clear when the device is killed.
    Unreachable {
        /// Where to.
        destination: IpNet,
        /// The number of the table.
        table: u32,
    },
    /// Adds a route that leads nowhere to a table: it refuses packets for a network where
    /// there is none into the tunnel, or leaves them to the rules after the table's.
    Special {
        /// What it does with a packet.
        kind: RouteKind,
        /// Where to.
        destination: IpNet,
        /// The number of the table.
        table: u32,
    },
    /// Adds a rule of policy routing.
    Rule(Rule),
    /// Adds the nf_tables table `wg-quick-INTERFACE`.
    Firewall {
        /// Whose packets.
        family: Family,
        /// The property by which its rules recognise the interface.
        #[serde(default)]
        interface: InterfaceKey,
        /// The mark of the tunnel's own datagrams.
        mark: u32,
        /// The tunnel's addresses of this family, as the file has them.
        addresses: Vec<IpAddr>,
    },
    /// Sets `net.ipv4.conf.all.src_valid_mark`, by which the reverse-path
    /// filter takes marks into account (Linux 2.6.33).
    ValidMark {
        /// What it was before the first tunnel that wants it; `None` when it
        /// is not to be put back.
        original: Option<u32>,
    },
}

/// The property by which firewall rules recognise the tunnel's interface.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub enum InterfaceKey {
    /// Its name, as `wg-quick` has it. The rules drop what the tunnel receives when the
    /// interface is renamed.
    #[default]
    Name,
    /// Its number, which stays when the interface is renamed.
    Index,
}

/// A command of a file, and when it is run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hook {
    /// When.
    pub phase: Phase,
    /// The command, with the interface's name in the place of `%i`.
    pub command: String,
}

/// When a command of a file is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Phase {
    /// Before there is an interface.
    PreUp,
    /// When the tunnel is usable.
    PostUp,
    /// Before anything is undone.
    PreDown,
    /// When everything is undone.
    PostDown,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PreUp => "PreUp",
            Self::PostUp => "PostUp",
            Self::PreDown => "PreDown",
            Self::PostDown => "PostDown",
        })
    }
}

/// What `sysctl` calls the setting of [`Change::ValidMark`].
pub(crate) const VALID_MARK: &str = "net.ipv4.conf.all.src_valid_mark";

/// The metric of [`Change::Unreachable`]: every other route is preferred.
pub(crate) const LAST_METRIC: u32 = u32::MAX;

/// The metric of [`Change::Special`]: of two for one network, as there are for a moment of
/// a reload, what leaves packets to other rules is preferred.
pub(crate) const fn special_metric(kind: RouteKind) -> u32 {
    match kind {
        RouteKind::Throw => LAST_METRIC - 1,
        _ => LAST_METRIC,
    }
}

impl Change {
    /// Whether deleting the interface undoes it.
    #[must_use]
    pub fn ends_with_device(&self) -> bool {
        match self {
            Self::Configure
            | Self::Address(_)
            | Self::Up { .. }
            | Self::Mark(_)
            | Self::Route { .. } => true,
            Self::Hook(_)
            | Self::Device
            | Self::Dns(_)
            | Self::Unreachable { .. }
            | Self::Special { .. }
            | Self::Rule(_)
            | Self::Firewall { .. }
            | Self::ValidMark { .. } => false,
        }
    }

    /// The command that would do the same to `interface`, as `wg-quick` prints
    /// it behind `[#]`.
    pub fn command(&self, interface: &str) -> impl fmt::Display {
        fmt::from_fn(move |f| self.write_command(interface, f))
    }

    /// The command that would undo it; `None` where nothing is to be done.
    pub fn undoing(&self, interface: &str) -> Option<String> {
        let line = match self {
            Self::Hook(_) | Self::Configure | Self::Up { .. } => return None,
            Self::ValidMark { original: None } => return None,
            Self::ValidMark {
                original: Some(original),
            } => format!("sysctl -q {VALID_MARK}={original}"),
            Self::Device => format!("ip link delete dev {interface}"),
            Self::Dns(dns) => dns.undo_line(),
            Self::Mark(_) => format!("wg set {interface} fwmark off"),
            Self::Firewall { family, .. } => {
                format!("nft delete table {} wg-quick-{interface}", nft(*family))
            }
            Self::Address(_)
            | Self::Route { .. }
            | Self::Unreachable { .. }
            | Self::Special { .. }
            | Self::Rule(_) => self
                .command(interface)
                .to_string()
                .replacen(" add ", " delete ", 1),
        };
        Some(line)
    }

    fn write_command(&self, interface: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hook(hook) => f.write_str(&hook.command),
            Self::Device => write!(f, "ip link add {interface} type wireguard"),
            Self::Configure => write!(f, "wg setconf {interface} /dev/fd/63"),
            Self::Address(network) => {
                let flag = flag(Family::of(network.addr()));
                write!(f, "ip {flag} address add {network} dev {interface}")
            }
            Self::Up { mtu } => write!(f, "ip link set mtu {mtu} up dev {interface}"),
            Self::Dns(dns) => write!(f, "{dns}"),
            Self::Mark(mark) => write!(f, "wg set {interface} fwmark {mark}"),
            Self::Route { destination, table } => {
                let flag = flag(Family::of(destination.addr()));
                write!(f, "ip {flag} route add {destination} dev {interface}")?;
                match *table {
                    Route::MAIN_TABLE => Ok(()),
                    table => write!(f, " table {table}"),
                }
            }
            Self::Unreachable { destination, table } => {
                write_special(RouteKind::Unreachable, destination, *table, f)
            }
            Self::Special {
                kind,
                destination,
                table,
            } => write_special(*kind, destination, *table, f),
            Self::Rule(rule) => write_rule(rule, f),
            Self::Firewall { family, .. } => write!(
                f,
                "nft -f /dev/fd/63 (table {} wg-quick-{interface})",
                nft(*family)
            ),
            Self::ValidMark { .. } => write!(f, "sysctl -q {VALID_MARK}=1"),
        }
    }
}

/// The mark of the datagrams that rules keep out of the tunnel.
pub(crate) fn mark_in_effect<'a>(own: impl IntoIterator<Item = &'a Change>) -> Option<u32> {
    own.into_iter().find_map(|change| match change {
        Change::Rule(rule) if rule.invert => rule.mark.map(|mark| mark.value),
        _ => None,
    })
}

fn write_special(
    kind: RouteKind,
    destination: &IpNet,
    table: u32,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let (flag, metric) = (flag(Family::of(destination.addr())), special_metric(kind));
    write!(
        f,
        "ip {flag} route add {kind} {destination} metric {metric} table {table}"
    )
}

fn write_rule(rule: &Rule, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "ip {} rule add ", flag(rule.family))?;
    if rule.invert {
        f.write_str("not ")?;
    }
    if let Some(source) = rule.source {
        write!(f, "from {source} ")?;
    }
    match rule.mark {
        None => {}
        Some(Mark {
            value,
            mask: u32::MAX,
        }) => write!(f, "fwmark {value} ")?,
        Some(Mark { value, mask }) => write!(f, "fwmark {value:#x}/{mask:#x} ")?,
    }
    match rule.table {
        Route::MAIN_TABLE => f.write_str("table main")?,
        table => write!(f, "table {table}")?,
    }
    match rule.suppress_prefix_length {
        Some(length) => write!(f, " suppress_prefixlength {length}"),
        None => Ok(()),
    }
}

/// The option by which `ip` is told the family.
fn flag(family: Family) -> &'static str {
    match family {
        Family::V4 => "-4",
        Family::V6 => "-6",
    }
}

/// What `nft` calls the family.
pub(crate) fn nft(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}
