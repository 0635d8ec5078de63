//! Effects of `KillSwitch` while the tunnel is down.

use std::net::{IpAddr, Ipv4Addr, TcpListener, UdpSocket};
use std::time::Duration;

use socket2::SockRef;
use taupe_lab::capture::Capture;
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::step;
use taupe_lab::{Error, Result, ensure};

use crate::world::{Application, BEYOND, NEIGHBOUR, TUNNEL, UPLINK, World, expect, succeeded};

/// Packets allowed while everything is blocked: neighbour discovery, group membership, DHCP, the
/// local network, and answers to requests from outside.
const ALLOWED: &str = "arp or ip6[6] = 0 or (icmp6 and ip6[40] >= 130 and ip6[40] <= 143) or \
                       udp dst port 67 or net 192.168.0.0/16 or src host 2001:db8:ffff::1";

/// `all`: all applications reach only the link and the local network.
pub(crate) fn everybody() -> Result<()> {
    let world = World::new()?;
    let (mole, bird) = (Application::new("mole")?, Application::new("bird")?);
    let file = world.file("AllowedApps = mole\nKillSwitch = all\nBypassLanTraffic = true")?;
    world.up(&file)?;
    let as_when_up = || -> Result<()> {
        for family in [0, 1] {
            expect(&world, &mole, family, Some(TUNNEL[family]))?;
            expect(&world, &bird, family, Some(UPLINK[family]))?;
        }
        Ok(())
    };
    as_when_up()?;
    world.kill_device()?;
    let clear = Capture::start(&world.far, "eth0", &format!("not ({ALLOWED})"))?;
    for application in [&mole, &bird] {
        for family in [0, 1] {
            expect(&world, application, family, None)?;
        }
        let neighbour = world.asks(application, NEIGHBOUR)?;
        ensure!(
            neighbour.as_deref() == Some(UPLINK[0]),
            "the local network sees {neighbour:?}"
        );
    }
    step("the kernel's own answers");
    let [address, source] = [UPLINK[1], &BEYOND[1].to_string()];
    let neighbours = |verb| ["-6", "neighbour", verb, "dev", "eth0"];
    world.far.ip(&neighbours("flush"))?;
    let ping = ["ping", "-c", "1", "-W", "1", "-I", source, address];
    let pinged = world.far.attempt(&ping)?;
    ensure!(pinged.status == Some(1), "an answer: {pinged:?}");
    let found = world.far.ip(&neighbours("show"))?.stdout;
    let is_found = |line: &str| line.starts_with(address) && line.contains("lladdr");
    ensure!(found.lines().any(is_found), "no neighbour: {found}");
    step("this machine");
    let listener = world
        .near
        .enter(|| TcpListener::bind("127.0.0.1:8080").map_err(Error::io("listener")))?;
    std::thread::spawn(move || {
        use std::io::Write as _;
        let (mut stream, _) = listener.accept()?;
        stream.write_all(b"itself\n")
    });
    let itself = world.asks(&bird, Ipv4Addr::LOCALHOST.into())?;
    ensure!(itself.as_deref() == Some("itself"), "it says {itself:?}");
    step("a lease");
    let leases = Capture::start(&world.far, "eth0", "udp dst port 67")?;
    world.near.enter(|| {
        let socket = UdpSocket::bind("0.0.0.0:68").map_err(Error::io("port 68"))?;
        let bound = SockRef::from(&socket).bind_device(Some(b"eth0"));
        bound.map_err(Error::io("eth0"))?;
        let sent = socket
            .set_broadcast(true)
            .and_then(|()| socket.send_to(b"a lease?", (IpAddr::V4(Ipv4Addr::BROADCAST), 67)));
        sent.map(drop).map_err(Error::io("a question for a lease"))
    })?;
    leases.stop_once("a question for a lease", |packets| !packets.is_empty())?;
    let packets = clear.stop()?;
    let first = packets.first().map(|packet| &packet.ip);
    ensure!(first.is_none(), "{} packets, {first:02x?}", packets.len());
    step("what is said of it");
    expect_message(
        &world,
        &["status"],
        &["home: degraded", "traffic of all applications is blocked"],
    )?;
    let explain = ["explain", "--conf", &file, &bird.0, "198.51.100.1:8080"];
    let words = [
        "traffic of all applications is blocked",
        "blocked while its process is gone",
    ];
    expect_message(&world, &explain, &words)?;
    step("up again, closed, and down");
    world.up(&file)?;
    as_when_up()?;
    succeeded("down", &world.taupe(&["down", "--keep-closed", &file])?)?;
    for application in [&mole, &bird] {
        expect(&world, application, 0, None)?;
    }
    world.down(&file)?;
    for application in [&mole, &bird] {
        expect(&world, application, 0, Some(UPLINK[0]))?;
    }
    Ok(())
}

/// `off`: selected applications bypass a tunnel that is down, and no message claims otherwise.
pub(crate) fn nobody() -> Result<()> {
    let world = World::new()?;
    let mole = Application::new("mole")?;
    let file = world.file("AllowedApps = mole\nKillSwitch = off")?;
    let is = |who: [&str; 2]| {
        [0, 1]
            .into_iter()
            .try_for_each(|family| expect(&world, &mole, family, Some(who[family])))
    };
    world.up(&file)?;
    is(TUNNEL)?;
    world.kill_device()?;
    // The kernel notices at once that the tunnel's process is gone.
    wait_until(
        "traffic that bypasses the tunnel",
        Duration::from_secs(10),
        || Ok(world.asks(&mole, BEYOND[0])?.as_deref() == Some(UPLINK[0])),
    )?;
    is(UPLINK)?;
    let bypassed = [
        "home: down",
        "bypasses the tunnel (KillSwitch = off) until `taupe up ",
    ];
    expect_message(&world, &["status"], &bypassed)?;
    let explain = ["explain", "--conf", &file, &mole.0, "198.51.100.1:8080"];
    expect_message(&world, &explain, &["bypasses it while its process is gone"])?;
    step("an up that fails");
    let text = std::fs::read_to_string(&file).map_err(Error::io(&*file))?;
    let failing = text.replace("[Peer]", "PostUp = false\n[Peer]");
    std::fs::write(&file, failing).map_err(Error::io(&*file))?;
    let up = world.taupe(&["up", &file])?;
    ensure!(up.status == Some(1), "up: {up:?}");
    ensure!(
        up.stderr.contains("bypasses the tunnel") && !up.stderr.contains("is blocked"),
        "{}",
        up.stderr
    );
    is(UPLINK)?;
    std::fs::write(&file, &text).map_err(Error::io(&*file))?;
    step("up again, closed, and down");
    expect_message(&world, &["up", &file], &[])?;
    is(TUNNEL)?;
    let other = text.replace(TUNNEL[0], "10.77.0.9");
    std::fs::write(&file, other).map_err(Error::io(&*file))?;
    let reload = world.taupe(&["reload", &file])?;
    ensure!(
        reload.stderr.contains("bypasses the tunnel"),
        "{}",
        reload.stderr
    );
    std::fs::write(&file, &text).map_err(Error::io(&*file))?;
    expect_message(
        &world,
        &["down", "--keep-closed", &file],
        &["bypasses the tunnel"],
    )?;
    is(UPLINK)?;
    expect_message(&world, &["status"], &bypassed)?;
    expect_message(&world, &["down", &file], &[])?;
    is(UPLINK)
}

/// Checks that a command succeeds and prints all of these words. Unless they include a blocked
/// state, the output must not claim that anything is blocked.
fn expect_message(world: &World, command: &[&str], words: &[&str]) -> Result<()> {
    let output = world.taupe(command)?;
    let is = |state| words.iter().any(|word| word.ends_with(state));
    let status = match command {
        ["status"] if is("degraded") => 2,
        ["status"] if is("down") => 1,
        _ => 0,
    };
    ensure!(output.status == Some(status), "{command:?}: {output:?}");
    let text = format!("{}{}", output.stdout, output.stderr);
    for word in words {
        ensure!(text.contains(word), "{command:?}, not {word}: {text}");
    }
    let is_blocked = words.iter().any(|word| word.contains("is blocked"));
    ensure!(
        is_blocked || !text.contains("is blocked"),
        "{command:?}: {text}"
    );
    Ok(())
}
