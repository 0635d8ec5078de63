//! The library `taupe-tunnel` in this process, with wireguard-go as the server. The machine has only
//! a route to its neighbour; everything else is behind the tunnel.

mod ends;
mod sockets;
mod transfer;
mod world;

use std::time::Duration;
use taupe_lab::peers::Implementation;
use taupe_lab::sandbox::{Suite, SystemTest};

fn main() {
    let long = Duration::from_secs(150);
    Suite::new(vec![
        SystemTest::new("a_far_end_that_is_dead", ends::dead).limit(long),
        SystemTest::new("64_megabytes_both_ways", transfer::both_ways).limit(long),
        SystemTest::new("hundred_connections", transfer::hundred).limit(long),
        SystemTest::new("get_by_address_and_name", sockets::get),
        SystemTest::new("udp_echo", sockets::udp),
        SystemTest::new("listener", sockets::listener),
        SystemTest::new("hybrid_peer", sockets::hybrid),
        SystemTest::new("half_closed_and_reset", ends::half_closed),
        SystemTest::new("closed_while_transfers_run", ends::closed),
        SystemTest::new("dropped_without_close", ends::dropped),
    ])
    .prepare(|| {
        Implementation::WireguardGo.install()?;
        Implementation::Taupe.install().map(drop)
    })
    .main()
}
