//! Choice of the name server.

use std::time::Duration;

use super::*;

const LOCAL: &str = V4.local;
const SERVERS: [&str; 2] = ["10.66.0.1", "10.66.0.9"];

fn question(port: u16) -> Vec<u8> {
    udp(socket(LOCAL, port), socket(V4.public_dns, 53), b"q")
}

/// Returns the index of the server that a packet goes to.
fn server(packet: &[u8]) -> usize {
    let to = View::parse(packet).unwrap().outgoing().remote.ip;
    let is = |text: &str| number(address(text)).1 == to;
    SERVERS.iter().position(|text| is(text)).expect("a server")
}

fn answer(tunnel: &mut Tunnel, asked: &[u8]) {
    let View { source, .. } = View::parse(asked).unwrap();
    assert_eq!(source, number(address(V4.tunnel)).1);
    let port = View::parse(asked).unwrap().outgoing().local.port;
    let from = socket(SERVERS[server(asked)], 53);
    tunnel.receive(&udp(from, socket(V4.tunnel, port), b"a"));
}

#[test]
fn a_silent_server_gives_its_turn_to_the_next() {
    let mut tunnel = Tunnel::new();
    assert_eq!(server(&tunnel.send(&question(5000))), 0);
    // A second query at the same time is no repetition.
    tunnel.wait(Duration::from_millis(999));
    assert_eq!(server(&tunnel.send(&question(5000))), 0);
    assert_eq!(server(&tunnel.send(&question(5001))), 0);
    tunnel.wait(Duration::from_millis(1));
    // From the same port, as the C library does, and from another.
    let again = tunnel.send(&question(5000));
    assert_eq!(server(&again), 1);
    assert_eq!(server(&tunnel.send(&question(5002))), 1);
    answer(&mut tunnel, &again);
    tunnel.wait(Duration::from_secs(60));
    let later = tunnel.send(&question(5003));
    assert_eq!(server(&later), 1, "it keeps its turn");
    answer(&mut tunnel, &later);
    tunnel.send(&question(5004));
    tunnel.wait(Duration::from_secs(5));
    assert_eq!(server(&tunnel.send(&question(5004))), 0);
}

#[test]
fn any_answer_keeps_a_server_its_turn() {
    let mut tunnel = Tunnel::new();
    for _ in 0..20 {
        tunnel.send(&question(5000));
        tunnel.wait(Duration::from_millis(900));
        let other = tunnel.send(&question(5001));
        assert_eq!(server(&other), 0);
        answer(&mut tunnel, &other);
    }
}

#[test]
fn silence_is_of_all_servers_and_more_than_one_lost_packet() {
    let mut tunnel = Tunnel::new();
    let step = Duration::from_secs(1);
    let asked = tunnel.send(&question(5000));
    // At the same time.
    tunnel.send(&question(5001));
    tunnel.wait(20 * step);
    assert_eq!(tunnel.silent_servers(), [], "one was lost");
    answer(&mut tunnel, &asked);
    // The last query may still be answered.
    tunnel.send(&question(5002));
    tunnel.wait(step);
    let last = tunnel.send(&question(5002));
    tunnel.wait(step - Duration::from_nanos(1));
    assert_eq!(tunnel.silent_servers(), []);
    tunnel.wait(Duration::from_nanos(1));
    let [silence] = &tunnel.silent_servers()[..] else {
        panic!("nobody has answered");
    };
    assert_eq!(silence.servers, SERVERS.map(address));
    assert_eq!(silence.time, 2 * step);
    // Further queries change nothing.
    tunnel.send(&question(5003));
    assert_eq!(tunnel.silent_servers().len(), 1);
    answer(&mut tunnel, &last);
    assert_eq!(tunnel.silent_servers(), []);
}

#[test]
fn who_asks_a_silent_server_by_its_address_finds_it_silent() {
    let mut tunnel = Tunnel::new();
    for _ in 0..2 {
        tunnel.send(&udp(socket(LOCAL, 5000), socket(SERVERS[1], 53), b"q"));
        tunnel.wait(Duration::from_secs(1));
    }
    assert_eq!(tunnel.silent_servers().len(), 1);
}

#[test]
fn a_refusal_is_no_answer() {
    let mut tunnel = Tunnel::new();
    for _ in 0..2 {
        let asked = tunnel.send(&question(5000));
        let error = icmp_error(address(SERVERS[server(&asked)]), address(V4.tunnel), &asked);
        tunnel.receive(&error);
        tunnel.wait(Duration::from_secs(1));
    }
    assert_eq!(tunnel.silent_servers().len(), 1);
}

#[test]
fn where_nobody_listens_the_next_is_asked_at_once() {
    let mut tunnel = Tunnel::new();
    let asked = tunnel.send(&question(5000));
    let error = icmp_error(address(SERVERS[0]), address(V4.tunnel), &asked);
    tunnel.receive(&error);
    assert_eq!(server(&tunnel.send(&question(5001))), 1);
    // The same for TCP.
    let (local, to) = (socket(LOCAL, 6000), socket(V4.public_dns, 53));
    let asked = tunnel.send(&tcp(local, to, SYN, b""));
    assert_eq!(server(&asked), 1);
    let from = socket(SERVERS[1], 53);
    tunnel.receive(&tcp(from, socket(V4.tunnel, 6000), RST | ACK, b""));
    assert_eq!(server(&tunnel.send(&question(5002))), 0);
}

#[test]
fn a_connection_stays_where_it_is() {
    let mut tunnel = Tunnel::new();
    let (local, to) = (socket(LOCAL, 6000), socket(V4.public_dns, 53));
    let (from, outside) = (socket(SERVERS[0], 53), socket(V4.tunnel, 6000));
    assert_eq!(server(&tunnel.send(&tcp(local, to, SYN, b""))), 0);
    tunnel.receive(&tcp(from, outside, SYN | ACK, b""));
    assert_eq!(server(&tunnel.send(&tcp(local, to, ACK, b"q"))), 0);
    // Other queries find the server silent.
    tunnel.send(&question(5000));
    tunnel.wait(Duration::from_secs(1));
    assert_eq!(server(&tunnel.send(&question(5001))), 1);
    assert_eq!(server(&tunnel.send(&tcp(local, to, ACK, b"q"))), 0);
    tunnel.receive(&tcp(from, outside, ACK, b"a"));
}

#[test]
fn one_that_has_not_answered_a_connection_loses_it() {
    let mut tunnel = Tunnel::new();
    let (local, to) = (socket(LOCAL, 6000), socket(V4.public_dns, 53));
    assert_eq!(server(&tunnel.send(&tcp(local, to, SYN, b""))), 0);
    tunnel.wait(Duration::from_secs(1));
    assert_eq!(server(&tunnel.send(&tcp(local, to, SYN, b""))), 1);
}

#[test]
fn without_a_server_of_its_family_a_question_is_refused() {
    let settings = Settings {
        dns: vec![address(V6.dns)],
        ..settings()
    };
    let mut tunnel = Tunnel::with(&settings);
    let (_, reason) = tunnel.answered(VirtioHeader::default(), &question(5000));
    assert_eq!(reason, DropReason::NoServer);
    let other = udp(socket(LOCAL, 5000), socket(V4.public_dns, 54), b"q");
    tunnel.send(&other);
}

/// A stranger may send from port 53 as from any other.
#[test]
fn answers_to_port_53_go_where_they_should() {
    let mut tunnel = Tunnel::new();
    let stranger = socket(V4.server, 53);
    tunnel.receive(&udp(stranger, socket(V4.tunnel, 7000), b"q"));
    let sent = tunnel.send(&udp(socket(LOCAL, 7000), stranger, b"a"));
    assert_eq!(sent, udp(socket(V4.tunnel, 7000), stranger, b"a"));
}
