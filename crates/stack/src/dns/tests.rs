use super::*;
use simple_dns::ResourceRecord;
use simple_dns::rdata::{A, AAAA, CNAME};
use std::sync::atomic::{AtomicU32, Ordering};

const SERVERS: [&str; 2] = ["10.0.0.1", "10.0.0.2"];

fn random() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(0x0001_0001, Ordering::Relaxed)
}

fn resolver(v4: bool, v6: bool) -> Resolver<u32> {
    let servers = SERVERS.map(|server| server.parse().unwrap());
    Resolver::new(servers.to_vec(), v4, v6, random)
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn at(seconds: u64) -> Instant {
    Instant(1_000_000_000_000) + Duration::from_secs(seconds)
}

/// A query that was sent.
struct Asked {
    server: SocketAddr,
    local_port: u16,
    message: Vec<u8>,
}

impl Asked {
    /// Returns a response with records `(owner, ttl, data)`.
    fn answer(&self, records: &[(&str, u32, RData<'static>)]) -> Vec<u8> {
        self.with(|packet| {
            for (owner, ttl, data) in records {
                let owner = simple_dns::Name::new(owner).unwrap().into_owned();
                let record = ResourceRecord::new(owner, CLASS::IN, *ttl, data.clone());
                packet.answers.push(record);
            }
        })
    }

    fn with(&self, change: impl FnOnce(&mut Packet<'_>)) -> Vec<u8> {
        let query = Packet::parse(&self.message).unwrap();
        let mut answer = Packet::new_reply(query.id());
        answer.questions = query.questions.clone();
        change(&mut answer);
        answer.build_bytes_vec().unwrap()
    }

    fn kind(&self) -> TYPE {
        let query = Packet::parse(&self.message).unwrap();
        match query.questions[0].qtype {
            simple_dns::QTYPE::TYPE(kind) => kind,
            _ => panic!("no kind"),
        }
    }
}

fn asked(resolver: &mut Resolver<u32>) -> Asked {
    match resolver.poll_output() {
        Some(Output::SendUdp {
            server,
            local_port,
            message,
        }) => Asked {
            server: SocketAddr::new(server, PORT),
            local_port,
            message,
        },
        _ => panic!("nothing is asked"),
    }
}

fn found(resolver: &mut Resolver<u32>) -> (u32, Result<Vec<String>, ConnectFailure>) {
    match resolver.poll_output() {
        Some(Output::Resolved { waiter, result }) => {
            let text = |addresses: Vec<IpAddr>| addresses.iter().map(ToString::to_string).collect();
            (waiter, result.map(text))
        }
        _ => panic!("nothing is found"),
    }
}

fn v4(text: &str) -> RData<'static> {
    let address: std::net::Ipv4Addr = text.parse().unwrap();
    RData::A(A {
        address: address.into(),
    })
}

fn v6(text: &str) -> RData<'static> {
    let address: std::net::Ipv6Addr = text.parse().unwrap();
    RData::AAAA(AAAA {
        address: address.into(),
    })
}

#[test]
fn one_look_up_serves_all_waiters_and_the_cache() {
    let mut resolver = resolver(true, true);
    resolver.resolve(at(0), &name("Example.org"), 1);
    resolver.resolve(at(0), &name("example.org."), 2);
    let (six, four) = (asked(&mut resolver), asked(&mut resolver));
    assert!(resolver.poll_output().is_none(), "asked twice");
    assert_eq!((six.kind(), four.kind()), (TYPE::AAAA, TYPE::A));
    assert_ne!(six.local_port, four.local_port);
    let answer = four.answer(&[
        ("example.org", 60, v4("192.0.2.1")),
        ("example.org", 30, v4("192.0.2.2")),
    ]);
    resolver.handle_udp_response(at(0), four.local_port, four.server, &answer);
    assert!(resolver.poll_output().is_none());
    let answer = six.answer(&[("example.org", 60, v6("2001:db8::1"))]);
    resolver.handle_udp_response(at(0), six.local_port, six.server, &answer);
    let all = ["2001:db8::1", "192.0.2.1", "192.0.2.2"]
        .map(str::to_owned)
        .to_vec();
    assert_eq!(found(&mut resolver), (1, Ok(all.clone())));
    assert_eq!(found(&mut resolver), (2, Ok(all.clone())));
    assert_eq!(resolver.next_deadline(), None);

    resolver.resolve(at(29), &name("example.org"), 3);
    assert_eq!(found(&mut resolver), (3, Ok(all)));
    resolver.resolve(at(30), &name("example.org"), 4);
    asked(&mut resolver);
}

#[test]
fn the_answer_of_one_family_suffices_after_a_delay() {
    let mut resolver = resolver(true, true);
    resolver.resolve(at(0), &name("a.example"), 1);
    let (_, four) = (asked(&mut resolver), asked(&mut resolver));
    let answer = four.answer(&[("a.example", 60, v4("192.0.2.1"))]);
    resolver.handle_udp_response(at(0), four.local_port, four.server, &answer);
    let due = resolver.next_deadline().unwrap();
    assert_eq!(due, at(0) + OTHER_FAMILY);
    resolver.handle_deadline(due);
    assert_eq!(found(&mut resolver), (1, Ok(vec!["192.0.2.1".into()])));
    assert_eq!(resolver.next_deadline(), None);
}

#[test]
fn packets_that_are_no_answer_are_ignored() {
    let mut resolver = resolver(true, false);
    resolver.resolve(at(0), &name("a.example"), 1);
    let query = asked(&mut resolver);
    let good = query.answer(&[("a.example", 60, v4("192.0.2.1"))]);
    let mut other_id = good.clone();
    other_id[1] ^= 1;
    let mut question = good.clone();
    question[13] ^= 1;
    let stranger = "10.0.0.9:53".parse().unwrap();
    let other_port = "10.0.0.1:54".parse().unwrap();
    for (port, from, message) in [
        (query.local_port, query.server, &other_id),
        (query.local_port, query.server, &question),
        (query.local_port, query.server, &query.message),
        (
            query.local_port,
            query.server,
            &good[..good.len() - 1].to_vec(),
        ),
        (query.local_port, stranger, &good),
        (query.local_port, other_port, &good),
        (query.local_port ^ 1, query.server, &good),
    ] {
        resolver.handle_udp_response(at(0), port, from, message);
        assert!(resolver.poll_output().is_none(), "{message:?}");
    }
    resolver.handle_udp_response(at(0), query.local_port, query.server, &good);
    assert_eq!(found(&mut resolver), (1, Ok(vec!["192.0.2.1".into()])));
}

#[test]
fn name_servers_are_tried_in_turn_until_a_timeout() {
    let mut resolver = resolver(true, false);
    resolver.resolve(at(0), &name("a.example"), 1);
    let mut ports = Vec::new();
    for (turn, server) in SERVERS.iter().cycle().take(TRIES).enumerate() {
        let query = asked(&mut resolver);
        assert_eq!(query.server.ip().to_string(), *server);
        ports.push(query.local_port);
        let due = resolver.next_deadline().unwrap();
        assert_eq!(due, at(2 * (turn as u64 + 1)));
        resolver.handle_deadline(due);
    }
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), TRIES, "each from a port of its own");
    assert_eq!(found(&mut resolver), (1, Err(ConnectFailure::NameServers)));
    // Server failures are not cached.
    resolver.resolve(at(8), &name("a.example"), 2);
    let query = asked(&mut resolver);
    let refused = query.with(|packet| *packet.rcode_mut() = RCODE::Refused);
    resolver.handle_udp_response(at(8), query.local_port, query.server, &refused);
    assert_eq!(asked(&mut resolver).server.ip().to_string(), SERVERS[1]);
}

#[test]
fn missing_names_are_remembered() {
    let mut resolver = resolver(true, true);
    resolver.resolve(at(0), &name("a.example"), 1);
    for query in [asked(&mut resolver), asked(&mut resolver)] {
        let nobody = query.with(|packet| *packet.rcode_mut() = RCODE::NameError);
        resolver.handle_udp_response(at(0), query.local_port, query.server, &nobody);
    }
    assert_eq!(found(&mut resolver), (1, Err(ConnectFailure::NoSuchName)));
    resolver.resolve(at(9), &name("a.example"), 2);
    assert_eq!(found(&mut resolver), (2, Err(ConnectFailure::NoSuchName)));
    resolver.resolve(at(10), &name("a.example"), 3);
    for query in [asked(&mut resolver), asked(&mut resolver)] {
        // Addresses of this machine are ignored.
        let records = [
            ("a.example", 60, v4("127.0.0.1")),
            ("a.example", 60, v6("::1")),
        ];
        let answer = query.answer(&records);
        resolver.handle_udp_response(at(10), query.local_port, query.server, &answer);
    }
    assert_eq!(found(&mut resolver), (3, Err(ConnectFailure::NoAddress)));
    resolver.resolve(at(10), &name("localhost"), 4);
    assert_eq!(found(&mut resolver), (4, Err(ConnectFailure::NoSuchName)));
    let mut nobody = Resolver::new(Vec::new(), true, true, random);
    nobody.resolve(at(0), &name("a.example"), 5);
    assert_eq!(found(&mut nobody), (5, Err(ConnectFailure::NoNameServers)));
}

#[test]
fn aliases_are_followed_and_unrelated_records_ignored() {
    let mut resolver = resolver(true, false);
    resolver.resolve(at(0), &name("a.example"), 1);
    let query = asked(&mut resolver);
    let alias = |text: &'static str| RData::CNAME(CNAME(simple_dns::Name::new(text).unwrap()));
    let answer = query.answer(&[
        ("c.example", 60, v4("192.0.2.1")),
        ("d.example", 60, v4("192.0.2.9")),
        ("b.example", 60, alias("C.example")),
        ("A.example", 5, alias("b.example")),
    ]);
    resolver.handle_udp_response(at(0), query.local_port, query.server, &answer);
    assert_eq!(found(&mut resolver), (1, Ok(vec!["192.0.2.1".into()])));
    resolver.resolve(at(5), &name("a.example"), 2);
    let query = asked(&mut resolver);
    // Two aliases form a loop.
    let answer = query.answer(&[
        ("a.example", 60, alias("b.example")),
        ("b.example", 60, alias("a.example")),
    ]);
    resolver.handle_udp_response(at(5), query.local_port, query.server, &answer);
    assert_eq!(found(&mut resolver), (2, Err(ConnectFailure::NoAddress)));
}

#[test]
fn a_truncated_answer_is_retried_over_tcp() {
    let mut resolver = resolver(true, false);
    resolver.resolve(at(0), &name("a.example"), 1);
    let query = asked(&mut resolver);
    let cut = query.with(|packet| packet.set_flags(PacketFlag::TRUNCATION));
    resolver.handle_udp_response(at(0), query.local_port, query.server, &cut);
    let Some(Output::SendTcp {
        server,
        local_port,
        message,
    }) = resolver.poll_output()
    else {
        panic!("not asked over TCP");
    };
    assert_eq!((server, local_port), (query.server.ip(), query.local_port));
    assert_eq!(message, query.message);
    assert!(resolver.is_over_tcp(local_port) && !resolver.is_over_tcp(local_port ^ 1));
    let answer = query.answer(&[("a.example", 60, v4("192.0.2.1"))]);
    resolver.handle_udp_response(at(0), local_port, query.server, &answer);
    assert!(resolver.poll_output().is_none(), "over UDP");
    resolver.handle_tcp_response(at(0), local_port, Some(&answer));
    assert_eq!(found(&mut resolver), (1, Ok(vec!["192.0.2.1".into()])));

    resolver.resolve(at(60), &name("a.example"), 2);
    let query = asked(&mut resolver);
    let cut = query.with(|packet| packet.set_flags(PacketFlag::TRUNCATION));
    resolver.handle_udp_response(at(60), query.local_port, query.server, &cut);
    resolver.poll_output();
    resolver.handle_tcp_response(at(60), query.local_port, None);
    assert_eq!(asked(&mut resolver).server.ip().to_string(), SERVERS[1]);
}

#[test]
fn a_query_with_many_wrong_answers_is_repeated_over_tcp() {
    let mut resolver = resolver(true, false);
    resolver.resolve(at(0), &name("a.example"), 1);
    let query = asked(&mut resolver);
    let right = query.answer(&[("a.example", 60, v4("192.0.2.1"))]);
    let mut forged = query.answer(&[("a.example", 60, v4("192.0.2.66"))]);
    for id in 0..MAX_WRONG {
        assert!(resolver.poll_output().is_none(), "after {id}");
        forged[..2].copy_from_slice(&(id as u16).to_be_bytes());
        // Never the ID of the query.
        forged[0] = !right[0];
        resolver.handle_udp_response(at(0), query.local_port, query.server, &forged);
    }
    let Some(Output::SendTcp { local_port, .. }) = resolver.poll_output() else {
        panic!("not over TCP");
    };
    // A guess that is right comes too late.
    resolver.handle_udp_response(at(0), query.local_port, query.server, &right);
    assert!(resolver.poll_output().is_none());
    resolver.handle_tcp_response(at(0), local_port, Some(&right));
    let expected = Ok(vec!["192.0.2.1".to_owned()]);
    assert_eq!(found(&mut resolver), (1, expected));
}

#[test]
fn memory_is_bounded() {
    let mut resolver = resolver(true, false);
    for number in 0..2 * MAX_CACHED {
        let name = name(&format!("{number}.example"));
        resolver.resolve(at(0), &name, 1);
        let query = asked(&mut resolver);
        let answer = query.answer(&[]);
        resolver.handle_udp_response(at(0), query.local_port, query.server, &answer);
        found(&mut resolver).1.unwrap_err();
    }
    assert_eq!(resolver.cache.len(), MAX_CACHED);
    for number in 0..=MAX_LOOKUPS as u32 {
        resolver.resolve(at(100), &name(&format!("{number}.example")), number);
    }
    let outputs: Vec<_> = std::iter::from_fn(|| resolver.poll_output()).collect();
    let last = outputs.last();
    assert!(matches!(
        last,
        Some(Output::Resolved {
            result: Err(ConnectFailure::Busy),
            ..
        })
    ));
}

#[test]
fn alias_chains_are_followed_up_to_a_limit() {
    for (aliases, result) in [
        (MAX_ALIASES, Ok(vec!["192.0.2.1".into()])),
        (MAX_ALIASES + 1, Err(ConnectFailure::NoAddress)),
    ] {
        let mut resolver = resolver(true, false);
        resolver.resolve(at(0), &name("0.example"), 1);
        let query = asked(&mut resolver);
        let alias = |to: usize| {
            let to = simple_dns::Name::new(&format!("{to}.example"))
                .unwrap()
                .into_owned();
            RData::CNAME(CNAME(to))
        };
        let names: Vec<_> = (0..=aliases).map(|one| format!("{one}.example")).collect();
        let mut records: Vec<_> = (0..aliases)
            .map(|one| (names[one].as_str(), 60, alias(one + 1)))
            .collect();
        records.push((names[aliases].as_str(), 60, v4("192.0.2.1")));
        let answer = query.answer(&records);
        resolver.handle_udp_response(at(0), query.local_port, query.server, &answer);
        assert_eq!(found(&mut resolver).1, result, "{aliases} aliases");
    }
}
