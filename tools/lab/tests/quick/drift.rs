//! Network settings that other programs change while a tunnel is up.

use crate::closed::strike_device;
use crate::faults::own_resolv_conf;
use crate::state::State;
use crate::{BEYOND, INTERFACE, World, read};
use std::fs;
use std::time::Duration;
use taupe_lab::host::Host;
use taupe_lab::peers::Implementation;
use taupe_lab::process::{Process, wait_until};
use taupe_lab::sandbox::{scratch, step};
use taupe_lab::{Error, Result, ensure};

const DNS: &str = "DNS = 10.77.0.53";
const FULL: &str = "AllowedIPs = 0.0.0.0/0, ::/0, 10.88.0.0/16";
const SOON: Duration = Duration::from_secs(30);

/// A change by another program, and the code of the finding it causes.
struct ForeignChange {
    finding: &'static str,
    /// A shell command.
    command: &'static str,
}

const FOREIGN_CHANGES: [ForeignChange; 14] = [
    ForeignChange {
        finding: "dns-changed",
        command: "echo nameserver 192.0.2.2 > /etc/resolv.conf",
    },
    ForeignChange {
        finding: "dns-changed",
        command: "sed s/10.77.0.53/192.0.2.2/ /etc/resolv.conf > /etc/new && \
                  mv /etc/new /etc/resolv.conf",
    },
    ForeignChange {
        finding: "routes-changed",
        command: "ip route del default dev wgnear table 51820",
    },
    ForeignChange {
        finding: "routes-changed",
        command: "ip -6 route del unreachable default table 51820",
    },
    ForeignChange {
        finding: "rules-changed",
        command: "ip rule del not fwmark 51820 table 51820",
    },
    ForeignChange {
        finding: "firewall-changed",
        command: "nft flush table ip wg-quick-wgnear",
    },
    ForeignChange {
        finding: "firewall-changed",
        command: "nft delete table ip6 wg-quick-wgnear",
    },
    ForeignChange {
        finding: "firewall-changed",
        command: "nft insert rule ip wg-quick-wgnear preraw accept",
    },
    ForeignChange {
        finding: "firewall-changed",
        command: "nft flush chain ip6 wg-quick-wgnear postmangle && \
                  nft add rule ip6 wg-quick-wgnear postmangle ct mark set 7",
    },
    ForeignChange {
        finding: "firewall-changed",
        command: "nft add table ip wg-quick-wgnear '{ flags dormant; }'",
    },
    ForeignChange {
        finding: "addresses-changed",
        command: "ip address flush dev wgnear scope global",
    },
    ForeignChange {
        finding: "mtu-changed",
        command: "ip link set wgnear mtu 1000",
    },
    ForeignChange {
        finding: "link-changed",
        command: "ip link set wgnear down",
    },
    ForeignChange {
        finding: "sysctl-changed",
        command: "echo 0 > /proc/sys/net/ipv4/conf/all/src_valid_mark",
    },
];

/// `status` reports the change, and `reload` undoes it.
pub(crate) fn all() -> Result<()> {
    own_resolv_conf()?;
    let world = World::new()?;
    let file = world.file(DNS, FULL)?;
    let before = State::of(&world.near)?;
    world.up(&file)?;
    ensure!(world.tunnelled(BEYOND[0])?, "the tunnel does not work");
    let full = State::of(&world.near)?;
    expect(&world, 0, None)?;
    for ForeignChange { finding, command } in FOREIGN_CHANGES {
        step(command);
        world.near.run(&["sh", "-c", command])?;
        let changed = State::of(&world.near)?;
        ensure!(
            !full.difference(&changed).is_empty(),
            "{command} changes nothing"
        );
        expect(&world, 2, Some(finding))?;
        let reload = world.taupe(&["reload", &file])?;
        ensure!(reload.status == Some(0), "{command}: {reload:?}");
        let left = full.difference(&State::of(&world.near)?);
        ensure!(left.is_empty(), "after {command} and a reload:\n{left}");
        expect(&world, 0, None)?;
        ensure!(world.tunnelled(BEYOND[0])?, "the tunnel does not work");
    }
    world.down(&file)?;
    let left = before.difference(&State::of(&world.near)?);
    // Name servers that another program wrote last remain.
    let others: Vec<&str> = left
        .lines()
        .filter(|line| !line.contains("cat /etc/resolv.conf"))
        .collect();
    ensure!(others.is_empty(), "left behind:\n{left}");
    let servers = read("/etc/resolv.conf")?;
    ensure!(servers.contains("192.0.2.2"), "not put back: {servers}");
    Ok(())
}

/// Checks the exit status of `status`, and one of its findings.
pub(crate) fn expect(world: &World, status: i32, finding: Option<&str>) -> Result<()> {
    let json = world.taupe(&["status", "--json", INTERFACE])?;
    ensure!(
        json.status == Some(status),
        "status {:?} instead of {status}: {}",
        json.status,
        json.stdout
    );
    let Some(finding) = finding else {
        return Ok(());
    };
    ensure!(
        json.stdout.contains(&format!("\"{finding}\"")),
        "no {finding}: {}",
        json.stdout
    );
    ensure!(
        json.stdout.contains("`taupe reload"),
        "not what to do: {}",
        json.stdout
    );
    Ok(())
}

/// The tunnel's own process notices the change, and logs it.
pub(crate) fn noticed() -> Result<()> {
    own_resolv_conf()?;
    let world = World::new()?;
    let file = world.file(DNS, FULL)?;
    let program = Implementation::Taupe.program()?.display().to_string();
    let mut process = world
        .near
        .spawn(&[&program, "up", "--adapter", "--foreground", &file])?;
    let is_up = || Ok(world.taupe(&["status", INTERFACE])?.status == Some(0));
    wait_until("the tunnel", SOON, is_up)?;
    for (command, words) in [
        (
            "echo nameserver 192.0.2.2 > /etc/resolv.conf",
            "names are asked of 192.0.2.2",
        ),
        (
            "ip route del default dev wgnear table 51820",
            "the route 0.0.0.0/0",
        ),
        (
            "ip rule del not fwmark 51820 table 51820",
            "the rule `ip -4 rule not",
        ),
        (
            "nft flush table ip wg-quick-wgnear",
            "the nftables table ip wg-quick-wgnear",
        ),
        (
            "ip route add 0.0.0.0/1 via 192.0.2.2",
            "the route `0.0.0.0/1 via 192.0.2.2 dev eth0`",
        ),
    ] {
        step(command);
        world.near.run(&["sh", "-c", command])?;
        await_output(&process, words)?;
    }
    process.signal(rustix::process::Signal::TERM)?;
    let status = process.wait(SOON)?;
    ensure!(status.success(), "{status}: {}", process.output());
    Ok(())
}

fn await_output(process: &Process, words: &str) -> Result<()> {
    wait_until(words, SOON, || Ok(process.output().contains(words)))
        .map_err(|error| Error::unmet(format!("{error}: {}", process.output())))
}

/// A setting changed by a PostUp command is intended.
pub(crate) fn by_a_hook() -> Result<()> {
    let world = World::new()?;
    let hooks = "PostUp = ip link set %i mtu 1300\nPostUp = ip route del 10.88.0.0/16 dev %i";
    let file = world.file(hooks, "AllowedIPs = 10.88.0.0/16, 198.51.100.0/24")?;
    world.up(&file)?;
    expect(&world, 0, None)?;
    let wanted = State::of(&world.near)?;
    let reload = world.taupe(&["reload", &file])?;
    ensure!(reload.status == Some(0), "{reload:?}");
    let left = wanted.difference(&State::of(&world.near)?);
    ensure!(left.is_empty(), "changed by a reload:\n{left}");
    world.near.ip(&["route", "del", "198.51.100.0/24"])?;
    expect(&world, 2, Some("routes-changed"))?;
    world.down(&file)?;
    ensure!(
        fs::read_dir("/run/taupe").map_or(0, Iterator::count) == 0,
        "a file is left"
    );
    Ok(())
}

/// The interface of a tunnel is renamed while it is up: it still receives.
pub(crate) fn renamed() -> Result<()> {
    let world = World::new()?;
    let file = world.file("", FULL)?;
    let before = State::of(&world.near)?;
    world.up(&file)?;
    let works = |when: &str| -> Result<()> {
        for address in BEYOND {
            ensure!(world.tunnelled(address)?, "{when}: {address} is lost");
        }
        expect(&world, 0, None)
    };
    works("by its own name")?;
    world
        .near
        .ip(&["link", "set", INTERFACE, "name", "renamed"])?;
    works("renamed")?;
    // A restored table uses the new name.
    world
        .near
        .run(&["nft", "flush", "table", "ip", "wg-quick-wgnear"])?;
    expect(&world, 2, Some("firewall-changed"))?;
    let reload = world.taupe(&["reload", &file])?;
    ensure!(reload.status == Some(0), "{reload:?}");
    works("after a reload")?;
    world.down(&file)?;
    let left = before.difference(&State::of(&world.near)?);
    ensure!(left.is_empty(), "left behind:\n{left}");
    Ok(())
}

/// A hook moves or renames the interface: the tunnel comes up, and goes down.
pub(crate) fn moved() -> Result<()> {
    let world = World::new()?;
    let other = Host::new("other")?;
    let answer = scratch("answer");
    let before = State::of(&world.near)?;
    for (hook, note) in [
        (
            "ip link set %i netns other",
            "moved to another network namespace",
        ),
        (
            "ip link set %i down; ip link set %i name renamed; ip link set renamed up",
            "has been renamed to renamed",
        ),
    ] {
        step(hook);
        let asks = format!("PreDown = wg show %i fwmark > {}", answer.display());
        let file = world.file(&format!("PostUp = {hook}\n{asks}"), FULL)?;
        world.up(&file)?;
        // It counts as degraded until its first handshake is complete.
        let is_up = || Ok(world.taupe(&["status", INTERFACE])?.status == Some(0));
        wait_until(hook, SOON, is_up)?;
        let status = world.taupe(&["status", INTERFACE])?;
        ensure!(status.stdout.contains(note), "{hook}: {status:?}");
        let again = world.taupe(&["up", "--adapter", &file])?;
        ensure!(again.status == Some(1), "{hook}: {again:?}");
        ensure!(again.stderr.contains("is up already"), "{hook}: {again:?}");
        let down = world.down(&file)?;
        // The device itself answers the hook, without a stand-in.
        ensure!(read(&answer)? == "0xca6c\n", "{hook}: {down:?}");
        ensure!(!down.stderr.contains("cannot ask"), "{hook}: {down:?}");
        let left = before.difference(&State::of(&world.near)?);
        ensure!(left.is_empty(), "{hook}: left behind:\n{left}");
        let is_gone = || {
            let links = other.ip(&["-o", "link"])?.stdout;
            Ok(!links.contains(INTERFACE))
        };
        wait_until("end of the interface", SOON, is_gone)?;
        let again = world.taupe(&["down", &file])?;
        ensure!(again.stderr.contains("is not up"), "{hook}: {again:?}");
    }
    // After a kill nothing of the tunnel remains.
    let file = world.file("PostUp = ip link set %i netns other", FULL)?;
    world.up(&file)?;
    strike_device(&world)?;
    let status = || Ok(world.taupe(&["status", INTERFACE])?.status == Some(2));
    wait_until("the word that it was killed", SOON, status)?;
    world.down(&file)?;
    let left = before.difference(&State::of(&world.near)?);
    ensure!(left.is_empty(), "after a kill left behind:\n{left}");
    other.delete()
}
