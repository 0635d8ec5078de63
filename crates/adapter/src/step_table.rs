//! The table of steps: one row for each kind of [`Change`].
//!
//! [`plan`](crate::plan()) orders steps by [`Stage`]: each stage precedes all later ones, and the
//! steps of one stage stay in the order in which they were planned. `down` and a failed `up` undo
//! them in the reverse order, as [`Undo`] says. A reload replaces them as [`Reload`] says.
//! [`verify`](crate::verify()) compares steps that have a [`Setting`] with the system.
//!
//! docs/design/adapter.md shows the table. A test compares the two.

use crate::change::{Change, Phase};
use crate::setting::Setting;
use taupe_os_linux::netlink::RouteKind;

/// Row of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Step {
    pub(crate) stage: Stage,
    pub(crate) undo: Undo,
    pub(crate) reload: Reload,
    /// The setting that differs if another program has undone the step. `None` if the step is not
    /// compared with the system.
    pub(crate) setting: Option<Setting>,
}

/// Part of `up`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Stage {
    /// Commands before the device exists. They may prepare the network in which endpoint names are
    /// resolved.
    PreUp,
    Device,
    Peers,
    Addresses,
    /// The interface goes up before it gets routes, which the kernel refuses otherwise.
    Link,
    NameServers,
    Routing,
    /// Commands after the tunnel is usable.
    PostUp,
    /// Commands of `down`, which are no part of a plan.
    Down,
}

/// Condition under which a step is undone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Undo {
    /// Never.
    Never,
    /// Only together with the device.
    OnlyWithDevice,
    /// By itself, or together with the device.
    WithDevice,
    /// By itself, or together with the network namespace.
    WithNamespace,
    /// By itself, even if the network namespace has ended.
    Always,
}

/// Treatment of a new step in a reload. Old steps that the file lacks now are undone between
/// [`Reload::Guard`] and [`Reload::Last`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reload {
    /// No treatment: a reload runs no commands, and it sets keys and peers as its last action.
    Ignored,
    /// First, because an interface without an IPv4 address loses its IPv4 routes.
    First,
    /// Before old steps are undone, so that no packet leaves unencrypted in between.
    Guard,
    /// After old steps were undone.
    Last,
}

impl Change {
    /// Returns true if deleting the interface undoes the change.
    #[must_use]
    pub fn ends_with_device(&self) -> bool {
        matches!(self.step().undo, Undo::OnlyWithDevice | Undo::WithDevice)
    }

    /// Returns true if the change rejects packets, also without a device.
    pub(crate) fn rejects(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Special { kind, .. } => *kind != RouteKind::Throw,
            _ => false,
        }
    }

    /// Returns the change's row of the table.
    pub(crate) const fn step(&self) -> Step {
        use Reload::{First, Guard, Ignored, Last};
        use Stage::{Addresses, Device, Link, NameServers, Peers, Routing};
        use Undo::{Always, Never, OnlyWithDevice, WithDevice, WithNamespace};

        let (stage, undo, reload, setting) = match self {
            Self::Hook(hook) => (hook.phase.stage(), Never, Ignored, None),
            Self::Device => (Device, WithNamespace, Last, None),
            Self::Configure => (Peers, OnlyWithDevice, Ignored, Some(Setting::Mark)),
            Self::Address(_) => (Addresses, WithDevice, First, Some(Setting::Addresses)),
            Self::Up { .. } => (Link, OnlyWithDevice, Last, Some(Setting::Mtu)),
            Self::Dns(_) => (NameServers, Always, Last, Some(Setting::NameServers)),
            Self::Mark(_) => (Routing, WithDevice, Guard, Some(Setting::Mark)),
            Self::Route { .. } => (Routing, WithDevice, Guard, Some(Setting::Routes)),
            Self::Unreachable { .. } => (Routing, WithNamespace, Guard, Some(Setting::Routes)),
            Self::Special { .. } => (Routing, WithNamespace, Guard, Some(Setting::Routes)),
            Self::Rule(_) => (Routing, WithNamespace, Guard, Some(Setting::Rules)),
            Self::ValidMark { .. } => (Routing, WithNamespace, Last, Some(Setting::Sysctl)),
            Self::Firewall { .. } => (Routing, WithNamespace, Last, Some(Setting::Firewall)),
        };
        Step {
            stage,
            undo,
            reload,
            setting,
        }
    }
}

/// Returns true if these steps reject packets that no device carries.
pub(crate) fn block<'a>(steps: impl Iterator<Item = &'a Change> + Clone) -> bool {
    let is_rule = |change: &Change| matches!(change, Change::Rule(_));
    steps.clone().any(is_rule) && steps.clone().any(Change::rejects)
}

impl Phase {
    const fn stage(self) -> Stage {
        match self {
            Self::PreUp => Stage::PreUp,
            Self::PostUp => Stage::PostUp,
            Self::PreDown | Self::PostDown => Stage::Down,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Reload, Stage, Step, Undo};
    use crate::change::{Change, Hook, InterfaceKey, Phase};
    use crate::dns::{self, Paths};
    use crate::fixtures::net;
    use crate::setting::Setting;
    use taupe_os_linux::netlink::{RouteKind, Rule};
    use taupe_packet::ip::Family;

    const DOCUMENT: &str = include_str!("../../../docs/design/adapter.md");

    /// Returns one change for each row, in the order of `up`.
    fn changes() -> Vec<Change> {
        let hook = |phase| {
            let command = String::new();
            Change::Hook(Hook { phase, command })
        };
        let (destination, table) = (net("10.0.0.0/8"), 7);
        let paths = Paths::new("/nowhere".into(), "".as_ref(), None);
        let servers = ["10.9.0.1".parse().expect("an address")];
        let dns = dns::choose(&paths, "wg0", &servers, &[]).expect("a method");
        vec![
            hook(Phase::PreUp),
            Change::Device,
            Change::Configure,
            Change::Address(net("10.9.0.2/24")),
            Change::Up { mtu: 1420 },
            Change::Dns(dns.expect("servers")),
            Change::Mark(9),
            Change::Route { destination, table },
            Change::Unreachable { destination, table },
            Change::Special {
                kind: RouteKind::Throw,
                destination,
                table,
            },
            Change::Rule(Rule::not_marked(Family::V4, 9, 9, 9)),
            Change::ValidMark { original: None },
            Change::Firewall {
                family: Family::V4,
                interface: InterfaceKey::Index,
                mark: 9,
                addresses: Vec::new(),
            },
            hook(Phase::PostUp),
        ]
    }

    /// Formats a change's row as the document has it.
    fn row(change: &Change) -> String {
        let Step {
            stage,
            undo,
            reload,
            setting,
        } = change.step();
        let name = match change {
            Change::Hook(hook) => format!("commands of {}", hook.phase),
            change => {
                let text = format!("{change:?}");
                let end = text.find(|c: char| !c.is_alphanumeric());
                format!("`{}`", &text[..end.unwrap_or(text.len())])
            }
        };
        let stage = match stage {
            Stage::PreUp => "1 prepare",
            Stage::Device => "2 device",
            Stage::Peers => "3 keys and peers",
            Stage::Addresses => "4 addresses",
            Stage::Link => "5 interface up",
            Stage::NameServers => "6 name servers",
            Stage::Routing => "7 routing",
            Stage::PostUp => "8 finish",
            Stage::Down => unreachable!("no part of up"),
        };
        let undo = match undo {
            Undo::Never => "no",
            Undo::OnlyWithDevice => "with the device",
            Undo::WithDevice => "by itself, or with the device",
            Undo::WithNamespace => "by itself, or with the namespace",
            Undo::Always => "by itself",
        };
        let reload = match reload {
            Reload::Ignored => "—",
            Reload::First => "first",
            Reload::Guard => "before old steps are undone",
            Reload::Last => "after old steps were undone",
        };
        let setting = match setting {
            None => "—",
            Some(Setting::Link | Setting::Mtu) => "MTU, interface up",
            Some(Setting::Addresses) => "addresses",
            Some(Setting::NameServers) => "name servers",
            Some(Setting::Routes | Setting::Bypass) => "routes",
            Some(Setting::Rules) => "rules",
            Some(Setting::Firewall) => "firewall",
            Some(Setting::Mark) => "mark",
            Some(Setting::Sysctl) => "`src_valid_mark`",
        };
        format!("| {name} | {stage} | {undo} | {reload} | {setting} |")
    }

    #[test]
    fn the_document_shows_the_table() {
        let rows: Vec<_> = changes().iter().map(row).collect();
        let table = rows.join("\n");
        assert!(DOCUMENT.contains(&table), "the table is:\n{table}");
    }

    #[test]
    fn stages_and_undo_agree_with_the_commands() {
        let changes = changes();
        assert!(changes.is_sorted_by_key(|change| change.step().stage));
        for change in changes {
            let undone_singly = !matches!(change.step().undo, Undo::Never | Undo::OnlyWithDevice);
            let is_restored = change != Change::ValidMark { original: None };
            let command = change.undoing("wg0");
            assert_eq!(
                command.is_some(),
                undone_singly && is_restored,
                "{change:?}"
            );
        }
    }
}
