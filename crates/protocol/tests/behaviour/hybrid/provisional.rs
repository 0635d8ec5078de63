//! Sessions that the initiator has not used yet: which of them end, and when.

use taupe_protocol::DropReason;
use taupe_protocol::hybrid::Suite;
use taupe_protocol::limits::REKEY_TIMEOUT;
use taupe_protocol::message::Kind;

use super::endpoint;
use crate::common::hybrid::Thief;
use crate::common::packets::ipv4;
use crate::common::raw::RawSession;
use crate::common::snapshot::assert_refused_from;
use crate::common::{Net, Outcome, label, stranger};
use crate::each_backend;

const SUITE: Suite = Suite::Hybrid768;

/// Makes node 0 begin two handshakes with these timestamps, the second [`REKEY_TIMEOUT`] after
/// the first. Returns the sessions that node 1 has made; neither has been used.
fn begun(net: &mut Net, labels: [u32; 2]) -> [RawSession; 2] {
    let mut peer = Thief::knows_all(net, 0, 1, SUITE);
    labels.map(|n| {
        let begun = peer.begin(n, label(n));
        let session = peer.shake(net, 1, stranger(), &begun).expect("a response");
        net.advance(REKEY_TIMEOUT);
        session
    })
}

/// Returns node 1's local index of its current session with node 0.
fn current(net: &mut Net) -> Option<u32> {
    let key = net.nodes[0].public;
    net.nodes[1]
        .current(&key)
        .map(|session| session.local_index())
}

each_backend! {
    fn the_first_message_lets_the_session_send_and_moves_the_endpoint(crypto) {
        let mut net = Net::hybrid_pair(crypto, SUITE);
        let mut peer = Thief::knows_all(&net, 0, 1, SUITE);
        let begun = peer.begin(7, label(1));
        let session = peer.shake(&mut net, 1, stranger(), &begun).expect("a response");
        net.cut();
        let mark = net.mark();
        assert_eq!(net.ping(1, 0), Outcome::Staged);
        assert!(!net.kinds(mark, 1).contains(&Kind::Data));
        assert_eq!(endpoint(&net, 1), Some(net.nodes[0].address));
        net.inject(1, stranger(), &session.seal(0, &[]));
        assert!(session.open(&net.last(1, Kind::Data).bytes).is_some());
        assert_eq!(endpoint(&net, 1), Some(stranger()));
    }

    fn a_confirmed_session_ends_those_begun_before_it(crypto) {
        let mut net = Net::hybrid_pair(crypto, SUITE);
        // The peer's clock has gone back: the timestamps do not show the order.
        let [older, newer] = begun(&mut net, [2, 1]);
        assert_eq!(net.nodes[1].device.sessions().len(), 2);
        net.inject(1, stranger(), &newer.seal(0, &[]));
        assert_eq!(current(&mut net), Some(newer.remote_index));
        assert_eq!(net.nodes[1].device.sessions().len(), 1);
        let packet = ipv4(net.nodes[0].inner, net.nodes[1].inner, b"late");
        let late = older.seal(0, &packet);
        assert_refused_from(&mut net, 1, stranger(), &late, DropReason::UnknownSession);
    }

    fn a_confirmed_session_ends_the_handshakes_before_it(crypto) {
        let mut net = Net::hybrid_pair(crypto, SUITE);
        let [_, newer] = begun(&mut net, [1, 2]);
        assert_eq!(net.nodes[1].device.provisional_handshakes(), 2);
        net.inject(1, stranger(), &newer.seal(0, &[]));
        assert_eq!(net.nodes[1].device.provisional_handshakes(), 0);
    }

    fn a_confirmed_session_leaves_the_handshakes_after_it(crypto) {
        let mut net = Net::hybrid_pair(crypto, SUITE);
        let [older, newer] = begun(&mut net, [1, 2]);
        for session in [older, newer] {
            net.inject(1, stranger(), &session.seal(0, &[]));
            assert_eq!(current(&mut net), Some(session.remote_index));
        }
        assert_eq!(net.nodes[1].device.provisional_handshakes(), 0);
    }

    fn a_new_handshake_with_the_index_of_an_old_one_takes_its_place(crypto) {
        let mut net = Net::hybrid_pair(crypto, SUITE);
        let mut peer = Thief::knows_all(&net, 0, 1, SUITE);
        let [first, second] = [1, 2].map(|n| peer.begin(7, label(n)));
        assert!(peer.shake(&mut net, 1, stranger(), &first).is_some());
        net.advance(REKEY_TIMEOUT);
        let session = peer.shake(&mut net, 1, stranger(), &second).expect("a response");
        assert_eq!(net.nodes[1].device.sessions().len(), 1);
        assert_eq!(net.nodes[1].device.provisional_handshakes(), 1);
        net.inject(1, stranger(), &session.seal(0, &[]));
        assert_eq!(current(&mut net), Some(session.remote_index));
    }

    fn the_second_part_of_another_handshake_is_not_answered(crypto) {
        for suite in [Suite::Hybrid512, Suite::Hybrid768] {
            let mut net = Net::hybrid_pair(crypto, suite);
            let mut peer = Thief::knows_all(&net, 0, 1, suite);
            let [first, second] = [1, 2].map(|n| peer.begin(7, label(n)));
            let session = peer.shake(&mut net, 1, stranger(), &first).expect("a response");
            let other = &second.parts[1];
            let cause = DropReason::InitiationNotAuthentic;
            assert_refused_from(&mut net, 1, stranger(), other, cause);
            net.inject(1, stranger(), &session.seal(0, &[]));
            assert_eq!(current(&mut net), Some(session.remote_index));
        }
    }
}
