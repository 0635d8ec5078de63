//! All contestants: they start, encrypt their traffic, leave nothing behind, and give a reason if
//! they cannot run.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use taupe_bench::contestant::{self, Contestant};
use taupe_bench::pair::Link;
use taupe_bench::session::{GatewaySession, Session};
use taupe_bench::side::{PORT, Side};
use taupe_bench::tcp::TcpSettings;
use taupe_lab::capture::{Capture, Packet};
use taupe_lab::host::{Host, add_address};
use taupe_lab::process::wait_until;
use taupe_lab::process::{Process, run};
use taupe_lab::sandbox::{Suite, SystemTest, figure, scratch};
use taupe_lab::traffic::{first_answer, serve_echo, tcp_echo};
use taupe_lab::{Error, Result, ensure};

/// Argument with which this executable prints why contestants cannot run, and exits.
const REASONS: &str = "--reasons";

/// Contestants that speak WireGuard.
const WIREGUARD: [&str; 6] = [
    "taupe",
    "wireguard-go",
    "wireguard-go-tailscale",
    "boringtun",
    "gotatun",
    "kernel",
];

/// Contestants with a setting for the number of workers.
const WITH_WORKERS: [&str; 4] = [
    "wireguard-go",
    "wireguard-go-tailscale",
    "boringtun",
    "gotatun",
];

/// Content of pings, searched for in captured packets.
const MARK: &[u8; 16] = b"within a tunnel?";

fn main() {
    if std::env::args().nth(1).as_deref() == Some(REASONS) {
        return print_reasons();
    }
    let mut tests = Vec::new();
    let mut every = |what: &str, ids: &[&str], body: fn(&dyn Contestant) -> Result<()>| {
        for id in ids {
            let id = (*id).to_owned();
            let name = format!("{}_{what}", id.replace('-', "_"));
            tests.push(
                SystemTest::new(name, move || body(&*find(&id)?)).limit(Duration::from_secs(120)),
            );
        }
    };
    let contestants = contestant::all();
    let ids: Vec<&str> = contestants.iter().map(|one| one.id()).collect();
    every("carries_and_goes", &ids, carries_and_goes);
    // BoringTun keeps sending from its first address.
    let roaming = [
        "taupe",
        "wireguard-go",
        "gotatun",
        "openvpn-static-aes",
        "openvpn-tls-aes",
        "openvpn-tls-chacha",
    ];
    every("is_followed", &roaming, is_followed);
    every(
        "agrees_on_ciphers",
        &["openvpn-tls-aes", "openvpn-tls-chacha"],
        agrees_on_ciphers,
    );
    every("takes_a_crowd", &WIREGUARD, takes_a_crowd);
    every("has_no_peers", &["direct", "openvpn-tls-aes"], has_no_peers);
    let gateways = [&["direct"][..], &WIREGUARD].concat();
    every("is_a_gateway", &gateways, is_a_gateway);
    every("runs_with_one_worker", &WITH_WORKERS, runs_with_one_worker);
    let without = ["direct", "openvpn-tls-aes"];
    every("is_no_gateway", &["openvpn-tls-aes"], is_no_gateway);
    every("has_no_workers", &without, has_no_workers);
    tests.push(SystemTest::new("side_by_side", side_by_side));
    tests.push(SystemTest::new(
        "missing_programs_are_named",
        missing_programs_are_named,
    ));
    let mut suite = Suite::new(tests);
    for one in contestants {
        suite = suite.prepare(move || one.install());
    }
    suite.main()
}

fn find(id: &str) -> Result<Box<dyn Contestant>> {
    contestant::find(id).ok_or_else(|| Error::unmet(format!("there is no contestant {id}")))
}

/// Returns true if the contestant can run here. All except the kernel's must; if that one cannot,
/// the reason must name the kernel.
fn runs_here(contestant: &dyn Contestant) -> Result<bool> {
    match contestant.version() {
        Ok(version) => {
            let named = version.is_some_and(|text| text.contains(|c: char| c.is_ascii_digit()));
            ensure!(named || contestant.id() == "direct", "no version");
            Ok(true)
        }
        Err(reason) if contestant.id() == "kernel" => {
            let reason = reason.to_string();
            ensure!(
                reason.starts_with("this kernel (") && reason.contains("has no WireGuard"),
                "not a reason: {reason}"
            );
            Ok(false)
        }
        Err(other) => Err(other),
    }
}

fn carries_and_goes(contestant: &dyn Contestant) -> Result<()> {
    if !runs_here(contestant)? {
        return Ok(());
    }
    let session = Session::start(contestant, "pair", &Link::Cable)?;
    figure("start-up", session.startup);
    let (target, client) = (session.target(), &session.pair.client);
    let tunnel = !contestant.id().starts_with("direct");
    // In transparent mode programs use the outer address.
    let known = tunnel && contestant.id() != "taupe-transparent";
    ensure!(
        known == (target != session.pair.outer()),
        "the server is at {target}"
    );
    // Captures at the far end: on the client's own link, transparent mode shows decrypted packets
    // too.
    let wire = Capture::start(&session.pair.server, PORT, "")?;
    let before = transmitted(&session)?;
    let mark: String = MARK.iter().map(|byte| format!("{byte:02x}")).collect();
    client.run(&[
        "ping",
        "-n",
        "-c",
        "3",
        "-i",
        "0.05",
        "-W",
        "5",
        "-s",
        "64",
        "-p",
        &mark,
        &target.to_string(),
    ])?;
    let echo = SocketAddr::new(target, 7);
    serve_echo(&session.pair.server, echo)?;
    tcp_echo(client, echo, 200_000)?;
    let crossed = transmitted(&session)? - before;
    ensure!(crossed > 200_000, "{crossed} bytes crossed the interface");
    let packets = wire.stop_once("what has been sent", |packets| {
        packets.iter().map(|packet| packet.ip.len()).sum::<usize>() > 400_000
    })?;
    let shown = packets.iter().any(|packet| shows(packet, MARK));
    ensure!(
        shown != tunnel,
        "the pings are readable on the wire: {shown}"
    );
    let bare = packets
        .iter()
        .find(|packet| !packet.ip.is_empty() && packet.datagram().is_none());
    ensure!(
        bare.is_some() != tunnel,
        "outside of datagrams on the wire: {bare:?}"
    );
    leaves_nothing(session)
}

/// Returns the bytes that the client has sent into the tunnel.
fn transmitted(session: &Session) -> Result<u64> {
    let interface = session.client.interface.as_deref().unwrap_or_default();
    let path = format!("/sys/class/net/{interface}/statistics/tx_bytes");
    let shown = session.pair.client.run(&["cat", &path])?;
    shown.text().parse().map_err(|_| Error::Malformed {
        what: path,
        why: shown.stdout,
    })
}

fn shows(packet: &Packet, mark: &[u8]) -> bool {
    packet.ip.windows(mark.len()).any(|part| part == mark)
}

/// Checks whether a process has an executable. One that has ended may still have a number.
fn is_running(id: &u32) -> bool {
    std::fs::read_link(format!("/proc/{id}/exe")).is_ok()
}

/// Waits until processes have ended. A packet process ends after its broker.
fn wait_for_end(processes: &[u32]) -> Result<()> {
    wait_until("end of the programs", Duration::from_secs(10), || {
        Ok(!processes.iter().any(is_running))
    })
}

/// Ends a session, and checks that its processes and machines are gone.
fn leaves_nothing(session: Session) -> Result<()> {
    let processes = session.processes();
    let machines = [&session.pair.client, &session.pair.server].map(|host| host.name().to_owned());
    ensure!(
        processes.iter().all(is_running),
        "{processes:?} did not all run"
    );
    drop(session);
    wait_for_end(&processes)?;
    for machine in machines {
        let path = Path::new("/run/netns").join(&machine);
        ensure!(!path.exists(), "the machine {machine} is still there");
    }
    Ok(())
}

/// The client's machine changes its address, like a phone that leaves the house.
fn is_followed(contestant: &dyn Contestant) -> Result<()> {
    ensure!(runs_here(contestant)?, "it cannot run here");
    let session = Session::start(contestant, "pair", &Link::Cable)?;
    let client = &session.pair.client;
    let old = format!("{}/24", Side::Client.outer());
    client.ip(&["address", "delete", &old, "dev", PORT])?;
    add_address(client, PORT, "192.0.2.77/24")?;
    let wire = Capture::start(client, PORT, "src host 192.0.2.77 and udp")?;
    first_answer(client, session.target(), Duration::from_secs(10))?;
    wire.stop_once("datagrams from the new address", |packets| {
        !packets.is_empty()
    })?;
    Ok(())
}

/// OpenVPN negotiates its ciphers; the result must match the contestant's title.
fn agrees_on_ciphers(contestant: &dyn Contestant) -> Result<()> {
    let session = Session::start(contestant, "pair", &Link::Cable)?;
    let data = match contestant.id() {
        "openvpn-tls-aes" => "AES-256-GCM",
        _ => "CHACHA20-POLY1305",
    };
    let result: String = session
        .client
        .processes
        .iter()
        .map(Process::output)
        .collect();
    for agreed in [
        "cipher TLSv1.2 ECDHE-RSA-CHACHA20-POLY1305,",
        &format!("Data Channel: cipher '{data}'"),
    ] {
        ensure!(result.contains(agreed), "no {agreed:?} in {result}");
    }
    Ok(())
}

fn takes_a_crowd(contestant: &dyn Contestant) -> Result<()> {
    if !runs_here(contestant)? {
        return Ok(());
    }
    let session = Session::start(contestant, "pair", &Link::Cable)?;
    let mut expected = 1;
    for count in [1_000, 10] {
        let added = contestant.add_peers(&session.pair, &session.server, count);
        added.ok_or_else(|| Error::unmet("it takes no peers"))??;
        expected += count;
        let interface = session.server.interface.as_deref().unwrap_or_default();
        let shown = session
            .pair
            .server
            .run(&["wg", "show", interface, "allowed-ips"])?;
        let with_address = shown
            .stdout
            .lines()
            .filter(|line| line.ends_with("/32"))
            .count();
        ensure!(
            with_address == expected,
            "{with_address} peers of {expected}"
        );
        first_answer(
            &session.pair.client,
            session.target(),
            Duration::from_secs(5),
        )?;
    }
    Ok(())
}

fn has_no_peers(contestant: &dyn Contestant) -> Result<()> {
    let session = Session::start(contestant, "pair", &Link::Cable)?;
    let added = contestant.add_peers(&session.pair, &session.server, 1);
    ensure!(added.is_none(), "peers were added");
    Ok(())
}

/// Every client reaches the gateway through a tunnel of its own.
fn is_a_gateway(contestant: &dyn Contestant) -> Result<()> {
    if !runs_here(contestant)? {
        return Ok(());
    }
    let session = GatewaySession::start(contestant, "gateway", 3, TcpSettings::default());
    let session = session.ok_or_else(|| Error::unmet("it is no gateway"))??;
    let clients = session.machines.clients.iter();
    for (client, target) in clients.zip(&session.ends.targets) {
        first_answer(client, *target, Duration::from_secs(5))?;
        let sent = |host: &Host| host.snmp()?.get("Udp", "OutDatagrams");
        let before = sent(client)?;
        first_answer(client, *target, Duration::from_secs(5))?;
        let is_tunnel = contestant.id() != "direct" && contestant.id() != "kernel";
        let datagrams = sent(client)? - before;
        ensure!(
            !is_tunnel || datagrams > 0,
            "a ping took {datagrams} datagrams of {}",
            client.name()
        );
    }
    let processes = session.processes();
    ensure!(
        processes.iter().all(is_running),
        "{processes:?} do not all run"
    );
    drop(session);
    wait_for_end(&processes)
}

fn is_no_gateway(contestant: &dyn Contestant) -> Result<()> {
    let session = GatewaySession::start(contestant, "gateway", 1, TcpSettings::default());
    ensure!(session.is_none(), "it is a gateway: {session:?}");
    Ok(())
}

fn runs_with_one_worker(contestant: &dyn Contestant) -> Result<()> {
    ensure!(runs_here(contestant)?, "it cannot run here");
    let one = contestant.with_workers(1)?;
    let one = one.ok_or_else(|| Error::unmet("it has no setting for workers"))?;
    ensure!(one.id() == contestant.id(), "it has become {}", one.id());
    let session = Session::start(&*one, "pair", &Link::Cable)?;
    first_answer(
        &session.pair.client,
        session.target(),
        Duration::from_secs(5),
    )?;
    leaves_nothing(session)
}

fn has_no_workers(contestant: &dyn Contestant) -> Result<()> {
    let one = contestant.with_workers(1)?;
    ensure!(one.is_none(), "it has a setting for workers");
    Ok(())
}

/// Several contestants run at a time: neither names nor addresses collide, and stopping one does
/// not affect the others.
fn side_by_side() -> Result<()> {
    let start = |id: &str| Session::start(&*find(id)?, id, &Link::Cable);
    let mut sessions = Vec::new();
    for id in [
        "direct",
        "taupe",
        "taupe-transparent",
        "wireguard-go",
        "openvpn-static-bf",
        "openvpn-tls-aes",
    ] {
        sessions.push(start(id)?);
    }
    sessions.push(Session::start(&*find("taupe")?, "again", &Link::Cable)?);
    while let Some(session) = sessions.pop() {
        leaves_nothing(session)?;
        for left in &sessions {
            first_answer(&left.pair.client, left.target(), Duration::from_secs(5))?;
        }
    }
    Ok(())
}

fn print_reasons() {
    for contestant in contestant::all() {
        match contestant.version() {
            Ok(_) => println!("{}: runs", contestant.id()),
            Err(reason) => println!("{}: {reason}", contestant.id()),
        }
    }
}

/// On a machine without the programs, each contestant names what is missing, in one line.
fn missing_programs_are_named() -> Result<()> {
    let empty = scratch("empty");
    std::fs::create_dir_all(&empty).map_err(Error::io("an empty folder"))?;
    let executable = std::env::current_exe().map_err(Error::io("own executable"))?;
    let mut command = Command::new(executable);
    command
        .arg(REASONS)
        .env("PATH", &empty)
        .env("TAUPE_CACHE", &empty)
        .env("TAUPE_BIN", empty.join("taupe"))
        .env_remove("TAUPE_KIND");
    let printed = run("this machine", command, None)?.stdout;
    let lines: Vec<(&str, &str)> = printed
        .lines()
        .filter_map(|line| line.split_once(": "))
        .collect();
    let contestants = contestant::all();
    ensure!(
        lines.len() == contestants.len(),
        "not a line each: {printed}"
    );
    for (contestant, (id, reason)) in contestants.iter().zip(lines) {
        ensure!(
            contestant.id() == id,
            "{id} in place of {}",
            contestant.id()
        );
        let expected = match id {
            "direct" => "runs",
            "direct-past-taupe" | "taupe-transparent" => "taupe is not at ",
            "kernel" => "ip link add",
            openvpn if openvpn.starts_with("openvpn") => "openvpn is not installed",
            program => &format!("{program} is not at {}", empty.display()),
        };
        ensure!(reason.contains(expected), "{id}: {reason}");
    }
    Ok(())
}
