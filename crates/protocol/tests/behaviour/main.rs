//! Every behaviour that the protocol requires, at its boundary: the value, one
//! below and one above, in virtual time.
//!
//! "Kernel" is the Linux implementation, where it says more than the
//! whitepaper.

#[path = "../common/mod.rs"]
mod common;

mod keepalive;
mod lifetime;
mod messages;
mod retry;

use std::net::{IpAddr, SocketAddr};

use common::raw::{Raw, RawSession};
use common::{Net, private_key};
use taupe_protocol::crypto::Provider;
use taupe_protocol::time::Tai64N;
use taupe_protocol::update::{AllowedIpChange, PeerUpdate, Prefix};

/// Where the hand-played peer is.
const RAW_ADDRESS: ([u8; 4], u16) = ([198, 51, 100, 9], 4500);
/// Its address in the tunnel.
const RAW_INNER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 9));

/// A device, and a peer of it that the test plays by hand; they have not spoken.
fn with_stranger(crypto: &'static Provider) -> (Net, Raw) {
    let mut net = Net::new(crypto, 1);
    let remote = net.nodes[0].public;
    let address = SocketAddr::from(RAW_ADDRESS);
    let raw = Raw::new(crypto, private_key(99), remote, address);
    let mut update = PeerUpdate::new(raw.keys.public);
    update.endpoint = Some(address);
    let inner = Prefix::new(RAW_INNER, 32).expect("a valid prefix");
    update.allowed_ips = vec![AllowedIpChange::Add(inner)];
    net.update(0, update);
    (net, raw)
}

/// A label `n` grains after some point in time.
fn label(n: u32) -> Tai64N {
    Tai64N::from_wall(common::WALL + std::time::Duration::from_millis(17) * n)
}

/// The same after a handshake that the hand-played peer began and has
/// confirmed with a keepalive, counter 0.
fn with_raw(crypto: &'static Provider) -> (Net, RawSession, Raw) {
    let (mut net, raw) = with_stranger(crypto);
    let session = shake(&mut net, &raw, 7, label(0));
    net.inject(0, raw.address, &session.seal(0, &[]));
    (net, session, raw)
}

/// The hand-played peer begins a handshake and the device answers; the session
/// is not confirmed.
fn shake(net: &mut Net, raw: &Raw, index: u32, label: Tai64N) -> RawSession {
    let begun = raw.begin(index, label);
    net.inject(0, raw.address, &begun.message);
    let response = net.last(0, taupe_protocol::message::Kind::Response);
    assert_eq!(response.to, raw.address);
    raw.finish(&begun, &response.bytes)
        .expect("a valid response")
}
