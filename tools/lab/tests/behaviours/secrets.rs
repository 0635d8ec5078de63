//! Secrets in the memory of the program: each is erased when it is no longer needed.
//!
//! The test is a peer of the program. It computes the secrets that both sides share, and searches
//! the memory of all of the program's processes for them: as bytes, as text, as HMAC's key and as a
//! vector of equal words. A secret that the program needs must be found, or the search would show
//! nothing.

mod peer;
mod recorder;
mod scan;

use crate::pair::{End, FAR_PORT, await_port, neighbours};
use base64ct::{Base64, Encoding};
use peer::{DeviceKeys, KnowingPeer, hexadecimal};
use recorder::{Origin, Recorded};
use scan::{Hit, Patterns, scan};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use taupe_lab::host::{Host, add_address};
use taupe_lab::peers::Implementation;
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::{figure, scratch_file, step};
use taupe_lab::{Error, Result, uapi};

/// Time for which an erasure is awaited.
const PATIENCE: Duration = Duration::from_secs(10);

/// Age at which a session is erased (whitepaper §6.3: three times Reject-After-Time).
const LIFETIME: Duration = Duration::from_secs(540);

/// Sizes of batches: each kind of vector code works on some of them.
const BATCHES: [(usize, usize); 5] = [(1, 32), (4, 100), (7, 600), (8, 1380), (40, 1380)];

/// Secrets of handshakes, sessions and peers are erased while another peer is busy.
pub(crate) fn erased() -> Result<()> {
    erased_with(&[])
}

/// The same with AWS-LC's ciphers.
pub(crate) fn erased_without_avx512() -> Result<()> {
    erased_with(&["--no-offload", "avx512"])
}

fn erased_with(options: &[&str]) -> Result<()> {
    let scene = ServerScene::new(options)?;
    step("keys of the configuration");
    let configured = scene.server_patterns();
    uapi::exchange("wgfar", "get=1\n\n")?;
    scene.await_in_place("the device's keys", &configured)?;
    let busy = scene.while_busy(|| {
        for (number, role) in [
            (11, PeerRole::Ordinary),
            (12, PeerRole::Hybrid),
            (13, PeerRole::Called),
        ] {
            scene.peer_comes_and_goes(number, role)?;
        }
        Ok(())
    })?;

    step("the link goes down");
    let patterns = session_patterns("busy", &busy.secrets);
    scene.await_busy_keys(&patterns)?;
    scene.end.link(&["down"])?;
    scene.await_erased("sessions of a device that is down", &patterns)?;

    step("the device's keys are removed");
    let zeros = "00".repeat(32);
    uapi::set(
        "wgfar",
        &format!("private_key={zeros}\npq_private_key={zeros}{zeros}\n"),
    )?;
    let mut patterns = scene.server_patterns();
    patterns.add("static-static secret", &busy.static_static);
    scene.await_erased("keys of the device", &patterns)?;
    uapi::set("wgfar", "replace_peers=true\n")?;
    let mut patterns = Patterns::default();
    patterns.add_with_text("preshared key", &busy.preshared);
    scene.await_erased("a peer's key", &patterns)
}

/// Keys from a file are on the heap alone while the tunnel is up, and not as text.
pub(crate) fn of_a_file() -> Result<()> {
    let (near, far) = neighbours()?;
    let server = DeviceKeys::new();
    let peer = KnowingPeer::new(&near, 11, &server, false)?;
    let base64 = |bytes: &[u8]| Base64::encode_string(bytes);
    let text = format!(
        "[Interface]\nPrivateKey = {}\nListenPort = {FAR_PORT}\nAddress = 10.77.0.2/24\n\
         [Peer]\nPublicKey = {}\nPresharedKey = {}\nAllowedIPs = {}/32\n",
        base64(&server.private),
        base64(&peer.keys.public().0),
        base64(&peer.preshared),
        peer.address,
    );
    let file = scratch_file("wgfar.conf", &text)?;
    let program = Implementation::Taupe.program()?;
    let name = program.display().to_string();
    let _up = far.spawn(&[&name, "up", "--adapter", "--foreground", &file])?;
    await_port(&far, FAR_PORT)?;
    let mut patterns = Patterns::default();
    patterns.add_with_text("private key", &server.private);
    patterns.add_with_text("preshared key", &peer.preshared);
    await_in_place(&program, "keys of a file", &patterns)
}

/// A session is erased 540 s after its birth.
pub(crate) fn old_session() -> Result<()> {
    let scene = ServerScene::new(&[])?;
    let mut peer = scene.add(11, PeerRole::Ordinary)?;
    let busy = scene.while_busy(|| {
        scene.establish(&mut peer)?;
        let born = Instant::now();
        let patterns = all_patterns(&peer.name, peer.secrets());
        wait_until("the keys' erasure", LIFETIME + PATIENCE, || {
            Ok(scene.find(&patterns)?.is_empty())
        })?;
        figure("erased after", born.elapsed());
        Ok(())
    })?;
    scene.await_busy_keys(&session_patterns("busy", &busy.secrets))
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PeerRole {
    /// The peer begins ordinary handshakes.
    Ordinary,
    /// The peer begins hybrid handshakes.
    Hybrid,
    /// The program begins ordinary handshakes.
    Called,
}

/// A program with keys, and a machine for its peers.
struct ServerScene {
    near: Host,
    end: End,
    server: DeviceKeys,
    program: PathBuf,
}

/// Secrets of a peer that was busy until the end of a test.
struct BusyPeer {
    secrets: Vec<Recorded>,
    preshared: [u8; 32],
    static_static: [u8; 32],
}

impl ServerScene {
    fn new(options: &[&str]) -> Result<Self> {
        let (near, far) = neighbours()?;
        let scene = Self {
            near,
            end: End::start(&far, "wgfar", options)?,
            server: DeviceKeys::new(),
            program: Implementation::Taupe.program()?,
        };
        let private = hexadecimal(&scene.server.private);
        let seed = hexadecimal(&scene.server.seed);
        uapi::set(
            "wgfar",
            &format!("private_key={private}\npq_private_key={seed}\nlisten_port={FAR_PORT}\n"),
        )?;
        add_address(&far, "wgfar", "10.77.0.2/24")?;
        scene.end.link(&["mtu", "1420", "up"])?;
        await_port(&far, FAR_PORT)?;
        Ok(scene)
    }

    fn server_patterns(&self) -> Patterns {
        let mut patterns = Patterns::default();
        patterns.add_with_text("private key", &self.server.private);
        patterns.add_with_text("ML-KEM seed", &self.server.seed);
        patterns
    }

    fn find(&self, patterns: &Patterns) -> Result<Vec<Hit>> {
        scan(&self.program, patterns)
    }

    fn await_erased(&self, what: &str, patterns: &Patterns) -> Result<()> {
        await_hits(&self.program, what, patterns, <[_]>::is_empty)
    }

    fn await_in_place(&self, what: &str, patterns: &Patterns) -> Result<()> {
        await_in_place(&self.program, what, patterns)
    }

    /// Creates a peer and adds it to the device.
    fn add(&self, number: u8, role: PeerRole) -> Result<KnowingPeer> {
        let is_hybrid = role == PeerRole::Hybrid;
        let peer = KnowingPeer::new(&self.near, number, &self.server, is_hybrid)?;
        let mut lines = peer.lines()?;
        if role == PeerRole::Called {
            let endpoint = peer.endpoint()?;
            lines += &format!("endpoint={endpoint}\npersistent_keepalive_interval=1\n");
        }
        uapi::set("wgfar", &lines)?;
        Ok(peer)
    }

    /// Makes a session and uses it. Its keys must be found then. A search reads the memory part by
    /// part, so it can miss keys that are moved meanwhile.
    fn establish(&self, peer: &mut KnowingPeer) -> Result<()> {
        peer.ping()?;
        for (count, length) in BATCHES {
            peer.ping_batch(count, length)?;
        }
        let patterns = session_patterns(&peer.name, peer.secrets());
        let keys = [0, 1].map(|number| format!("{}: key {number}", peer.name));
        await_hits(
            &self.program,
            "keys of a session in use",
            &patterns,
            |hits| {
                let is_found = |key: &String| hits.iter().any(|hit| hit.secret == *key);
                keys.iter().all(is_found)
            },
        )
    }

    /// Waits until keys of the busy peer are found.
    fn await_busy_keys(&self, patterns: &Patterns) -> Result<()> {
        await_hits(&self.program, "the busy session's keys", patterns, |hits| {
            !hits.is_empty()
        })
    }

    /// Follows the secrets of a peer from its first handshake to its removal.
    fn peer_comes_and_goes(&self, number: u8, role: PeerRole) -> Result<()> {
        let mut peer = self.add(number, role)?;
        step(&format!("{role:?}: a handshake"));
        if role == PeerRole::Called {
            peer.await_session()?;
        }
        self.establish(&mut peer)?;
        let first = peer.take_secrets();
        let handshake = handshake_patterns(&peer.name, &first);
        self.await_erased("secrets of a completed handshake", &handshake)?;

        step(&format!("{role:?}: newer sessions"));
        for _ in 0..3 {
            peer.take_secrets();
            peer.renew()?;
        }
        let first = all_patterns(&peer.name, &first);
        self.await_erased("a replaced session", &first)?;
        self.establish(&mut peer)?;

        step(&format!("{role:?}: the peer is removed"));
        let mut patterns = Patterns::default();
        patterns.add_with_text("preshared key", &peer.preshared);
        patterns.add("static-static secret", &peer.static_static);
        self.await_in_place("keys of a peer", &patterns)?;
        uapi::set("wgfar", &format!("{}remove=true\n", peer.line()))?;
        self.await_erased("keys of a removed peer", &patterns)?;
        let last = all_patterns(&peer.name, peer.secrets());
        self.await_erased("sessions of a removed peer", &last)
    }

    /// Does `work` while a peer of its own exchanges packets with the device.
    fn while_busy(&self, work: impl FnOnce() -> Result<()>) -> Result<BusyPeer> {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let busy = scope.spawn(|| -> Result<BusyPeer> {
                let mut peer = self.add(20, PeerRole::Ordinary)?;
                while !stop.load(Ordering::Relaxed) {
                    peer.ping()?;
                    peer.ping_batch(8, 600)?;
                }
                Ok(BusyPeer {
                    secrets: peer.take_secrets(),
                    preshared: peer.preshared,
                    static_static: peer.static_static,
                })
            });
            let done = work();
            stop.store(true, Ordering::Relaxed);
            let busy = busy.join();
            done?;
            busy.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

/// Waits until secrets are found on the heap alone, and not as text.
fn await_in_place(program: &Path, what: &str, patterns: &Patterns) -> Result<()> {
    let mut found = 0;
    await_hits(program, what, patterns, |hits| {
        found = hits.len();
        !hits.is_empty() && hits.iter().all(Hit::is_in_place)
    })?;
    figure(&format!("parts of 16 bytes found, {what}"), found);
    Ok(())
}

fn await_hits(
    program: &Path,
    what: &str,
    patterns: &Patterns,
    mut accept: impl FnMut(&[Hit]) -> bool,
) -> Result<()> {
    let mut hits = Vec::new();
    let waited = wait_until(what, PATIENCE, || {
        hits = scan(program, patterns)?;
        Ok(accept(&hits))
    });
    waited.map_err(|error| {
        let hits: Vec<String> = hits.iter().map(Hit::to_string).collect();
        Error::unmet(format!("{error}; found:\n{}", hits.join("\n")))
    })
}

/// The keys of sessions.
fn session_patterns(name: &str, secrets: &[Recorded]) -> Patterns {
    let keys = secrets.iter().filter(|it| it.origin == Origin::Session);
    let mut patterns = Patterns::default();
    for (number, key) in keys.enumerate() {
        patterns.add(&format!("{name}: key {number}"), &key.value);
    }
    patterns
}

/// Everything but the keys of sessions.
fn handshake_patterns(name: &str, secrets: &[Recorded]) -> Patterns {
    let is_key = |value| {
        let mut keys = secrets.iter().filter(|it| it.origin == Origin::Session);
        keys.any(|key| key.value == value)
    };
    let mut patterns = Patterns::default();
    for (number, secret) in secrets.iter().filter(|it| !is_key(it.value)).enumerate() {
        let what = format!("{name}: {number}, {:?}", secret.origin);
        patterns.add(&what, &secret.value);
    }
    patterns
}

fn all_patterns(name: &str, secrets: &[Recorded]) -> Patterns {
    let mut patterns = Patterns::default();
    for (number, secret) in secrets.iter().enumerate() {
        let what = format!("{name}: {number}, {:?}", secret.origin);
        patterns.add(&what, &secret.value);
    }
    patterns
}
