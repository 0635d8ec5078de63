use std::net::UdpSocket;
use std::thread::JoinHandle;

use simple_dns::{ResourceRecord, rdata};

use super::*;

fn name() -> EndpointName {
    EndpointName::new("vpn.example.org", 51820).expect("a name")
}

/// Returns the datagrams that a server sends for a query.
type Answers = fn(Packet<'_>) -> Vec<Vec<u8>>;

/// Starts a name server on this machine that answers the given number of queries.
fn server(answers: Vec<Answers>) -> (SocketAddr, JoinHandle<()>) {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket
        .set_read_timeout(Some(Duration::from_secs(10)))
        .expect("a timeout");
    let address = socket.local_addr().expect("an address");
    let thread = std::thread::spawn(move || {
        for answer in answers {
            let mut buffer = [0; 512];
            let (length, from) = socket.recv_from(&mut buffer).expect("a question");
            let query = Packet::parse(&buffer[..length]).expect("a DNS message");
            assert!(query.has_flags(PacketFlag::RECURSION_DESIRED));
            assert_eq!(query.questions[0].qname.to_string(), "vpn.example.org");
            for datagram in answer(query) {
                socket.send_to(&datagram, from).expect("sent");
            }
        }
    });
    (address, thread)
}

/// Returns the answer to a query, with these records.
fn reply(query: Packet<'_>, records: &[rdata::RData<'static>]) -> Vec<u8> {
    let mut reply = query.into_reply();
    let owner = Name::new("vpn.example.org").expect("a name");
    for record in records {
        let record = ResourceRecord::new(owner.clone(), CLASS::IN, 60, record.clone());
        reply.answers.push(record);
    }
    reply.build_bytes_vec_compressed().expect("a message")
}

fn v4(last: u8) -> rdata::RData<'static> {
    rdata::RData::A(rdata::A {
        address: u32::from_be_bytes([192, 0, 2, last]),
    })
}

#[test]
fn both_families_with_the_port() {
    let (server, thread) = server(vec![
        |query| {
            let alias = Name::new("other.example.org").expect("a name");
            let alias = rdata::RData::CNAME(rdata::CNAME(alias));
            vec![reply(query, &[alias, v4(1), v4(2)])]
        },
        |query| {
            let address =
                u128::from_be_bytes([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
            vec![reply(query, &[rdata::RData::AAAA(rdata::AAAA { address })])]
        },
    ]);
    let expected = ["192.0.2.1:51820", "192.0.2.2:51820", "[2001:db8::1]:51820"];
    let expected = expected.map(|text| text.parse().expect("an address"));
    assert_eq!(ask(server, 0, &name()), expected);
    thread.join().expect("everything was asked");
}

/// The resolver ignores datagrams that do not belong to its query, and takes the real answer.
#[test]
fn answers_to_other_queries_are_ignored() {
    let (server, thread) = server(vec![
        |query| {
            let mut other_id = query.clone();
            other_id.set_id(query.id().wrapping_add(1));
            let mut other_name = query.clone();
            other_name.questions[0].qname = Name::new("evil.example.org").expect("a name");
            let mut other_type = query.clone();
            other_type.questions[0].qtype = TYPE::AAAA.into();
            let mut no_question = query.clone();
            no_question.questions.clear();
            let echo = query.build_bytes_vec().expect("a message");
            vec![
                b"nonsense".to_vec(),
                echo,
                reply(other_id, &[v4(66)]),
                reply(other_name, &[v4(66)]),
                reply(other_type, &[v4(66)]),
                reply(no_question, &[v4(66)]),
                reply(query, &[v4(1)]),
            ]
        },
        |query| vec![reply(query, &[])],
    ]);
    let expected: SocketAddr = "192.0.2.1:51820".parse().expect("an address");
    assert_eq!(ask(server, 0, &name()), [expected]);
    thread.join().expect("everything was asked");
}

#[test]
fn a_refused_query_has_no_address() {
    let refuse = |query: Packet<'_>| {
        let mut reply = query.into_reply();
        *reply.rcode_mut() = RCODE::NameError;
        vec![reply.build_bytes_vec().expect("a message")]
    };
    let (server, thread) = server(vec![refuse, refuse]);
    assert!(ask(server, 0, &name()).is_empty());
    thread.join().expect("everything was asked");
}

#[test]
fn a_silent_name_server_is_an_error_after_the_timeout() {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let address = socket.local_addr().expect("an address");
    let begun = Instant::now();
    assert!(query(address, 0, "a.example.org", TYPE::A).is_err());
    assert!(begun.elapsed() >= PATIENCE);
}

#[test]
fn name_servers_are_read_from_resolv_conf() {
    let text = "# nameserver 192.0.2.9\n; x\nsearch example.org\nnameserver 192.0.2.1\n\
                nameserver\t2001:db8::1 \nnameserver 127.0.0.53\nnameserver ::1\n\
                nameserver fe80::1%eth0\nnameserver\noptions edns0\n";
    let expected: [IpAddr; 2] = ["192.0.2.1", "2001:db8::1"].map(|text| text.parse().expect("ip"));
    assert!(name_servers(text).eq(expected));
}

#[test]
fn the_first_name_servers_are_remembered() {
    let resolver = SystemResolver::default();
    let learn = |text| resolver.learn(text);
    learn("nameserver 192.0.2.1\nnameserver 192.0.2.2\n");
    learn("nameserver 192.0.2.2\nnameserver 192.0.2.3\nnameserver 192.0.2.4\nnameserver 192.0.2.5");
    let servers = resolver.servers.lock().expect("nobody else");
    let expected: [IpAddr; 4] = [1, 2, 3, 4].map(|last| IpAddr::from([192, 0, 2, last]));
    assert_eq!(*servers, expected);
}
