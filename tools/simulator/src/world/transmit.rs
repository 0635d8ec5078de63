//! Output of devices, and the datagrams that they send.

use core::net::SocketAddr;

use taupe_protocol::hybrid::Half;
use taupe_protocol::message::{DATA_OVERHEAD, Kind, classify, data_header};
use taupe_protocol::{Endpoint, Output};

use super::queue::{Event, FollowUp};
use super::{World, describe};
use crate::host::owner;
use crate::network::{Datagrams, Delivery};
use crate::parts::{MAX_HANDSHAKE, check_handshake_size, part_of};
use crate::plan::{MILLISECOND, Nanos, Quality};
use crate::violation::{Invariant, Violation};

impl World<'_> {
    /// Takes all output of a host and answers its wake-ups. Follows every call.
    pub(crate) fn drain_output(&mut self, host: usize) -> Result<(), Violation> {
        let mut pin_changed = false;
        loop {
            while let Some(output) = self.hosts[host]
                .node
                .as_mut()
                .and_then(|node| node.device.poll_output())
            {
                match output {
                    Output::Transmit {
                        endpoint, datagram, ..
                    } => {
                        self.transmit(host, endpoint, datagram)?;
                    }
                    // Endpoints in the simulation are addresses, not names.
                    Output::Resolve { .. } | Output::Notice(_) => {}
                    Output::ReserveTimestamps { public_key, up_to } => {
                        self.hosts[host].reserve_timestamps(public_key, up_to);
                    }
                    Output::PinPostQuantum { peer, pinned, .. } => {
                        self.hosts[host].remember(peer, pinned);
                        pin_changed = true;
                    }
                }
            }
            let h = &mut self.hosts[host];
            let clocks = h.clocks(self.now);
            let Some(node) = h.node.as_mut() else {
                return Ok(());
            };
            let woken = node.take_wake();
            if node.device.has_pending_work() {
                if !woken {
                    return Err(Violation::new(
                        Invariant::Deadline,
                        format!("host {host} has pending work and has not called its waker"),
                    ));
                }
                node.device.handle_pending_work(clocks);
            } else {
                node.deadline = node.device.next_deadline();
                // The change may forbid existing sessions.
                return if pin_changed {
                    self.check_suites(host)
                } else {
                    Ok(())
                };
            }
        }
    }

    /// Sends a handshake or timer message of a host.
    fn transmit(&mut self, host: usize, to: Endpoint, datagram: Vec<u8>) -> Result<(), Violation> {
        let now = self.hosts[host].boot(self.now).0;
        self.stats.messages += 1;
        let other = owner(to.remote).filter(|other| *other < self.hosts.len());
        match (classify(&datagram), other) {
            (Ok(Kind::Initiation), Some(other)) => {
                self.stats.initiations += 1;
                self.hosts[host].timestamp_used(self.now);
                if let Some(node) = &mut self.hosts[host].node {
                    node.timers[other]
                        .initiation(now)
                        .map_err(|violation| violation.between(host, other))?;
                }
                self.ambush_later(host);
            }
            (Ok(Kind::HybridInitiation), Some(other)) => {
                self.stats.parts += 1;
                check_handshake_size(host, &datagram)?;
                let begins = self.part_sent(host, other, &datagram)?;
                self.stats.initiations += u64::from(begins);
                if begins {
                    self.ambush_later(host);
                }
            }
            (Ok(Kind::HybridResponse), Some(other)) => {
                self.stats.parts += 1;
                check_handshake_size(host, &datagram)?;
                let first = part_of(&datagram).is_some_and(|part| part.half == Half::A);
                if first && let Some(node) = &mut self.hosts[host].node {
                    let sessions = node.device.sessions();
                    self.stats.sessions += node.sessions.observe(other, &sessions)?;
                }
            }
            (Ok(Kind::Response), Some(other)) => {
                if let Some(node) = &mut self.hosts[host].node {
                    node.timers[other]
                        .response(now)
                        .map_err(|violation| violation.between(host, other))?;
                    let sessions = node.device.sessions();
                    self.stats.sessions += node.sessions.observe(other, &sessions)?;
                }
            }
            (Ok(Kind::Data), Some(_)) => {
                if let Some((index, counter)) = data_header(&datagram)
                    && let Some(node) = &mut self.hosts[host].node
                {
                    let keepalive = datagram.len() == DATA_OVERHEAD;
                    let other = node.sessions.sent(index, counter, now)?;
                    node.timers[other]
                        .data(now, !keepalive)
                        .map_err(|violation| violation.between(host, other))?;
                    if !keepalive {
                        node.staged.flushed();
                        self.stats.staged += 1;
                    }
                }
            }
            (Ok(Kind::CookieReply), _) => self.stats.cookies += 1,
            _ => {
                let what = format!("host {host} sends no message, or to no host: {}", to.remote);
                return Err(Violation::new(Invariant::Delivery, what));
            }
        }
        self.log(|| format!("{host} → {}: {}", to.remote, describe(&datagram)));
        let stride = datagram.len();
        self.send_datagrams(host, to.remote, datagram, stride, 0);
        Ok(())
    }

    /// Records that a part of an initiation is sent. Returns true for the first part of a
    /// handshake.
    fn part_sent(&mut self, host: usize, other: usize, part: &[u8]) -> Result<bool, Violation> {
        let now = self.hosts[host].boot(self.now).0;
        let Some([a, b, c, d]) = part.get(4..).and_then(|rest| rest.first_chunk().copied()) else {
            return Ok(false);
        };
        self.hosts[host].timestamp_used(self.now);
        let Some(node) = &mut self.hosts[host].node else {
            return Ok(false);
        };
        node.timers[other]
            .part(now, u32::from_le_bytes([a, b, c, d]))
            .map_err(|violation| violation.between(host, other))
    }

    /// During ambushes, attacks about half of the new handshakes before the answer arrives.
    fn ambush_later(&mut self, host: usize) {
        if self.now < self.ambush_until && self.random.once_in(2) {
            let soon = self.now + self.random.below(40 * MILLISECOND);
            self.schedule(soon, Event::FollowUp(FollowUp::Ambush { host }));
        }
    }

    /// Sends datagrams of equal size into the network, `stall` nanoseconds from now.
    pub(crate) fn send_datagrams(
        &mut self,
        host: usize,
        to: SocketAddr,
        bytes: Vec<u8>,
        stride: usize,
        stall: Nanos,
    ) {
        let Some(other) = owner(to).filter(|other| *other < self.hosts.len()) else {
            return;
        };
        self.captures
            .sent(&mut self.random, host, other, &bytes, stride);
        let from = self.hosts[host].address;
        if stride > MAX_HANDSHAKE && self.is_narrow(host, other) {
            return;
        }
        let link = &self.links[host * self.hosts.len() + other];
        let quality = link.quality(self.now);
        let datagrams = Datagrams {
            from,
            to,
            sender: host,
            sent: self.now,
            bytes,
            stride,
            tampered: false,
        };
        if quality == Quality::GOOD {
            let at = self.now + quality.delay + stall;
            self.schedule(at, Event::Arrive(datagrams));
            return;
        }
        for datagram in datagrams.split() {
            for Delivery { after, datagrams } in
                quality.deliveries(&mut self.random, datagram, &mut self.stats)
            {
                self.schedule(self.now + after + stall, Event::Arrive(datagrams));
            }
        }
    }
}
