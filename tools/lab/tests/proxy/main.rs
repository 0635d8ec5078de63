//! `taupe proxy` run by an unprivileged user, and programs that use it. The machine has only a
//! route to its neighbour; everything else is behind the tunnel.

mod bad;
mod hybrid;
mod limits;
mod pause;
mod socks;
mod traffic;
mod world;

use std::time::Duration;
use taupe_lab::peers::Implementation;
use taupe_lab::sandbox::{Suite, SystemTest};

fn main() {
    let long = Duration::from_secs(150);
    Suite::new(vec![
        SystemTest::new("thousand_connections_at_once", traffic::thousand).limit(long),
        SystemTest::new("lossy_link_both_ways", traffic::lossy).limit(long),
        SystemTest::new("curl_by_socks_and_http", traffic::curl),
        SystemTest::new("only_wireguard_leaves", traffic::names),
        SystemTest::new("udp_associate", traffic::udp),
        SystemTest::new("long_udp_answers", limits::long_answers),
        SystemTest::new("memory_after_a_burst", limits::burst).limit(long),
        SystemTest::new("out_of_descriptors", limits::descriptors),
        SystemTest::new("half_closed_and_reset", traffic::ends),
        SystemTest::new("slow_reader", traffic::slow_reader),
        SystemTest::new("forwarded_port", traffic::forwarded),
        SystemTest::new("newest_initiation_first", pause::newest_initiation_first).limit(long),
        SystemTest::new("every_socks_error", bad::replies),
        SystemTest::new("clients_that_misbehave", bad::clients),
        SystemTest::new("silent_peer", bad::silent_peer).limit(long),
        SystemTest::new("hybrid_peer", hybrid::hybrid).limit(long),
        SystemTest::new("passwords", bad::passwords),
        SystemTest::new("errors_before_the_start", bad::starts),
    ])
    .prepare(|| Implementation::Taupe.install().map(drop))
    .main()
}
