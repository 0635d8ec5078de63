use std::{collections::HashMap, time::Duration};

use proptest::prelude::*;

use super::*;

const START: Instant = Instant(1_000_000_000_000);

fn table(capacity: usize) -> Table {
    Table::new(capacity, Arc::default())
}

fn end(ip: u128, port: u16) -> End {
    End { ip, port }
}

/// Returns the tuple from a local address and port to port 443 of host `remote`.
fn tuple(protocol: u8, local: (u128, u16), remote: u128) -> Tuple {
    Tuple {
        family: Family::V4,
        protocol,
        local: end(local.0, local.1),
        remote: end(remote, 443),
    }
}

const TUNNEL: u128 = 0x0a42_0002;
const UPLINK: u128 = 0xc0a8_010a;

fn outer(inner: &Tuple) -> Tuple {
    let mut outer = *inner;
    outer.local.ip = TUNNEL;
    outer
}

fn open(table: &mut Table, now: Instant, inner: Tuple) -> Result<Index, OpenError> {
    table.open(now, inner, outer(&inner), Opener::Application)
}

fn open_from_peer(table: &mut Table, now: Instant, inner: Tuple) -> Result<Index, OpenError> {
    table.open(now, inner, outer(&inner), Opener::Peer)
}

#[track_caller]
fn lives_exactly(table: &mut Table, since: Instant, inner: &Tuple, state: Duration) {
    let just_before = since + state - Duration::from_nanos(1);
    assert!(
        table.find_inner(just_before, inner).is_some(),
        "just before"
    );
    assert!(table.find_outer(just_before, &outer(inner)).is_some());
    assert!(
        table.find_inner(since + state, inner).is_none(),
        "at the end"
    );
    assert!(table.find_outer(since + state, &outer(inner)).is_none());
}

#[test]
fn a_new_port_only_where_the_own_is_taken() {
    let mut table = table(100);
    let first = tuple(ip::TCP, (UPLINK, 5000), 1);
    let index = open(&mut table, START, first).unwrap();
    assert_eq!(table.flow(index).outer, outer(&first));
    // The same port of another local address, to another host.
    let other_host = tuple(ip::TCP, (UPLINK + 1, 5000), 2);
    let index = open(&mut table, START, other_host).unwrap();
    assert_eq!(table.flow(index).outer.local.port, 5000);
    // The same remote host and port from another uplink.
    let clash = tuple(ip::TCP, (UPLINK + 1, 5000), 1);
    let index = open(&mut table, START, clash).unwrap();
    let given = table.flow(index).outer;
    assert!(DYNAMIC_PORTS.contains(&given.local.port));
    assert_eq!(table.find_outer(START, &given), Some(index));
    assert_eq!(table.find_inner(START, &clash), Some(index));
    // A protocol without ports cannot have a second flow to the same host.
    open(&mut table, START, tuple(47, (UPLINK, 0), 1)).unwrap();
    let second = open(&mut table, START, tuple(47, (UPLINK + 1, 0), 1));
    assert_eq!(second, Err(OpenError::Port));
}

#[test]
fn ports_run_out() {
    let mut table = table(1000);
    for i in 0..=u128::from(TRIED_PORTS) {
        table.next_port = 60_000;
        let opened = open(&mut table, START, tuple(ip::UDP, (UPLINK + i, 5000), 1));
        assert!(opened.is_ok(), "{i}");
    }
    table.next_port = 60_000;
    let more = open(&mut table, START, tuple(ip::UDP, (1, 5000), 1));
    assert_eq!(more, Err(OpenError::Port));
    // After the last port comes the first.
    table.next_port = 65_535;
    for port in [65_535, 49_152] {
        let index = open(&mut table, START, tuple(ip::UDP, (port, 5000), 1)).unwrap();
        assert_eq!(u128::from(table.flow(index).outer.local.port), port);
    }
}

#[test]
fn udp_and_icmp_live_as_the_rfcs_ask() {
    for (protocol, answered, state) in [
        (ip::UDP, false, 300),
        (ip::UDP, true, 300),
        (ip::ICMP, true, 60),
        (47, true, 300),
    ] {
        let mut table = table(100);
        let inner = tuple(protocol, (UPLINK, 5000), 1);
        let index = open(&mut table, START, inner).unwrap();
        table.touch(START, index, Direction::Out, 0);
        let mut last = START;
        if answered {
            last = START + Duration::from_secs(7);
            table.touch(last, index, Direction::In, 0);
        }
        lives_exactly(&mut table, last, &inner, Duration::from_secs(state));
        assert_eq!(table.len(), 0);
    }
}

#[test]
fn questions_are_soon_forgotten() {
    let mut table = table(100);
    let mut inner = tuple(ip::UDP, (UPLINK, 5000), 1);
    inner.remote.port = 53;
    let index = open(&mut table, START, inner).unwrap();
    table.touch(START, index, Direction::Out, 0);
    table.touch(START, index, Direction::In, 0);
    lives_exactly(&mut table, START, &inner, Duration::from_secs(30));
}

#[test]
fn tcp_lives_long_between_handshake_and_end() {
    use tcp::{ACK, FIN, RST, SYN};
    const SHORT: Duration = Duration::from_secs(240);
    const LONG: Duration = Duration::from_secs(7440);
    let handshake = [
        (Direction::Out, SYN),
        (Direction::In, SYN | ACK),
        (Direction::Out, ACK),
    ];
    let and = |more: &[(Direction, u8)]| [&handshake[..], more].concat();
    for (packets, state) in [
        (handshake[..1].to_vec(), SHORT),
        (handshake[..2].to_vec(), SHORT),
        (and(&[]), LONG),
        // First seen in the middle.
        (vec![(Direction::Out, ACK), (Direction::In, ACK)], LONG),
        (vec![(Direction::In, ACK)], SHORT),
        // Closed by one side, and by both.
        (
            and(&[(Direction::Out, FIN | ACK), (Direction::In, ACK)]),
            LONG,
        ),
        (
            and(&[
                (Direction::Out, FIN | ACK),
                (Direction::In, FIN | ACK),
                (Direction::Out, ACK),
            ]),
            SHORT,
        ),
        (and(&[(Direction::In, RST)]), SHORT),
        // Opened again with the same ports.
        (
            and(&[
                (Direction::Out, RST),
                (Direction::Out, SYN),
                (Direction::In, SYN | ACK),
                (Direction::Out, ACK),
            ]),
            LONG,
        ),
        // A SYN from a peer does not shorten the life of a connection.
        (and(&[(Direction::In, SYN)]), LONG),
        (and(&[(Direction::In, RST), (Direction::In, SYN)]), SHORT),
    ] {
        let mut table = table(100);
        let inner = tuple(ip::TCP, (UPLINK, 5000), 1);
        let index = open(&mut table, START, inner).unwrap();
        let mut now = START;
        for &(direction, flags) in &packets {
            now += Duration::from_secs(1);
            table.touch(now, index, direction, flags);
        }
        lives_exactly(&mut table, now, &inner, state);
    }
}

#[test]
fn nobody_keeps_an_unanswered_flow_alive_from_outside() {
    let mut table = table(100);
    let inner = tuple(ip::UDP, (UPLINK, 6881), 1);
    let index = open_from_peer(&mut table, START, inner).unwrap();
    for second in 0..10 {
        let now = START + Duration::from_secs(second);
        table.touch(now, index, Direction::In, 0);
        assert_eq!(table.flow(index).state(), FlowState::Unanswered);
    }
    lives_exactly(&mut table, START, &inner, Duration::from_secs(10));
}

#[test]
fn an_answer_makes_a_peers_flow_an_ordinary_one() {
    use tcp::{ACK, SYN};
    let mut table = table(100);
    let udp = tuple(ip::UDP, (UPLINK, 6881), 1);
    let index = open_from_peer(&mut table, START, udp).unwrap();
    table.touch(START, index, Direction::In, 0);
    table.touch(START, index, Direction::Out, 0);
    lives_exactly(&mut table, START, &udp, Duration::from_secs(300));

    let inner = tuple(ip::TCP, (UPLINK, 6881), 1);
    let index = open_from_peer(&mut table, START, inner).unwrap();
    table.touch(START, index, Direction::In, SYN);
    assert_eq!(table.flow(index).state(), FlowState::Unanswered);
    table.touch(START, index, Direction::Out, SYN | ACK);
    assert_eq!(table.flow(index).state(), FlowState::Transitory);
    table.touch(START, index, Direction::In, ACK);
    assert_eq!(table.flow(index).state(), FlowState::Established);
}

/// A cached flow is looked up again after the generation has changed.
#[test]
fn the_generation_changes_with_what_was_learnt() {
    use tcp::{ACK, RST, SYN};
    let mut table = table(2);
    let generation = Arc::clone(&table.generation);
    let changed = |before: &mut u64| {
        let after = generation.load(Ordering::Acquire);
        std::mem::replace(before, after) != after
    };
    let mut last = 0;
    let inner = tuple(ip::TCP, (UPLINK, 5000), 1);
    let index = open(&mut table, START, inner).unwrap();
    for (direction, flags) in [
        (Direction::Out, SYN),
        (Direction::In, SYN | ACK),
        (Direction::Out, ACK),
        (Direction::In, RST),
    ] {
        table.touch(START, index, direction, flags);
        assert!(!changed(&mut last), "{direction:?} {flags}");
    }
    table.touch(START, index, Direction::Out, SYN);
    assert!(changed(&mut last), "a new connection");
    open(&mut table, START, tuple(ip::TCP, (UPLINK, 5000), 2)).unwrap();
    assert!(!changed(&mut last));
    open(&mut table, START, tuple(ip::TCP, (UPLINK, 5000), 3)).unwrap();
    assert!(changed(&mut last), "one gave way");
    let expired = START + Duration::from_secs(240);
    let third = tuple(ip::TCP, (UPLINK, 5000), 3);
    assert!(table.find_inner(expired, &third).is_none());
    assert!(changed(&mut last), "one expired");
}

#[test]
fn a_full_table_gives_up_what_is_oldest_and_not_in_use() {
    use tcp::{ACK, SYN};
    let mut table = table(4);
    let at = |second| START + Duration::from_secs(second);
    let established = tuple(ip::TCP, (UPLINK, 1), 1);
    let index = open(&mut table, at(0), established).unwrap();
    table.touch(at(0), index, Direction::Out, ACK);
    table.touch(at(0), index, Direction::In, ACK);
    let asked = tuple(ip::UDP, (UPLINK, 2), 1);
    let index = open(&mut table, at(1), asked).unwrap();
    table.touch(at(1), index, Direction::Out, 0);
    let opening = tuple(ip::TCP, (UPLINK, 3), 1);
    let index = open(&mut table, at(2), opening).unwrap();
    table.touch(at(2), index, Direction::Out, SYN);
    let ping = tuple(ip::ICMP, (UPLINK, 4), 1);
    open(&mut table, at(3), ping).unwrap();
    // The second flow is used again, so the third is the oldest.
    let index = table.find_inner(at(4), &asked).unwrap();
    table.touch(at(4), index, Direction::Out, 0);
    for (i, gone) in [opening, ping, asked].into_iter().enumerate() {
        let new = tuple(ip::TCP, (UPLINK, 100 + i as u16), 1);
        let index = open(&mut table, at(5), new).unwrap();
        table.touch(at(5), index, Direction::Out, ACK);
        table.touch(at(5), index, Direction::In, ACK);
        assert_eq!(table.find_inner(at(5), &gone), None, "{gone:?}");
        assert_eq!(table.len(), 4);
    }
    let more = open(&mut table, at(5), tuple(ip::TCP, (UPLINK, 200), 1));
    assert_eq!(more, Err(OpenError::Full));
    assert!(table.find_inner(at(5), &established).is_some());
    // Expired flows are removed when room is needed.
    let later = at(5) + FlowState::Established.timeout();
    assert!(open(&mut table, later, tuple(ip::TCP, (UPLINK, 200), 1)).is_ok());
}

#[test]
fn a_peer_displaces_nobody_but_itself() {
    let mut table = table(80);
    let own: Vec<_> = (0..40).map(|i| tuple(ip::TCP, (UPLINK, i), 1)).collect();
    for &inner in &own {
        open(&mut table, START, inner).unwrap();
    }
    for i in 0..10_000 {
        let opened = open_from_peer(&mut table, START, tuple(ip::UDP, (UPLINK, 6881), i));
        assert!(opened.is_ok());
        assert!(table.len() <= 40 + 80 / UNANSWERED_SHARE);
    }
    assert!(
        own.iter()
            .all(|inner| table.find_inner(START, inner).is_some())
    );
    // The newest flows have a chance of being answered.
    let newest = tuple(ip::UDP, (UPLINK, 6881), 9_999);
    assert!(table.find_inner(START, &newest).is_some());
}

#[test]
fn a_peer_finds_no_room_in_a_table_full_of_others() {
    let mut table = table(80);
    for i in 0..80 {
        open(&mut table, START, tuple(ip::UDP, (UPLINK, i), 1)).unwrap();
    }
    let opened = open_from_peer(&mut table, START, tuple(ip::UDP, (UPLINK, 6881), 2));
    assert_eq!(opened, Err(OpenError::Full));
    assert_eq!(table.len(), 80);
}

#[test]
fn answered_flows_of_peers_have_a_share_too() {
    use tcp::{ACK, SYN};
    let mut table = table(80);
    let share = 80 / PEER_SHARE as u128;
    let udp = |i| tuple(ip::UDP, (UPLINK, 6881), i);
    for i in 0..2 * share {
        let now = START + Duration::from_secs(i as u64);
        let index = open_from_peer(&mut table, now, udp(i)).unwrap();
        table.touch(now, index, Direction::Out, 0);
        table.touch(now, index, Direction::In, 0);
        assert_eq!(table.flow(index).state(), FlowState::UdpFromPeer);
    }
    // The newest flows have displaced the oldest.
    let now = START + Duration::from_secs(80);
    assert_eq!(table.len() as u128, share);
    assert_eq!(table.find_inner(now, &udp(share - 1)), None);
    assert!(table.find_inner(now, &udp(share)).is_some());
    // Flows of applications still have room.
    for i in 0..40 {
        open(&mut table, now, tuple(ip::TCP, (UPLINK, i), 1)).unwrap();
    }
    assert_eq!(table.len(), 80);
    // Connections displace datagrams, and nothing displaces connections.
    let tcp = |i| tuple(ip::TCP, (UPLINK, 6881), i);
    for i in 0..share {
        let index = open_from_peer(&mut table, now, tcp(i)).unwrap();
        table.touch(now, index, Direction::In, SYN);
        table.touch(now, index, Direction::Out, SYN | ACK);
        table.touch(now, index, Direction::In, ACK);
    }
    let more = open_from_peer(&mut table, now, udp(1000));
    assert_eq!(more, Err(OpenError::PeerShare));
    let removed = table.find_inner(now, &tcp(7)).unwrap();
    table.remove(removed);
    assert!(open_from_peer(&mut table, now, udp(1000)).is_ok());
}

#[test]
fn a_peer_cannot_open_what_the_application_has_elsewhere() {
    let mut table = table(80);
    let taken = tuple(ip::UDP, (UPLINK + 1, 5000), 1);
    open(&mut table, START, taken).unwrap();
    // The other flow has another port in the tunnel, so this port is free there.
    let inner = tuple(ip::UDP, (UPLINK, 5000), 1);
    open(&mut table, START, inner).unwrap();
    let index = table.find_inner(START, &taken).unwrap();
    table.remove(index);
    assert_eq!(
        open_from_peer(&mut table, START, inner),
        Err(OpenError::Port)
    );
}

#[derive(Clone, Debug)]
enum Step {
    Wait(u64),
    Open {
        from_peer: bool,
        protocol: u8,
        uplink: u8,
        port: u8,
        remote: u8,
    },
    Touch {
        which: usize,
        out: bool,
        flags: u8,
    },
    Remove {
        which: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let protocol = prop::sample::select(vec![ip::TCP, ip::UDP, ip::ICMP, 47]);
    prop_oneof![
        1 => (0u64..400).prop_map(Step::Wait),
        8 => (any::<bool>(), protocol, 0u8..3, 0u8..4, 0u8..4).prop_map(
            |(from_peer, protocol, uplink, port, remote)| Step::Open {
                from_peer, protocol, uplink, port, remote,
            }
        ),
        6 => (any::<usize>(), any::<bool>(), 0u8..32)
            .prop_map(|(which, out, flags)| Step::Touch { which, out, flags }),
        1 => any::<usize>().prop_map(|which| Step::Remove { which }),
    ]
}

/// Checks that every lookup leads to the same flows, and that no two flows share an inner or outer
/// tuple.
fn check(table: &Table, capacity: usize) {
    let flows: Vec<_> = table.slots.iter().flatten().collect();
    assert_eq!(flows.len(), table.len());
    assert!(flows.len() <= capacity);
    assert_eq!(
        (table.inner.len(), table.outer.len()),
        (flows.len(), flows.len())
    );
    let mut names = HashMap::new();
    for flow in &flows {
        assert!(
            names
                .insert((0, flow.inner.hash(&table.hashing)), flow.inner)
                .is_none()
        );
        assert!(
            names
                .insert((1, flow.outer.hash(&table.hashing)), flow.outer)
                .is_none()
        );
    }
    let peers = flows
        .iter()
        .filter(|flow| flow.opener == Opener::Peer)
        .count();
    assert_eq!(peers, table.opened_by_peers);
    assert!(peers <= capacity / PEER_SHARE);
    assert!(table.lists[FlowState::Unanswered as usize].len <= capacity / UNANSWERED_SHARE);
    let mut linked = 0;
    for (state, list) in table.lists.iter().enumerate() {
        let (mut index, mut older, mut len, mut used) = (list.oldest, NONE, 0, Instant(0));
        while index != NONE {
            let link = flow(&table.slots, index).link;
            assert_eq!((link.state as usize, link.older), (state, older));
            assert!(link.used >= used, "in order of use");
            (older, index, used) = (index, link.newer, link.used);
            len += 1;
        }
        assert_eq!((list.newest, list.len), (older, len));
        linked += len;
    }
    assert_eq!(linked, flows.len());
}

proptest! {
    /// Compares the table with a list of the opened flows. Each lookup finds the flow that was
    /// opened. A flow that is not found has expired, been displaced or been removed.
    #[test]
    fn whatever_happens_names_are_never_shared(
        steps in prop::collection::vec(step(), 0..200), capacity in 8usize..40,
    ) {
        let mut table = table(capacity);
        let mut now = START;
        let mut opened: HashMap<String, (Tuple, Tuple)> = HashMap::new();
        for step in steps {
            match step {
                Step::Wait(seconds) => now += Duration::from_secs(seconds),
                Step::Open { from_peer, protocol, uplink, port, remote } => {
                    let port = if protocol == 47 { 0 } else { port.into() };
                    let inner = tuple(protocol, (UPLINK + u128::from(uplink), port), remote.into());
                    let found = if from_peer {
                        table.find_outer(now, &outer(&inner))
                    } else {
                        table.find_inner(now, &inner)
                    };
                    if let Some(index) = found {
                        let flow = table.flow(index);
                        prop_assert_eq!(opened[&format!("{:?}", flow.inner)], (flow.inner, flow.outer));
                    } else if let Ok(index) = if from_peer {
                        open_from_peer(&mut table, now, inner)
                    } else {
                        open(&mut table, now, inner)
                    } {
                        let flow = table.flow(index);
                        prop_assert_eq!(flow.inner, inner);
                        prop_assert_eq!(flow.outer.remote, inner.remote);
                        opened.insert(format!("{inner:?}"), (flow.inner, flow.outer));
                        prop_assert_eq!(table.find_inner(now, &inner), Some(index));
                    }
                }
                Step::Touch { which, out, flags } => {
                    if let Some(index) = pick(&table, which) {
                        let direction = if out { Direction::Out } else { Direction::In };
                        table.touch(now, index, direction, flags);
                    }
                }
                Step::Remove { which } => {
                    if let Some(index) = pick(&table, which) {
                        let inner = table.flow(index).inner;
                        table.remove(index);
                        prop_assert_eq!(table.find_inner(now, &inner), None);
                    }
                }
            }
            check(&table, capacity);
        }
    }
}

fn pick(table: &Table, which: usize) -> Option<Index> {
    let used: Vec<_> = (0..table.slots.len())
        .filter(|&i| table.slots[i].is_some())
        .collect();
    let index = used.get(which % used.len().max(1))?;
    Some(Index(*index as u32))
}
