//! A selected BitTorrent client, reached at a port of the tunnel's address, as a provider forwards
//! one.

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::Path;
use std::thread;
use std::time::Duration;

use taupe_lab::capture::Capture;
use taupe_lab::host::{Host, Transport};
use taupe_lab::process::{Process, wait_until};
use taupe_lab::sandbox::{scratch, step};
use taupe_lab::{Error, Result, ensure};

use crate::servers::{at, is_silent};
use crate::world::{BEYOND, TUNNEL, UPLINK, World};

/// Port of the client for connections and for its distributed hash table.
const PORT: u16 = 6881;

/// Port of the client that wants the file.
const OTHER_PORT: u16 = 6882;

/// Port of the tracker.
const TRACKER_PORT: u16 = 8081;

/// Size of the shared file in bytes, in four pieces.
const SIZE: usize = 4 * PIECE;
const PIECE: usize = 1 << 20;

/// Time limit of the client.
const PATIENCE: Duration = Duration::from_secs(60);

/// Time to wait for an answer that must not come.
const SILENCE: Duration = Duration::from_secs(2);

/// The other client gets the file from the selected one, which has connected to no one itself.
pub(crate) fn seeded() -> Result<()> {
    let world = World::new()?;
    let (seeds, wants) = (scratch("seeds"), scratch("wants"));
    for folder in [&seeds, &wants] {
        fs::create_dir_all(folder).map_err(Error::io("folders"))?;
    }
    let content: Vec<u8> = (0..SIZE).map(|number| (number / 3 % 251) as u8).collect();
    fs::write(seeds.join("file"), &content).map_err(Error::io("what is shared"))?;
    let torrent = scratch("file.torrent");
    fs::write(&torrent, describe(&world, &content)?).map_err(Error::io("its description"))?;

    let file = world.file("AllowedApps = aria2c\nPersistentKeepalive = 25")?;
    world.up(&file)?;
    world.meet()?;
    let clear = format!("host 192.168.1.1 and port {PORT} and not src host 192.168.1.2");
    let capture = Capture::start(&world.far, "eth0", &clear)?;
    let seeder = client(
        &world.near,
        PORT,
        &seeds,
        &torrent,
        &["--seed-ratio=0", "-V"],
    )?;
    for transport in [Transport::Tcp, Transport::Udp] {
        wait_until("the client's port", PATIENCE, || {
            world.near.listens(transport, PORT)
        })?;
    }
    step("its hash table, by UDP");
    let answers = |address| wait_until("its answer", PATIENCE, || pings(&world, address));
    answers(TUNNEL[0])?;
    step("the file, by TCP");
    track(&world.far, at(TUNNEL[0], PORT)?)?;
    let tracker = format!("--bt-tracker=http://{}:{TRACKER_PORT}/announce", BEYOND[0]);
    let options = [&*tracker, "--seed-time=0", "--enable-dht=false"];
    let mut leech = client(&world.far, OTHER_PORT, &wants, &torrent, &options)?;
    let status = leech.wait(PATIENCE)?;
    let got = fs::read(wants.join("file")).unwrap_or_default();
    ensure!(
        status.success() && got == content,
        "{status}, {} bytes: {}{}",
        got.len(),
        leech.output(),
        seeder.output()
    );
    step("the same port at the uplink");
    for address in UPLINK {
        is_silent(&world, at(address, PORT)?)?;
    }
    ensure!(!pings(&world, UPLINK[0])?, "its hash table answers");
    let packets = capture.stop()?;
    ensure!(packets.is_empty(), "{} packets in clear", packets.len());
    step("killed, and down");
    world.kill_device()?;
    is_silent(&world, at(UPLINK[0], PORT)?)?;
    world.down(&file)?;
    // No tunnel selects it any more: the client still runs, and is reachable.
    answers(UPLINK[0])
}

/// Starts the client, with a description of the file in its folder or to be downloaded there.
fn client(
    host: &Host,
    port: u16,
    folder: &Path,
    torrent: &Path,
    options: &[&str],
) -> Result<Process> {
    let [listen, table] = ["listen-port", "dht-listen-port"].map(|key| format!("--{key}={port}"));
    let folder = folder.display();
    let [folder, nodes] = [
        format!("--dir={folder}"),
        format!("--dht-file-path={folder}/nodes"),
    ];
    let torrent = torrent.display().to_string();
    let common = [
        "aria2c",
        "--no-conf",
        "--console-log-level=warn",
        "--enable-dht=true",
        &listen,
        &table,
        &folder,
        &nodes,
    ];
    host.spawn(&[&common, options, &[&*torrent]].concat())
}

/// Returns the description of a file in a `.torrent` (BEP 3).
fn describe(world: &World, content: &[u8]) -> Result<Vec<u8>> {
    let mut pieces = Vec::new();
    for piece in content.chunks(PIECE) {
        let path = scratch("piece");
        fs::write(&path, piece).map_err(Error::io("a piece"))?;
        let printed = world.far.run(&["sha1sum", &path.display().to_string()])?;
        let digits = printed.text().split(' ').next().unwrap_or_default();
        let bytes = (0..40).step_by(2).map(|at| {
            let digits = digits.get(at..at + 2).unwrap_or_default();
            u8::from_str_radix(digits, 16)
        });
        let bytes: std::result::Result<Vec<u8>, _> = bytes.collect();
        pieces.extend(bytes.map_err(|error| Error::unmet(format!("sha1sum: {error}")))?);
    }
    let length = pieces.len();
    let head =
        format!("d4:infod6:lengthi{SIZE}e4:name4:file12:piece lengthi{PIECE}e6:pieces{length}:");
    Ok([head.as_bytes(), &*pieces, b"ee"].concat())
}

/// Runs a tracker that names one peer to every client (BEP 3).
fn track(host: &Host, peer: SocketAddr) -> Result<()> {
    let at = SocketAddr::new(BEYOND[0], TRACKER_PORT);
    let listener = host.enter(|| TcpListener::bind(at).map_err(Error::io(at.to_string())))?;
    let ip = peer.ip().to_string();
    let answer = format!(
        "d8:intervali1800e5:peersld2:ip{}:{ip}4:porti{}eeee",
        ip.len(),
        peer.port()
    );
    // Until the sandbox ends.
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let _ = stream.set_read_timeout(Some(SILENCE));
            let _ = stream.read(&mut [0; 4096]);
            let _ = write!(
                stream,
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{answer}",
                answer.len()
            );
        }
    });
    Ok(())
}

/// Returns true if a node of the hash table answers a `ping` from `far` (BEP 5).
fn pings(world: &World, address: &str) -> Result<bool> {
    let to = at(address, PORT)?;
    let what = || Error::io(format!("a ping to {to}"));
    world.far.enter(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").map_err(what())?;
        socket.set_read_timeout(Some(SILENCE)).map_err(what())?;
        let ping = b"d1:ad2:id20:abcdefghij0123456789e1:q4:ping1:t2:aa1:y1:qe";
        socket.send_to(ping, to).map_err(what())?;
        let mut answer = [0; 1500];
        match socket.recv_from(&mut answer) {
            Ok((length, from)) => {
                ensure!(from == to, "{from} answers for {to}");
                let answer = &answer[..length];
                ensure!(
                    answer.ends_with(b"1:y1:re"),
                    "{:?}",
                    String::from_utf8_lossy(answer)
                );
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(what()(error)),
        }
    })
}
