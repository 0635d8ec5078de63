//! Main loop of a tunnel on the packet filter. It passes frames through the pipeline and datagrams
//! through the UDP sockets, and handles timers, endpoint names and clients' requests.
//!
//! Once started, it ends only on request. While the packet filter fails, adapters stay captured and
//! locked programs stay locked, so that nothing passes, and the loop tries again.

use super::lock::Gate;
use super::owners::System;
use super::requests::{RefusedFile, Requests};
use super::sockets::Sockets;
use crate::peer_notices;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};
use std::thread;
use std::time::Duration;
use taupe_protocol::Device;
use taupe_protocol::crypto::default_provider;
use taupe_protocol::message::classify;
use taupe_protocol::time::Instant;
use taupe_runtime::clock::now;
use taupe_runtime::random::SystemRandom;
use taupe_runtime::services::{self, Services};
use taupe_transparent_windows::{
    Adapters, Event, Frame, FrameDropReason, FrameDrops, Injection, Output, PacketTap, Pipeline,
    Settings, TapError,
};
use taupe_uapi::{Request, SetRequest};
use tracing::{debug, info, warn};
use zeroize::Zeroizing;

/// Longest wait for frames before other events are checked.
const LONGEST_WAIT: Duration = Duration::from_millis(50);

/// Interval between log lines about dropped packets.
const BETWEEN_DROPS: Duration = Duration::from_secs(1);

/// Interval between look-ups of the adapters, because the packet filter does not report changes of
/// addresses. The shorter one applies while an adapter lacks addresses, or while a connection
/// bypasses the packet filter.
const BETWEEN_LOOKS: Duration = Duration::from_secs(5);
const SOON: Duration = Duration::from_secs(1);

/// Delay before the next attempt after a failure of the packet filter. It starts at [`FIRST_TRY`]
/// and doubles up to [`LAST_TRY`].
const FIRST_TRY: Duration = Duration::from_millis(100);
const LAST_TRY: Duration = Duration::from_secs(1);

/// Request to a tunnel's thread.
pub(super) enum Asked {
    /// A client's request, with the channel for the answer.
    Configuration(Request, SyncSender<Zeroizing<String>>),
    Awoke,
    /// Work is due. Sent by the data path of an adapter.
    Attention,
    End,
}

/// System resources of a tunnel.
pub(super) struct Means<T> {
    pub(super) tap: T,
    pub(super) gate: Gate,
    pub(super) sockets: Sockets,
}

/// A tunnel on the packet filter.
pub(super) struct Carrier<T> {
    pipeline: Pipeline,
    /// Declared before the tap, so that it is dropped first: locked programs are blocked before the
    /// adapters are given back.
    gate: Gate,
    tap: T,
    sockets: Sockets,
    services: Services,
    requests: Requests,
    /// Hosts whose addresses are being looked up, as the pipeline knows them.
    hosts_being_resolved: Vec<Box<str>>,
    asked: Receiver<Asked>,
    /// Drop counters at the last log line, and the time of that line.
    told: (FrameDrops, Instant),
    /// Time of the next look-up of the adapters.
    look_at: Instant,
    /// Result of the last look-up.
    adapters: Adapters,
    trouble: Option<Trouble>,
    /// Last reduction of the MTU that adapters were asked for.
    mtu_decrement: Option<u16>,
}

struct Trouble {
    /// Time of the next attempt.
    until: Instant,
    /// Delay before that attempt.
    wait: Duration,
}

impl<T: PacketTap> Carrier<T> {
    /// Creates a device from a request. Nothing is intercepted before [`Self::run`].
    ///
    /// # Errors
    ///
    /// Fails if the device refuses the request.
    pub(super) fn new(
        means: Means<T>,
        services: Services,
        settings: Settings,
        request: SetRequest,
        asked: Receiver<Asked>,
    ) -> Result<Self, RefusedFile> {
        let Means { tap, gate, sockets } = means;
        // The loop checks for due work by itself and needs no notification.
        let device = Device::new(default_provider(), Box::new(SystemRandom), Arc::new(|| {}));
        let requests = Requests::new(settings.port);
        let mut carrier = Self {
            pipeline: Pipeline::new(device, settings, Box::new(System)),
            gate,
            tap,
            sockets,
            services,
            requests,
            hosts_being_resolved: Vec::new(),
            asked,
            told: Default::default(),
            look_at: Instant::default(),
            adapters: Adapters::default(),
            trouble: None,
            mtu_decrement: None,
        };
        let device = carrier.pipeline.device();
        carrier
            .requests
            .apply(device, &mut carrier.services, request)
            .map_err(RefusedFile::from)?;
        Ok(carrier)
    }

    /// Runs the tunnel until it is asked to end.
    ///
    /// # Errors
    ///
    /// Fails if the packet filter does not work from the start.
    pub(super) fn run(mut self) -> Result<(), TapError> {
        let adapters = self.tap.adapters()?;
        self.set_adapters(adapters);
        self.pipeline.set_up(now());
        self.open_gate();
        self.carry();
        self.gate.close();
        self.pipeline.close(now());
        let frames = self.do_outputs();
        // The tunnel ends even if this fails.
        let _ = self.tap.inject(&frames);
        Ok(())
    }

    fn carry(&mut self) {
        loop {
            while let Ok(asked) = self.asked.try_recv() {
                match asked {
                    Asked::Configuration(request, answer) => {
                        let device = self.pipeline.device();
                        let text = self.requests.handle(device, &mut self.services, request);
                        // The client may be gone.
                        let _ = answer.try_send(text);
                    }
                    Asked::Awoke => {
                        info!("the machine has slept: shaking hands anew");
                        self.pipeline.device().handle_awakening(now());
                        self.services.retry_now();
                    }
                    Asked::Attention => {}
                    Asked::End => return,
                }
            }
            self.services.handle_answers(self.pipeline.device());
            self.let_questions_through();
            let pipeline = &mut self.pipeline;
            self.sockets.receive(&mut |from, message| {
                // The traffic class is unknown for datagrams that the system has reassembled.
                pipeline.handle_datagram(from, 0, message);
            });
            self.pipeline.run_pending(now());
            self.tell_of_drops();
            let trouble = self.trouble.as_ref();
            if let Some(left) = trouble.and_then(|it| left(it.until)) {
                thread::sleep(left.min(LONGEST_WAIT));
                continue;
            }
            match self.exchange() {
                Ok(()) => self.end_trouble(),
                Err(error) => self.begin_trouble(&error),
            }
        }
    }

    /// Passes output to the packet filter, and waits for frames. Frames that were handled before an
    /// adapter failed are not sent.
    fn exchange(&mut self) -> Result<(), TapError> {
        let frames = self.do_outputs();
        if left(self.look_at).is_none() {
            self.look_at_adapters()?;
        }
        if !frames.is_empty() {
            self.tap.inject(&frames)?;
        }
        let deadline = self.pipeline.next_deadline();
        let wait = deadline.map_or(LONGEST_WAIT, |at| left(at).unwrap_or_default());
        let pipeline = &mut self.pipeline;
        let judge = &mut |frame: Frame<'_>| pipeline.handle_frame(now(), frame);
        if self.tap.read(wait.min(LONGEST_WAIT), judge)? == Event::Adapters {
            self.look_at = Instant::default();
        }
        Ok(())
    }

    /// Blocks locked programs, drops waiting packets, and makes the look-up of adapters the first
    /// step of the next attempt.
    fn begin_trouble(&mut self, error: &TapError) {
        self.gate.close();
        self.pipeline.drop_waiting();
        let wait = match &self.trouble {
            None => {
                warn!(%error, "the packet filter fails: nothing passes until it works again");
                FIRST_TRY
            }
            Some(trouble) => {
                debug!(%error, "the packet filter still fails");
                (trouble.wait * 2).min(LAST_TRY)
            }
        };
        let until = now().boot + wait;
        self.trouble = Some(Trouble { until, wait });
        self.look_at = Instant::default();
    }

    fn end_trouble(&mut self) {
        if self.trouble.take().is_some() {
            info!("the packet filter works again");
            self.open_gate();
        }
    }

    /// Lets locked programs use the network, unless their packets could bypass the packet filter.
    fn open_gate(&mut self) {
        if self.trouble.is_none() && self.adapters.missed.is_empty() {
            // A lock may have been set since the last attempt.
            self.gate.open();
        }
    }

    fn look_at_adapters(&mut self) -> Result<(), TapError> {
        let adapters = self.tap.adapters()?;
        self.set_adapters(adapters);
        self.open_gate();
        Ok(())
    }

    fn set_adapters(&mut self, adapters: Adapters) {
        let lacks_some = adapters.taken.iter().any(|it| it.addresses.is_empty());
        let is_whole = !lacks_some && adapters.missed.is_empty();
        self.look_at = now().boot + if is_whole { BETWEEN_LOOKS } else { SOON };
        let before = std::mem::replace(&mut self.adapters, adapters.clone());
        if adapters.missed != before.missed {
            self.tell_of_missed();
        }
        if adapters.taken == before.taken {
            self.pipeline.set_adapters(now(), adapters.taken);
            return;
        }
        for adapter in &adapters.taken {
            debug!(
                name = adapter.name,
                index = adapter.index,
                mtu = adapter.mtu,
                addresses = ?adapter.addresses,
                "adapter"
            );
        }
        self.services.retry_now();
        self.pipeline.set_adapters(now(), adapters.taken);
        let decrement = self.pipeline.mtu_decrement();
        if self.mtu_decrement.replace(decrement) != Some(decrement)
            && let Err(error) = self.tap.set_mtu_decrement(decrement)
        {
            warn!(%error, "applications are not told of the tunnel's MTU; packets are cut instead");
        }
    }

    /// Warns and blocks locked programs while there are connections that the packet filter does not see.
    fn tell_of_missed(&mut self) {
        for name in &self.adapters.missed {
            warn!(
                name,
                "the packet filter has no adapter of this connection, which leads out: what \
                 leaves by it, chosen or not, goes past the tunnel, but what is locked; in the \
                 connection's properties tick the packet filter, or disable the connection"
            );
        }
        match self.adapters.missed.is_empty() {
            true => info!("the packet filter has adapters of all connections that lead out"),
            false => self.gate.close(),
        }
    }

    /// Executes the pipeline's outputs in order. Frames are not sent but returned.
    fn do_outputs(&mut self) -> Vec<Injection> {
        let (mut frames, mut wants_adapters) = (Vec::new(), false);
        while let Some(output) = self.pipeline.poll_output() {
            match output {
                Output::Inject(frame) => {
                    frames.push(frame);
                    continue;
                }
                Output::Datagram { to, message, .. } => {
                    if let Ok(kind) = classify(&message) {
                        debug!(%to, ?kind, "sending by the system's way");
                    }
                    self.sockets.send(to, &message);
                }
                Output::Device(output) => {
                    let device = self.pipeline.device();
                    if let Some(services::Event::Notice(notice)) =
                        self.services.handle_output(device, output)
                    {
                        warn!("{}", peer_notices::text(&notice));
                    }
                }
                Output::Adapters => wants_adapters = true,
            }
        }
        self.let_questions_through();
        if wants_adapters {
            self.look_at = Instant::default();
        }
        frames
    }

    /// Logs the packets dropped since the last log line.
    fn tell_of_drops(&mut self) {
        let (before, at) = self.told;
        let now = now().boot;
        if now.since(at) < BETWEEN_DROPS || !tracing::enabled!(tracing::Level::DEBUG) {
            return;
        }
        let dropped = self.pipeline.dropped();
        for cause in FrameDropReason::ALL {
            let more = dropped.count(cause) - before.count(cause);
            if more > 0 {
                debug!(more, ?cause, "dropped");
            }
        }
        self.told = (dropped, now);
    }

    /// Lets DNS queries for the names pass that are being looked up.
    fn let_questions_through(&mut self) {
        let known = self.hosts_being_resolved.iter().map(|host| &**host);
        if !self.services.hosts_being_resolved().eq(known) {
            self.hosts_being_resolved = self
                .services
                .hosts_being_resolved()
                .map(Box::from)
                .collect();
            self.pipeline
                .set_hosts_being_resolved(self.hosts_being_resolved.clone());
        }
    }
}

/// Returns the time left. `None` once it has passed.
fn left(until: Instant) -> Option<Duration> {
    let left = until.since(now().boot);
    (!left.is_zero()).then_some(left)
}

/// Returns the tunnel's own addresses: the first of each family in the file.
pub(super) fn addresses(
    all: impl Iterator<Item = IpAddr> + Clone,
) -> (Option<Ipv4Addr>, Option<Ipv6Addr>) {
    let v4 = all.clone().find_map(|address| match address {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    });
    let v6 = all.into_iter().find_map(|address| match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(address) => Some(address),
    });
    (v4, v6)
}

#[cfg(test)]
mod tests;
