//! Endpoints change only by authenticated messages (whitepaper §2.1).

use std::net::SocketAddr;

use taupe_protocol::DropReason;
use taupe_protocol::message::Kind;

use crate::common::packets::ipv4;
use crate::common::snapshot::assert_refused;
use crate::common::{
    Net, RAW_INNER, label, millis, secs, shake, stranger, with_raw, with_stranger,
};
use crate::each_backend;

fn endpoint(net: &Net) -> Option<SocketAddr> {
    net.nodes[0].device.status().peers[0].endpoint
}

fn addresses() -> [SocketAddr; 3] {
    [
        "198.51.100.77:1".parse().unwrap(),
        "198.51.100.9:4501".parse().unwrap(),
        "[2001:db8::7]:51820".parse().unwrap(),
    ]
}

each_backend! {
    fn an_initiation_moves_the_endpoint(crypto) {
        for address in addresses() {
            let (mut net, mut raw) = with_stranger(crypto);
            raw.address = address;
            shake(&mut net, &raw, 1, label(1));
            assert_eq!(endpoint(&net), Some(address));
        }
    }

    fn a_response_moves_the_endpoint(crypto) {
        for address in addresses() {
            let (mut net, raw) = with_stranger(crypto);
            let packet = ipv4(net.nodes[0].inner, RAW_INNER, b"x");
            net.send(0, &packet);
            let initiation = net.last(0, Kind::Initiation);
            let (response, _) = raw.answer(&initiation.bytes, 3).expect("ours");
            net.inject(0, address, &response);
            assert_eq!(endpoint(&net), Some(address));
            assert_eq!(net.last(0, Kind::Data).to, address, "and what waited goes there");
        }
    }

    fn data_and_keepalives_move_the_endpoint(crypto) {
        for address in addresses() {
            for plaintext in [vec![], ipv4(RAW_INNER, "10.0.0.1".parse().unwrap(), b"x")] {
                let (mut net, session, _) = with_raw(crypto);
                net.inject(0, address, &session.seal(1, &plaintext));
                assert_eq!(endpoint(&net), Some(address));
                let packet = ipv4(net.nodes[0].inner, RAW_INNER, b"x");
                net.send(0, &packet);
                assert_eq!(net.last(0, Kind::Data).to, address);
            }
        }
    }

    fn data_from_a_source_that_is_not_allowed_moves_it_too(crypto) {
        let (mut net, session, _) = with_raw(crypto);
        let foreign = ipv4("10.99.0.1".parse().unwrap(), net.nodes[0].inner, b"x");
        net.inject(0, stranger(), &session.seal(1, &foreign));
        assert_eq!(net.nodes[0].count(DropReason::SourceNotAllowed), 1);
        assert_eq!(endpoint(&net), Some(stranger()));
    }

    fn data_of_the_previous_session_moves_it_too(crypto) {
        let (mut net, old, raw) = with_raw(crypto);
        net.advance(secs(1));
        let new = shake(&mut net, &raw, 8, label(1));
        net.inject(0, raw.address, &new.seal(0, &[]));
        net.inject(0, stranger(), &old.seal(1, &[]));
        assert_eq!(endpoint(&net), Some(stranger()));
    }

    fn a_replay_moves_nothing(crypto) {
        let (mut net, session, raw) = with_raw(crypto);
        let message = session.seal(1, &[]);
        net.inject(0, raw.address, &message);
        assert_refused(&mut net, 0, &message, DropReason::Replayed);
        assert_eq!(endpoint(&net), Some(raw.address));
    }

    fn a_replayed_initiation_moves_nothing(crypto) {
        let (mut net, raw) = with_stranger(crypto);
        let begun = raw.begin(1, label(1));
        net.inject(0, raw.address, &begun.message);
        net.advance(millis(30));
        assert_refused(&mut net, 0, &begun.message, DropReason::InitiationReplayed);
    }

    fn data_that_does_not_verify_moves_nothing(crypto) {
        let (mut net, session, _) = with_raw(crypto);
        let mut message = session.seal(1, &[]);
        message[16] ^= 1;
        assert_refused(&mut net, 0, &message, DropReason::NotAuthentic);
    }

    fn a_cookie_reply_moves_nothing(crypto) {
        let (mut net, raw) = with_stranger(crypto);
        let packet = ipv4(net.nodes[0].inner, RAW_INNER, b"x");
        net.send(0, &packet);
        let initiation = net.last(0, Kind::Initiation);
        let reply = raw.cookie_reply(&initiation.bytes, &[1; 16]);
        net.inject(0, stranger(), &reply);
        assert_eq!(net.nodes[0].count(DropReason::CookieRefused), 0, "it was taken");
        assert_eq!(endpoint(&net), Some(raw.address));
    }

    fn an_initiation_under_load_without_cookie_moves_nothing(crypto) {
        let (mut net, raw) = with_stranger(crypto);
        net.nodes[0].backlog = 512;
        let begun = raw.begin(1, label(1));
        net.inject(0, stranger(), &begun.message);
        assert_eq!(net.nodes[0].count(DropReason::CookieDemanded), 1);
        assert_eq!(endpoint(&net), Some(raw.address));
    }

    fn in_a_batch_one_authentic_message_is_enough(crypto) {
        let (mut net, session, _) = with_raw(crypto);
        let mut forged = session.seal(1, &[]);
        forged[20] ^= 1;
        let batch = [forged.clone(), session.seal(2, &[]), forged].concat();
        net.inject_batch(0, stranger(), &batch, 32);
        assert_eq!(net.nodes[0].count(DropReason::NotAuthentic), 2);
        assert_eq!(endpoint(&net), Some(stranger()));
    }

    fn a_peer_without_endpoint_gets_it_from_an_initiation(crypto) {
        let mut net = Net::new(crypto, 2);
        net.join(0, 1);
        let mut update = net.peer_update(0);
        update.endpoint = None;
        let mut remove = taupe_protocol::update::PeerUpdate::new(net.nodes[0].public);
        remove.remove = true;
        net.update(1, remove);
        net.update(1, update);
        assert_eq!(net.ping(1, 0), crate::common::Outcome::NoEndpoint);
        assert_eq!(net.mark(), 0);
        net.ping(0, 1);
        assert_eq!(net.nodes[1].device.status().peers[0].endpoint, Some(net.nodes[0].address));
        assert_eq!(net.ping(1, 0), crate::common::Outcome::Sent);
    }

    fn answers_leave_from_the_address_that_was_asked(crypto) {
        let mut net = Net::connected(crypto);
        let response = net.last(1, Kind::Response);
        assert_eq!(response.local.map(|l| l.address), Some(net.nodes[1].address.ip()));
        // A configured endpoint removes the local address, unless the endpoint is the same.
        let same = net.peer_update(0);
        net.update(1, same);
        let peer = net.nodes[0].public;
        assert!(net.nodes[1].peer(&peer).endpoint().unwrap().local.is_some());
        let mut other = net.peer_update(0);
        other.endpoint = Some(stranger());
        net.update(1, other);
        assert!(net.nodes[1].peer(&peer).endpoint().unwrap().local.is_none());
    }
}
