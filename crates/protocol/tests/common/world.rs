//! A device with state in all places that a packet might change.

use taupe_protocol::DropReason;
use taupe_protocol::crypto::Provider;
use taupe_protocol::ipnet::IpNet;
use taupe_protocol::message::Kind;
use taupe_protocol::update::{AllowedIpChange, PeerUpdate};

use super::packets::ipv4;
use super::raw::{Raw, RawSession};
use super::snapshot::{assert_refused, counts, raised};
use super::{Net, RAW_INNER, label, private_key, secs, with_raw};

/// A device with a session with one peer and an unfinished handshake with another, and a valid
/// message of each kind.
pub struct World {
    pub net: Net,
    pub session: RawSession,
    /// The peer with the session.
    pub peer: Raw,
    /// The peer that has been sent an initiation.
    pub other: Raw,
    pub initiation: Vec<u8>,
    pub response: Vec<u8>,
    pub cookie_reply: Vec<u8>,
    pub data: Vec<u8>,
}

impl World {
    pub fn new(crypto: &'static Provider) -> Self {
        let (mut net, session, peer) = with_raw(crypto);
        net.advance(secs(1));
        let address = "198.51.100.10:4501".parse().expect("an address");
        let other = Raw::new(crypto, private_key(55), net.nodes[0].public, address);
        let mut update = PeerUpdate::new(other.keys.public);
        update.endpoint = Some(address);
        let inner = [10, 0, 0, 10].into();
        let prefix = IpNet::new(inner, 32).expect("a valid prefix");
        update.allowed_ips = vec![AllowedIpChange::Add(prefix)];
        net.update(0, update);
        let packet = ipv4(net.nodes[0].inner, inner, b"waits");
        net.send(0, &packet);
        let sent = net.last(0, Kind::Initiation).bytes;
        let (response, _) = other.answer(&sent, 21).expect("ours");
        let packet = ipv4(RAW_INNER, net.nodes[0].inner, b"a packet");
        Self {
            initiation: peer.begin(31, label(100)).message,
            cookie_reply: other.cookie_reply(&sent, &[1; 16]),
            data: session.seal(1, &packet),
            response,
            session,
            peer,
            other,
            net,
        }
    }

    pub fn messages(&self) -> [Vec<u8>; 4] {
        [
            self.initiation.clone(),
            self.response.clone(),
            self.cookie_reply.clone(),
            self.data.clone(),
        ]
    }

    #[track_caller]
    pub fn refuses(&mut self, bytes: &[u8], cause: DropReason) {
        assert_refused(&mut self.net, 0, bytes, cause);
    }

    /// Asserts that each of the valid messages still has its effect.
    pub fn still_works(mut self) {
        let refused = counts(&self.net.nodes[0]);
        self.net.inject(0, self.peer.address, &self.data);
        assert_eq!(self.net.nodes[0].delivered.len(), 1);
        self.net.inject(0, self.other.address, &self.cookie_reply);
        let mark = self.net.mark();
        self.net.inject(0, self.other.address, &self.response);
        assert_eq!(self.net.kinds(mark, 0), [Kind::Data], "what waited");
        let mark = self.net.mark();
        self.net.inject(0, self.peer.address, &self.initiation);
        assert_eq!(self.net.kinds(mark, 0), [Kind::Response]);
        assert_eq!(raised(&self.net.nodes[0], &refused), []);
    }
}
