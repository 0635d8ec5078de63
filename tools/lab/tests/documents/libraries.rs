//! Examples of the libraries for Rust. A stand-in for cargo starts the built programs.

use crate::checks::printed;
use crate::world::{BEYOND, SOON, World};
use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::thread;
use taupe_lab::documents::{Block, run_in_tree};
use taupe_lab::host::add_address;
use taupe_lab::peers::{Implementation, Keys, PeerSettings, Settings, Tunnel};
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::step;
use taupe_lab::servers::{serve_names, serve_web};
use taupe_lab::traffic::tcp_echo;
use taupe_lab::{Error, Result, ensure};

/// The examples, with their packages.
const EXAMPLES: [(&str, &str); 4] = [
    ("taupe-protocol", "ping"),
    ("taupe-tunnel", "http_get"),
    ("taupe-tunnel", "udp_echo"),
    ("taupe-tunnel", "listener"),
];

/// Addresses in the text: the server's, in and outside the tunnel, and the client's.
const INSIDE: [u8; 4] = [10, 0, 0, 1];
const OUTSIDE: &str = "203.0.113.1";
const PORT: u16 = 51820;
const CLIENT: [u8; 4] = [10, 0, 0, 2];

/// Returns the folder of built examples: beside `deps`, which contains this test.
fn built() -> Result<PathBuf> {
    let own = std::env::current_exe().map_err(Error::io("own executable"))?;
    let folder = own.parent().and_then(|deps| deps.parent());
    let folder = folder.ok_or_else(|| Error::unmet(own.display().to_string()))?;
    Ok(folder.join("examples"))
}

/// Builds the examples, unless they are there: a build of all tests has built them.
pub(crate) fn build_examples() -> Result<()> {
    let folder = built()?;
    for (package, example) in EXAMPLES {
        if !folder.join(example).exists() {
            run_in_tree(&[
                "cargo",
                "build",
                "--quiet",
                "-p",
                package,
                "--example",
                example,
            ])?;
        }
    }
    Ok(())
}

/// The far end of the text.
struct Server {
    tunnel: Tunnel,
    keys: Keys,
}

impl Server {
    fn start(world: &World) -> Result<Self> {
        let mut cases = String::new();
        for (package, example) in EXAMPLES {
            let name = format!("example-{example}");
            world.add_program(
                &name,
                &fs::read(built()?.join(example)).map_err(Error::io(example))?,
            )?;
            cases += &format!("'run -p {package} --example {example}') example={name} ;;\n");
        }
        let stand_in = format!(
            "#!/bin/sh\n\
             case \"$1 $2 $3 $4 $5\" in\n{cases}*) echo \"cargo: $*\" >&2; exit 101 ;;\nesac\n\
             shift 5\nexec \"$example\" \"$@\"\n"
        );
        world.add_program("cargo", stand_in.as_bytes())?;
        add_address(&world.far, "lo", OUTSIDE)?;
        world
            .near
            .ip(&["route", "add", OUTSIDE, "via", "192.0.2.2"])?;
        let keys = Keys::new(&world.far)?;
        let tunnel = Implementation::Taupe.start(&world.far, "wglib")?;
        tunnel.configure(&Settings {
            private_key: &keys.private,
            listen_port: Some(PORT),
            addresses: &["10.0.0.1/24"],
            peers: &[],
        })?;
        Ok(Self { tunnel, keys })
    }

    fn allow(&self, public_key: &str) -> Result<()> {
        let peer = PeerSettings {
            public_key,
            preshared_key: None,
            endpoint: None,
            allowed_ips: "10.0.0.2/32",
        };
        let added = self.tunnel.wg_with_input("addconf", &peer.to_string());
        added.map(drop)
    }
}

/// `ping.rs`: the placeholder PEER_KEY is the server's key.
pub(crate) fn ping(block: &Block) -> Result<()> {
    let world = World::of_a_user()?;
    let server = Server::start(&world)?;
    let mut shell = world.shell()?;
    for command in &block.commands {
        let text = command.text.replace("PEER_KEY", &server.keys.public);
        let output = shell.run_as(block, command, &text)?;
        if text.starts_with("cargo") {
            printed(command, &output, "10.0.0.1 answers after")?;
        } else {
            server.allow(output.text())?;
        }
    }
    Ok(())
}

/// The examples of `taupe-tunnel`. A server refuses the initiation of a program that follows another one
/// within 20 ms, as no person does; the program repeats it after 5 s.
pub(crate) fn sockets(block: &Block) -> Result<()> {
    let world = World::of_a_user()?;
    let server = Server::start(&world)?;
    let client = Keys::new(&world.near)?;
    server.allow(&client.public)?;
    let text = format!(
        "[Interface]\nPrivateKey = {}\nAddress = 10.0.0.2/24\nDNS = 10.0.0.1\n\n[Peer]\n\
         PublicKey = {}\nEndpoint = {OUTSIDE}:{PORT}\nAllowedIPs = 10.0.0.0/24\nPersistentKeepalive = 25\n",
        client.private, server.keys.public
    );
    world.write("tunnel.conf", &text)?;
    let inside = IpAddr::from(INSIDE);
    serve_names(&world.far, inside, [inside, BEYOND])?;
    serve_web(&world.far, inside)?;
    serve_datagrams(&world, SocketAddr::new(inside, 7))?;
    let mut shell = world.shell()?;
    for command in &block.commands {
        let words = command.words();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let expected = match words.get(5..).unwrap_or_default() {
            ["listener", _, port] => {
                step(&format!("{}: {}", block.place(command), command.text));
                let endpoint = || server.tunnel.field("endpoints", &client.public);
                listen(&world, &command.text, port, endpoint)?;
                continue;
            }
            ["http_get", ..] => "10.0.0.2",
            ["udp_echo", ..] => "10.0.0.1:7: hello",
            _ => return Err(Error::unmet(format!("{words:?}: which output is right?"))),
        };
        let output = shell.run(block, command)?;
        printed(command, &output, expected)?;
    }
    Ok(())
}

/// Starts the listener, and connects to it once the server has its endpoint.
fn listen(
    world: &World,
    text: &str,
    port: &str,
    endpoint: impl Fn() -> Result<String>,
) -> Result<()> {
    let before = endpoint()?;
    let mut listener = world.start(text)?;
    wait_until("the listener's keepalive", SOON, || {
        ensure!(listener.runs()?, "it has ended: {}", listener.output());
        Ok(listener.output().contains("listening at") && endpoint()? != before)
    })?;
    let port = port.parse().map_err(|_| Error::unmet("a port"))?;
    tcp_echo(&world.far, SocketAddr::from((CLIENT, port)), 10_000).map(drop)
}

/// Echoes datagrams until the sandbox ends.
fn serve_datagrams(world: &World, at: SocketAddr) -> Result<()> {
    let socket = world
        .far
        .enter(|| UdpSocket::bind(at).map_err(Error::io(at.to_string())))?;
    thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..length], from);
        }
    });
    Ok(())
}
