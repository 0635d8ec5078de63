//! Memory of idle peers.

use super::CRYPTO;
use super::devices::{PeerDevice, update_device};
use crate::measure::memory;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;
use taupe_crypto::Secret;
use taupe_lab::error::Result;
use taupe_protocol::hybrid::Suite;
use taupe_protocol::key::{PqPrivateKey, PublicKey};
use taupe_protocol::time::{self, Now};
use taupe_protocol::update::{AllowedIpChange, DeviceUpdate, PeerUpdate, PostQuantum};

/// Number of idle peers whose mean is the memory of one.
const IDLE: usize = 10_000;

/// Returns the bytes by which an idle peer of a suite exceeds one with X25519 alone.
pub(super) fn memory_beyond(suite: Suite) -> Result<f64> {
    let [ordinary, hybrid] = [None, Some(suite)].map(memory_of_idle);
    Ok(hybrid? - ordinary?)
}

/// Returns the physical memory in bytes of an idle peer of a device, as the mean over [`IDLE`]
/// peers.
fn memory_of_idle(suite: Option<Suite>) -> Result<f64> {
    let mut device = PeerDevice::new([192, 0, 2, 1], [10, 0, 0, 1])?.device;
    let now = Now {
        boot: time::Instant(1),
        wall: Duration::from_secs(1_700_000_000),
    };
    // All peers share one key: a device does not compare them.
    let seed = PqPrivateKey::new(Secret::new([7; PqPrivateKey::LEN]));
    let key = seed.zip(suite.filter(|suite| suite.has_static_keys()));
    let key = key.map(|(seed, suite)| seed.public(CRYPTO, suite));
    taupe_os_linux::memory::release();
    let before = memory::of_this_process()?;
    for number in 0..IDLE as u32 {
        let mut bytes = [9; 32];
        bytes[..4].copy_from_slice(&number.to_le_bytes());
        let mut peer = PeerUpdate::new(PublicKey(bytes));
        if suite.is_some() {
            peer.pq_public_key = Some(key.clone());
            peer.post_quantum = Some(Some(PostQuantum::Require));
        }
        let address = Ipv4Addr::from(0x0a00_0000 | number);
        peer.allowed_ips = vec![AllowedIpChange::Add(IpAddr::V4(address).into())];
        let update = DeviceUpdate {
            peers: vec![peer],
            ..DeviceUpdate::default()
        };
        update_device(&mut device, now, update)?;
    }
    taupe_os_linux::memory::release();
    let after = memory::of_this_process()?;
    Ok((after as f64 - before as f64) / IDLE as f64)
}
