//! TAI64N timestamps (whitepaper §5.1, §5.4.2): values sent, values accepted, and continuity
//! after a restart or a clock that goes back.

use std::time::Duration;

use taupe_protocol::hybrid::Suite;
use taupe_protocol::ipnet::IpNet;
use taupe_protocol::message::Kind;
use taupe_protocol::time::Tai64N;
use taupe_protocol::update::{AllowedIpChange, DeviceUpdate, PeerUpdate};
use taupe_protocol::{DropReason, Output};

use crate::common::hybrid;
use crate::common::packets::ipv4;
use crate::common::raw::Raw;
use crate::common::snapshot::assert_refused;
use crate::common::{NANO, Net, RAW_INNER, WALL, label, millis, private_key, secs, with_stranger};
use crate::each_backend;

/// 2^24 ns, the unit that the kernel rounds timestamps down to.
const GRAIN: Duration = Duration::from_nanos(1 << 24);

fn parts(label: Tai64N) -> (u64, u32) {
    let (seconds, nanos) = label.0.split_at(8);
    (
        u64::from_be_bytes(seconds.try_into().expect("eight bytes")),
        u32::from_be_bytes(nanos.try_into().expect("four bytes")),
    )
}

/// Returns the timestamp of an initiation that the device sends now.
fn next_label(net: &mut Net, raw: &Raw) -> Tai64N {
    let mark = net.mark();
    let packet = ipv4(net.nodes[0].inner, RAW_INNER, b"x");
    net.send(0, &packet);
    let sent = net.since(mark, 0);
    assert_eq!(sent.len(), 1, "one initiation");
    raw.label(&sent[0].bytes).expect("an initiation to us")
}

/// Discards the current handshake and Rekey-Timeout.
fn reset(net: &mut Net) {
    net.set_down(0);
    net.set_up(0);
}

fn accepts(net: &mut Net, raw: &Raw, label: Tai64N) -> bool {
    let begun = raw.begin(label.0.iter().map(|b| u32::from(*b)).sum(), label);
    let mark = net.mark();
    net.inject(0, raw.address, &begun.message);
    net.kinds(mark, 0) == [Kind::Response]
}

each_backend! {
fn labels_are_the_clock_floored_to_a_grain(crypto) {
    for (wall, nanos) in [
        (Duration::new(1_700_000_000, 0), 0),
        (Duration::new(1_700_000_000, 0) + GRAIN - NANO, 0),
        (Duration::new(1_700_000_000, 0) + GRAIN, 1 << 24),
        (Duration::new(1_700_000_000, 0) + GRAIN + NANO, 1 << 24),
        (Duration::new(1_700_000_000, 999_999_999), 59 << 24),
    ] {
        let (mut net, raw) = with_stranger(crypto);
        net.nodes[0].wall = wall;
        let (seconds, got) = parts(next_label(&mut net, &raw));
        // 2^62 + 10 + Unix time.
        assert_eq!(seconds, 0x4000_0000_0000_000a + 1_700_000_000);
        assert_eq!(got, nanos, "{wall:?}");
    }
}

fn labels_are_strictly_greater_even_within_a_grain(crypto) {
    let (mut net, raw) = with_stranger(crypto);
    let mut last = next_label(&mut net, &raw);
    for _ in 0..130 {
        reset(&mut net);
        let label = next_label(&mut net, &raw);
        assert!(label > last, "{label:?} after {last:?}");
        let (_, nanos) = parts(label);
        assert!(nanos % (1 << 24) == 0 && nanos < 1_000_000_000, "{nanos}");
        last = label;
    }
}

fn labels_go_on_when_the_clock_goes_back(crypto) {
    let (mut net, raw) = with_stranger(crypto);
    let before = next_label(&mut net, &raw);
    for wall in [WALL - secs(3600), Duration::ZERO, WALL - NANO] {
        net.nodes[0].wall = wall;
        reset(&mut net);
        assert!(next_label(&mut net, &raw) > before, "{wall:?}");
    }
    net.nodes[0].wall = WALL + secs(3600);
    reset(&mut net);
    let later = next_label(&mut net, &raw);
    assert_eq!(later, Tai64N::from_wall(WALL + secs(3600)), "the clock again, when it can be");
}

fn labels_go_on_when_the_peer_is_removed_and_added_again(crypto) {
    let (mut net, raw) = with_stranger(crypto);
    let before = next_label(&mut net, &raw);
    for replace in [false, true] {
        net.nodes[0].wall = WALL - secs(86_400);
        let mut update = PeerUpdate::new(raw.keys.public);
        if !replace {
            update.remove = true;
            net.update(0, update);
            update = PeerUpdate::new(raw.keys.public);
        }
        update.endpoint = Some(raw.address);
        let inner = IpNet::new(RAW_INNER, 32).expect("a valid prefix");
        update.allowed_ips = vec![AllowedIpChange::Add(inner)];
        let update = DeviceUpdate {
            replace_peers: replace,
            peers: vec![update],
            ..DeviceUpdate::default()
        };
        net.apply(0, update);
        // The peer, whose own state is unchanged, has stored the last timestamp.
        assert!(next_label(&mut net, &raw) > before);
    }
}

fn labels_go_on_after_a_restart_with_a_clock_that_went_back(crypto) {
    let (mut net, raw) = with_stranger(crypto);
    let before = next_label(&mut net, &raw);
    let (floor, _) = *net.nodes[0].reserved.last().expect("a reservation");
    assert!(floor >= before);

    let (mut net, mut raw) = with_stranger(crypto);
    let key = private_key(4321);
    net.set_private_key(0, Some(key), floor);
    raw.remote = net.nodes[0].public;
    net.nodes[0].wall = WALL - secs(86_400 * 365);
    let after = next_label(&mut net, &raw);
    assert!(after > floor, "{after:?} after {floor:?}");
}

fn labels_are_reserved_before_they_are_sent(crypto) {
    let (mut net, raw) = with_stranger(crypto);
    net.cut();
    let mut reserved = Tai64N::ZERO;
    for round in 0..40 {
        if round % 3 == 2 {
            net.nodes[0].wall += secs(25);
        }
        let label = next_label(&mut net, &raw);
        // The reservation was output before the datagram that needs it.
        let sent = net.since(0, 0).len();
        for (up_to, sent_before) in net.nodes[0].reserved.drain(..) {
            assert!(up_to > reserved, "never less than before");
            assert!(sent_before < sent);
            reserved = up_to;
        }
        assert!(label <= reserved, "{label:?} is beyond {reserved:?}");
        reset(&mut net);
    }
}

fn reservations_are_few(crypto) {
    let (mut net, raw) = with_stranger(crypto);
    for _ in 0..60 {
        next_label(&mut net, &raw);
        net.advance(secs(1));
        reset(&mut net);
    }
    let count = net.nodes[0].reserved.len();
    assert!((4..=7).contains(&count), "{count} in a minute");
}

fn what_was_reserved_and_not_used_is_given_back(crypto) {
    let (mut net, raw) = with_stranger(crypto);
    let used = next_label(&mut net, &raw);
    let (reserved, _) = net.nodes[0].reserved.pop().expect("a reservation");
    assert!(reserved > used);
    net.nodes[0].device.close();
    let mut last = None;
    while let Some(output) = net.nodes[0].device.poll_output() {
        if let Output::ReserveTimestamps { up_to, .. } = output {
            last = Some(up_to);
        }
    }
    assert_eq!(last, Some(used));
}

fn restarts_in_a_row_do_not_add_up(crypto) {
    let mut floor = Tai64N::ZERO;
    for round in 0..20 {
        let (mut net, raw) = with_stranger(crypto);
        let key = net.nodes[0].private.clone();
        net.set_private_key(0, None, floor);
        net.set_private_key(0, Some(key), floor);
        net.advance(millis(100) * round);
        let clock = Tai64N::from_wall(net.now_at(0).wall);
        next_label(&mut net, &raw);
        // Killed: no reservation is returned.
        if let Some((up_to, _)) = net.nodes[0].reserved.pop() {
            floor = up_to;
        }
        assert!(floor <= clock.later(secs(11)), "{floor:?} in round {round}");
    }
}

fn a_label_must_be_greater_than_the_last(crypto) {
    let (mut net, raw) = with_stranger(crypto);
    let middle = label(1000);
    let step = |label: Tai64N, up: bool| {
        let number = u128::from_be_bytes({
            let mut bytes = [0; 16];
            bytes[4..].copy_from_slice(&label.0);
            bytes
        });
        let number = if up { number + 1 } else { number - 1 };
        let mut bytes = [0; 12];
        bytes.copy_from_slice(&number.to_be_bytes()[4..]);
        Tai64N(bytes)
    };
    assert!(accepts(&mut net, &raw, middle));
    for (label, accepted) in [
        (step(middle, false), false),
        (middle, false),
        (Tai64N::ZERO, false),
        (step(middle, true), true),
        (step(middle, true), false),
        // There is no limit on how far ahead a timestamp may be.
        (Tai64N([0xff; 12]), true),
        (Tai64N([0xff; 12]), false),
    ] {
        net.advance(millis(50));
        let before = net.nodes[0].count(DropReason::InitiationReplayed);
        assert_eq!(accepts(&mut net, &raw, label), accepted, "{label:?}");
        let replayed = net.nodes[0].count(DropReason::InitiationReplayed) - before;
        assert_eq!(replayed, u64::from(!accepted));
    }
}

fn a_replayed_initiation_changes_nothing(crypto) {
    let mut net = Net::connected(crypto);
    let initiation = net.last(0, Kind::Initiation);
    net.advance(secs(30));
    assert_refused(&mut net, 1, &initiation.bytes, DropReason::InitiationReplayed);
}

fn the_label_is_kept_per_peer(crypto) {
    let mut net = Net::new(crypto, 3);
    net.join(0, 1);
    net.join(0, 2);
    net.nodes[1].wall += secs(86_400);
    net.ping(1, 0);
    net.ping(2, 0);
    assert_eq!(net.nodes[0].delivered.len(), 2, "one clock ahead locks nobody else out");
}

fn the_label_is_remembered_over_down_and_up(crypto) {
    let (mut net, raw) = with_stranger(crypto);
    assert!(accepts(&mut net, &raw, label(5)));
    reset(&mut net);
    net.advance(secs(1));
    assert!(!accepts(&mut net, &raw, label(5)));
    assert!(accepts(&mut net, &raw, label(6)));
}

fn initiations_of_a_peer_are_20_ms_apart(crypto) {
    for (gap, accepted) in [
        (millis(20) - NANO, false),
        (millis(20), true),
        (millis(20) + NANO, true),
    ] {
        let (mut net, raw) = with_stranger(crypto);
        assert!(accepts(&mut net, &raw, label(1)));
        net.advance(gap);
        let begun = raw.begin(77, label(2));
        if accepted {
            let mark = net.mark();
            net.inject(0, raw.address, &begun.message);
            assert_eq!(net.kinds(mark, 0), [Kind::Response]);
        } else {
            assert_refused(&mut net, 0, &begun.message, DropReason::InitiationFlood);
            // The timestamp itself is valid: a little later it is accepted.
            net.advance(millis(1));
            assert!(accepts(&mut net, &raw, label(2)));
        }
    }
}

fn a_refused_initiation_does_not_count_against_the_next(crypto) {
    let (mut net, raw) = with_stranger(crypto);
    assert!(accepts(&mut net, &raw, label(1)));
    net.advance(millis(15));
    assert_refused(&mut net, 0, &raw.begin(1, label(2)).message, DropReason::InitiationFlood);
    net.advance(millis(5));
    assert!(accepts(&mut net, &raw, label(3)), "20 ms after the one that was accepted");
}

fn another_ml_kem_key_begins_labels_anew(crypto) {
    let suite = Suite::Hybrid768;
    let mut net = Net::hybrid_pair(crypto, suite);
    net.ping(0, 1);
    assert_eq!(net.suite(1, 0), Some(Some(suite)));
    // Node 0 restarts without its state, and its clock is behind.
    let private = net.nodes[0].private.clone();
    net.set_private_key(0, None, Tai64N::ZERO);
    net.nodes[0].wall -= secs(3600);
    net.set_private_key(0, Some(private), Tai64N::ZERO);
    net.ping(0, 1);
    assert_eq!(net.nodes[1].count(DropReason::InitiationReplayed), 1);
    // Another ML-KEM key makes another identity.
    net.set_seed(0, Some(hybrid::seed(7)));
    net.set_hybrid(1, 0, hybrid::public(crypto, 7, suite), None);
    net.advance(secs(6));
    net.ping(0, 1);
    assert_eq!(net.nodes[1].count(DropReason::InitiationReplayed), 1);
    assert_eq!(net.suite(1, 0), Some(Some(suite)));
}}

#[test]
fn byte_order_is_time_order() {
    let mut last = Tai64N::ZERO;
    for wall in [0, 1, 59, 255, 256, 1_700_000_000, 1 << 40] {
        let label = Tai64N::from_wall(Duration::from_secs(wall));
        assert!(label > last && label.0 > last.0);
        last = label;
    }
}
