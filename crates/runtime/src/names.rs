//! Look-ups of endpoint names. Each runs in a thread that ends with it, so the control loop never
//! waits for a name server. A device whose peers answer has no such thread.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use taupe_protocol::key::PublicKey;
use taupe_protocol::update::EndpointName;

use crate::resolver::Resolver;

/// Look-ups that wait for the current one, at most. Further ones fail, and the device repeats them
/// later.
const MAX_WAITING: usize = 256;

/// Addresses of one name that are used, at most.
const MAX_ADDRESSES: usize = 16;

/// A look-up of a peer's endpoint name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Question {
    /// The peer.
    pub public_key: PublicKey,
    /// Its endpoint's name.
    pub name: EndpointName,
}

/// Result of a look-up.
pub struct Answer {
    /// The look-up.
    pub question: Question,
    /// The addresses to which the device can send now, the preferred first.
    pub addresses: io::Result<Vec<SocketAddr>>,
}

/// The look-ups of a device, one at a time.
pub struct Lookups {
    resolver: Arc<dyn Resolver>,
    report: Arc<dyn Fn(Answer) + Send + Sync>,
    current: Option<Question>,
    waiting: VecDeque<Question>,
}

impl Lookups {
    /// Returns an empty queue of look-ups. Each answer goes to `report`. Call [`Lookups::proceed`]
    /// after each answer.
    pub fn new(
        resolver: Arc<dyn Resolver>,
        report: impl Fn(Answer) + Send + Sync + 'static,
    ) -> Self {
        Self {
            resolver,
            report: Arc::new(report),
            current: None,
            waiting: VecDeque::new(),
        }
    }

    /// Starts or queues a look-up, for sockets with the device's `mark` (Linux).
    ///
    /// # Errors
    /// Returns the question if the queue is full.
    pub fn ask(&mut self, question: Question, mark: u32) -> Result<(), Question> {
        if self.current.is_none() {
            self.start(question, mark);
        } else if self.waiting.len() < MAX_WAITING {
            self.waiting.push_back(question);
        } else {
            return Err(question);
        }
        Ok(())
    }

    /// Starts the next look-up, after the answer to the current one has arrived.
    pub fn proceed(&mut self, mark: u32) {
        self.current = None;
        if let Some(question) = self.waiting.pop_front() {
            self.start(question, mark);
        }
    }

    /// Returns the questions that have no answer yet.
    pub fn questions(&self) -> impl Iterator<Item = &Question> {
        self.current.iter().chain(&self.waiting)
    }

    fn start(&mut self, question: Question, mark: u32) {
        self.current = Some(question.clone());
        let (resolver, report) = (Arc::clone(&self.resolver), Arc::clone(&self.report));
        let asked = question.clone();
        let started = std::thread::Builder::new()
            .name("names".into())
            .spawn(move || {
                let addresses = look_up(&*resolver, &question.name, mark);
                report(Answer {
                    question,
                    addresses,
                });
            });
        if let Err(error) = started {
            (self.report)(Answer {
                question: asked,
                addresses: Err(io::Error::other(error)),
            });
        }
    }
}

/// Looks up a name. Returns the addresses to which the device can send now, at most 16, the preferred
/// first. `mark` is that of the device's datagrams (Linux).
///
/// # Errors
/// As [`Resolver::resolve`].
pub fn look_up(
    resolver: &dyn Resolver,
    name: &EndpointName,
    mark: u32,
) -> io::Result<Vec<SocketAddr>> {
    let addresses = resolver.resolve(name, mark)?;
    Ok(usable(resolver, &addresses, mark))
}

/// Returns the addresses to which the device can send now. This excludes IPv6 addresses on a system
/// without IPv6, and `0.0.0.0`, with which some name servers answer for blocked names.
fn usable(resolver: &dyn Resolver, addresses: &[SocketAddr], mark: u32) -> Vec<SocketAddr> {
    let plain = |address: &SocketAddr| match address.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, address.port()),
        IpAddr::V6(_) => *address,
    };
    let anyone = |address: &SocketAddr| {
        let ip = address.ip();
        ip.is_unspecified() || ip.is_multicast() || ip == IpAddr::V4(Ipv4Addr::BROADCAST)
    };
    addresses
        .iter()
        .take(MAX_ADDRESSES)
        .map(plain)
        .filter(|address| !anyone(address))
        .filter(|address| resolver.can_send_to(*address, mark))
        .collect()
}

#[cfg(test)]
mod tests;
