//! Two tunnels at once, each with name servers of its own.

use std::net::{IpAddr, Ipv4Addr};

use taupe_lab::capture::{Capture, Packet};
use taupe_lab::host::add_address;
use taupe_lab::sandbox::step;
use taupe_lab::{Error, Result, ensure};

use super::{Client, INSIDE, Names, OUTSIDE, PUBLIC, ROUTER, STUB, Scene, serve};
use crate::world::{ENDPOINT_PORT, SERVER};

/// The name servers of the second tunnel, and their answer.
const SERVERS: [&str; 2] = ["10.77.0.250", "fd77::250"];
const ANSWER: Ipv4Addr = Ipv4Addr::new(10, 9, 9, 8);

/// Part of the names that each tunnel's application looks up, beside the common part.
const WORDS: [&str; 2] = ["home", "work"];

/// Each application's questions go only to its own tunnel's servers, through this tunnel.
pub(crate) fn of_two_tunnels() -> Result<()> {
    let scene = Scene::new(&format!("nameserver {STUB}\n"))?;
    let home = &scene.world;
    let work = home.with_another("work", 9)?;
    let vole = Client::new("vole")?;
    let of_work = Names::default();
    for address in SERVERS {
        add_address(&home.far, "lo", address)?;
        serve(&home.far, address, ANSWER, &of_work)?;
    }
    let of_home = scene.file(&SERVER.join(", "), "")?;
    let [v4, v6] = work.tunnel();
    let of_other = work.file_with_sections(
        &format!(
            "Address = {v4}/32, {v6}/128\nDNS = {}\n",
            SERVERS.join(", ")
        ),
        &format!(
            "Endpoint = {}:{ENDPOINT_PORT}\nAllowedIPs = 0.0.0.0/0, ::/0\n\
             AllowedApps = vole, vole-asks\n",
            work.neighbour()
        ),
    )?;
    home.up(&of_home)?;
    work.up(&of_other)?;
    let inside = Capture::start(&home.far, "wgfar", "port 53")?;
    step("by the C library");
    for (client, word, address) in [(&scene.mole, WORDS[0], INSIDE), (&vole, WORDS[1], ANSWER)] {
        let name = format!("{word}.mole.example");
        let found = client.resolves(home, &name)?;
        ensure!(found == [address], "{name}: {found:?}");
    }
    ensure!(
        scene.bird.resolves(home, "bird.example")? == [OUTSIDE],
        "the other"
    );
    step("by itself, whoever is asked, the other tunnel's servers too");
    for (client, word, address) in [(&scene.mole, WORDS[0], INSIDE), (&vole, WORDS[1], ANSWER)] {
        for how in ["udp", "tcp", "edns"] {
            let [mine, other] = [SERVER, SERVERS];
            let all = [
                STUB, "::1", ROUTER, PUBLIC, mine[0], mine[1], other[0], other[1],
            ];
            for server in all {
                let name = format!("{word}-{how}.mole.example");
                let output = client.query(home, how, server, &name)?;
                let wanted = format!("{server} {address} 1");
                ensure!(output == wanted, "{word} {how} {server}: {output}");
            }
        }
    }
    step("the first killed");
    home.kill_device()?;
    let blocked = scene.mole.resolves(home, "home-down.mole.example")?;
    ensure!(blocked.is_empty(), "{blocked:?}");
    let found = vole.resolves(home, "work-alone.mole.example")?;
    ensure!(found == [ANSWER], "{found:?}");
    step("who has asked whom");
    for (names, own, other) in [
        (&scene.inside, WORDS[0], WORDS[1]),
        (&of_work, WORDS[1], WORDS[0]),
    ] {
        let names = names.names();
        let has = |word: &str| names.iter().any(|name| name.contains(word));
        ensure!(has(own) && !has(other), "of {own}: {names:?}");
    }
    scene.check_no_leak()?;
    let packets = inside.stop()?;
    for (client, word, servers) in [
        (home.tunnel(), WORDS[0], SERVER),
        (work.tunnel(), WORDS[1], SERVERS),
    ] {
        let [client, servers] = [parsed(client)?, parsed(servers)?];
        let with = packets.iter().filter(|packet| has(packet, word));
        let mut queries = 0;
        for packet in with {
            let ends = ends(packet)?;
            let is_own = |one: &IpAddr| client.contains(one) || servers.contains(one);
            ensure!(ends.iter().all(is_own), "{word} between {ends:?}");
            queries += 1;
        }
        // Each question by UDP and TCP, and its answer.
        ensure!(queries >= 40, "{queries} packets of {word}");
    }
    work.down(&of_other)?;
    home.down(&of_home)
}

fn has(packet: &Packet, word: &str) -> bool {
    let mut parts = packet.ip.windows(word.len());
    parts.any(|part| part == word.as_bytes())
}

fn parsed(addresses: [impl AsRef<str>; 2]) -> Result<[IpAddr; 2]> {
    let [first, second] = addresses.map(|address| address.as_ref().parse());
    let wrong = |error: std::net::AddrParseError| Error::unmet(error.to_string());
    Ok([first.map_err(wrong)?, second.map_err(wrong)?])
}

/// Returns the source and destination of a packet.
fn ends(packet: &Packet) -> Result<[IpAddr; 2]> {
    fn at<const N: usize>(ip: &[u8], at: usize) -> Option<[u8; N]> {
        ip.get(at..at + N)?.try_into().ok()
    }
    let ip = &packet.ip;
    let found = match ip.first().map(|first| first >> 4) {
        Some(4) => [12, 16].map(|place| at::<4>(ip, place).map(IpAddr::from)),
        _ => [8, 24].map(|place| at::<16>(ip, place).map(IpAddr::from)),
    };
    match found {
        [Some(source), Some(destination)] => Ok([source, destination]),
        _ => Err(Error::unmet(format!("no IP: {ip:02x?}"))),
    }
}
