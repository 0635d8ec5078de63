//! Memory of an idle peer. A test binary of its own, so that nothing else allocates in the
//! process.

#![cfg(all(target_os = "linux", target_env = "gnu"))]

use std::sync::Arc;
use std::time::Duration;

use taupe_protocol::crypto::{Provider, Secret, default_provider};
use taupe_protocol::hybrid::Suite;
use taupe_protocol::key::{PqPrivateKey, PqPublicKey, PublicKey};
use taupe_protocol::time::{Instant, Now};
use taupe_protocol::update::{DeviceUpdate, PeerUpdate};
use taupe_protocol::{Device, Random};

const PEERS: u32 = 4_000;

/// Zeros: the measurement does not depend on randomness.
struct Zeros;

impl Random for Zeros {
    fn fill(&mut self, bytes: &mut [u8]) {
        bytes.fill(0);
    }
}

#[test]
fn an_idle_hybrid_peer_takes_at_most_3_kb_more() {
    let crypto = default_provider();
    let seed = PqPrivateKey::new(Secret::new([7; 64])).expect("not zero");
    let key = seed.public(crypto, Suite::Hybrid768);
    // All devices stay allocated until the last is measured, so that none reuses another's
    // memory.
    let kept = [None, Some(&key), None, Some(&key)].map(|key| device(crypto, key));
    let [_, _, (_, ordinary), (_, hybrid)] = kept;
    let more = (hybrid - ordinary) / f64::from(PEERS);
    assert!((1184.0..=3000.0).contains(&more), "{more} bytes");
}

/// Returns a device with [`PEERS`] peers without handshakes, and the growth of resident memory in
/// bytes.
fn device(crypto: &'static Provider, key: Option<&PqPublicKey>) -> (Device, f64) {
    let mut device = Device::new(crypto, Box::new(Zeros), Arc::new(|| {}));
    let now = Now {
        boot: Instant(1),
        wall: Duration::from_secs(1_700_000_000),
    };
    let before = resident();
    for number in 0..PEERS {
        let mut bytes = [9; 32];
        bytes[..4].copy_from_slice(&number.to_le_bytes());
        let mut peer = PeerUpdate::new(PublicKey(bytes));
        peer.pq_public_key = key.map(|key| Some(key.clone()));
        let update = DeviceUpdate {
            peers: vec![peer],
            ..DeviceUpdate::default()
        };
        device.update(now, update).expect("not too many");
    }
    (device, resident() - before)
}

/// Returns the bytes of the process in physical memory (`proc_pid_status(5)`).
fn resident() -> f64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    number.expect("a number") * 1024.0
}
