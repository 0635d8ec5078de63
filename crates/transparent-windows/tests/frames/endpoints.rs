//! Look-up of endpoint addresses, which the tunnel needs to come up.

use crate::packets::{at, received, sent, udp};
use crate::world::{NAMES, OWN, Setup, World};

const RESOLVER: &str = "192.168.1.1";

/// Builds a query for an address (RFC 1035 §4).
fn question(labels: &[&str]) -> Vec<u8> {
    let mut message = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in labels {
        message.push(label.len() as u8);
        message.extend(label.as_bytes());
    }
    message.extend([0, 0, 1, 0, 1]);
    message
}

#[test]
fn questions_for_an_endpoint_that_is_looked_up_pass_and_no_others() {
    // Every application is selected.
    let mut world = World::new(&Setup {
        allowed: vec![],
        dns: vec![NAMES],
        ..Setup::default()
    });
    let resolver = at(RESOLVER, 53);
    let asks = |port, labels: &[&str]| udp(at(OWN, port), resolver, &question(labels));
    let own = asks(50_000, &["vpn", "example", "org"]);
    world.send(&own);
    assert!(world.passed().is_empty(), "nothing is looked up");

    world
        .pipeline
        .set_hosts_being_resolved(vec!["vpn.example.org".into()]);
    let own = asks(50_001, &["vpn", "example", "org"]);
    world.send(&own);
    world.send(&asks(50_002, &["www", "example", "org"]));
    world.send(&udp(
        at(OWN, 50_003),
        at(RESOLVER, 54),
        &question(&["vpn", "example", "org"]),
    ));
    assert_eq!(world.passed(), [sent(&own)]);
    let answer = udp(resolver, at(OWN, 50_001), b"an answer");
    world.receive(&answer);
    assert_eq!(world.at_system(false), [received(&answer)]);

    world.pipeline.set_hosts_being_resolved(vec![]);
    world.send(&asks(50_004, &["vpn", "example", "org"]));
    assert_eq!(world.passed(), [sent(&own)], "it is known by now");
}
