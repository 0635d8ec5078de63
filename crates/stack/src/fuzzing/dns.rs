//! Responses of hostile name servers.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use simple_dns::rdata::{A, AAAA, CNAME, RData};
use simple_dns::{CLASS, Packet, PacketFlag, RCODE, ResourceRecord};
use taupe_protocol::time::Instant;

use crate::address::{Name, is_routable};
use crate::dns::{Output, PORT, Resolver};

const NAME: &str = "example.org";

const SERVERS: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)),
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)),
];

/// Identifier of every query.
const ID: u16 = 7;

/// Deadlines after which each look-up has ended: those of all attempts for two families.
const MAX_DEADLINES: usize = 64;

/// Reads `data` as responses to the queries for one name. Before each response a byte selects the query,
/// and if the response comes by TCP, or the time of a query ends; two bytes give its length.
///
/// The look-up ends once, with at most 16 addresses, each of which a proxy may connect to.
///
/// # Panics
///
/// If the resolver has a defect.
pub fn dns(mut data: &[u8]) {
    let mut now = Instant(1_000_000_000_000);
    // An identifier and a port; the second query takes the next port.
    let random = || 0x0100_0000 | u32::from(ID);
    let mut resolver = Resolver::new(SERVERS.to_vec(), true, true, random);
    let name = Name::new(NAME).expect("a name");
    resolver.resolve(now, &name, ());
    let mut queries = Vec::new();
    let mut results = 0;
    while let [control, low, high, rest @ ..] = data {
        results += poll(&mut resolver, &mut queries);
        let length = usize::from(u16::from_le_bytes([*low, *high]));
        let (message, rest) = rest.split_at(length.min(rest.len()));
        data = rest;
        let Some((server, port)) = queries.get(usize::from(control & 0x0f)).copied() else {
            continue;
        };
        match control >> 4 & 3 {
            0 | 1 => {
                let from = SocketAddr::new(server, PORT);
                resolver.handle_udp_response(now, port, from, message);
            }
            2 => {
                let message = Some(message).filter(|it| !it.is_empty());
                resolver.handle_tcp_response(now, port, message);
            }
            _ => {
                now += Duration::from_millis(500);
                resolver.handle_deadline(now);
            }
        }
    }
    for _ in 0..MAX_DEADLINES {
        results += poll(&mut resolver, &mut queries);
        let Some(due) = resolver.next_deadline() else {
            break;
        };
        now = now.max(due);
        resolver.handle_deadline(now);
    }
    assert_eq!(results, 1, "results of one look-up");
    // The cache, or another look-up.
    resolver.resolve(now, &name, ());
    poll(&mut resolver, &mut queries);
}

/// Takes the outputs: notes queries with their server and port, and counts results.
fn poll(resolver: &mut Resolver<()>, queries: &mut Vec<(IpAddr, u16)>) -> usize {
    let mut results = 0;
    while let Some(output) = resolver.poll_output() {
        match output {
            Output::SendUdp {
                server, local_port, ..
            } => queries.push((server, local_port)),
            Output::SendTcp { local_port, .. } => assert!(resolver.is_over_tcp(local_port)),
            Output::Resolved { result, .. } => {
                let found = result.unwrap_or_default();
                assert!(found.len() <= 16 && found.iter().all(|it| is_routable(*it)));
                results += 1;
            }
        }
    }
    results
}

/// Returns responses of each kind.
///
/// # Panics
///
/// Never: the messages can be written.
#[must_use]
pub fn dns_seeds() -> Vec<Vec<u8>> {
    let mut resolver = Resolver::new(SERVERS.to_vec(), true, true, || u32::from(ID));
    let name = Name::new(NAME).expect("a name");
    resolver.resolve(Instant::default(), &name, ());
    let mut queries = Vec::new();
    while let Some(output) = resolver.poll_output() {
        if let Output::SendUdp { message, .. } = output {
            queries.push(message);
        }
    }
    let response = |query: usize, change: &dyn Fn(&mut Packet<'_>)| {
        let query = Packet::parse(&queries[query]).expect("a query");
        let mut response = Packet::new_reply(query.id());
        response.questions.clone_from(&query.questions);
        change(&mut response);
        response.build_bytes_vec().expect("a message")
    };
    let record = |owner: &'static str, data: RData<'static>| {
        let owner = simple_dns::Name::new(owner).expect("a name");
        ResourceRecord::new(owner, CLASS::IN, 300, data)
    };
    let alias =
        |target: &'static str| RData::CNAME(CNAME(simple_dns::Name::new(target).expect("a name")));
    let v4 = |last: u8| {
        RData::A(A {
            address: u32::from_be_bytes([192, 0, 2, last]),
        })
    };
    let v6 = RData::AAAA(AAAA {
        address: 0x2001_0db8 << 96 | 1,
    });
    let step = |control: u8, message: &[u8]| {
        let length = (message.len() as u16).to_le_bytes();
        [&[control][..], &length, message].concat()
    };
    // The first query is for IPv6, the second for IPv4.
    let of_v6 = response(0, &|it| it.answers.push(record(NAME, v6.clone())));
    let of_v4 = response(1, &|it| {
        it.answers.push(record(NAME, v4(1)));
        it.answers.push(record("other.example", v4(2)));
    });
    let aliased = response(1, &|it| {
        it.answers.push(record(NAME, alias("a.example")));
        it.answers.push(record("a.example", alias("b.example")));
        it.answers.push(record("b.example", v4(3)));
    });
    let circle = response(1, &|it| {
        it.answers.push(record(NAME, alias("a.example")));
        it.answers.push(record("a.example", alias(NAME)));
    });
    let many = response(1, &|it| {
        it.answers
            .extend((0..40).map(|last| record(NAME, v4(last))));
    });
    let local = response(1, &|it| {
        let address = u32::from_be_bytes([127, 0, 0, 1]);
        it.answers.push(record(NAME, RData::A(A { address })));
    });
    let cut = response(1, &|it| it.set_flags(PacketFlag::TRUNCATION));
    let none = response(1, &|it| *it.rcode_mut() = RCODE::NameError);
    let refused = response(1, &|it| *it.rcode_mut() = RCODE::Refused);
    let empty = response(0, &|_| ());
    let mut seeds = vec![
        [step(0, &of_v6), step(1, &of_v4)].concat(),
        [step(0, &empty), step(1, &none)].concat(),
        [step(1, &refused), step(2, &refused), step(3, &of_v4)].concat(),
        [step(1, &cut), step(0x21, &of_v4)].concat(),
        [step(1, &cut), step(0x21, &[])].concat(),
        [step(0, &of_v6), step(0x30, &[]), step(0x30, &[])].concat(),
        step(0x30, &[]).repeat(20),
    ];
    for message in [
        &of_v6, &of_v4, &aliased, &circle, &many, &local, &cut, &none,
    ] {
        seeds.push(step(1, message));
        seeds.push(step(1, &message[..message.len() - 5]));
    }
    seeds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_find_no_defect() {
        dns_seeds().iter().for_each(|seed| dns(seed));
    }

    #[test]
    fn a_seed_resolves_the_name() {
        let seed = dns_seeds().swap_remove(0);
        let mut resolver = Resolver::new(SERVERS.to_vec(), true, true, || u32::from(ID));
        let name = Name::new(NAME).expect("a name");
        let now = Instant::default();
        resolver.resolve(now, &name, ());
        let mut queries = Vec::new();
        poll(&mut resolver, &mut queries);
        let (server, port) = queries[0];
        let length = usize::from(u16::from_le_bytes([seed[1], seed[2]]));
        let from = SocketAddr::new(server, PORT);
        resolver.handle_udp_response(now, port, from, &seed[3..3 + length]);
        assert!(resolver.next_deadline() < Some(now + Duration::from_secs(1)));
    }
}
