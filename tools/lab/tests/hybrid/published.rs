//! A published handshake, K512+tK512, in the real program, which is built with it for this
//! test alone: `taupe` itself refuses its name.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use taupe_lab::capture::{Capture, Message, Packet, messages};
use taupe_lab::host::Host;
use taupe_lab::peers::{Implementation, Keys};
use taupe_lab::process::run;
use taupe_lab::sandbox::scratch_file;
use taupe_lab::traffic::{ping, serve_echo, tcp_echo};
use taupe_lab::{Error, Result, ensure};

use crate::world::{self, FAR, NEAR};

/// Its name, as files have it.
const NAME: &str = "repro:k512+tk512";

/// Bytes that go to and fro over TCP.
const TRANSFER: usize = 2_000_000;

/// Builds the program, in the target directory that this executable is in.
pub(crate) fn build() -> Result<()> {
    let mut cargo = Command::new("cargo");
    cargo
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
        .args(["build", "--quiet", "--locked", "-p", "taupe"])
        .args(["--features", "insecure-repro", "--bin", "taupe-insecure"])
        .arg("--target-dir")
        .arg(target()?);
    run("this machine", cargo, None).map(drop)
}

/// TARGET, of TARGET/PROFILE/deps/EXECUTABLE.
fn target() -> Result<PathBuf> {
    let own = std::env::current_exe().map_err(Error::io("own executable"))?;
    let target = own.ancestors().nth(3).map(Path::to_owned);
    target.ok_or_else(|| Error::unmet(format!("no target directory above {}", own.display())))
}

/// Pings and TCP pass a tunnel whose handshakes are the published ones, with messages as long
/// and in as many packets as published. Who looks at it is told that it is insecure.
pub(crate) fn carries_a_tunnel() -> Result<()> {
    let program = target()?.join("debug/taupe-insecure").display().to_string();
    let (near, far) = world::neighbours(1280)?;
    let ends = [End::new(&near, &program)?, End::new(&far, &program)?];
    let [one, other] = &ends;
    let at = "Endpoint = [2001:db8::2]:51821";
    let files = [
        one.file(
            "wgnear",
            [NEAR, FAR],
            51820,
            &other.pq_public("hybrid-512")?,
            other,
            at,
        )?,
        other.file(
            "wgfar",
            [FAR, NEAR],
            51821,
            &one.pq_public("hybrid-512")?,
            one,
            "",
        )?,
    ];
    let capture = Capture::start(&near, "eth0", "ip6")?;
    for (end, file) in ends.iter().zip(&files) {
        end.host.run(&[&program, "up", file])?;
    }
    ping(&near, FAR, 10)?;
    ping(&far, NEAR, 5)?;
    let server = SocketAddr::new(FAR, 5201);
    serve_echo(&far, server)?;
    tcp_echo(&near, server, TRANSFER)?;
    for (end, interface) in [(one, "wgnear"), (other, "wgfar")] {
        for word in ["show", "status"] {
            let said = end.host.attempt(&[&program, word, interface])?.stdout;
            let expected = format!("post-quantum: {NAME} (insecure)");
            ensure!(said.contains(&expected), "{word}: {said}");
        }
    }
    let packets = capture.stop_once("data", |seen| messages(seen, Message::Data).count() >= 4)?;
    let cut: Vec<usize> = packets.iter().filter_map(fragment).collect();
    // With UDP's header, in pieces of 1,280 bytes with 48 of headers.
    let [initiation, response] = [1684, 1436].map(|length| [1232, 8 + length - 1232]);
    let expected = [initiation, response].concat();
    ensure!(cut == expected, "fragments of {cut:?}, not {expected:?}");
    let ordinary = [Message::Initiation, Message::Response];
    let ordinary = ordinary.map(|kind| messages(&packets, kind).count());
    ensure!(ordinary == [0, 0], "{ordinary:?} ordinary messages");
    for (end, file) in ends.iter().zip(&files) {
        end.host.run(&[&program, "down", file])?;
    }
    Ok(())
}

/// Neither a key of the wrong kind nor a handshake that carries no tunnel is taken, and the
/// program that people have takes none of it.
pub(crate) fn is_refused_where_it_cannot_be() -> Result<()> {
    let program = target()?.join("debug/taupe-insecure").display().to_string();
    let host = Host::new("near")?;
    let [end, peer] = [End::new(&host, &program)?, End::new(&host, &program)?];
    let ordinary = Implementation::Taupe.program()?.display().to_string();
    for (program, suite, name, expected) in [
        (
            &program,
            "hybrid-768",
            NAME,
            ":9:15: error: this handshake, which is insecure",
        ),
        (
            &program,
            "hybrid-512",
            "repro:k+k",
            ":9:15: error: PostQuantum names a published",
        ),
        (
            &ordinary,
            "hybrid-512",
            NAME,
            "that takes the feature insecure-repro",
        ),
    ] {
        let file = end.file(
            "wgnear",
            [NEAR, FAR],
            51820,
            &peer.pq_public(suite)?,
            &peer,
            "",
        )?;
        let text = std::fs::read_to_string(&file).map_err(Error::io(&*file))?;
        let file = scratch_file("wgnear.conf", &text.replace(NAME, name))?;
        let said = host.attempt(&[program, "check", &file])?;
        let text = format!("{}{}", said.stdout, said.stderr);
        ensure!(
            said.status != Some(0) && text.contains(expected),
            "{expected}: {text}"
        );
    }
    Ok(())
}

/// Bytes behind the headers of a fragment of UDP.
fn fragment(packet: &Packet) -> Option<usize> {
    const FRAGMENT: u8 = 44;
    const UDP: u8 = 17;
    let (header, payload) = packet.ip.split_at_checked(40)?;
    let is_one = header.get(6) == Some(&FRAGMENT) && payload.first() == Some(&UDP);
    is_one.then(|| payload.len() - 8)
}

/// A machine with its keys.
struct End {
    host: Host,
    program: String,
    keys: Keys,
    /// The seed of its ML-KEM keys, in base64.
    seed: String,
}

impl End {
    fn new(host: &Host, program: &str) -> Result<Self> {
        Ok(Self {
            host: host.clone(),
            program: program.to_owned(),
            keys: Keys::new(host)?,
            seed: host.run(&[program, "genkey", "--pq"])?.text().to_owned(),
        })
    }

    fn pq_public(&self, suite: &str) -> Result<String> {
        let command = [&*self.program, "pubkey", "--pq", "--suite", suite];
        let key = self.host.run_with_input(&command, &self.seed)?;
        Ok(key.text().to_owned())
    }

    /// The file of a tunnel to a peer with these ML-KEM keys; the inner addresses are this
    /// end's and the peer's.
    fn file(
        &self,
        interface: &str,
        [own, inner]: [IpAddr; 2],
        port: u16,
        pq_public: &str,
        peer: &Self,
        at: &str,
    ) -> Result<String> {
        let text = format!(
            "[Interface]\nPrivateKey = {}\nPqPrivateKey = {}\nAddress = {own}/24\n\
             ListenPort = {port}\n[Peer]\nPublicKey = {}\nPqPublicKey = {pq_public}\n\
             PostQuantum = {NAME}\nAllowedIPs = {inner}/32\n{at}\n",
            self.keys.private, self.seed, peer.keys.public
        );
        scratch_file(&format!("{interface}.conf"), &text)
    }
}
