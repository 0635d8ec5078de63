use super::*;
use proptest::prelude::*;

const HEADER: usize = 20;

const NOTHING: Conditions = Conditions {
    rate: None,
    queue: None,
    delay: Duration::ZERO,
    jitter: Duration::ZERO,
    loss: 0,
    reorder: 0,
    duplicate: 0,
    corrupt: 0,
};

fn direction(conditions: &Conditions, seed: u64) -> LinkDirection {
    LinkDirection::new(conditions.clone(), fastrand::Rng::with_seed(seed))
}

/// Makes an IPv4 packet that contains a number.
fn packet(number: u32, length: usize) -> Vec<u8> {
    let mut packet = vec![0; length];
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&u16::try_from(length).unwrap().to_be_bytes());
    packet[HEADER..HEADER + 4].copy_from_slice(&number.to_be_bytes());
    packet
}

fn number(packet: &[u8]) -> u32 {
    u32::from_be_bytes(*packet[HEADER..].first_chunk().unwrap())
}

fn milliseconds(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn rate(bits: u64) -> Option<NonZeroU64> {
    NonZeroU64::new(bits)
}

/// A sent packet: the pause before it, and its length.
type Sent = (Duration, usize);

/// Arrived packets with their times, in order.
type Arrived = Vec<(Instant, Vec<u8>)>;

/// Sends packets numbered from 0, and takes each when it is due.
fn run(direction: &mut LinkDirection, begin: Instant, sent: &[Sent]) -> (Vec<Instant>, Arrived) {
    let (mut now, mut times, mut arrived) = (begin, Vec::new(), Vec::new());
    let mut take_until = |direction: &mut LinkDirection, end: Option<Instant>| {
        while let Some(due) = direction.next_due()
            && end.is_none_or(|end| due <= end)
        {
            assert!(direction.take(due - Duration::from_nanos(1)).is_none());
            arrived.push((due, direction.take(due).unwrap()));
        }
    };
    for (number, &(pause, length)) in (0..).zip(sent) {
        now += pause;
        take_until(direction, Some(now));
        times.push(now);
        direction.offer(now, packet(number, length));
        let found = direction.counters();
        assert_eq!(
            found.offered + found.duplicated,
            found.delivered + found.lost + found.dropped + found.under_way,
        );
    }
    take_until(direction, None);
    (times, arrived)
}

#[test]
fn a_perfect_link_delivers_at_once() {
    let mut direction = direction(&NOTHING, 1);
    let now = Instant::now();
    direction.offer(now, packet(7, 100));
    assert_eq!(direction.next_due(), Some(now));
    assert_eq!(direction.take(now), Some(packet(7, 100)));
    assert_eq!(direction.take(now), None);
    assert_eq!(direction.next_due(), None);
}

#[test]
fn the_bottleneck_sends_one_after_the_other() {
    // 1,000 bytes per second.
    let conditions = Conditions {
        rate: rate(8000),
        delay: milliseconds(5),
        ..NOTHING
    };
    let mut direction = direction(&conditions, 1);
    let now = Instant::now();
    for number in 0..3 {
        direction.offer(now, packet(number, 100));
    }
    for (number, due) in (0..).zip([105, 205, 305]) {
        assert_eq!(direction.next_due(), Some(now + milliseconds(due)));
        let found = direction.take(now + milliseconds(due)).unwrap();
        assert_eq!(found, packet(number, 100));
    }
    // An idle time gives no credit for later packets.
    let now = now + milliseconds(10_000);
    direction.offer(now, packet(3, 100));
    assert_eq!(direction.next_due(), Some(now + milliseconds(105)));
}

#[test]
fn packets_beyond_the_queue_are_dropped() {
    let conditions = Conditions {
        rate: rate(8000),
        queue: Some(250),
        ..NOTHING
    };
    let mut direction = direction(&conditions, 1);
    let now = Instant::now();
    for number in 0..4 {
        direction.offer(now, packet(number, 100));
    }
    assert_eq!(direction.counters().dropped, 2);
    // One packet has been sent by then, exact to the nanosecond.
    direction.offer(
        now + milliseconds(100) - Duration::from_nanos(1),
        packet(4, 100),
    );
    assert_eq!(direction.counters().dropped, 3);
    direction.offer(now + milliseconds(100), packet(5, 100));
    assert_eq!(direction.counters().dropped, 3);
    // A packet longer than the queue passes only if the queue is empty.
    direction.offer(now + milliseconds(299), packet(6, 300));
    assert_eq!(direction.counters().dropped, 4);
    direction.offer(now + milliseconds(300), packet(7, 300));
    assert_eq!(direction.counters().dropped, 4);
}

#[test]
fn a_queue_is_100_ms_or_64_kib() {
    let room = |bits| {
        let conditions = Conditions {
            rate: rate(bits),
            ..NOTHING
        };
        conditions.queue_bytes()
    };
    assert_eq!(room(1_000_000_000), 12_500_000);
    assert_eq!(room(5_000_000), 65_536);
    assert_eq!(room(1), 65_536);
    assert_eq!(room(u64::MAX), (u64::MAX / 80) as usize);
}

#[test]
fn lost_packets_occupy_the_bottleneck() {
    let conditions = Conditions {
        rate: rate(8000),
        loss: MILLION / 2,
        ..NOTHING
    };
    let mut direction = direction(&conditions, 1);
    let now = Instant::now();
    let sent = vec![(Duration::ZERO, 100); 100];
    let (_, arrived) = run(&mut direction, now, &sent);
    assert!(direction.counters().lost > 0 && !arrived.is_empty());
    for (due, packet) in arrived {
        let place = u64::from(number(&packet)) + 1;
        assert_eq!(due, now + milliseconds(100) * place as u32);
    }
}

#[test]
fn overtaking_packets_arrive_first_and_are_counted() {
    let slow = Conditions {
        delay: milliseconds(50),
        ..NOTHING
    };
    let fast = Conditions {
        reorder: MILLION,
        ..slow.clone()
    };
    let mut direction = direction(&slow, 1);
    let now = Instant::now();
    direction.offer(now, packet(0, 100));
    direction.change(fast);
    direction.offer(now + milliseconds(10), packet(1, 100));
    // It arrives behind the delayed packet, although no packet is left to overtake after 50 ms.
    direction.change(slow);
    direction.offer(now + milliseconds(11), packet(2, 100));
    let mut order = Vec::new();
    for due in [10, 50, 61] {
        assert_eq!(direction.next_due(), Some(now + milliseconds(due)));
        order.extend(direction.take(now + milliseconds(due)).map(|p| number(&p)));
    }
    assert_eq!(order, [1, 0, 2]);
    assert_eq!(direction.counters().reordered, 1);
}

#[test]
fn a_first_packet_overtakes_nothing() {
    let conditions = Conditions {
        reorder: MILLION,
        delay: milliseconds(50),
        ..NOTHING
    };
    let mut direction = direction(&conditions, 1);
    let sent = vec![(milliseconds(1), 100); 10];
    let (_, arrived) = run(&mut direction, Instant::now(), &sent);
    assert_eq!((arrived.len(), direction.counters().reordered), (10, 0));
}

#[test]
fn one_bit_behind_the_header_is_flipped() {
    let conditions = Conditions {
        corrupt: MILLION,
        ..NOTHING
    };
    let mut direction = direction(&conditions, 1);
    let now = Instant::now();
    let mut bits = std::collections::BTreeSet::new();
    for _ in 0..2000 {
        direction.offer(now, packet(0, 30));
        let found = direction.take(now).unwrap();
        assert_eq!(found[..HEADER], packet(0, 30)[..HEADER]);
        let changed: Vec<_> = (0..30 * 8)
            .filter(|bit| (found[bit / 8] ^ packet(0, 30)[bit / 8]) >> (bit % 8) & 1 == 1)
            .collect();
        assert_eq!(changed.len(), 1);
        bits.extend(changed);
    }
    // Every bit is flipped sooner or later.
    assert_eq!(bits.len(), 80);
    assert_eq!(direction.counters().corrupted, 2000);
}

#[test]
fn packets_without_payload_are_not_corrupted() {
    let conditions = Conditions {
        corrupt: MILLION,
        ..NOTHING
    };
    let mut direction = direction(&conditions, 1);
    let now = Instant::now();
    let mut header = vec![0; HEADER];
    (header[0], header[3]) = (0x45, 20);
    for other in [header, vec![], vec![0xff; 50], vec![0x45], vec![0x60; 39]] {
        direction.offer(now, other.clone());
        assert_eq!(direction.take(now), Some(other));
    }
    assert_eq!(direction.counters().corrupted, 0);
}

#[test]
fn shares_are_those_of_the_profile() {
    let conditions = Conditions {
        delay: milliseconds(1000),
        loss: 20_000,
        reorder: 10_000,
        duplicate: 30_000,
        corrupt: 5_000,
        ..NOTHING
    };
    let mut direction = direction(&conditions, 20_180_101);
    let sent = vec![(milliseconds(1), 100); 100_000];
    run(&mut direction, Instant::now(), &sent);
    let found = direction.counters();
    let near = |count: u64, of: u64, share: f64| {
        let expected = of as f64 * share;
        let deviation = (expected * (1.0 - share)).sqrt();
        assert!(
            (count as f64 - expected).abs() < 5.0 * deviation,
            "{count} of {of}, not {share}"
        );
    };
    near(found.lost, 100_000, 0.02);
    let left = found.offered - found.lost;
    near(found.reordered, left, 0.01);
    near(found.duplicated, left, 0.03);
    near(found.corrupted, left, 0.005);
}

#[test]
fn delays_are_drawn_evenly() {
    let conditions = Conditions {
        delay: milliseconds(45),
        jitter: milliseconds(15),
        ..NOTHING
    };
    // The packets are so far apart that none waits for an earlier one.
    let sent = vec![(milliseconds(100), 100); 10_000];
    let mut direction = direction(&conditions, 1);
    let (times, arrived) = run(&mut direction, Instant::now(), &sent);
    let mut tenths = [0; 10];
    for (sent, (due, _)) in times.iter().zip(&arrived) {
        let behind = (*due - *sent) - milliseconds(30);
        tenths[(behind.as_nanos() / 3_000_000).min(9) as usize] += 1;
    }
    // 1,000 ± 30 each.
    assert!(tenths.iter().all(|n| (850..1150).contains(n)), "{tenths:?}");
}

#[test]
fn a_flood_is_limited() {
    let endless = Conditions {
        delay: Duration::from_secs(60),
        duplicate: MILLION,
        ..NOTHING
    };
    let slow = Conditions {
        rate: rate(1),
        queue: Some(usize::MAX),
        loss: MILLION,
        ..NOTHING
    };
    let now = Instant::now();
    for conditions in [endless, slow] {
        let mut direction = direction(&conditions, 1);
        for number in 0..50_000 {
            direction.offer(now, packet(number, 24));
        }
        assert!(direction.under_way.len() <= MAX_PACKETS && direction.waiting.len() <= MAX_PACKETS);
        assert!(direction.counters().dropped > 0);
    }
}

#[test]
fn packets_sent_before_a_change_stay_ahead() {
    let slow = Conditions {
        rate: rate(8000),
        delay: milliseconds(500),
        ..NOTHING
    };
    let mut direction = direction(&slow, 1);
    let now = Instant::now();
    direction.offer(now, packet(0, 100));
    direction.change(NOTHING);
    direction.offer(now, packet(1, 100));
    assert_eq!(direction.next_due(), Some(now + milliseconds(600)));
    let both = [(); 2].map(|()| direction.take(now + milliseconds(600)).unwrap());
    assert_eq!(both.map(|packet| number(&packet)), [0, 1]);
}

fn conditions() -> impl Strategy<Value = Conditions> {
    let share = || prop_oneof![Just(0), 0..=MILLION];
    (
        prop::option::of(1_000..100_000_000u64),
        prop::option::of(0..200_000usize),
        (0..200u64, 0..=100u64),
        (share(), share(), share(), share()),
    )
        .prop_map(|(bits, queue, (delay, part), shares)| Conditions {
            rate: bits.and_then(rate),
            queue,
            delay: milliseconds(delay),
            jitter: milliseconds(delay) * part as u32 / 100,
            loss: shares.0,
            reorder: shares.1,
            duplicate: shares.2,
            corrupt: shares.3,
        })
}

fn traffic() -> impl Strategy<Value = Vec<Sent>> {
    let pause = prop_oneof![Just(0), 0..50_000u64].prop_map(Duration::from_micros);
    prop::collection::vec((pause, HEADER + 4..1500), 0..150)
}

proptest! {
    #[test]
    fn every_packet_is_accounted_for(conditions in conditions(), sent in traffic(), seed: u64) {
        let mut direction = direction(&conditions, seed);
        let (_, arrived) = run(&mut direction, Instant::now(), &sent);
        let found = direction.counters();
        prop_assert_eq!(found.offered, sent.len() as u64);
        prop_assert_eq!(found.offered_bytes, sent.iter().map(|(_, length)| *length as u64).sum::<u64>());
        prop_assert_eq!(found.delivered, arrived.len() as u64);
        prop_assert_eq!(found.delivered_bytes, arrived.iter().map(|(_, packet)| packet.len() as u64).sum::<u64>());
        prop_assert_eq!(found.under_way, 0);
        prop_assert_eq!(found.offered + found.duplicated, found.delivered + found.lost + found.dropped);
    }

    #[test]
    fn packets_stay_in_order(conditions in conditions(), sent in traffic(), seed: u64) {
        let conditions = Conditions { reorder: 0, corrupt: 0, ..conditions };
        let mut direction = direction(&conditions, seed);
        let (_, arrived) = run(&mut direction, Instant::now(), &sent);
        prop_assert!(arrived.is_sorted_by_key(|(_, packet)| number(packet)));
        prop_assert_eq!(direction.counters().reordered, 0);
    }

    #[test]
    fn overtaking_is_counted(conditions in conditions(), sent in traffic(), seed: u64) {
        let conditions = Conditions { corrupt: 0, duplicate: 0, ..conditions };
        let mut direction = direction(&conditions, seed);
        let (_, arrived) = run(&mut direction, Instant::now(), &sent);
        let numbers: Vec<_> = arrived.iter().map(|(_, packet)| number(packet)).collect();
        let overtakers = (0..numbers.len()).filter(|&at| numbers[at..].iter().any(|n| *n < numbers[at]));
        prop_assert_eq!(direction.counters().reordered, overtakers.count() as u64);
    }

    #[test]
    fn the_rate_holds_over_any_interval(
        conditions in conditions(), sent in traffic(), bits in 1_000..100_000_000u64, seed: u64,
    ) {
        let conditions = Conditions {
            rate: rate(bits), jitter: Duration::ZERO, reorder: 0, duplicate: 0, ..conditions
        };
        let (_, arrived) = run(&mut direction(&conditions, seed), Instant::now(), &sent);
        for first in 0..arrived.len() {
            let mut carried = 0;
            for (due, packet) in &arrived[first + 1..] {
                carried += packet.len() as u128 * 8;
                let most = (*due - arrived[first].0).as_nanos() * u128::from(bits) / 1_000_000_000;
                prop_assert!(carried <= most, "{} bits, but {}", carried, most);
            }
        }
    }

    #[test]
    fn no_queue_is_longer_than_allowed(
        conditions in conditions(), sent in traffic(), queue in 1500..100_000usize, seed: u64,
    ) {
        let conditions = Conditions {
            queue: Some(queue), reorder: 0, duplicate: 0, corrupt: 0, ..conditions
        };
        let (times, arrived) = run(&mut direction(&conditions, seed), Instant::now(), &sent);
        let least = conditions.delay - conditions.jitter;
        // Each packet in the queue adds up to a nanosecond, because times are rounded up.
        let rounding = Duration::from_nanos(sent.len() as u64);
        let most = conditions.delay + conditions.jitter + conditions.transmission(queue) + rounding;
        for (due, packet) in arrived {
            let took = due - times[number(&packet) as usize];
            let least = least + conditions.transmission(packet.len());
            prop_assert!((least..=most).contains(&took), "{took:?} is not within {least:?} and {most:?}");
        }
    }

    #[test]
    fn equal_seeds_and_packets_have_equal_outcomes(
        conditions in conditions(), sent in traffic(), pauses in traffic(), seed: u64,
    ) {
        let begin = Instant::now();
        let twice = [(); 2].map(|()| run(&mut direction(&conditions, seed), begin, &sent));
        prop_assert_eq!(&twice[0], &twice[1]);
        // Results do not depend on timing if no packet can be dropped.
        let conditions = Conditions { rate: None, ..conditions };
        let fates = |pauses: &[Sent]| {
            let pauses = pauses.iter().map(|(pause, _)| *pause).chain(std::iter::repeat(Duration::ZERO));
            let sent: Vec<_> = sent.iter().zip(pauses).map(|((_, length), pause)| (pause, *length)).collect();
            let (_, arrived) = run(&mut direction(&conditions, seed), begin, &sent);
            let mut packets: Vec<_> = arrived.into_iter().map(|(_, packet)| packet).collect();
            packets.sort();
            packets
        };
        prop_assert_eq!(fates(&sent), fates(&pauses));
    }
}
