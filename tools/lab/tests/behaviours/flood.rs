//! A flood of handshakes from a sender who knows the server's public key.

use crate::datagrams::{Datagrams, pattern};
use crate::life::resident;
use crate::pair::{End, FAR, FAR_OUTER, FAR_PORT, Pair, neighbours};
use base64ct::{Base64, Encoding};
use blake2::digest::consts::U16;
use blake2::digest::{FixedOutput, KeyInit, Update};
use blake2::{Blake2s256, Blake2sMac, Digest};
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use taupe_lab::capture::{Capture, Message, messages};
use taupe_lab::host::{Host, add_address, link};
use taupe_lab::peers::{PeerSettings, Settings};
use taupe_lab::process::{outrank_others, wait_until};
use taupe_lab::sandbox::figure;
use taupe_lab::traffic::{PingStream, first_answer, ping};
use taupe_lab::{Error, Result, ensure};

/// The server reports load, and continues to serve peers with a session, new peers, and `wg`.
pub(crate) fn handshake_flood() -> Result<()> {
    flooded(true)
}

/// The same without the system's filter against floods.
pub(crate) fn handshake_flood_received() -> Result<()> {
    flooded(false)
}

fn flooded(is_shed: bool) -> Result<()> {
    let options: &[&str] = if is_shed {
        &[]
    } else {
        &["--no-offload", "flood-filter"]
    };
    outrank_others()?;
    let (mut pair, attacker) = with_attacker(options)?;
    let near = pair.near.host.clone();
    let (_fresh, fresh_address) = newcomer(&pair)?;
    let server = pair.far.id()?;
    let memory = resident(&[server])?;

    let flood = Flood::new(&attacker, &pair.far.keys.public)?;
    let capture = Capture::start(&attacker, "eth0", "udp[8] == 3")?;
    std::thread::scope(|scope| {
        let flooding = scope.spawn(|| flood.run());
        let honest = || {
            flood.await_cookie()?;
            let begin = || Capture::start(&near, "eth0", "udp src port 51821 and udp[8] == 3");
            let to_fresh = if is_shed { None } else { Some(begin()?) };
            let established = PingStream::start(&near, FAR, Duration::from_secs(6))?;
            // A cookie becomes useful after 5 s, with the next try.
            let took = first_answer(&near, fresh_address, Duration::from_secs(25))?;
            figure("a new peer got in after", took);
            // So little of a filtered flood remains that the new peer may get in without a cookie.
            if let Some(to_fresh) = to_fresh {
                to_fresh.stop_once("a cookie for the new peer", |seen| {
                    messages(seen, Message::CookieReply).next().is_some()
                })?;
            }
            let start = Instant::now();
            pair.far.tunnel.show(None)?;
            let took = start.elapsed();
            ensure!(took < Duration::from_secs(3), "wg show took {took:?}");
            figure("pings, all answered", established.finish()?);
            if is_shed {
                // On a busy machine it takes a while until the flood is one.
                let host = &pair.far.host;
                let sheds = || Ok(host.snmp()?.filtered()? > 0);
                wait_until("a datagram that is shed", Duration::from_secs(60), sheds)?;
            }
            Ok(())
        };
        let served = honest();
        flood.stop();
        let flooded = flooding.join();
        flooded.unwrap_or_else(|_| Err(Error::unmet("the flood panicked")))?;
        served
    })?;
    figure("initiations", flood.sent.load(Ordering::Relaxed));
    let packets = capture.stop()?;
    let cookies = messages(&packets, Message::CookieReply).count();
    figure("cookie replies", cookies);
    ensure!(cookies > 100, "{cookies} cookie replies to the flood");
    let shed = pair.far.host.snmp()?.filtered()?;
    figure("shed", shed);
    ensure!((shed > 0) == is_shed, "{shed} were shed");

    pair.far.id()?;
    let grown = resident(&[server])?.saturating_sub(memory);
    ensure!(grown < 16 * 1024, "memory has grown by {grown} KiB");
    Ok(())
}

/// Datagrams that are no messages, at the same rate, delay neither peers with a session nor new
/// peers nor `wg`, and do not wake the control loop each time.
pub(crate) fn garbage_flood() -> Result<()> {
    let (mut pair, attacker) = with_attacker(&[])?;
    let near = pair.near.host.clone();
    let (_fresh, fresh_address) = newcomer(&pair)?;
    let server = pair.far.id()?;
    let socket = Datagrams::bind(&attacker, [198, 51, 100, 1].into())?;
    // Initiations that lack a byte.
    let length = 147;
    let batch = [&[1, 0, 0, 0], &*pattern(length - 4, 1)]
        .concat()
        .repeat(64);
    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    let (start, before) = (Instant::now(), sleeps(server)?);
    let run = || {
        while !stop.load(Ordering::Relaxed) {
            for _ in 0..64 {
                socket.send(([198, 51, 100, 2], FAR_PORT).into(), None, &batch, length)?;
                sent.fetch_add(1, Ordering::Relaxed);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let flooding = scope.spawn(run);
        let honest = || {
            let established = PingStream::start(&near, FAR, Duration::from_secs(4))?;
            // Sooner than a retry.
            let took = first_answer(&near, fresh_address, Duration::from_secs(4))?;
            figure("a new peer got in after", took);
            let start = Instant::now();
            pair.far.tunnel.show(None)?;
            let took = start.elapsed();
            ensure!(took < Duration::from_secs(3), "wg show took {took:?}");
            figure("pings, all answered", established.finish()?);
            Ok(())
        };
        let served = honest();
        stop.store(true, Ordering::Relaxed);
        let flooded = flooding.join();
        flooded.unwrap_or_else(|_| Err(Error::unmet("the flood panicked")))?;
        served
    })?;
    let slept = sleeps(server)? - before;
    figure("batches of 64", sent.load(Ordering::Relaxed));
    figure("sleeps of the control loop", slept);
    // One wake-up per 8 ms, and some for other work.
    let most = 3 * start.elapsed().as_millis() as u64 / 8;
    ensure!(slept < most, "the control loop was woken {slept} times");
    Ok(())
}

/// Returns how often a device's control loop has gone to sleep.
fn sleeps(process: u32) -> Result<u64> {
    let tasks = format!("/proc/{process}/task");
    for task in fs::read_dir(&tasks).map_err(Error::io(&*tasks))? {
        let path = task.map_err(Error::io(&*tasks))?.path();
        let read = |file| fs::read_to_string(path.join(file)).map_err(Error::io(&*tasks));
        if read("comm")?.trim() != "control" {
            continue;
        }
        let status = read("status")?;
        let count = status
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))
            .and_then(|count| count.trim().parse().ok());
        return count.ok_or_else(|| Error::unmet(format!("no count in {status}")));
    }
    Err(Error::unmet("no control loop"))
}

/// Returns a pair with a session, whose far end has these options, and a machine on a cable of its
/// own to the far end.
fn with_attacker(options: &[&str]) -> Result<(Pair, Host)> {
    let (near, far) = neighbours()?;
    let attacker = Host::new("attacker")?;
    link(
        attacker.port("eth0", &["198.51.100.1/24"]),
        far.port("eth1", &["198.51.100.2/24"]),
        1500,
    )?;
    let pair = Pair::between(&near, &far, FAR_OUTER, [&[], options])?;
    ping(&near, FAR, 5)?;
    Ok((pair, attacker))
}

/// Creates a second peer of the far end, without a session.
fn newcomer(pair: &Pair) -> Result<(End, IpAddr)> {
    let fresh = End::start(&pair.near.host, "wgfresh", &[])?;
    add_address(&pair.far.host, "wgfar", "10.80.0.2/24")?;
    #[rustfmt::skip]
    pair.far.tunnel.set(&["peer", &fresh.keys.public, "allowed-ips", "10.80.0.1/32"])?;
    fresh.tunnel.configure(&Settings {
        private_key: &fresh.keys.private,
        listen_port: None,
        addresses: &["10.80.0.1/24"],
        peers: &[PeerSettings {
            public_key: &pair.far.keys.public,
            preshared_key: None,
            endpoint: Some(SocketAddr::new(FAR_OUTER, FAR_PORT)),
            allowed_ips: "10.80.0.2/32",
        }],
    })?;
    Ok((fresh, IpAddr::from([10, 80, 0, 2])))
}

struct Flood {
    socket: Datagrams,
    mac1_key: [u8; 32],
    stop: AtomicBool,
    sent: AtomicU64,
}

impl Flood {
    /// Number of datagrams at once, and interval: many times the queue length at which load is
    /// reported, more than the number received before a flood is filtered, and little enough to
    /// leave a core free.
    const BURST: u64 = 3072;
    const PERIOD: Duration = Duration::from_millis(100);
    /// Initiations in one system call.
    const BATCH: u64 = 64;

    fn new(host: &Host, public_key: &str) -> Result<Self> {
        let mut key = [0; 32];
        Base64::decode(public_key, &mut key).map_err(|_| Error::unmet("public key"))?;
        let mut hash = Blake2s256::new();
        Digest::update(&mut hash, b"mac1----");
        Digest::update(&mut hash, key);
        Ok(Self {
            socket: Datagrams::bind(host, [198, 51, 100, 1].into())?,
            mac1_key: hash.finalize().into(),
            stop: AtomicBool::new(false),
            sent: AtomicU64::new(0),
        })
    }

    /// Waits until the server reports load.
    fn await_cookie(&self) -> Result<()> {
        let answer = self.socket.receive_many(1, Duration::from_secs(10))?;
        let is_cookie = |bytes: &[u8]| bytes.len() == 64 && bytes.starts_with(&[3, 0, 0, 0]);
        ensure!(answer.iter().all(|one| is_cookie(&one.bytes)), "{answer:?}");
        Ok(())
    }

    fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    fn run(&self) -> Result<()> {
        let to = ([198, 51, 100, 2], FAR_PORT).into();
        let mut due = Instant::now();
        while !self.stop.load(Ordering::Relaxed) {
            for _ in 0..Self::BURST / Self::BATCH {
                let first = self.sent.fetch_add(Self::BATCH, Ordering::Relaxed);
                let mut batch = Vec::new();
                for seed in first..first + Self::BATCH {
                    batch.extend(self.initiation(seed)?);
                }
                self.socket.send(to, None, &batch, 148)?;
            }
            due += Self::PERIOD;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        Ok(())
    }

    /// Returns a random initiation with a valid mac1, which needs the public key only (whitepaper
    /// section 5.4.4).
    fn initiation(&self, seed: u64) -> Result<Vec<u8>> {
        let mut message = vec![1, 0, 0, 0];
        message.extend(pattern(112, seed + 1));
        let mut mac = Blake2sMac::<U16>::new_from_slice(&self.mac1_key)
            .map_err(|_| Error::unmet("key of mac1"))?;
        Update::update(&mut mac, &message);
        message.extend(mac.finalize_fixed());
        message.extend([0; 16]);
        Ok(message)
    }
}
