//! Threads that route packets while another one changes the routes.
//!
//! Miri runs this test too (`scripts/miri`): it lets threads read every value that a processor with
//! weak memory order may read, and finds accesses that no order allows. It is much slower, so it
//! makes fewer rounds.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use taupe_protocol::crypto::default_provider;
use taupe_protocol::key::PublicKey;
use taupe_protocol::time::{Instant, Now};
use taupe_protocol::update::{AllowedIpChange, DeviceUpdate, PeerUpdate};
use taupe_protocol::{Device, LaneId, Staged};

const ROUNDS: usize = if cfg!(miri) { 8 } else { 2_000 };

const INNER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

const NOW: Now = Now {
    boot: Instant(86_400_000_000_000),
    wall: Duration::from_secs(1_700_000_000),
};

/// Gives all of `10.0.0.0/8` to a peer, and takes it from the other one.
fn move_routes(device: &mut Device, to: PublicKey) {
    let mut peer = PeerUpdate::new(to);
    let network = "10.0.0.0/8".parse().expect("a network");
    peer.allowed_ips = [AllowedIpChange::Add(network)].into();
    let update = DeviceUpdate {
        peers: vec![peer],
        ..DeviceUpdate::default()
    };
    device.update(NOW, update).expect("valid");
}

#[test]
fn each_packet_goes_by_the_routes_before_or_after_a_change() {
    let zeros = |bytes: &mut [u8]| bytes.fill(0);
    let mut device = Device::new(default_provider(), Box::new(zeros), Arc::new(|| {}));
    let keys = [PublicKey([1; 32]), PublicKey([2; 32])];
    move_routes(&mut device, keys[0]);
    let path = Arc::clone(device.data_path());
    let has_ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let route = || {
            let mut seen = [0, 0];
            while !has_ended.load(Ordering::Acquire) || seen == [0, 0] {
                let routes = path.routes();
                let peer = routes.lookup(INNER).expect("a route in each version");
                let of = keys.iter().position(|key| key == peer.public_key());
                seen[of.expect("one of the peers")] += 1;
                let packet = Staged {
                    packet: vec![0; 16],
                    ecn: 0,
                    lane: LaneId::FIRST,
                };
                path.stage(NOW.boot, peer, [packet].into_iter());
            }
            // The routes at the end are those of the last change.
            let routes = path.routes();
            assert_eq!(
                routes.lookup(INNER).map(|peer| *peer.public_key()),
                Some(keys[1])
            );
        };
        let threads = [(); 2].map(|()| scope.spawn(route));
        for _ in 0..ROUNDS {
            for key in keys {
                move_routes(&mut device, key);
                device.handle_pending_work(NOW);
            }
        }
        has_ended.store(true, Ordering::Release);
        for thread in threads {
            thread.join().expect("no panic");
        }
    });
}
