//! What carries a tunnel: frames of the packet filter through the pipeline, datagrams by the
//! UDP sockets, time, names of endpoints, files, and what clients want changed.
//!
//! Once it has begun it ends only when it is told to. While the packet filter fails, adapters stay
//! taken and locked programs locked, so that nothing passes, and it is tried again.

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
    Adapters, Causes, Dropped, Event, Frame, Injection, Output, PacketTap, Pipeline, Settings,
    TapError,
};
use taupe_uapi::{Request, SetRequest};
use tracing::{debug, info, warn};
use zeroize::Zeroizing;

/// The longest wait for frames, after which it is looked at what else there is.
const LONGEST_WAIT: Duration = Duration::from_millis(50);

/// From one word to the log of what was dropped to the next.
const BETWEEN_DROPS: Duration = Duration::from_secs(1);

/// From one look at the adapters to the next: the packet filter does not tell of addresses. Sooner
/// while one has none, as it may get some, or while a connection leads past the packet filter.
const BETWEEN_LOOKS: Duration = Duration::from_secs(5);
const SOON: Duration = Duration::from_secs(1);

/// From a failure of the packet filter to the next try: the first time, and at most, each
/// twice as long as the one before.
const FIRST_TRY: Duration = Duration::from_millis(100);
const LAST_TRY: Duration = Duration::from_secs(1);

/// What is asked of who carries a tunnel.
pub(super) enum Asked {
    /// A client's request, and where the answer goes.
    Configuration(Request, SyncSender<Zeroizing<String>>),
    /// The machine has woken up.
    Awoke,
    /// To do what is due, of which the way of packets by an adapter tells.
    Attention,
    /// To end.
    End,
}

/// What a tunnel has of the system.
pub(super) struct Means<T> {
    pub(super) tap: T,
    pub(super) gate: Gate,
    pub(super) sockets: Sockets,
}

/// What carries a tunnel.
pub(super) struct Carrier<T> {
    pipeline: Pipeline,
    /// Before the tap, which is dropped after it: locked programs are held back before adapters
    /// are given back.
    gate: Gate,
    tap: T,
    sockets: Sockets,
    services: Services,
    requests: Requests,
    /// Hosts whose addresses are looked up, as the pipeline knows them.
    hosts_sought: Vec<Box<str>>,
    asked: Receiver<Asked>,
    /// What the log has been told of frames that were dropped, and when.
    told: (Causes, Instant),
    /// When to look at the adapters.
    look_at: Instant,
    /// What has been seen there.
    adapters: Adapters,
    trouble: Option<Trouble>,
    /// By how much adapters have last been asked to lower their MTU.
    mtu_decrement: Option<u16>,
}

/// The packet filter has failed.
struct Trouble {
    /// When it is tried again.
    until: Instant,
    /// How long that was.
    wait: Duration,
}

impl<T: PacketTap> Carrier<T> {
    /// Makes a device of a request. Nothing is intercepted before [`Self::run`].
    ///
    /// # Errors
    ///
    /// When the device refuses.
    pub(super) fn new(
        means: Means<T>,
        services: Services,
        settings: Settings,
        request: SetRequest,
        asked: Receiver<Asked>,
    ) -> Result<Self, RefusedFile> {
        let Means { tap, gate, sockets } = means;
        // Who asks for attention does so in the thread that looks by itself.
        let device = Device::new(default_provider(), Box::new(SystemRandom), Arc::new(|| {}));
        let requests = Requests::new(settings.port);
        let mut carrier = Self {
            pipeline: Pipeline::new(device, settings, Box::new(System)),
            gate,
            tap,
            sockets,
            services,
            requests,
            hosts_sought: Vec::new(),
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

    /// Carries the tunnel until the end is asked for.
    ///
    /// # Errors
    ///
    /// When the packet filter has not worked even once.
    pub(super) fn run(mut self) -> Result<(), TapError> {
        let adapters = self.tap.adapters()?;
        self.set_adapters(adapters);
        self.pipeline.set_up(now());
        self.open_gate();
        self.carry();
        self.gate.close();
        self.pipeline.close(now());
        let frames = self.do_outputs();
        // It ends either way.
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
                        // Who asked may be gone.
                        let _ = answer.try_send(text);
                    }
                    Asked::Awoke => {
                        info!("the machine has slept: shaking hands anew");
                        self.pipeline.device().handle_awakening(now());
                        self.services.hurry();
                    }
                    Asked::Attention => {}
                    Asked::End => return,
                }
            }
            self.services.handle_answers(self.pipeline.device());
            self.let_questions_through();
            let pipeline = &mut self.pipeline;
            self.sockets.receive(&mut |from, message| {
                // What the system has put together has no traffic class any more.
                pipeline.handle_datagram(from, 0, message);
            });
            self.pipeline.settle(now());
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

    /// Does what is to be done with the packet filter, and waits for its frames. What was judged
    /// by adapters that have failed since is not sent.
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

    /// Holds back what is locked, drops what waits to be known, and has adapters looked at before
    /// anything else.
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

    /// Lets locked programs through, unless they could send past the packet filter.
    fn open_gate(&mut self) {
        if self.trouble.is_none() && self.adapters.missed.is_empty() {
            // There may be a lock since.
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
        self.services.hurry();
        self.pipeline.set_adapters(now(), adapters.taken);
        let decrement = self.pipeline.mtu_decrement();
        if self.mtu_decrement.replace(decrement) != Some(decrement)
            && let Err(error) = self.tap.set_mtu_decrement(decrement)
        {
            warn!(%error, "applications are not told of the tunnel's MTU; packets are cut instead");
        }
    }

    /// Holds back what is locked while there are connections that the packet filter does not see.
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

    /// Does what the pipeline wants done, in order, but for frames, which are returned.
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

    /// Tells the log what has been dropped since it was last told.
    fn tell_of_drops(&mut self) {
        let (before, at) = self.told;
        let now = now().boot;
        if now.since(at) < BETWEEN_DROPS || !tracing::enabled!(tracing::Level::DEBUG) {
            return;
        }
        let dropped = self.pipeline.dropped();
        for cause in Dropped::ALL {
            let more = dropped.count(cause) - before.count(cause);
            if more > 0 {
                debug!(more, ?cause, "dropped");
            }
        }
        self.told = (dropped, now);
    }

    /// Questions for the names that are being looked up.
    fn let_questions_through(&mut self) {
        let known = self.hosts_sought.iter().map(|host| &**host);
        if !self.services.hosts_sought().eq(known) {
            self.hosts_sought = self.services.hosts_sought().map(Box::from).collect();
            self.pipeline.set_hosts_sought(self.hosts_sought.clone());
        }
    }
}

/// How long it is until then; `None` once it is then.
fn left(until: Instant) -> Option<Duration> {
    let left = until.since(now().boot);
    (!left.is_zero()).then_some(left)
}

/// The tunnel's own addresses: of a file the first of each family.
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
