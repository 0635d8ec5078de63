//! From the tunnel to the TUN.

use std::sync::{Arc, MutexGuard};

use taupe_protocol::time::Instant;

use super::{
    Reason, Shared, State,
    fragments::Fragments,
    memory::Memory,
    rewrite::{QUOTE, Rewrite, apply_to_error},
    tcp,
    view::{Content, View},
};
use crate::flows::{Flow, Life, Opener, Tuple, Way};

/// The half that translates what comes from the tunnel.
#[derive(Debug)]
pub struct Incoming {
    shared: Arc<Shared>,
    memory: Memory,
    fragments: Fragments,
}

impl Incoming {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            memory: Memory::default(),
            fragments: Fragments::default(),
        }
    }

    /// Begins a batch of packets that have arrived together. The batch takes
    /// the table's lock if it needs it, and keeps it: drop it before anything
    /// that takes long.
    pub fn batch(&mut self, now: Instant) -> Batch<'_> {
        Batch {
            shared: &self.shared,
            memory: &mut self.memory,
            fragments: &mut self.fragments,
            state: None,
            now,
        }
    }
}

/// Packets that have arrived together.
#[derive(Debug)]
pub struct Batch<'a> {
    shared: &'a Shared,
    memory: &'a mut Memory,
    fragments: &'a mut Fragments,
    /// Locked since the first packet that needed it.
    state: Option<MutexGuard<'a, State>>,
    now: Instant,
}

impl Batch<'_> {
    /// Translates a decrypted packet in place.
    ///
    /// # Errors
    ///
    /// Why it is to be dropped, which has been counted; it is as it was then.
    pub fn translate(&mut self, packet: &mut [u8]) -> Result<(), Reason> {
        let translated = self.process(packet);
        if let Err(reason) = translated {
            self.shared.count(reason);
        }
        translated
    }

    fn process(&mut self, packet: &mut [u8]) -> Result<(), Reason> {
        let view = View::parse(packet)?;
        let packet = packet.get_mut(..view.len).ok_or(Reason::Malformed)?;
        if self.shared.address.of(view.version) != Some(view.destination) {
            return Err(Reason::NotOurs);
        }
        if view.source == view.destination {
            return Err(Reason::OwnSource);
        }
        // Nobody here waits for a question.
        if let Content::Echo { request: true, .. } = view.content {
            return Err(Reason::NoFlow);
        }
        let tuple = view.incoming();
        if view.is_plain()
            && let Some(rewrite) = self.memory.find(self.now, self.shared, &tuple)
        {
            rewrite.apply(packet, &view, false);
            return Ok(());
        }

        let rewrite = match view.content {
            Content::Error => return self.translate_error(packet, &view),
            _ if view.fragment.is_some_and(|fragment| !fragment.first) => {
                let known = self.fragments.find(self.now, &view);
                known.ok_or(Reason::UnknownFragment)?
            }
            _ => self.place(&view, &tuple)?,
        };
        self.fragments.learn(self.now, &view, &rewrite);
        rewrite.apply(packet, &view, false);
        if view.flags() & tcp::SYN != 0
            && let Some(segment) = packet.get_mut(view.at..)
        {
            tcp::clamp_mss(segment, self.shared.mss(view.version), false);
        }
        Ok(())
    }

    fn state(&mut self) -> &mut State {
        self.state.get_or_insert_with(|| self.shared.lock())
    }

    /// Finds or opens the flow of a packet.
    fn place(&mut self, view: &View, tuple: &Tuple) -> Result<Rewrite, Reason> {
        let now = self.now;
        let state = self.state();
        let index = match state.table.find_outer(now, tuple) {
            Some(index) => index,
            None => {
                if !matches!(view.content, Content::Tcp { .. } | Content::Udp { .. }) {
                    return Err(Reason::NoFlow);
                }
                let mut inner = *tuple;
                let uplink = state.uplink.of(view.version);
                inner.local.ip = uplink.ok_or(Reason::NoUplink)?;
                state.table.open(now, inner, *tuple, Opener::Peer)?
            }
        };
        state.table.touch(now, index, Way::In, view.flags());
        let flow = state.table.flow(index);
        let Flow { inner, outer, .. } = *flow;
        let answered = flow.life() != Life::Unanswered;
        let rewrite = Rewrite::new((outer.remote, outer.local), (inner.remote, inner.local));
        // Until there is an answer, the table is not told of what comes in.
        if view.is_plain() && answered {
            self.memory.keep(now, self.shared, *tuple, rewrite);
        }
        Ok(rewrite)
    }

    /// Rewrites an ICMP error about a packet that had gone out.
    fn translate_error(&mut self, packet: &mut [u8], view: &View) -> Result<(), Reason> {
        let quoted = packet.get(view.at + QUOTE..).ok_or(Reason::Malformed)?;
        let quoted = View::parse_quoted(quoted)?;
        let now = self.now;
        let state = self.state();
        let index = state.table.find_outer(now, &quoted.outgoing());
        let Flow { inner, outer, .. } = *state.table.flow(index.ok_or(Reason::NoFlow)?);
        let from = (outer.local, outer.remote);
        let rewrite = Rewrite::new(from, (inner.local, inner.remote));
        // A name server speaks in the name of the one that was asked.
        let source = if view.source == outer.remote.ip {
            inner.remote.ip
        } else {
            view.source
        };
        let ends = (source, inner.local.ip);
        apply_to_error(packet, view, ends, (&quoted, &rewrite));
        Ok(())
    }
}
