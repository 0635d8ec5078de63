//! The datagrams that nodes have sent.

use std::time::Duration;

use taupe_protocol::message::Kind;

use super::{Datagram, Net, START};

impl Net {
    /// Returns the current position in the log, for [`Net::since`].
    pub fn mark(&self) -> usize {
        self.log.len()
    }

    /// Returns the datagrams that a node has sent since `mark`.
    pub fn since(&self, mark: usize, node: usize) -> Vec<Datagram> {
        self.log[mark..]
            .iter()
            .filter(|d| d.from == Some(node))
            .cloned()
            .collect()
    }

    /// Returns the kinds of the messages that a node has sent since `mark`.
    pub fn kinds(&self, mark: usize, node: usize) -> Vec<Kind> {
        self.since(mark, node).iter().map(Datagram::kind).collect()
    }

    /// Returns the times, since `START`, of a node's messages of one kind since `mark`.
    pub fn times(&self, mark: usize, node: usize, kind: Kind) -> Vec<Duration> {
        self.since(mark, node)
            .iter()
            .filter(|d| d.kind() == kind)
            .map(|d| d.at.since(START))
            .collect()
    }

    /// Returns the times, since `START`, of a node's keepalives since `mark`.
    pub fn keepalives(&self, mark: usize, node: usize) -> Vec<Duration> {
        self.since(mark, node)
            .iter()
            .filter(|d| d.is_keepalive())
            .map(|d| d.at.since(START))
            .collect()
    }

    /// Returns the last message of a kind that a node sent.
    pub fn last(&self, node: usize, kind: Kind) -> Datagram {
        self.log
            .iter()
            .rev()
            .find(|d| d.from == Some(node) && d.kind() == kind)
            .cloned()
            .expect("the node has sent such a message")
    }
}
