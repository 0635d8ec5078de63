//! Retries of unanswered initiations: Rekey-Timeout, jitter and the end of the attempts
//! (whitepaper §6.1, §6.4).

use std::time::Duration;

use taupe_protocol::limits::{MAX_JITTER, NOTICE_AFTER, REKEY_AFTER_MESSAGES};
use taupe_protocol::message::Kind;
use taupe_protocol::{DropReason, Notice, Timer};

use crate::common::random::Numbers;
use crate::common::snapshot::assert_refused;
use crate::common::{NANO, Net, Outcome, START, label, millis, secs, set_numbers};
use crate::common::{RAW_INNER, with_stranger};
use crate::each_backend;

/// Jitter from low numbers stays below this.
const NEGLIGIBLE: Duration = Duration::from_nanos(50);

each_backend! {
    fn twenty_initiations_and_then_no_more(crypto) {
        for (numbers, gap) in [
            (Numbers::Low(0), secs(5)),
            (Numbers::High(0), secs(5) + MAX_JITTER - NANO),
        ] {
            let mut net = Net::pair(crypto);
            set_numbers(&net, 0, numbers);
            net.cut();
            net.ping(0, 1);
            let end = START + gap * 20;
            net.advance_to(end - NEGLIGIBLE);
            let times = net.times(0, 0, Kind::Initiation);
            assert_eq!(times.len(), 20);
            for (i, at) in times.iter().enumerate() {
                let ideal = gap * i as u32;
                assert!(at.abs_diff(ideal) <= NEGLIGIBLE, "initiation {i} at {at:?}");
            }
            assert_eq!(net.nodes[0].count(DropReason::StagedPurged), 0, "not given up yet");
            let (at, _, reason) = net.next_deadline().expect("it still waits");
            assert_eq!(reason, Timer::Retransmit);
            assert!(at.since(START).abs_diff(gap * 20) <= NEGLIGIBLE);

            net.advance_to(at - NANO);
            assert_eq!(net.nodes[0].count(DropReason::StagedPurged), 0);
            net.advance_to(at);
            assert_eq!(net.nodes[0].count(DropReason::StagedPurged), 1, "given up");
            assert_eq!(net.nodes[0].handshakes(), [0, 0, 1]);
            assert_eq!(net.next_deadline(), None);
            net.advance(secs(10_000));
            assert_eq!(net.times(0, 0, Kind::Initiation).len(), 20);
        }
    }

    fn silence_is_told_once_and_its_end(crypto) {
        for responder in [false, true] {
            let mut net = Net::pair(crypto);
            set_numbers(&net, 0, Numbers::Low(0));
            let public_key = net.nodes[1].public;
            let told = |net: &Net| -> Vec<_> {
                net.nodes[0].notices.iter().map(|(at, notice)| (at.since(START), *notice)).collect()
            };
            net.cut();
            net.ping(0, 1);
            net.advance_to(START + NOTICE_AFTER - NEGLIGIBLE);
            assert_eq!(told(&net), [], "one may be lost");
            // The handshake is given up, and begins again.
            net.advance(secs(200));
            net.ping(0, 1);
            net.advance(secs(20));
            let [(at, Notice::PeerUnreachable { public_key: whose, endpoint, time })] = told(&net)[..] else {
                panic!("{:?}", told(&net));
            };
            assert_eq!((whose, endpoint), (public_key, net.nodes[1].address));
            assert!(time >= NOTICE_AFTER && time.abs_diff(NOTICE_AFTER) <= NEGLIGIBLE);
            assert!(at.abs_diff(NOTICE_AFTER) <= NEGLIGIBLE, "{at:?}");
            net.mend();
            if responder {
                net.ping(1, 0);
            }
            net.advance(secs(6));
            let [_, (_, Notice::PeerRecovered { public_key: whose })] = told(&net)[..] else {
                panic!("{:?}", told(&net));
            };
            assert_eq!(whose, public_key);
            net.advance(secs(1));
            net.ping(0, 1);
            net.advance(secs(300));
            assert_eq!(told(&net).len(), 2);
        }
    }

    fn giving_up_forgets_the_handshake(crypto) {
        let (mut net, raw) = with_stranger(crypto);
        set_numbers(&net, 0, Numbers::Low(0));
        let packet = crate::common::packets::ipv4(net.nodes[0].inner, RAW_INNER, b"x");
        net.send(0, &packet);
        net.advance(secs(99));
        let last = net.last(0, Kind::Initiation);
        let (response, _) = raw.answer(&last.bytes, 3).expect("an initiation to us");
        net.advance(secs(2));
        assert_refused(&mut net, 0, &response, DropReason::UnknownHandshake);
    }

    fn an_answer_to_the_twentieth_still_counts(crypto) {
        let (mut net, raw) = with_stranger(crypto);
        set_numbers(&net, 0, Numbers::Low(0));
        let packet = crate::common::packets::ipv4(net.nodes[0].inner, RAW_INNER, b"x");
        net.send(0, &packet);
        net.advance(secs(99));
        let last = net.last(0, Kind::Initiation);
        let (response, session) = raw.answer(&last.bytes, 3).expect("an initiation to us");
        net.inject(0, raw.address, &response);
        let data = net.last(0, Kind::Data);
        let (counter, plaintext) = session.open(&data.bytes).expect("the staged packet");
        assert_eq!(counter, 0);
        assert_eq!(plaintext[..packet.len()], packet);
        net.advance(secs(4));
        assert_eq!(net.times(0, 0, Kind::Initiation).len(), 20, "nothing is retried");
    }

    fn after_giving_up_new_data_begins_anew(crypto) {
        let mut net = Net::pair(crypto);
        set_numbers(&net, 0, Numbers::Low(0));
        net.cut();
        net.ping(0, 1);
        net.advance(secs(101));
        let mark = net.mark();
        net.ping(0, 1);
        net.advance(secs(101));
        let times = net.times(mark, 0, Kind::Initiation);
        assert_eq!(times.len(), 20);
        assert_eq!(times[0], secs(101), "at once");
        assert_eq!(net.nodes[0].count(DropReason::StagedPurged), 2);
    }

    fn new_user_data_starts_the_count_again(crypto) {
        let mut net = Net::pair(crypto);
        set_numbers(&net, 0, Numbers::Low(0));
        net.cut();
        net.ping(0, 1);
        net.advance_to_offset(secs(52));
        net.ping(0, 1);
        net.advance_to_offset(secs(149));
        // Eleven at 0..=50 s; nineteen more, from 55 s on.
        let times = net.times(0, 0, Kind::Initiation);
        assert_eq!(times.len(), 30);
        assert!(times[29].abs_diff(secs(145)) < NEGLIGIBLE * 10);
        assert_eq!(net.nodes[0].count(DropReason::StagedPurged), 0);
        net.advance_to_offset(secs(151));
        assert_eq!(net.nodes[0].count(DropReason::StagedPurged), 2);
        net.advance(secs(1000));
        assert_eq!(net.times(0, 0, Kind::Initiation).len(), 30);
    }

    fn a_success_starts_the_count_again(crypto) {
        let mut net = Net::pair(crypto);
        set_numbers(&net, 0, Numbers::Low(0));
        net.cut();
        net.ping(0, 1);
        net.advance_to_offset(secs(93));
        net.mend();
        net.advance_to_offset(secs(96));
        assert_eq!(net.nodes[1].delivered.len(), 1);
        net.advance_to_offset(secs(119));
        net.cut();
        let mark = net.mark();
        net.advance_to_offset(secs(300));
        net.ping(0, 1);
        net.advance(secs(500));
        assert_eq!(net.times(mark, 0, Kind::Initiation).len(), 20);
    }

    fn two_initiations_are_never_within_five_seconds(crypto) {
        let mut net = Net::pair(crypto);
        net.cut();
        for step in 0..1200 {
            net.advance_to_offset(millis(100) * step);
            net.ping(0, 1);
        }
        let times = net.times(0, 0, Kind::Initiation);
        assert!(times.len() > 20, "data keeps it trying");
        for pair in times.windows(2) {
            let gap = pair[1] - pair[0];
            assert!(gap >= secs(5) && gap < secs(5) + MAX_JITTER, "{gap:?}");
        }
    }

    fn rekey_timeout_counts_from_the_last_initiation(crypto) {
        for (after, initiates) in [(secs(5) - NANO, false), (secs(5), true), (secs(5) + NANO, true)] {
            let mut net = Net::connected(crypto);
            net.advance_to_offset(after);
            let key = net.nodes[1].public;
            net.nodes[0].device.set_counter_for_test(&key, REKEY_AFTER_MESSAGES);
            let mark = net.mark();
            net.ping(0, 1);
            let initiations = net.times(mark, 0, Kind::Initiation).len();
            assert_eq!(initiations, usize::from(initiates), "{after:?}");
        }
    }

    fn rekey_timeout_counts_from_a_response_too(crypto) {
        for (after, initiates) in [(secs(5) - NANO, false), (secs(5), true), (secs(5) + NANO, true)] {
            let mut net = Net::connected(crypto);
            net.advance_to_offset(after);
            let key = net.nodes[0].public;
            net.nodes[1].device.set_counter_for_test(&key, REKEY_AFTER_MESSAGES);
            let mark = net.mark();
            net.ping(1, 0);
            let initiations = net.times(mark, 1, Kind::Initiation).len();
            assert_eq!(initiations, usize::from(initiates), "{after:?}");
        }
    }

    fn jitter_is_spread_over_a_third_of_a_second(crypto) {
        let mut net = Net::pair(crypto);
        net.cut();
        for _ in 0..20 {
            net.ping(0, 1);
            net.advance(secs(110));
        }
        let times = net.times(0, 0, Kind::Initiation);
        let jitters: Vec<Duration> = times
            .windows(2)
            .map(|pair| pair[1] - pair[0])
            .filter(|gap| *gap < secs(6))
            .map(|gap| gap - secs(5))
            .collect();
        assert_eq!(jitters.len(), 19 * 20);
        assert!(jitters.iter().all(|jitter| *jitter < MAX_JITTER));
        let third = MAX_JITTER / 3;
        for range in [secs(0)..third, third..third * 2, third * 2..MAX_JITTER] {
            let count = jitters.iter().filter(|jitter| range.contains(jitter)).count();
            assert!((80..180).contains(&count), "{count} in {range:?}");
        }
    }

    fn initiations_that_data_asks_for_are_not_late(crypto) {
        let mut net = Net::pair(crypto);
        set_numbers(&net, 0, Numbers::High(0));
        net.advance_to_offset(secs(3));
        net.ping(0, 1);
        assert_eq!(net.times(0, 0, Kind::Initiation), [secs(3)]);
    }

    fn a_retry_lets_the_system_choose_the_source_again(crypto) {
        let mut net = Net::connected(crypto);
        net.advance_to_offset(secs(130));
        net.cut();
        let mark = net.mark();
        net.ping(0, 1);
        net.advance(secs(6));
        let initiations: Vec<_> = net
            .since(mark, 0)
            .into_iter()
            .filter(|d| d.kind() == Kind::Initiation)
            .map(|d| d.local.is_some())
            .collect();
        assert_eq!(initiations, [true, false]);
    }

    fn each_retry_has_an_ephemeral_key_index_and_label_of_its_own(crypto) {
        let (mut net, raw) = with_stranger(crypto);
        net.nodes[0].wall = secs(1_000_000);
        let packet = crate::common::packets::ipv4(net.nodes[0].inner, RAW_INNER, b"x");
        net.send(0, &packet);
        net.advance(secs(99));
        let all: Vec<_> = net.since(0, 0);
        let distinct = |range: std::ops::Range<usize>| {
            let parts: std::collections::BTreeSet<_> =
                all.iter().map(|d| d.bytes[range.clone()].to_vec()).collect();
            parts.len()
        };
        assert!(all.len() >= 19);
        assert_eq!(distinct(4..8), all.len());
        assert_eq!(distinct(8..40), all.len());
        let labels: Vec<_> = all.iter().map(|d| raw.label(&d.bytes).expect("ours")).collect();
        assert!(labels.is_sorted_by(|a, b| a < b));
    }


    fn staged_data_is_not_left_when_a_response_takes_the_retry_away(crypto) {
        // Our initiation is lost. The peer's arrives three seconds later, and our response is
        // lost too. Rekey-Timeout then delays the retry.
        let (mut net, raw) = with_stranger(crypto);
        let packet = crate::common::packets::ipv4(net.nodes[0].inner, RAW_INNER, b"x");
        net.send(0, &packet);
        net.advance(secs(3));
        let begun = raw.begin(5, label(1));
        net.inject(0, raw.address, &begun.message);
        assert_eq!(net.last(0, Kind::Response).to, raw.address);
        let mark = net.mark();
        net.advance(secs(120));
        let times = net.times(mark, 0, Kind::Initiation);
        assert!(!times.is_empty(), "the staged packet is forgotten");
        assert!(times[0] >= secs(8), "Rekey-Timeout after the response");
        assert_eq!(net.nodes[0].count(DropReason::StagedPurged), 1, "and given up in the end");
    }

    fn data_for_an_unconfirmed_session_leads_to_a_handshake_of_its_own(crypto) {
        // The peer's confirmation is lost and it has no data to send: the responder must not wait
        // forever with its own data.
        let mut net = Net::pair(crypto);
        net.cut_kind(Kind::Data);
        net.set_persistent_keepalive(0, 1, 3600);
        assert_eq!(net.kinds(0, 0), [Kind::Initiation, Kind::Data]);
        net.advance(secs(1));
        net.mend();
        assert_eq!(net.ping(1, 0), Outcome::Staged);
        net.advance(secs(30));
        assert_eq!(net.nodes[0].delivered.len(), 1, "the packet arrives without another");
    }
}
