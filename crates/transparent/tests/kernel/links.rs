//! Links that come, go and change, under a capture that follows them.

use crate::scene::{
    self, REMOTE, Scene, TUNNEL, at, everything_but, install, nothing, open, pump, rules, unmet,
};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;
use taupe_lab::capture::Capture;
use taupe_lab::host::{add_address, link};
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::{SystemTest, step};
use taupe_lab::{Error, Result, ensure};
use taupe_transparent::capture::{self, Choice};
use taupe_transparent::pins::Pins;
use taupe_transparent::state::Lock;

/// Whatever a chosen application sends to the remotes.
const ANY: &str = "host 198.51.100.1 or host 2001:db8:9::1";

/// The same, in a VLAN or not.
const TAGGED: &str = "host 198.51.100.1 or host 2001:db8:9::1 or \
                      (vlan and (host 198.51.100.1 or host 2001:db8:9::1))";

/// Three times what a capture takes to look at its filters again.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn tests() -> Vec<SystemTest> {
    vec![
        SystemTest::new("uplinks_come_and_go", uplinks_come_and_go),
        SystemTest::new("a_bridge_is_an_uplink", a_bridge_is_an_uplink),
        SystemTest::new("a_vlan_is_an_uplink", a_vlan_is_an_uplink).fixture(),
        SystemTest::new("a_macvlan_is_an_uplink", a_macvlan_is_an_uplink),
        SystemTest::new("an_uplink_without_a_header", an_uplink_without_a_header),
        SystemTest::new("filters_are_brought_back", filters_are_brought_back),
        SystemTest::new("another_is_first", another_is_first),
        SystemTest::new("others_are_chosen", others_are_chosen),
    ]
}

/// Has a capture follow home's links, for the application `chosen`.
fn begin(scene: &Scene) -> Result<capture::Capture> {
    let tun = scene.tun.index().map_err(Error::io("TUN"))?;
    scene
        .home
        .enter(|| scene::begin("chosen", tun).map_err(unmet))
}

/// Waits until somebody answers an application in both families.
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

/// Has home reach everything by an interface.
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

/// Chosen applications go into the tunnel from a link that is made by `make`, whose
/// packets leave by `up0`.
fn above(name: &str, make: impl FnOnce(&Scene) -> Result<()>) -> Result<()> {
    let scene = Scene::new()?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    let _capture = begin(&scene)?;
    let capture = Capture::start(&scene.far, "down0", TAGGED)?;
    scene.home.ip(&["address", "flush", "dev", "up0"])?;
    make(&scene)?;
    give(&scene, name)?;
    soon(&scene, &chosen, "beyond")?;
    scene.expect(&chosen, &["bound", name, &at(REMOTE[0], 80)], "beyond")?;
    let packets = capture.stop()?;
    ensure!(packets.is_empty(), "{} in the clear", packets.len());
    soon(&scene, &other, "far")?;
    serves(&scene, &chosen, "192.0.2.2")
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

/// As WireGuard, PPP and mobile broadband.
fn an_uplink_without_a_header() -> Result<()> {
    let scene = Scene::new()?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    let (here, there) = (open(&scene.home, "ppp0")?, open(&scene.far, "peer0")?);
    for (host, name, addresses) in [
        (&scene.home, "ppp0", ["198.18.0.2/24", "2001:db8:5::2/64"]),
        (&scene.far, "peer0", ["198.18.0.1/24", "2001:db8:5::1/64"]),
    ] {
        host.sysctl(&format!("net/ipv6/conf/{name}/disable_ipv6"), "0")?;
        for address in addresses {
            add_address(host, name, address)?;
        }
    }
    pump(&here, &there);
    pump(&there, &here);
    for network in ["198.18.0.0/24", "2001:db8:5::/64"] {
        scene.beyond.ip(&["route", "add", network, "dev", "back"])?;
    }
    let _capture = begin(&scene)?;
    let capture = Capture::start(&scene.far, "peer0", ANY)?;
    for family in ["-4", "-6"] {
        scene
            .home
            .ip(&[family, "route", "replace", "default", "dev", "ppp0"])?;
    }
    soon(&scene, &chosen, "beyond")?;
    let packets = capture.stop()?;
    ensure!(packets.is_empty(), "{} in the clear", packets.len());
    soon(&scene, &other, "far")?;
    serves(&scene, &chosen, "198.18.0.2")?;
    for tun in [here, there] {
        tun.shutdown().map_err(Error::io("TUN"))?;
    }
    Ok(())
}

/// A chosen server is reached through the tunnel.
fn serves(scene: &Scene, chosen: &str, address: &str) -> Result<()> {
    let _server = scene.start(chosen, &["serve", "7000"])?;
    let mut answer = String::new();
    scene.beyond.enter(|| {
        let to = at(address, 7000).parse().map_err(unmet)?;
        let mut stream =
            TcpStream::connect_timeout(&to, PATIENCE / 3).map_err(Error::io("connect"))?;
        stream.write_all(b"f").map_err(Error::io("order"))?;
        stream
            .read_to_string(&mut answer)
            .map(drop)
            .map_err(Error::io("answer"))
    })?;
    ensure!(answer == "served", "the server says {answer:?}");
    Ok(())
}

fn filters_are_brought_back() -> Result<()> {
    let scene = Scene::new()?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    let _capture = begin(&scene)?;
    soon(&scene, &chosen, "beyond")?;
    let capture = scene.capture(ANY)?;
    let index = scene.uplink("up0")?.index;
    let tun = scene.tun.index().map_err(Error::io("TUN"))?;
    for filter in [
        format!("{index}-taupe_out"),
        format!("{index}-taupe_in"),
        format!("{tun}-taupe_tun"),
        format!("{tun}-taupe_into"),
    ] {
        step(&filter);
        let pins = Pins::all().find_map(|pins| {
            let pin = pins.directory().join("links").join(&filter);
            pin.exists().then_some(pin)
        });
        match pins {
            Some(pin) => std::fs::remove_file(pin).map_err(Error::io("pin"))?,
            None => {
                let link = if filter.ends_with("taupe_out") {
                    "up0"
                } else {
                    TUNNEL
                };
                // Both directions at once.
                let words = ["tc", "qdisc", "delete", "dev", link, "clsact"];
                scene.home.attempt(&words)?;
            }
        }
        soon(&scene, &chosen, "beyond")?;
    }
    nothing(&scene, capture)?;
    soon(&scene, &other, "far")
}

/// A filter that lets everything pass, before ours.
fn another_is_first() -> Result<()> {
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

/// A program of tcx that is put before all others.
mod first {
    use std::io;
    use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
    use taupe_lab::{Error, Result};

    /// Has every packet that leaves by an interface pass, as long as what is returned
    /// lives.
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
        // SAFETY: the kernel reads the structure, and what it leads to, which live.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_bpf,
                command,
                std::ptr::from_ref(attributes),
                size_of::<T>(),
            )
        };
        match i32::try_from(fd) {
            // SAFETY: it has just been made, for us alone.
            Ok(fd @ 0..) => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
            _ => Err(Error::io("bpf")(io::Error::last_os_error())),
        }
    }
}

/// Another process changes the rules, and who follows the links keeps to them.
fn others_are_chosen() -> Result<()> {
    let scene = Scene::new()?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    let _capture = begin(&scene)?;
    soon(&scene, &chosen, "beyond")?;
    let choice = Choice {
        rules: rules(&["other"], &[]),
        destinations: everything_but(&["2001:db8:9::/64"]),
        lock: Lock::Chosen,
    };
    let replace = |name: &str| {
        let replace = || capture::replace(name, &choice).map_err(unmet);
        scene.home.enter(replace)
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
