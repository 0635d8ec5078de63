//! Processing of unchanged datagrams that arrive at a host.

use core::net::SocketAddr;

use taupe_protocol::hybrid::{Half, Side};
use taupe_protocol::message::{Kind, classify, data_header};
use taupe_protocol::{Endpoint, LaneId};

use super::lanes::any_lane;
use super::part_attacks::unchanged;
use super::{World, describe};
use crate::host::endpoint;
use crate::network::Datagrams;
use crate::parts::part_of;
use crate::plan::SECOND;
use crate::violation::{Invariant, Violation};

/// Effect of a datagram.
#[derive(Clone, Copy, Default)]
struct Effect {
    /// It is authentic and new.
    authentic: bool,
    /// It has created a session.
    rekeyed: bool,
    /// It is a response.
    answered: bool,
}

impl Effect {
    fn add(&mut self, other: Self) {
        self.authentic |= other.authentic;
        self.rekeyed |= other.rekeyed;
        self.answered |= other.answered;
    }
}

impl World<'_> {
    /// Delivers datagrams to the host at their address.
    pub(crate) fn arrive(&mut self, datagrams: Datagrams) -> Result<(), Violation> {
        let there = self
            .hosts
            .iter()
            .position(|host| host.address == datagrams.to);
        let Some(host) = there.filter(|host| self.hosts[*host].runs()) else {
            self.recycle(datagrams.bytes);
            return Ok(());
        };
        if datagrams.tampered {
            return self.inject(
                host,
                datagrams.from,
                datagrams.bytes,
                datagrams.stride,
                "tampered with",
            );
        }
        self.receive_unchanged(host, datagrams)
    }

    /// Processes datagrams that the network has not changed.
    fn receive_unchanged(&mut self, host: usize, datagrams: Datagrams) -> Result<(), Violation> {
        let Datagrams {
            from,
            sender,
            sent,
            mut bytes,
            stride,
            ..
        } = datagrams;
        let capture = self.captures.copy(&mut self.random, &bytes, stride);
        let h = &mut self.hosts[host];
        let clocks = h.clocks(self.now);
        let boot = clocks.boot.0;
        let from = endpoint(from, h.address);
        let Some(node) = h.node.as_mut() else {
            return Ok(());
        };
        node.idle.used();
        let count = bytes.len().div_ceil(stride.max(1)) as u64;
        self.stats.datagrams += count;
        let refused = node.refused();
        let index = data_header(&bytes).map(|(index, _)| index);
        let mut received = core::mem::take(&mut node.received);
        let steering = *node.path.steering();
        let lane = match data_header(&bytes) {
            // The lane of another batch with which the kernel has merged this one.
            _ if self.lane_random.once_in(32) => any_lane(&mut self.lane_random, steering.lanes()),
            Some((index, counter)) => steering.lane_of(index, counter),
            None => LaneId::FIRST,
        };
        node.path
            .receive_on(lane, clocks.boot, from, &mut bytes, stride, &mut received);
        let accepted = count - (node.refused() - refused);
        let up = node.device.is_up();
        let mut effect = Effect::default();
        let mut aged = false;
        if received.handshakes.is_empty() {
            if accepted > 0 && up {
                if let Some(index) = index {
                    aged = node.sessions.accepted(index, boot)? >= 160 * SECOND;
                }
                // The model cannot tell which of several messages contained packets.
                let packets = bytes.len() > 32 * count as usize && accepted == count;
                node.timers[sender]
                    .received(boot, packets)
                    .map_err(|violation| violation.between(host, sender))?;
                effect.authentic = true;
            }
        } else {
            for message in &received.handshakes {
                effect.add(self.receive_handshake(host, sender, from, &bytes[message.clone()])?);
            }
        }
        let Effect {
            authentic,
            rekeyed,
            answered,
        } = effect;
        self.log(|| {
            let result = if authentic { "accepted" } else { "refused" };
            format!(
                "{host} ← {sender}: {count} × {}, {result}",
                describe(&bytes[..stride.min(bytes.len())])
            )
        });
        if authentic && let Some(capture) = capture {
            self.captures.accepted(
                &mut self.random,
                &self.hosts[host],
                sender,
                from.remote,
                capture,
            );
        }
        self.drain_output(host)?;
        if authentic {
            self.record_authentic(host, sender, from.remote, answered)?;
        }
        if rekeyed {
            self.check_suites(host)?;
        }
        if self.now < self.ambush_until && part_of(&bytes).is_some_and(|it| it.half == Half::A) {
            self.ambush_second_part(host, from.remote, &bytes)?;
        }
        for inner in &received.inner {
            self.deliver(host, sender, &bytes[inner.clone()])?;
        }
        if let Some(node) = &mut self.hosts[host].node {
            node.received = received;
        }
        // Counted at the initiator, for the session that both sides have.
        let hybrid = part_of(&bytes).is_some_and(|part| part.side == Side::Response);
        self.recycle(bytes);
        let now = self.now;
        if let Some(pair) = self.pair(host, sender) {
            if rekeyed {
                pair.rekeyed(now, hybrid);
            }
            if authentic {
                pair.alive(sent, now);
            }
        }
        if aged {
            self.check_renewal_on_receive(host, sender)
        } else {
            Ok(())
        }
    }

    /// Processes a handshake message of `sender`.
    fn receive_handshake(
        &mut self,
        host: usize,
        sender: usize,
        from: Endpoint,
        message: &[u8],
    ) -> Result<Effect, Violation> {
        let kind = classify(message);
        let h = &mut self.hosts[host];
        let clocks = h.clocks(self.now);
        let backlog = h.backlog(self.now);
        let begins = kind == Ok(Kind::HybridInitiation);
        let before = begins.then(|| h.provisional_digest(sender));
        let Some(node) = h.node.as_mut() else {
            return Ok(Effect::default());
        };
        let cause = node.device.handle_message(clocks, from, message, backlog);
        if let Some(before) = before {
            let after = h.provisional_digest(sender);
            unchanged(host, sender, before, after)?;
            return Ok(Effect::default());
        }
        if kind == Ok(Kind::CookieReply) || cause.is_some() {
            return Ok(Effect::default());
        }
        let sessions = node.device.sessions();
        let new = node.sessions.observe(sender, &sessions)?;
        self.stats.sessions += new;
        // Only the part that completes a hybrid response counts.
        if kind == Ok(Kind::HybridResponse) {
            self.stats.hybrid_sessions += new;
            if new == 0 {
                return Ok(Effect::default());
            }
        }
        node.timers[sender]
            .received(clocks.boot.0, false)
            .map_err(|violation| violation.between(host, sender))?;
        Ok(Effect {
            authentic: true,
            rekeyed: new > 0,
            answered: matches!(kind, Ok(Kind::Response | Kind::HybridResponse)),
        })
    }

    /// Records an authentic message of `sender` from `source`, which must now be its endpoint. A
    /// response also confirms the session.
    pub(crate) fn record_authentic(
        &mut self,
        host: usize,
        sender: usize,
        source: SocketAddr,
        response: bool,
    ) -> Result<(), Violation> {
        let h = &mut self.hosts[host];
        let boot = h.boot(self.now).0;
        let Some(node) = h.node.as_mut() else {
            return Ok(());
        };
        if response && !node.timers[sender].confirmed(boot) {
            let what = "has not confirmed a response at once".to_owned();
            return Err(Violation::new(Invariant::Deadline, what).between(host, sender));
        }
        let moved = node.sources[sender].replace(source) != Some(source);
        if moved && h.endpoint_of(sender) != Some(source) {
            let what = format!("received from {source}, but messages are sent elsewhere");
            return Err(Violation::new(Invariant::Roaming, what).between(host, sender));
        }
        Ok(())
    }
}
