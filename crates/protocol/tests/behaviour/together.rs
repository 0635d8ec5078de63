//! Initiations that a device processes together have the results that they have one by one.

use std::net::SocketAddr;

use taupe_protocol::crypto::Provider;
use taupe_protocol::message::Kind;
use taupe_protocol::{DropReason, Endpoint, HandshakeQueue, TakenHandshakes};

use crate::common::raw::stamp_for;
use crate::common::{Net, Outcome, secs, stranger};
use crate::each_backend;

/// A handshake message, and its source.
type Message = (SocketAddr, Vec<u8>);

/// Returns a device, node 0, and the initiations that its `peers` have sent to it.
fn initiations(crypto: &'static Provider, peers: usize) -> (Net, Vec<Message>) {
    let mut net = Net::new(crypto, peers + 1);
    for peer in 1..=peers {
        net.join(0, peer);
    }
    net.hold();
    for peer in 1..=peers {
        assert_eq!(net.ping(peer, 0), Outcome::Staged);
    }
    let messages = held(&mut net);
    assert_eq!(messages.len(), peers);
    net.mend();
    (net, messages)
}

/// Removes the messages that the wire holds.
fn held(net: &mut Net) -> Vec<Message> {
    let held = net.take_held().into_iter();
    held.map(|it| (it.source, it.bytes)).collect()
}

/// Passes messages to node 0, which handles the last one first. Returns the results in order of
/// the messages.
fn handle(net: &mut Net, messages: &[Message]) -> Vec<Option<DropReason>> {
    let mut queue = HandshakeQueue::default();
    for (from, message) in messages {
        assert_eq!(queue.push(Endpoint::from(*from), message), 0);
    }
    let mut taken = TakenHandshakes::default();
    assert_eq!(queue.take(usize::MAX, &mut taken), 0);
    let now = net.now_at(0);
    let mut results = Vec::new();
    let device = &mut net.nodes[0].device;
    device.handle_messages(now, &mut taken, 0, |message, refused| {
        let place = messages.len() - 1 - results.len();
        assert_eq!(message.bytes(), messages[place].1, "in order");
        results.push(refused);
    });
    assert!(taken.is_empty());
    net.run();
    results.reverse();
    results
}

each_backend! {
    fn any_number_is_answered(crypto) {
        for peers in 1..=9 {
            let (mut net, messages) = initiations(crypto, peers);
            assert_eq!(handle(&mut net, &messages), vec![None; peers]);
            assert_eq!(net.nodes[0].delivered.len(), peers);
            for peer in 1..=peers {
                let public = net.nodes[peer].public;
                assert!(net.nodes[0].current(&public).is_some(), "{peer} of {peers}");
            }
        }
    }

    fn refused_ones_do_not_disturb_the_others(crypto) {
        for refused in 0..5 {
            let (mut net, mut messages) = initiations(crypto, 5);
            let public = net.nodes[0].public;
            messages[refused].1[50] ^= 1;
            stamp_for(crypto, &public, &mut messages[refused].1);
            let mut expected = vec![None; 5];
            expected[refused] = Some(DropReason::InitiationNotAuthentic);
            assert_eq!(handle(&mut net, &messages), expected);
            assert_eq!(net.nodes[0].count(DropReason::InitiationNotAuthentic), 1);
            assert_eq!(net.nodes[0].delivered.len(), 4);
        }
        for refused in 0..5 {
            let (mut net, mut messages) = initiations(crypto, 5);
            messages[refused].1[50] ^= 1;
            let mut expected = vec![None; 5];
            expected[refused] = Some(DropReason::Mac1);
            assert_eq!(handle(&mut net, &messages), expected);
            assert_eq!(net.nodes[0].delivered.len(), 4);
        }
    }

    fn ephemeral_keys_of_low_order_are_refused(crypto) {
        let (mut net, mut messages) = initiations(crypto, 4);
        let public = net.nodes[0].public;
        messages[1].1[8..40].fill(0);
        stamp_for(crypto, &public, &mut messages[1].1);
        let forged = Some(DropReason::InitiationNotAuthentic);
        assert_eq!(handle(&mut net, &messages), [None, forged, None, None]);
    }

    fn an_unknown_peer_is_refused(crypto) {
        let (mut net, messages) = initiations(crypto, 4);
        let (mut others, _) = initiations(crypto, 3);
        let unknown = Some(DropReason::UnknownPeer);
        assert_eq!(handle(&mut others, &messages), [None, None, None, unknown]);
        assert_eq!(handle(&mut net, &messages), vec![None; 4]);
    }

    fn the_same_initiation_is_answered_once(crypto) {
        let (mut net, mut messages) = initiations(crypto, 3);
        let copy = (stranger(), messages[1].1.clone());
        messages.insert(0, copy);
        let replayed = Some(DropReason::InitiationReplayed);
        assert_eq!(handle(&mut net, &messages), [replayed, None, None, None]);
    }

    fn of_two_initiations_of_a_peer_the_first_to_be_handled_is_answered(crypto) {
        for is_newest_last in [true, false] {
            let (mut net, mut messages) = initiations(crypto, 2);
            net.hold();
            net.advance(secs(6));
            let later = held(&mut net);
            assert_eq!(later.len(), 2, "one of each peer");
            net.mend();
            messages.extend(later);
            if !is_newest_last {
                messages.reverse();
            }
            let reason = match is_newest_last {
                true => DropReason::InitiationReplayed,
                false => DropReason::InitiationFlood,
            };
            let refused = Some(reason);
            assert_eq!(handle(&mut net, &messages), [refused, refused, None, None]);
        }
    }

    fn other_messages_keep_their_places(crypto) {
        let (mut net, mut messages) = initiations(crypto, 4);
        let mut response = vec![0; 92];
        response[0] = 2;
        messages.insert(2, (stranger(), response));
        let expected = [None, None, Some(DropReason::Mac1), None, None];
        assert_eq!(handle(&mut net, &messages), expected);
        let kinds = net.kinds(0, 0);
        assert_eq!(kinds.iter().filter(|kind| **kind == Kind::Response).count(), 4);
    }
}
