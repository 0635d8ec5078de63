//! Behaviours of every WireGuard, tested with Taupe on real interfaces: counters, roaming,
//! cryptokey routing, sticky sources, loops, keepalives, keys; and attacks from a hostile network.
//!
//! The behaviours are those that the Linux kernel's own system test
//! (tools/testing/selftests/wireguard/netns.sh) asserts, as far as they apply to a program with a
//! TUN, and further ones.

mod configuration;
mod crowd;
mod datagrams;
mod ecn;
mod endpoints;
mod flood;
mod hostile;
mod keys;
mod life;
mod merged;
mod offloads;
mod pair;
mod pause;
mod routing;
mod secrets;
mod syscalls;
mod transfer;
mod vxlan;

use std::time::Duration;
use taupe_lab::peers::Implementation;
use taupe_lab::sandbox::{Suite, SystemTest};

fn main() {
    let minutes = |count: u64| Duration::from_secs(count * 60);
    let mut tests = vec![
        // The longest tests start first.
        SystemTest::new("hostile_datagrams", hostile::hostile_datagrams).limit(minutes(3)),
        SystemTest::new("handshake_flood", flood::handshake_flood).limit(minutes(3)),
        SystemTest::new("handshake_flood_received", flood::handshake_flood_received)
            .limit(minutes(3)),
        SystemTest::new("garbage_flood", flood::garbage_flood).limit(minutes(2)),
        SystemTest::new(
            "resources_return_to_baseline",
            life::resources_return_to_baseline,
        )
        .limit(minutes(2)),
        SystemTest::new("lossy_link", transfer::lossy_link).limit(minutes(2)),
        SystemTest::new("every_mtu_over_ipv4", transfer::every_mtu_over_ipv4).limit(minutes(2)),
        SystemTest::new("every_mtu_over_ipv6", transfer::every_mtu_over_ipv6).limit(minutes(2)),
    ];
    for without in offloads::EACH {
        let test = move || offloads::without(without);
        tests.push(SystemTest::new(format!("without_{without}"), test));
    }
    tests.extend([
        SystemTest::new("system_calls_of_a_ping", syscalls::of_a_ping),
        SystemTest::new("good_among_garbage", hostile::good_among_garbage),
        SystemTest::new("handshakes_with_data", merged::handshakes_with_data),
        SystemTest::new("parallel_streams", transfer::parallel_streams).limit(minutes(2)),
        SystemTest::new("wireguard_in_wireguard", transfer::wireguard_in_wireguard),
        SystemTest::new("stream_over_vxlan", vxlan::stream_over_vxlan).limit(minutes(2)),
        SystemTest::new("counters", transfer::counters),
        SystemTest::new("roaming", endpoints::roaming),
        SystemTest::new("source_not_too_sticky", endpoints::source_not_too_sticky),
        SystemTest::new(
            "source_follows_addresses",
            endpoints::source_follows_addresses,
        ),
        SystemTest::new("reply_to_sender", endpoints::reply_to_sender),
        SystemTest::new(
            "address_of_another_interface",
            endpoints::address_of_another_interface,
        ),
        SystemTest::new("better_route", endpoints::better_route),
        SystemTest::new("unrelated_notice", endpoints::unrelated_notice),
        SystemTest::new("routing_loop", routing::routing_loop),
        SystemTest::new(
            "routing_loop_over_two_interfaces",
            routing::routing_loop_over_two_interfaces,
        ),
        SystemTest::new("onion_routing", routing::onion_routing),
        SystemTest::new("marked_and_rerouted", routing::marked_and_rerouted),
        SystemTest::new("default_route_by_mark", routing::default_route_by_mark),
        SystemTest::new("unreachable", routing::unreachable),
        SystemTest::new("unreachable_at_once", routing::unreachable_at_once),
        SystemTest::new("crypto_routing", keys::crypto_routing),
        SystemTest::new("private_key_change", keys::private_key_change),
        SystemTest::new(
            "private_key_change_with_keepalive",
            keys::private_key_change_with_keepalive,
        ),
        SystemTest::new("newest_initiation_first", pause::newest_initiation_first)
            .limit(minutes(2)),
        SystemTest::new("low_order_points", keys::low_order_points),
        SystemTest::new("clamped_key", keys::clamped_key),
        SystemTest::new("longest_prefix", keys::longest_prefix),
        SystemTest::new("keepalive_at_link_up", configuration::keepalive_at_link_up),
        SystemTest::new("keepalive_at_key", configuration::keepalive_at_key),
        SystemTest::new("long_answers", configuration::long_answers),
        SystemTest::new(
            "allowed_ips_one_by_one",
            configuration::allowed_ips_one_by_one,
        ),
        SystemTest::new("a_hundred_thousand_peers", crowd::comes_and_goes),
        SystemTest::new("ends_with_its_namespace", life::ends_with_its_namespace),
        SystemTest::new("passed_descriptors", life::passed_descriptors),
        SystemTest::new("secrets_of_a_file", secrets::of_a_file),
        SystemTest::new("secrets_are_erased", secrets::erased).limit(minutes(2)),
        SystemTest::new(
            "secrets_are_erased_without_avx512",
            secrets::erased_without_avx512,
        )
        .limit(minutes(2)),
        SystemTest::new("ecn_out", ecn::out),
        SystemTest::new("ecn_in", ecn::inward),
    ]);
    // It takes nine minutes.
    if std::env::var_os("OLD_SESSION").is_some() {
        let test = SystemTest::new("secrets_of_an_old_session", secrets::old_session);
        tests.push(test.limit(minutes(12)));
    }
    Suite::new(tests)
        .prepare(|| Implementation::Taupe.install().map(drop))
        .main()
}
