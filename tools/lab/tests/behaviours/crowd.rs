//! A hundred thousand peers.

use crate::life::resident;
use crate::pair::{FAR, FAR_PORT, Pair};
use base64ct::{Base64, Encoding};
use std::fmt::Write;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};
use taupe_lab::peers::{PeerSettings, Settings};
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::figure;
use taupe_lab::traffic::ping;
use taupe_lab::{Result, ensure};

const COUNT: u32 = 100_000;

/// Limit of memory per peer, in bytes.
const EACH: u64 = 1200;

/// Limit of memory that remains after their removal, in KiB.
const REST: u64 = 20 << 10;

/// Returns a public key with an unknown private key.
fn key(number: u32) -> String {
    let mut bytes = [0x5a; 32];
    for (byte, digit) in bytes.iter_mut().zip(number.to_be_bytes()) {
        *byte = digit;
    }
    Base64::encode_string(&bytes)
}

/// A hundred thousand peers are configured at once, and need little memory. A peer that exists
/// begins its handshake only then, and carries packets; one peer is changed. Removing the others
/// frees their memory, and the existing peer stays.
pub(crate) fn comes_and_goes() -> Result<()> {
    let mut pair = Pair::new()?;
    let processes = pair.far.ids()?;
    let before = resident(&processes)?;
    let mut text = String::new();
    for number in 0..COUNT {
        let address = Ipv4Addr::from(0x0a80_0000 + number);
        let key = key(number);
        let _ = writeln!(text, "[Peer]\nPublicKey = {key}\nAllowedIPs = {address}/32");
    }
    let begin = Instant::now();
    pair.far.tunnel.wg_with_input("addconf", &text)?;
    let took = begin.elapsed();
    // The device frees memory when the client has disconnected.
    let small = before + u64::from(COUNT) * EACH / 1024;
    wait_until("little memory", Duration::from_secs(5), || {
        Ok(resident(&processes)? <= small)
    })?;
    let with = resident(&processes)?;
    figure("KiB before and with, and time", (before, with, took));
    ensure!(with > before + u64::from(COUNT) * 64 / 1024, "{with} KiB");
    let known = pair.far.tunnel.show(Some("peers"))?.stdout.lines().count();
    ensure!(known == COUNT as usize + 1, "{known} peers");

    ping(&pair.near.host, FAR, 5)?;
    let one = key(COUNT / 2);
    let prefix = "10.200.0.0/16";
    let change = ["peer", &one, "allowed-ips", prefix];
    pair.far.tunnel.set(&change)?;
    let shown = pair.far.tunnel.field("allowed-ips", &one)?;
    ensure!(shown == prefix, "{shown}");
    ping(&pair.near.host, FAR, 5)?;

    let left = PeerSettings {
        public_key: &pair.near.keys.public,
        preshared_key: None,
        endpoint: None,
        allowed_ips: "10.77.0.1/32, fd77::1/128",
    };
    let settings = Settings {
        private_key: &pair.far.keys.private,
        listen_port: Some(FAR_PORT),
        addresses: &[],
        peers: &[left],
    };
    let settings = settings.to_string();
    pair.far.tunnel.wg_with_input("syncconf", &settings)?;
    wait_until("memory given back", Duration::from_secs(5), || {
        Ok(resident(&processes)? <= before + REST)
    })?;
    figure("KiB without", resident(&processes)?);
    ping(&pair.near.host, FAR, 5)
}
