//! One step of changing the system, with the information to undo it.

use core::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use taupe_os_linux::netlink::{Mark, Route, RouteKind, Rule};
use taupe_packet::ip::Family;

use crate::dns::Dns;

/// One step of changing the system. No step contains a key.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Change {
    /// Runs a command of the file. It cannot be undone; the commands of `down` are separate steps.
    Hook(Hook),
    /// Starts the device. Undone by deleting its interface.
    Device,
    /// Sets the keys and peers of the device. Ends with the device.
    Configure,
    /// Adds an address with its prefix length.
    Address(IpNet),
    /// Sets the MTU and brings the interface up. Ends with the device.
    Up {
        /// The MTU in bytes.
        mtu: u32,
    },
    /// Sets the name servers.
    Dns(Dns),
    /// Sets the mark of the device's own datagrams. Ends with the device.
    Mark(u32),
    /// Adds a route into the tunnel.
    Route {
        /// The destination network.
        destination: IpNet,
        /// The number of the table.
        table: u32,
    },
    /// Adds a route that rejects packets for a network if the tunnel's route to it is gone, so that
    /// nothing leaves in clear when the device is killed.
    Unreachable {
        /// The destination network.
        destination: IpNet,
        /// The number of the table.
        table: u32,
    },
    /// Adds a route without an interface. It rejects packets for a network for which there is no
    /// route into the tunnel, or ends the lookup so that the following rules apply.
    Special {
        /// The action of the route.
        kind: RouteKind,
        /// The destination network.
        destination: IpNet,
        /// The number of the table.
        table: u32,
    },
    /// Adds a routing policy rule.
    Rule(Rule),
    /// Adds the nf_tables table `wg-quick-INTERFACE`.
    Firewall {
        /// The address family.
        family: Family,
        /// The property by which the rules match the interface.
        #[serde(default)]
        interface: InterfaceKey,
        /// The mark of the tunnel's own datagrams.
        mark: u32,
        /// The tunnel's addresses of this family from the file.
        addresses: Vec<IpAddr>,
    },
    /// Sets `net.ipv4.conf.all.src_valid_mark`, with which the reverse-path filter considers marks
    /// (Linux 2.6.33).
    ValidMark {
        /// The value before the first tunnel that sets it; `None` if it must not be restored.
        original: Option<u32>,
    },
}

/// The property by which firewall rules match the tunnel's interface.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub enum InterfaceKey {
    /// Its name, as in `wg-quick`. After a rename of the interface the rules drop the packets that
    /// the tunnel receives.
    #[default]
    Name,
    /// Its index, which does not change when the interface is renamed.
    Index,
}

/// A command of a file, with its phase.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hook {
    /// The phase in which it runs.
    pub phase: Phase,
    /// The command, with `%i` replaced by the interface's name.
    pub command: String,
}

/// The phase in which a command of a file runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Phase {
    /// Before the interface is created.
    PreUp,
    /// After the tunnel is usable.
    PostUp,
    /// Before anything is undone.
    PreDown,
    /// After everything is undone.
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

/// The name of the setting of [`Change::ValidMark`] in `sysctl`.
pub(crate) const VALID_MARK: &str = "net.ipv4.conf.all.src_valid_mark";

/// The metric of [`Change::Unreachable`]: every other route is preferred.
pub(crate) const LAST_METRIC: u32 = u32::MAX;

/// Returns the metric of [`Change::Special`]. During a reload there may be two routes for one
/// network; then the one that lets the following rules apply is preferred.
pub(crate) const fn special_metric(kind: RouteKind) -> u32 {
    match kind {
        RouteKind::Throw => LAST_METRIC - 1,
        _ => LAST_METRIC,
    }
}

impl Change {
    /// Formats the equivalent command for `interface`, as `wg-quick` prints it after `[#]`.
    pub fn command(&self, interface: &str) -> impl fmt::Display {
        fmt::from_fn(move |f| self.write_command(interface, f))
    }

    /// Returns the command that would undo the change, or `None` if there is nothing to undo.
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

/// Returns the mark of the datagrams that the rules keep out of the tunnel.
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

/// Returns the option of `ip` for the family.
fn flag(family: Family) -> &'static str {
    match family {
        Family::V4 => "-4",
        Family::V6 => "-6",
    }
}

/// Returns the name of the family in `nft`.
pub(crate) fn nft(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    }
}
