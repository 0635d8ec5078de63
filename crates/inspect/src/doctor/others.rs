//! Other programs that divert packets.

use super::Check;
use std::path::Path;
use taupe_adapter::State;
use taupe_os_linux::netlink::{Link, Medium, Netlink, NetlinkError, Rule};
use taupe_transparent::programs::foreign_filters;

/// Marks of the packets of other programs.
const MARKS: [(u32, &str); 4] = [
    (0x6d6f_6c65, "Mullvad"),
    (0x0008_0000, "Tailscale"),
    (0x0000_e1f1, "NordVPN"),
    (0x0000_ca6c, "wg-quick (its default)"),
];

/// Files of programs that divert packets by eBPF or TPROXY, which exist while these run.
const RUNNING: [(&str, &str); 5] = [
    ("/sys/fs/bpf/dae", "dae"),
    ("/run/dae.pid", "dae"),
    ("/run/mihomo.pid", "mihomo"),
    ("/run/clash.pid", "Clash"),
    ("/run/xray.pid", "Xray"),
];

pub(super) fn checks() -> Vec<Check> {
    let listed = || -> Result<_, NetlinkError> {
        let mut system = Netlink::open()?;
        Ok((system.links()?, system.rules()?))
    };
    let (links, rules) = match listed() {
        Ok(listed) => listed,
        Err(error) => {
            return vec![Check::fail(
                "network",
                format!("cannot list links and rules: {error}"),
                "run it as root, in the network namespace of the tunnels",
            )];
        }
    };
    let own = State::default().here();
    let is_own = |name: &str| own.iter().any(|header| header.interface == name);
    vec![
        Check::with_root(TUNNELS, || tunnels(&links, &is_own)),
        marks(&rules),
        Check::with_root(FILTERS, || filters(&links)),
        running(),
    ]
}

/// Checks for interfaces of other tunnels. Selected applications' packets can leave by these as by
/// any link. If two tunnels take the same traffic, neither knows of the other.
fn tunnels(links: &[Link], is_own: &dyn Fn(&str) -> bool) -> Check {
    const NAME: &str = TUNNELS;
    let is_tunnel = |link: &&Link| {
        let kind = link.kind.as_deref().unwrap_or_default();
        let is_tun = kind == "tun" && !matches!(link.medium, Medium::Ethernet(_));
        link.up && (is_tun || kind == "wireguard") && !is_own(&link.name)
    };
    let names: Vec<_> = links
        .iter()
        .filter(is_tunnel)
        .map(|link| &*link.name)
        .collect();
    match names.as_slice() {
        [] => Check::ok(NAME, "no other tunnel is up"),
        names => Check::warn(
            NAME,
            format!(
                "other tunnels are up: {}; Taupe's packets to its endpoints may go through them",
                names.join(", ")
            ),
            "if you do not want that, take them down, or exclude each other's endpoints",
        ),
    }
}

/// Checks for routing rules on a known program's mark.
fn marks(rules: &[Rule]) -> Check {
    const NAME: &str = "routing-marks";
    let owner = |rule: &Rule| {
        let mark = rule.mark?;
        let known = MARKS.iter().find(|(value, _)| *value == mark.value);
        known.map(|(value, owner)| format!("{owner} ({value:#x})"))
    };
    let mut owners: Vec<_> = rules.iter().filter_map(owner).collect();
    owners.sort();
    owners.dedup();
    match owners.as_slice() {
        [] => Check::ok(
            NAME,
            "no routing rule has the mark of a VPN that Taupe knows",
        ),
        owners => Check::warn(
            NAME,
            format!(
                "routing rules have marks of {}: this program redirects packets, perhaps Taupe's \
                 own",
                owners.join(", ")
            ),
            "if Taupe's peers cannot be reached, end that program, or exclude their addresses in it",
        ),
    }
}

/// Only root can tell Taupe's own interfaces and filters from others.
const TUNNELS: &str = "other-tunnels";
const FILTERS: &str = "other-filters";

/// Checks for other programs' filters on links, which may see packets before Taupe's.
fn filters(links: &[Link]) -> Check {
    const NAME: &str = FILTERS;
    let mut found = Vec::new();
    for link in links.iter().filter(|link| link.medium != Medium::Loopback) {
        match foreign_filters(link.index) {
            Ok(names) if names.is_empty() => {}
            Ok(names) => found.push(format!("{} ({})", link.name, names.join(", "))),
            Err(fault) => found.push(format!("{} ({fault})", link.name)),
        }
    }
    match found.as_slice() {
        [] => Check::ok(NAME, "no other program has packet filters on links"),
        found => Check::warn(
            NAME,
            format!("other programs have filters on {}", found.join("; ")),
            "`bpftool net` and `tc filter show dev LINK egress` show the program; a filter before \
             Taupe's keeps selected applications from using the link (`taupe status`)",
        ),
    }
}

fn running() -> Check {
    const NAME: &str = "other-proxies";
    let mut names: Vec<_> = RUNNING
        .into_iter()
        .filter_map(|(path, name)| Path::new(path).exists().then_some(name))
        .collect();
    names.dedup();
    match names.as_slice() {
        [] => Check::ok(NAME, "no transparent proxy that Taupe knows is running"),
        names => Check::warn(
            NAME,
            format!(
                "{} may be running, and redirects packets or sockets like Taupe",
                names.join(", ")
            ),
            "select applications in only one of them",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Outcome;
    use super::*;
    use taupe_packet::ip::Family;

    #[test]
    fn rules_of_other_programs_are_recognised_by_their_marks() {
        let marked = |mark| Rule::marked(Family::V4, 100, mark, u32::MAX, 100);
        assert_eq!(marks(&[marked(0x100_0000)]).result, Outcome::Ok);
        let found = marks(&[marked(1), marked(0x6d6f_6c65)]);
        assert_eq!(found.result, Outcome::Warn);
        assert!(found.text.contains("Mullvad"), "{}", found.text);
    }

    #[test]
    fn only_tunnels_of_other_programs_are_warned_of() {
        let link = |name: &str, kind: &str| Link {
            index: 7,
            name: name.into(),
            up: true,
            mtu: 1420,
            kind: Some(kind.into()),
            medium: Medium::Other(65_534),
            controller: None,
        };
        let links = [link("home", "tun"), link("veth0", "veth")];
        let is_own = |name: &str| name == "home";
        assert_eq!(tunnels(&links, &is_own).result, Outcome::Ok);
        let links = [link("home", "tun"), link("wg0", "wireguard")];
        let found = tunnels(&links, &is_own);
        assert!(found.text.contains("wg0") && !found.text.contains("home"));
    }
}
