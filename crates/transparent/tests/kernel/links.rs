//! Links that appear, disappear and change, under a capture that follows them.

use crate::application::install;
use crate::daemon::{self};
use crate::processes::go_on;
use crate::scene::{REMOTE, Scene, TUNNEL, at, everything_but, nothing, open, pump, unmet};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;
use taupe_lab::capture::{Capture, Packet};
use taupe_lab::host::{Host, add_address, link};
use taupe_lab::peers::Keys;
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::{SystemTest, step};
use taupe_lab::{Error, Result, ensure};
use taupe_transparent::capture::{self, CaptureSettings};
use taupe_transparent::pins::Pins;

/// All packets of a selected application to the remote addresses.
const ANY: &str = "host 198.51.100.1 or host 2001:db8:9::1";

/// Three times the interval in which a capture checks its filters.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn tests() -> Vec<SystemTest> {
    vec![
        SystemTest::new("uplinks_come_and_go", uplinks_come_and_go),
        SystemTest::new("a_bridge_is_an_uplink", a_bridge_is_an_uplink),
        SystemTest::new("a_vlan_is_an_uplink", a_vlan_is_an_uplink).fixture(),
        SystemTest::new("a_macvlan_is_an_uplink", a_macvlan_is_an_uplink),
        SystemTest::new("a_bond_is_an_uplink", a_bond_is_an_uplink).fixture(),
        SystemTest::new("a_tun_is_an_uplink", a_tun_is_an_uplink),
        SystemTest::new("wireguard_is_an_uplink", wireguard_is_an_uplink).fixture(),
        SystemTest::new("removed_filters_are_restored", removed_filters_are_restored),
        SystemTest::new("detached_hooks_are_restored", detached_hooks_are_restored),
        SystemTest::new("ipv6_of_the_tun_stays_off", ipv6_of_the_tun_stays_off),
        SystemTest::new(
            "failed_restoration_is_repeated",
            failed_restoration_is_repeated,
        ),
        SystemTest::new("foreign_filter_first", foreign_filter_first),
        SystemTest::new(
            "rules_changed_by_another_process",
            rules_changed_by_another_process,
        ),
    ]
}

/// Starts a capture that follows home's links, for the application `chosen`.
fn begin(scene: &Scene) -> Result<capture::Capture> {
    let tun = scene.tun.index().map_err(Error::io("TUN"))?;
    scene
        .home
        .enter(|| daemon::begin(TUNNEL, "chosen", tun).map_err(unmet))
}

/// Waits until `who` answers an application in both families.
fn soon(scene: &Scene, program: &str, who: &str) -> Result<()> {
    for (way, remote) in ["tcp", "udp"]
        .into_iter()
        .flat_map(|way| REMOTE.map(|remote| (way, remote)))
    {
        let what = format!("{who} answers {program} by {way} at {remote}");
        wait_until(&what, PATIENCE, || {
            Ok(scene.run(program, &[way, &at(remote, 80)])? == who)
        })?;
    }
    Ok(())
}

/// Sets home's default routes.
fn by(scene: &Scene, interface: &str, gateways: [&str; 2]) -> Result<()> {
    for (family, gateway) in ["-4", "-6"].into_iter().zip(gateways) {
        #[rustfmt::skip]
        scene.home.ip(&[
            family, "route", "replace", "default", "via", gateway, "dev", interface,
        ])?;
    }
    Ok(())
}

fn give(scene: &Scene, interface: &str) -> Result<()> {
    for address in ["192.0.2.2/24", "2001:db8:1::2/64"] {
        add_address(&scene.home, interface, address)?;
    }
    scene.home.ip(&["link", "set", interface, "up"])?;
    by(scene, interface, ["192.0.2.1", "2001:db8:1::1"])
}

fn uplinks_come_and_go() -> Result<()> {
    let scene = Scene::new()?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    let mut busy = scene.start(&chosen, &["flood", &at(REMOTE[0], 80), "6"])?;
    let _capture = begin(&scene)?;
    soon(&scene, &chosen, "beyond")?;
    let first = scene.capture(ANY)?;

    step("a second one");
    for network in ["203.0.113.0/24", "2001:db8:2::/64"] {
        scene.beyond.ip(&["route", "add", network, "dev", "back"])?;
    }
    link(
        scene
            .home
            .port("up1", &["203.0.113.2/24", "2001:db8:2::2/64"]),
        scene
            .far
            .port("down1", &["203.0.113.1/24", "2001:db8:2::1/64"]),
        1500,
    )?;
    let second = Capture::start(&scene.far, "down1", ANY)?;
    by(&scene, "up1", ["203.0.113.1", "2001:db8:2::1"])?;
    soon(&scene, &chosen, "beyond")?;

    step("another address");
    scene
        .home
        .ip(&["address", "delete", "203.0.113.2/24", "dev", "up1"])?;
    add_address(&scene.home, "up1", "203.0.113.7/24")?;
    by(&scene, "up1", ["203.0.113.1", "2001:db8:2::1"])?;
    soon(&scene, &chosen, "beyond")?;
    nothing(&scene, first)?;
    let packets = second.stop()?;
    ensure!(packets.is_empty(), "{} by the second", packets.len());

    step("the first one, made again");
    scene.home.ip(&["link", "delete", "up0"])?;
    soon(&scene, &chosen, "beyond")?;
    link(
        scene
            .home
            .port("up0", &["192.0.2.2/24", "2001:db8:1::2/64"]),
        scene
            .far
            .port("down0", &["192.0.2.1/24", "2001:db8:1::1/64"]),
        1500,
    )?;
    let first = scene.capture(ANY)?;
    by(&scene, "up0", ["192.0.2.1", "2001:db8:1::1"])?;
    scene.home.ip(&["link", "delete", "up1"])?;
    soon(&scene, &chosen, "beyond")?;
    soon(&scene, &chosen, "beyond")?;
    nothing(&scene, first)?;
    ensure!(busy.line()? == "done", "the flood has ended early");
    soon(&scene, &other, "far")
}

/// Tests a link that `make` creates above `up0`: packets of selected applications go into the
/// tunnel from it.
fn above(name: &str, make: impl FnOnce(&Scene) -> Result<()>) -> Result<()> {
    let scene = Scene::new()?;
    let capture = begin(&scene)?;
    scene.home.ip(&["address", "flush", "dev", "up0"])?;
    make(&scene)?;
    give(&scene, name)?;
    is_an_uplink(&scene, capture, name, ["192.0.2.2", "2001:db8:1::2"])
}

fn a_bridge_is_an_uplink() -> Result<()> {
    above("br0", |scene| {
        scene.home.ip(&["link", "add", "br0", "type", "bridge"])?;
        scene.home.ip(&["link", "set", "up0", "master", "br0"])?;
        Ok(())
    })
}

fn a_macvlan_is_an_uplink() -> Result<()> {
    above("mac0", |scene| {
        #[rustfmt::skip]
        scene.home.ip(&[
            "link", "add", "link", "up0", "name", "mac0", "type", "macvlan", "mode", "bridge",
        ])?;
        Ok(())
    })
}

fn a_bond_is_an_uplink() -> Result<()> {
    above("pair0", |scene| {
        #[rustfmt::skip]
        scene.home.ip(&[
            "link", "add", "pair0", "type", "bond", "mode", "active-backup", "miimon", "10",
        ])?;
        // Only a link that is down can join a bond.
        scene.home.ip(&["link", "set", "up0", "down"])?;
        scene.home.ip(&["link", "set", "up0", "master", "pair0"])?;
        Ok(())
    })
}

fn a_vlan_is_an_uplink() -> Result<()> {
    above("up0.7", |scene| {
        for (host, below, name) in [
            (&scene.home, "up0", "up0.7"),
            (&scene.far, "down0", "down0.7"),
        ] {
            #[rustfmt::skip]
            host.ip(&["link", "add", "link", below, "name", name, "type", "vlan", "id", "7"])?;
            host.ip(&["link", "set", name, "up"])?;
        }
        scene.far.ip(&["address", "flush", "dev", "down0"])?;
        for address in ["192.0.2.1/24", "2001:db8:1::1/64"] {
            add_address(&scene.far, "down0.7", address)?;
        }
        Ok(())
    })
}

/// Home's addresses on a link without a header. The addresses of `far` end with 1.
const NARROW: [&str; 2] = ["198.18.0.2", "2001:db8:5::2"];

/// Tests a link without a header, which `make` creates between home and `far`: packets of selected
/// applications go into the tunnel from it. `make` returns the link's names.
fn narrow(make: impl FnOnce(&Scene) -> Result<[&'static str; 2]>) -> Result<()> {
    let scene = Scene::new()?;
    let capture = begin(&scene)?;
    let [here, there] = make(&scene)?;
    for (host, name, end) in [(&scene.home, here, 2), (&scene.far, there, 1)] {
        host.sysctl(&format!("net/ipv6/conf/{name}/disable_ipv6"), "0")?;
        add_address(host, name, &format!("198.18.0.{end}/24"))?;
        add_address(host, name, &format!("2001:db8:5::{end}/64"))?;
        host.ip(&["link", "set", name, "up"])?;
    }
    for network in ["198.18.0.0/24", "2001:db8:5::/64"] {
        scene.beyond.ip(&["route", "add", network, "dev", "back"])?;
    }
    for family in ["-4", "-6"] {
        let words = [family, "route", "replace", "default", "dev", here];
        scene.home.ip(&words)?;
    }
    is_an_uplink(&scene, capture, here, NARROW)
}

fn a_tun_is_an_uplink() -> Result<()> {
    let mut tuns = Vec::new();
    narrow(|scene| {
        let (here, there) = (open(&scene.home, "vpn0")?, open(&scene.far, "vpn1")?);
        pump(&here, &there);
        pump(&there, &here);
        tuns.extend([here, there]);
        Ok(["vpn0", "vpn1"])
    })?;
    for tun in tuns {
        tun.shutdown().map_err(Error::io("TUN"))?;
    }
    Ok(())
}

/// The kernel's WireGuard: its packets still belong to their application's socket when they leave
/// by the link below.
fn wireguard_is_an_uplink() -> Result<()> {
    narrow(|scene| {
        let ends = [
            (&scene.home, "wg0", Keys::new(&scene.home)?),
            (&scene.far, "wg1", Keys::new(&scene.far)?),
        ];
        let publics = ends.each_ref().map(|(_, _, keys)| keys.public.clone());
        let addresses = ["192.0.2.1", "192.0.2.2"];
        for ((host, name, keys), (public, address)) in
            ends.into_iter().zip(publics.iter().rev().zip(addresses))
        {
            host.ip(&["link", "add", name, "type", "wireguard"])?;
            let file = format!(
                "[Interface]\nPrivateKey = {}\nListenPort = 51820\n[Peer]\nPublicKey = {public}\n\
                 AllowedIPs = 0.0.0.0/0, ::/0\nEndpoint = {address}:51820\n",
                keys.private
            );
            host.run_with_input(&["wg", "setconf", name, "/dev/stdin"], &file)?;
        }
        Ok(["wg0", "wg1"])
    })
}

/// Checks the link `name`, by which home reaches everything and on which it has these addresses.
/// Selected applications are in the tunnel by every transport, servers too, and no others. None of
/// their packets leaves by any link of home, also after the tunnel's process has ended.
fn is_an_uplink(
    scene: &Scene,
    capture: capture::Capture,
    name: &str,
    here: [&str; 2],
) -> Result<()> {
    let (chosen, other) = (install("chosen")?, install("other")?);
    let wire = Capture::start(&scene.far, "any", ANY)?;
    soon(scene, &chosen, "beyond")?;
    for remote in REMOTE {
        scene.expect(&chosen, &["ping", remote], "answered")?;
    }
    scene.expect(&chosen, &["bound", name, &at(REMOTE[0], 80)], "beyond")?;
    let server = scene.start(&chosen, &["serve", "7000"])?;
    for address in here {
        let reach = |from: &Host| from.enter(|| served(&at(address, 7000)));
        ensure!(reach(&scene.beyond)?, "{address} is not served");
        ensure!(!reach(&scene.far)?, "{address} is served in the clear");
    }
    drop(server);
    step("nobody serves the tunnel");
    drop(capture);
    for remote in REMOTE {
        for way in ["tcp", "udp"] {
            let said = scene.run(&chosen, &[way, &at(remote, 80)])?;
            ensure!(said.starts_with("failed"), "{way} to {remote}: {said}");
        }
    }
    scene.run(&chosen, &["icmp6", "128", REMOTE[1]])?;
    // This datagram shows that the capture has seen all earlier packets.
    scene.expect(&other, &["udp", &at(REMOTE[0], LAST)], "far")?;
    let is_last = |packet: &Packet| {
        let datagram = packet.datagram();
        datagram.is_some_and(|datagram| {
            [datagram.source, datagram.destination]
                .map(|end| end.port())
                .contains(&LAST)
        })
    };
    let mut packets = wire.stop_once("the last datagram", |seen| seen.iter().any(is_last))?;
    packets.retain(|packet| !is_last(packet));
    ensure!(packets.is_empty(), "in the clear: {packets:02x?}");
    soon(scene, &other, "far")?;
    for remote in REMOTE {
        scene.expect(&other, &["ping", remote], "answered")?;
    }
    Ok(())
}

/// Port of the last datagram of a capture.
const LAST: u16 = 123;

/// Returns true if the server at an address answers this thread.
pub(crate) fn served(at: &str) -> Result<bool> {
    let to = at.parse().map_err(unmet)?;
    let Ok(mut stream) = TcpStream::connect_timeout(&to, Duration::from_millis(500)) else {
        return Ok(false);
    };
    stream.write_all(b"f").map_err(Error::io("order"))?;
    let mut answer = String::new();
    let read = stream.read_to_string(&mut answer);
    read.map_err(Error::io("answer"))?;
    Ok(answer == "served")
}

fn removed_filters_are_restored() -> Result<()> {
    let scene = Scene::new()?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    let _capture = begin(&scene)?;
    soon(&scene, &chosen, "beyond")?;
    let capture = scene.capture(ANY)?;
    let index = scene.uplink("up0")?.index;
    let tun = scene.tun.index().map_err(Error::io("TUN"))?;
    let pin = |filter: &str| {
        let pins = Pins::all().map(|pins| pins.directory().join("links").join(filter));
        pins.into_iter().find(|pin| pin.exists())
    };
    // Filters of clsact have no pin.
    let by_tcx = pin(&format!("{index}-taupe_out")).is_some();
    for filter in [
        format!("{index}-taupe_out"),
        format!("{index}-taupe_in"),
        format!("{tun}-taupe_tun"),
        format!("{tun}-taupe_into"),
    ] {
        step(&filter);
        if by_tcx {
            let pin = pin(&filter).ok_or_else(|| Error::unmet("it is not pinned"))?;
            std::fs::remove_file(pin).map_err(Error::io("pin"))?;
        } else {
            let link = match filter.starts_with(&format!("{index}-")) {
                true => "up0",
                false => TUNNEL,
            };
            // Removes both directions at once.
            let words = ["tc", "qdisc", "delete", "dev", link, "clsact"];
            scene.home.run(&words)?;
        }
        soon(&scene, &chosen, "beyond")?;
    }
    nothing(&scene, capture)?;
    soon(&scene, &other, "far")
}

/// Hooks end when somebody removes their pins. The watchdog restores them.
fn detached_hooks_are_restored() -> Result<()> {
    let scene = Scene::new()?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    let _capture = begin(&scene)?;
    soon(&scene, &chosen, "beyond")?;
    for link in ["socket", "leave", "connect4", "taupe_exec"] {
        step(link);
        let later = scene.start(&other, &["later", "become", &chosen, "oracle"])?;
        let mut pins = Pins::all().map(|pins| pins.directory().join("links").join(link));
        let pin = pins.find(|pin| pin.exists());
        let pin = pin.ok_or_else(|| Error::unmet(format!("no pin {link}")))?;
        std::fs::remove_file(&pin).map_err(Error::io("pin"))?;
        let mut begun = go_on(later, &chosen)?;
        wait_until("the pin", PATIENCE, || Ok(pin.exists()))?;
        soon(&scene, &chosen, "beyond")?;
        // The verdict follows shortly after the pin.
        wait_until("a verdict", PATIENCE, || Ok(begun.says("tunnel").is_ok()))?;
        scene.expect(&other, &["tcp", &at(REMOTE[0], 80)], "far")?;
    }
    let capture = scene.capture(ANY)?;
    for (way, remote) in [("tcp", REMOTE[0]), ("udp", REMOTE[1])] {
        scene.expect(&chosen, &[way, &at(remote, 80)], "beyond")?;
    }
    nothing(&scene, capture)
}

/// Somebody switches IPv6 on for all interfaces.
fn ipv6_of_the_tun_stays_off() -> Result<()> {
    let scene = Scene::new()?;
    let _capture = begin(&scene)?;
    let setting = format!("net/ipv6/conf/{TUNNEL}/disable_ipv6");
    let value = || {
        let read = scene.home.run(&["cat", &format!("/proc/sys/{setting}")])?;
        Ok(read.text().trim() == "1")
    };
    for _ in 0..2 {
        scene.home.sysctl(&setting, "0")?;
        wait_until("IPv6 off on the TUN", PATIENCE, value)?;
    }
    Ok(())
}

/// A restoration that fails is repeated until it succeeds.
fn failed_restoration_is_repeated() -> Result<()> {
    let scene = Scene::new()?;
    let chosen = install("chosen")?;
    let _capture = begin(&scene)?;
    soon(&scene, &chosen, "beyond")?;
    let links = Pins::all().map(|pins| pins.directory().join("links"));
    let links = links.last().ok_or_else(|| Error::unmet("no pins"))?;
    let away = links.with_file_name("away");
    let rename = |from, to| std::fs::rename(from, to).map_err(Error::io("rename"));
    let answers = |is_up: bool| {
        // Any change of a link makes the capture check its filters.
        scene.home.ip(&["link", "set", "lo", "down"])?;
        scene.home.ip(&["link", "set", "lo", "up"])?;
        wait_until("the capture has looked", PATIENCE, || {
            let said = scene.run(&chosen, &["udp", &at(REMOTE[0], 80)])?;
            Ok((said == "beyond") == is_up)
        })
    };
    rename(&links, &away)?;
    answers(false)?;
    rename(&away, &links)?;
    answers(true)
}

/// Another program's filter, which lets everything pass, precedes Taupe's.
fn foreign_filter_first() -> Result<()> {
    let scene = Scene::new()?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    let index = scene.uplink("up0")?.index;
    let guarded = begin(&scene)?;
    soon(&scene, &chosen, "beyond")?;
    let capture = scene.capture(ANY)?;
    let _first = scene.home.enter(|| first::put(index))?;
    let said = scene.run(&chosen, &["udp", &at(REMOTE[0], 80)])?;
    ensure!(said.starts_with("failed") || said == "beyond", "{said}");
    soon(&scene, &chosen, "beyond")?;
    step("while nobody looks");
    drop(guarded);
    let _first = scene.home.enter(|| first::put(index))?;
    for remote in REMOTE {
        for way in ["tcp", "udp"] {
            let said = scene.run(&chosen, &[way, &at(remote, 80)])?;
            ensure!(said.starts_with("failed"), "{said}");
        }
        scene.run(&chosen, &["raw", remote])?;
    }
    scene.run(&chosen, &["flood", &at(REMOTE[0], 80), "1"])?;
    nothing(&scene, capture)?;
    soon(&scene, &other, "far")
}

/// A tcx program that precedes all others.
mod first {
    use std::io;
    use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
    use taupe_lab::{Error, Result};

    /// Attaches a program that lets every packet leave by an interface, as long as the returned
    /// descriptor lives.
    pub(super) fn put(interface: u32) -> Result<OwnedFd> {
        #[repr(C)]
        struct Load {
            kind: u32,
            count: u32,
            code: u64,
            license: u64,
        }
        #[repr(C)]
        struct Create {
            program: i32,
            target: u32,
            kind: u32,
            flags: u32,
        }
        // r0 = 0 (TC_ACT_OK); exit
        let code: [u64; 2] = [0xb7, 0x95];
        let load = Load {
            kind: 3,
            count: 2,
            code: code.as_ptr().expose_provenance() as u64,
            license: c"MIT".as_ptr().expose_provenance() as u64,
        };
        let program = bpf(5, &load)?;
        bpf(
            28,
            &Create {
                program: program.as_raw_fd(),
                target: interface,
                kind: 47,
                flags: 1 << 3,
            },
        )
    }

    fn bpf<T>(command: i32, attributes: &T) -> Result<OwnedFd> {
        // SAFETY: the kernel reads the structure and the memory that it points to, which all live.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_bpf,
                command,
                std::ptr::from_ref(attributes),
                size_of::<T>(),
            )
        };
        match i32::try_from(fd) {
            // SAFETY: the descriptor is new and has no other owner.
            Ok(fd @ 0..) => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
            _ => Err(Error::io("bpf")(io::Error::last_os_error())),
        }
    }
}

/// Another process changes the rules, and the watchdog does not undo that.
fn rules_changed_by_another_process() -> Result<()> {
    let scene = Scene::new()?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    let _capture = begin(&scene)?;
    soon(&scene, &chosen, "beyond")?;
    let settings = CaptureSettings {
        destinations: everything_but(&["2001:db8:9::/64"]),
        ..daemon::settings("other")
    };
    let replace = |name: &str| {
        let replace = || capture::replace(name, &settings).map_err(unmet);
        Ok::<_, Error>(scene.home.enter(replace)?.is_some())
    };
    ensure!(!replace("tp1")?, "a tunnel that there is not has others");
    let listener = scene
        .beyond
        .enter(|| TcpListener::bind((REMOTE[0], 7000)).map_err(Error::io("listener")))?;
    let mut kept = scene.start(&chosen, &["stay", &at(REMOTE[0], 7000)])?;
    let _accepted = listener.accept().map_err(Error::io("accept"))?;
    ensure!(replace(TUNNEL)?, "the tunnel is not found");
    let said = kept.go()?;
    ensure!(said.starts_with("failed 103"), "a connection says {said:?}");
    let is_so = || -> Result<()> {
        for way in ["tcp", "udp"] {
            scene.expect(&other, &[way, &at(REMOTE[0], 80)], "beyond")?;
            scene.expect(&other, &[way, &at(REMOTE[1], 80)], "far")?;
            scene.expect(&chosen, &[way, &at(REMOTE[0], 80)], "far")?;
        }
        Ok(())
    };
    is_so()?;
    step("links change");
    scene.home.ip(&[
        "link", "add", "more", "type", "veth", "peer", "name", "peer",
    ])?;
    let guarded = || Pins::all().map(|pins| pins.directory().join("links"));
    wait_until("the new link is guarded", PATIENCE, || {
        let links = guarded().flat_map(std::fs::read_dir).flatten().flatten();
        let names = links.map(|link| link.file_name().to_string_lossy().into_owned());
        Ok(names.filter(|name| name.ends_with("taupe_out")).count() == 3)
    })?;
    is_so()
}
