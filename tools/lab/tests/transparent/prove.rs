//! `prove`: what it finds, and that it finds leaks which are made on purpose.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use taupe_lab::host::Host;
use taupe_lab::peers::Implementation;
use taupe_lab::process::{Attempt, Process, wait_until};
use taupe_lab::sandbox::{scratch_file, step};
use taupe_lab::{Error, Result, ensure};
use taupe_os_linux::interface::index;
use taupe_os_linux::packet_socket::{PacketFilter, PacketSocket, SNAP_LENGTH};

use crate::inspection::flows::{serve, talk};
use crate::inspection::json;
use crate::world::{
    Application, BEYOND, ENDPOINT_PORT, INTERFACE, NEIGHBOUR, PORT, SERVER, World, succeeded,
};

/// A user without rights.
const USER: &str = "12345";

/// Destination of the control and of most probes.
const NOWHERE: &str = "203.0.113.7";

/// Probes whose packets enter a healthy tunnel.
const THROUGH: [&str; 11] = [
    "udp",
    "tcp",
    "udp-ipv6",
    "dns-udp",
    "dns-tcp",
    "bound-address",
    "bound-interface",
    "stun",
    "ping",
    "dns-local",
    "endpoint",
];

/// `ETH_P_IP`, and the hardware address of all machines.
const IPV4: u16 = 0x0800;
const EVERYBODY: [u8; 6] = [0xff; 6];

/// A healthy tunnel, with every kind of rule that the probe has to imitate.
pub(crate) fn healthy() -> Result<()> {
    let world = world()?;
    let mole = Application::new("mole")?;
    for rule in [
        "mole".to_owned(),
        mole.0.clone(),
        folder(&mole),
        "uid:12345".into(),
    ] {
        step(&rule);
        let file = choose(&world, &rule)?;
        world.up(&file)?;
        let talking = connect_repeatedly(&world, &mole, Some(USER))?;
        // A rule for a user says nothing about an executable that does not run.
        let process = talking.id().to_string();
        let of = if rule.starts_with("uid:") {
            &process
        } else {
            &mole.0
        };
        let before = world.configuration()?;
        let output = prove(&world, &["--duration", "2", of])?;
        let report = json(&output)?;
        ensure!(output.status == Some(0), "{report}");
        ensure!(report["result"] == "nothing-found", "{report}");
        ensure!(report["control"]["seen"] == true, "{report}");
        ensure!(report["control"]["interface"] == "eth0", "{report}");
        let traffic = &report["traffic"];
        for member in ["wireguard_sent", "wireguard_received"] {
            ensure!(traffic[member].as_u64() > Some(0), "{member}: {report}");
        }
        ensure!(traffic["leaked_packets"] == 0, "{report}");
        ensure!(
            list(&report["processes"]).contains(&talking.id().into()),
            "{report}"
        );
        for name in THROUGH {
            ensure!(verdict(&report, name)? == "tunnel", "{name}: {report}");
        }
        for (name, expected) in [
            ("multicast-dns", "blocked"),
            ("packet-socket", "blocked"),
            // A user needs a right for a mark.
            ("mark", "not-tried"),
            ("earlier-connection", "not-tried"),
        ] {
            ensure!(verdict(&report, name)? == expected, "{name}: {report}");
        }
        world.is_as_before(&before, "after prove")?;
        nothing_left(&world)?;
        drop(talking);
        world.down(&file)?;
    }
    step("as root");
    let file = choose(&world, "mole")?;
    world.up(&file)?;
    let as_root = connect_repeatedly(&world, &mole, None)?;
    let output = prove(&world, &["--duration", "1", &mole.0])?;
    let report = json(&output)?;
    ensure!(verdict(&report, "mark")? == "tunnel", "{report}");
    let status = json(&world.taupe(&["status", "--json"])?)?;
    let gaps = list(&status["tunnels"][0]["gaps"]);
    // Without BPF LSM, root can send below IP.
    let expected = match gaps.iter().any(|gap| gap["code"] == "families") {
        true => ("leaked", Some(1)),
        false => ("blocked", Some(0)),
    };
    let found = (verdict(&report, "packet-socket")?, output.status);
    ensure!(found == expected, "{found:?}: {report}");
    drop(as_root);
    world.down(&file)?;
    step("as text");
    let file = choose(&world, "mole")?;
    world.up(&file)?;
    let _talking = connect_repeatedly(&world, &mole, Some(USER))?;
    let output = world.taupe(&["prove", "--duration", "2", "--tunnel", INTERFACE, &mole.0])?;
    println!("{}", output.stdout);
    succeeded("prove", &output)?;
    for part in [
        "NO LEAK FOUND",
        "Control: packets",
        "through the tunnel",
        "Not proved",
    ] {
        ensure!(output.stdout.contains(part), "{part}: {}", output.stdout);
    }
    let omitted = prove(&world, &["--duration", "1", "--no-control", &mole.0])?;
    let report = json(&omitted)?;
    ensure!(omitted.status == Some(0), "{report}");
    ensure!(report["control"]["tried"] == false, "{report}");
    let long = output.stdout.lines().find(|line| line.chars().count() > 80);
    ensure!(long.is_none(), "{long:?}");
    world.down(&file)
}

/// Every application is selected, so that only a packet socket can send the control.
pub(crate) fn everything_selected() -> Result<()> {
    let world = world()?;
    let mole = Application::new("mole")?;
    let file = scratch(&world, "DisallowedApps = bird")?;
    world.up(&file)?;
    let output = prove(&world, &["--duration", "1", &mole.0])?;
    let report = json(&output)?;
    ensure!(output.status == Some(0), "{report}");
    ensure!(report["control"]["by_packet_socket"] == true, "{report}");
    ensure!(report["control"]["seen"] == true, "{report}");
    world.down(&file)
}

/// The fallback by marks. It does not redirect DNS queries, and the one to this machine stays here.
pub(crate) fn by_mark() -> Result<()> {
    let world = world()?;
    let mole = Application::new("mole")?;
    let file = choose(&world, "mole")?;
    succeeded("up", &world.taupe(&["up", "--adapter", &file])?)?;
    let _talking = connect_repeatedly(&world, &mole, Some(USER))?;
    let report = json(&prove(&world, &["--duration", "1", &mole.0])?)?;
    ensure!(report["result"] == "nothing-found", "{report}");
    for name in ["udp", "tcp", "dns-udp", "bound-address", "stun", "ping"] {
        ensure!(verdict(&report, name)? == "tunnel", "{name}: {report}");
    }
    ensure!(verdict(&report, "dns-local")? == "not-seen", "{report}");
    world.down(&file)
}

/// Packets that are made to leave outside the tunnel are found and named.
pub(crate) fn planted_leaks() -> Result<()> {
    let world = world()?;
    serve(&world)?;
    let mole = Application::new("mole")?;
    let file = choose(&world, "mole")?;
    world.up(&file)?;

    step("with the addresses and ports of a socket");
    let talking = talk(&world, &mole)?;
    let flows = json(&world.taupe(&["flows", "--json"])?)?;
    let own = list(&flows["flows"])
        .iter()
        .find(|flow| flow["pid"] == talking.id() && flow["protocol"] == "udp");
    let own = own.ok_or_else(|| Error::unmet(format!("no flow: {flows}")))?;
    let end = |member: &str| -> Result<SocketAddr> {
        let text = own[member].as_str().unwrap_or_default();
        text.parse()
            .map_err(|_| Error::unmet(format!("{member} of {own}")))
    };
    let ends = [end("local")?, end("remote")?];
    let near = world.near.clone();
    let output = while_it_happens(
        |is_over| plant(&near, ends, is_over),
        || prove(&world, &["--duration", "2", &mole.0]),
    )?;
    let report = json(&output)?;
    ensure!(output.status == Some(1), "{report}");
    ensure!(report["result"] == "leak", "{report}");
    let leaked = &report["traffic"]["leaked"][0];
    ensure!(leaked["interface"] == "eth0", "{report}");
    ensure!(leaked["source"] == ends[0].to_string(), "{report}");
    ensure!(leaked["destination"] == ends[1].to_string(), "{report}");
    ensure!(verdict(&report, "udp")? == "tunnel", "{report}");
    drop(talking);

    step("with the text of a probe");
    let output = while_it_happens(
        |is_over| copy_out(&near, is_over),
        || prove(&world, &["--duration", "2", &mole.0]),
    )?;
    let report = json(&output)?;
    ensure!(output.status == Some(1), "{report}");
    for name in ["udp", "dns-udp", "tcp", "stun"] {
        ensure!(verdict(&report, name)? == "leaked", "{name}: {report}");
    }
    ensure!(report["traffic"]["leaked_packets"] == 0, "{report}");

    step("by a tunnel that blocks nothing");
    world.down(&file)?;
    let file = scratch(&world, "AllowedApps = mole\nKillSwitch = off")?;
    world.up(&file)?;
    world.kill_device()?;
    let talking = connect_repeatedly(&world, &mole, Some(USER))?;
    let report = json(&prove(&world, &["--duration", "1", &mole.0])?)?;
    // It opens its connections one after another.
    let leaked = list(&report["traffic"]["leaked"]);
    ensure!(leaked.len() > 3, "{report}");
    ensure!(report["traffic"]["other_packets"] == 0, "{report}");
    drop(talking);

    step("by processes that start meanwhile");
    let output = while_it_happens(
        |is_over| connect_once_each(&near, &mole, is_over),
        || prove(&world, &["--duration", "4", &mole.0]),
    )?;
    let report = json(&output)?;
    ensure!(list(&report["traffic"]["leaked"]).len() > 3, "{report}");
    ensure!(report["traffic"]["other_packets"] == 0, "{report}");
    let output = world.taupe(&["prove", "--duration", "1", &mole.0])?;
    ensure!(output.status == Some(1), "{output:?}");
    for part in ["probes: udp, tcp, ", "LEAKED                ping"] {
        ensure!(output.stdout.contains(part), "{part}: {}", output.stdout);
    }
    world.down(&file)
}

/// The probes of a tunnel whose process was killed are blocked.
pub(crate) fn killed() -> Result<()> {
    let world = world()?;
    let mole = Application::new("mole")?;
    let file = choose(&world, "mole")?;
    world.up(&file)?;
    world.kill_device()?;
    let output = prove(&world, &["--duration", "1", &mole.0])?;
    let report = json(&output)?;
    ensure!(output.status == Some(0), "{report}");
    ensure!(report["is_up"] == false, "{report}");
    ensure!(report["control"]["seen"] == true, "{report}");
    for name in THROUGH {
        ensure!(verdict(&report, name)? == "blocked", "{name}: {report}");
    }
    world.down(&file)
}

/// A tunnel that blocks every program when its process was killed.
pub(crate) fn all_blocked() -> Result<()> {
    let world = world()?;
    let mole = Application::new("mole")?;
    let file = scratch(&world, "AllowedApps = mole\nKillSwitch = all")?;
    world.up(&file)?;
    world.kill_device()?;
    let output = prove(&world, &["--duration", "1", &mole.0])?;
    let report = json(&output)?;
    ensure!(output.status == Some(0), "{report}");
    ensure!(report["control"]["by_packet_socket"] == true, "{report}");
    ensure!(verdict(&report, "udp")? == "blocked", "{report}");
    world.down(&file)
}

/// A capture that does not see the control proves nothing.
pub(crate) fn blind() -> Result<()> {
    let world = world()?;
    let mole = Application::new("mole")?;
    let file = choose(&world, "mole")?;
    world.up(&file)?;
    let rules = format!(
        "table inet blind {{ chain out {{ type filter hook output priority 0; \
         ip daddr {NOWHERE} drop; }}; }}"
    );
    world.near.run_with_input(&["nft", "-f", "-"], &rules)?;
    let output = prove(&world, &["--duration", "1", &mole.0])?;
    let report = json(&output)?;
    ensure!(output.status == Some(3), "{report}");
    ensure!(
        report["reasons"] == Value::from(["control-not-seen"].as_slice()),
        "{report}"
    );
    let text = world.taupe(&["prove", "--duration", "1", &mole.0])?;
    ensure!(
        text.stdout.contains("NOT OBSERVED: the capture was blind"),
        "{}",
        text.stdout
    );
    world
        .near
        .run(&["nft", "delete", "table", "inet", "blind"])?;
    world.down(&file)
}

/// A capture that has lost packets proves nothing.
pub(crate) fn lossy() -> Result<()> {
    let world = world()?;
    let mole = Application::new("mole")?;
    let file = choose(&world, "mole")?;
    world.up(&file)?;
    let program = Implementation::Taupe.program()?.display().to_string();
    let command = [&*program, "prove", "--json", "--duration", "3", &mole.0];
    let mut proving = world.near.spawn(&command)?;
    wait_until("the capture", Duration::from_secs(30), || {
        ensure!(proving.runs()?, "it ended: {}", proving.output());
        // The head, two counters and the capture.
        let sockets = world.near.run(&["cat", "/proc/net/packet"])?.stdout;
        Ok(sockets.lines().count() >= 4)
    })?;
    // While it stands still, more packets leave than the kernel keeps for it.
    proving.signal(Signal::STOP)?;
    let ends = ["192.0.2.1:1000", "192.0.2.2:1000"].map(|end| end.parse().expect("an address"));
    let mut packet = datagram(ends);
    packet.resize(1400, 0);
    world.near.enter(|| {
        let (sender, uplink) = sender()?;
        for _ in 0..60_000 {
            // The link's queue may be full for a moment.
            let _ = sender.send(uplink, IPV4, &EVERYBODY, &packet);
        }
        Ok(())
    })?;
    proving.signal(Signal::CONT)?;
    let status = proving.wait(Duration::from_secs(30))?;
    let report: Value = serde_json::from_str(&proving.output())
        .map_err(|error| Error::unmet(format!("{error}: {}", proving.output())))?;
    ensure!(status.code() == Some(3), "{report}");
    ensure!(
        report["traffic"]["lost_packets"].as_u64() > Some(0),
        "{report}"
    );
    ensure!(
        list(&report["reasons"]).contains(&"packets-lost".into()),
        "{report}"
    );
    world.down(&file)
}

/// Nothing is proved about an application without a tunnel.
pub(crate) fn not_selected() -> Result<()> {
    let world = world()?;
    let (mole, bird) = (Application::new("mole")?, Application::new("bird")?);
    let refused = |arguments: &[&str], part: &str| {
        let output = world.taupe(&[&["prove"], arguments].concat())?;
        ensure!(output.status == Some(3), "{output:?}");
        ensure!(output.stderr.contains(part), "{part}: {}", output.stderr);
        Ok(())
    };
    refused(&[&mole.0], "no tunnel here selects applications")?;
    let file = choose(&world, "mole")?;
    world.up(&file)?;
    let advice = format!("`sudo taupe app allow {file} {}` selects it", bird.0);
    refused(&[&bird.0], &advice)?;
    refused(
        &["--tunnel", "other", &mole.0],
        "other does not select applications",
    )?;
    refused(&["no-such-program"], "there is no executable")?;
    let script = scratch_file("script", "#!/bin/sh\n")?;
    refused(&[&script], "/bin/sh")?;
    let wrong = world.taupe(&["prove"])?;
    ensure!(wrong.status == Some(2), "{wrong:?}");
    world.down(&file)
}

/// A signal ends an observation early, with a report. Nothing is left, even after SIGKILL.
pub(crate) fn ended_early() -> Result<()> {
    let world = world()?;
    let mole = Application::new("mole")?;
    let file = choose(&world, "mole")?;
    world.up(&file)?;
    let before = world.configuration()?;
    let program = Implementation::Taupe.program()?.display().to_string();
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::KILL] {
        step(&format!("{signal:?}"));
        let command = [&*program, "prove", "--json", &mole.0];
        let mut proving = world.near.spawn(&command)?;
        wait_until("the probe", Duration::from_secs(30), || {
            ensure!(proving.runs()?, "it ended: {}", proving.output());
            Ok(probes()? > 0)
        })?;
        let begun = std::time::Instant::now();
        proving.signal(signal)?;
        let status = proving.wait(Duration::from_secs(20))?;
        ensure!(begun.elapsed() < Duration::from_secs(20), "it went on");
        if signal != Signal::KILL {
            ensure!(status.code() == Some(3), "{status:?}: {}", proving.output());
            let report: Value = serde_json::from_str(&proving.output())
                .map_err(|error| Error::unmet(format!("{error}: {}", proving.output())))?;
            ensure!(report["result"] == "not-observed", "{report}");
            ensure!(
                list(&report["reasons"]).contains(&"interrupted".into()),
                "{report}"
            );
        }
        nothing_left(&world)?;
        world.is_as_before(&before, "after a signal")?;
    }
    world.down(&file)
}

/// Creates a machine whose users may send pings.
fn world() -> Result<World> {
    let world = World::new()?;
    let ping = "net/ipv4/ping_group_range";
    world.near.sysctl(ping, "0 2147483647")?;
    Ok(world)
}

fn choose(world: &World, applications: &str) -> Result<String> {
    scratch(world, &format!("AllowedApps = {applications}"))
}

/// Writes a file with a name server in the tunnel.
fn scratch(world: &World, line: &str) -> Result<String> {
    let [v4, v6] = world.tunnel();
    let endpoint = SocketAddr::new(NEIGHBOUR, ENDPOINT_PORT);
    world.file_with_sections(
        &format!("Address = {v4}/32, {v6}/128\nDNS = {}\n{line}", SERVER[0]),
        &format!("Endpoint = {endpoint}\nAllowedIPs = 0.0.0.0/0, ::/0"),
    )
}

fn folder(application: &Application) -> String {
    let end = application.0.rfind('/').map_or(0, |at| at + 1);
    application.0[..end].to_owned()
}

/// Starts an application that opens connections again and again.
fn connect_repeatedly(
    world: &World,
    application: &Application,
    user: Option<&str>,
) -> Result<Process> {
    let to = BEYOND[0];
    let script = format!(
        "while :; do exec 3<>/dev/tcp/{to}/{PORT} && read -r -u 3 line && echo ready; sleep 0.1; done"
    );
    let words = user.map(|user| format!("setpriv --reuid {user} --regid {user} --clear-groups"));
    let as_user: Vec<&str> = words.iter().flat_map(|words| words.split(' ')).collect();
    let command = [&as_user[..], &[&*application.0, "-c", &script]].concat();
    let process = world.near.spawn(&command)?;
    wait_until("a connection", Duration::from_secs(30), || {
        Ok(process.output().contains("ready"))
    })?;
    Ok(process)
}

/// Starts one process of an application after another. Each opens a connection, and ends soon. So does
/// a program that it starts, after its end.
fn connect_once_each(near: &Host, application: &Application, is_over: &AtomicBool) -> Result<()> {
    let to = BEYOND[0];
    let connect = format!("exec 3<>/dev/tcp/{to}/{PORT}; sleep 0.6; :");
    let script = format!("/bin/bash -c 'sleep 1.5; {connect}' >&- 2>&- & {connect}; sleep 0.4; :");
    while !is_over.load(Ordering::Relaxed) {
        let mut process = near.spawn(&[&*application.0, "-c", &script])?;
        process.wait(Duration::from_secs(20))?;
    }
    Ok(())
}

fn prove(world: &World, arguments: &[&str]) -> Result<Attempt> {
    world.taupe(&[&["prove", "--json"], arguments].concat())
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn verdict<'a>(report: &'a Value, name: &str) -> Result<&'a str> {
    let probe = list(&report["probes"])
        .iter()
        .find(|probe| probe["name"] == name);
    let verdict = probe.and_then(|probe| probe["verdict"].as_str());
    verdict.ok_or_else(|| Error::unmet(format!("no probe {name}: {report}")))
}

/// Counts the running probes.
fn probes() -> Result<usize> {
    let entries = fs::read_dir("/proc").map_err(Error::io("/proc"))?;
    let lines = entries
        .flatten()
        .filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    Ok(lines.filter(|line| line == b"taupe\0prove-probe\0").count())
}

/// Checks that no process and no mount is left.
fn nothing_left(world: &World) -> Result<()> {
    wait_until("the end of the probe", Duration::from_secs(10), || {
        Ok(probes()? == 0)
    })?;
    let mounts = world.near.run(&["cat", "/proc/self/mountinfo"])?.stdout;
    ensure!(!mounts.contains("taupe-probe"), "{mounts}");
    Ok(())
}

/// Does something in another thread for as long as a command runs.
fn while_it_happens<T>(
    happens: impl FnOnce(&AtomicBool) -> Result<()> + Send,
    command: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let other = scope.spawn(|| happens(&is_over));
        let done = command();
        is_over.store(true, Ordering::Relaxed);
        other
            .join()
            .map_err(|_| Error::unmet("a panic".to_owned()))??;
        done
    })
}

/// Sends datagrams by a packet socket, with the addresses and ports of a socket.
fn plant(near: &Host, ends: [SocketAddr; 2], is_over: &AtomicBool) -> Result<()> {
    let packet = datagram(ends);
    near.enter(|| {
        let (sender, uplink) = sender()?;
        while !is_over.load(Ordering::Relaxed) {
            sender
                .send(uplink, IPV4, &EVERYBODY, &packet)
                .map_err(Error::io("send"))?;
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    })
}

/// Sends by the uplink a copy of every IPv4 packet that enters the tunnel.
fn copy_out(near: &Host, is_over: &AtomicBool) -> Result<()> {
    near.enter(|| {
        let (sender, uplink) = sender()?;
        let own = index(INTERFACE);
        let filter = PacketFilter::Sent {
            except: &[],
            only_syn_on: None,
        };
        let capture = PacketSocket::capture(&filter).map_err(Error::io("capture"))?;
        let mut bytes = [0; SNAP_LENGTH];
        while !is_over.load(Ordering::Relaxed) {
            let Some(packet) = capture.receive(&mut bytes).map_err(Error::io("receive"))? else {
                thread::sleep(Duration::from_millis(1));
                continue;
            };
            if Some(packet.interface) == own && packet.protocol == IPV4 {
                sender
                    .send(uplink, IPV4, &EVERYBODY, &bytes[..packet.length])
                    .map_err(Error::io("send"))?;
            }
        }
        Ok(())
    })
}

fn sender() -> Result<(PacketSocket, u32)> {
    let uplink = index("eth0").ok_or_else(|| Error::unmet("no eth0".to_owned()))?;
    let sender = PacketSocket::sender().map_err(Error::io("packet socket"))?;
    Ok((sender, uplink))
}

/// Makes a UDP packet without payload.
fn datagram(ends: [SocketAddr; 2]) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0];
    for end in ends {
        let IpAddr::V4(address) = end.ip() else {
            return Vec::new();
        };
        packet.extend(address.octets());
    }
    packet.extend(ends.iter().flat_map(|end| end.port().to_be_bytes()));
    packet.extend([0, 8, 0, 0]);
    packet
}
