//! Main loop of a tunnel on the packet filter. It passes frames through the pipeline and datagrams
//! through the UDP sockets, and handles timers, endpoint names and clients' requests.
//!
//! Once started, it ends only on request. While the packet filter fails, adapters stay captured and
//! locked programs stay locked, so that nothing passes, and the loop tries again.

use super::lock::LockExemption;
use super::owners::SystemOwners;
use super::requests::{RefusedConfiguration, Requests};
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
const DROP_LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Interval between look-ups of the adapters, because the packet filter does not report changes of
/// addresses. The shorter one applies while an adapter lacks addresses, or while a connection
/// bypasses the packet filter.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(5);
const SHORT_LOOKUP_INTERVAL: Duration = Duration::from_secs(1);

/// Delay before the next attempt after a failure of the packet filter. It starts at [`FIRST_RETRY`]
/// and doubles up to [`LAST_RETRY`].
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(1);

/// Event for a tunnel's thread.
pub(super) enum TunnelEvent {
    /// A client's request, with the channel for the answer.
    Configuration(Request, SyncSender<Zeroizing<String>>),
    /// The machine has resumed from sleep.
    Resumed,
    /// The data path of an adapter has work for this thread.
    WorkDue,
    /// Request to end.
    End,
}

/// System resources of a tunnel.
pub(super) struct Resources<T> {
    pub(super) tap: T,
    pub(super) exemption: LockExemption,
    pub(super) sockets: Sockets,
}

/// A tunnel on the packet filter.
pub(super) struct FrameTunnel<T> {
    pipeline: Pipeline,
    /// Declared before the tap, so that it is dropped first: locked programs are blocked before the
    /// adapters are given back.
    exemption: LockExemption,
    tap: T,
    sockets: Sockets,
    services: Services,
    requests: Requests,
    /// Hosts whose addresses are being looked up, as the pipeline knows them.
    hosts_being_resolved: Vec<Box<str>>,
    events: Receiver<TunnelEvent>,
    /// Drop counters at the last log line, and the time of that line.
    logged_drops: (FrameDrops, Instant),
    /// Time of the next look-up of the adapters.
    next_lookup: Instant,
    /// Result of the last look-up.
    adapters: Adapters,
    failure: Option<FilterFailure>,
    /// Last reduction of the MTU that adapters were asked for.
    mtu_decrement: Option<u16>,
}

struct FilterFailure {
    /// Time of the next attempt.
    until: Instant,
    /// Delay before that attempt.
    wait: Duration,
}

impl<T: PacketTap> FrameTunnel<T> {
    /// Creates a device from a request. Nothing is intercepted before [`Self::run`].
    ///
    /// # Errors
    ///
    /// Fails if the device refuses the request.
    pub(super) fn new(
        resources: Resources<T>,
        services: Services,
        settings: Settings,
        request: SetRequest,
        events: Receiver<TunnelEvent>,
    ) -> Result<Self, RefusedConfiguration> {
        let Resources {
            tap,
            exemption,
            sockets,
        } = resources;
        // The loop checks for due work by itself and needs no notification.
        let device = Device::new(default_provider(), Box::new(SystemRandom), Arc::new(|| {}));
        let requests = Requests::new(settings.port);
        let mut tunnel = Self {
            pipeline: Pipeline::new(device, settings, Box::new(SystemOwners)),
            exemption,
            tap,
            sockets,
            services,
            requests,
            hosts_being_resolved: Vec::new(),
            events,
            logged_drops: Default::default(),
            next_lookup: Instant::default(),
            adapters: Adapters::default(),
            failure: None,
            mtu_decrement: None,
        };
        let device = tunnel.pipeline.device();
        tunnel
            .requests
            .apply(device, &mut tunnel.services, request)
            .map_err(RefusedConfiguration::from)?;
        Ok(tunnel)
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
        self.exempt_locked();
        self.run_loop();
        self.exemption.revoke();
        self.pipeline.close(now());
        let frames = self.do_outputs();
        // The tunnel ends even if this fails.
        let _ = self.tap.inject(&frames);
        Ok(())
    }

    fn run_loop(&mut self) {
        loop {
            while let Ok(event) = self.events.try_recv() {
                match event {
                    TunnelEvent::Configuration(request, answer) => {
                        let device = self.pipeline.device();
                        let text = self.requests.handle(device, &mut self.services, request);
                        // The client may be gone.
                        let _ = answer.try_send(text);
                    }
                    TunnelEvent::Resumed => {
                        info!("the machine has resumed from sleep: starting new handshakes");
                        self.pipeline.device().handle_resume(now());
                        self.services.retry_now();
                    }
                    TunnelEvent::WorkDue => {}
                    TunnelEvent::End => return,
                }
            }
            self.services.handle_answers(self.pipeline.device());
            self.allow_endpoint_queries();
            let pipeline = &mut self.pipeline;
            self.sockets.receive(&mut |from, message| {
                // The traffic class is unknown for datagrams that the system has reassembled.
                pipeline.handle_datagram(from, 0, message);
            });
            self.pipeline.run_pending(now());
            self.log_drops();
            let failure = self.failure.as_ref();
            if let Some(left) = failure.and_then(|it| left(it.until)) {
                thread::sleep(left.min(LONGEST_WAIT));
                continue;
            }
            match self.exchange() {
                Ok(()) => self.end_failure(),
                Err(error) => self.begin_failure(&error),
            }
        }
    }

    /// Passes output to the packet filter, and waits for frames. Frames that were handled before an
    /// adapter failed are not sent.
    fn exchange(&mut self) -> Result<(), TapError> {
        let frames = self.do_outputs();
        if left(self.next_lookup).is_none() {
            self.update_adapters()?;
        }
        if !frames.is_empty() {
            self.tap.inject(&frames)?;
        }
        let deadline = self.pipeline.next_deadline();
        let wait = deadline.map_or(LONGEST_WAIT, |at| left(at).unwrap_or_default());
        let pipeline = &mut self.pipeline;
        let handle = &mut |frame: Frame<'_>| pipeline.handle_frame(now(), frame);
        if self.tap.read(wait.min(LONGEST_WAIT), handle)? == Event::Adapters {
            self.next_lookup = Instant::default();
        }
        Ok(())
    }

    /// Blocks locked programs, drops waiting packets, and makes the look-up of adapters the first
    /// step of the next attempt.
    fn begin_failure(&mut self, error: &TapError) {
        self.exemption.revoke();
        self.pipeline.drop_waiting();
        let wait = match &self.failure {
            None => {
                warn!(%error, "the packet filter fails: all traffic is blocked until it works again");
                FIRST_RETRY
            }
            Some(failure) => {
                debug!(%error, "the packet filter still fails");
                (failure.wait * 2).min(LAST_RETRY)
            }
        };
        let until = now().boot + wait;
        self.failure = Some(FilterFailure { until, wait });
        self.next_lookup = Instant::default();
    }

    fn end_failure(&mut self) {
        if self.failure.take().is_some() {
            info!("the packet filter works again");
            self.exempt_locked();
        }
    }

    /// Lets locked programs use the network, unless their packets could bypass the packet filter.
    fn exempt_locked(&mut self) {
        if self.failure.is_none() && self.adapters.missed.is_empty() {
            // A lock may have been set since the last attempt.
            self.exemption.grant();
        }
    }

    fn update_adapters(&mut self) -> Result<(), TapError> {
        let adapters = self.tap.adapters()?;
        self.set_adapters(adapters);
        self.exempt_locked();
        Ok(())
    }

    fn set_adapters(&mut self, adapters: Adapters) {
        let lacks_addresses = adapters.taken.iter().any(|it| it.addresses.is_empty());
        let is_complete = !lacks_addresses && adapters.missed.is_empty();
        self.next_lookup = now().boot
            + if is_complete {
                LOOKUP_INTERVAL
            } else {
                SHORT_LOOKUP_INTERVAL
            };
        let before = std::mem::replace(&mut self.adapters, adapters.clone());
        if adapters.missed != before.missed {
            self.log_missed();
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
            warn!(%error, "cannot tell applications the tunnel's MTU; packets are fragmented instead");
        }
    }

    /// Warns and blocks locked programs while there are connections that the packet filter does not see.
    fn log_missed(&mut self) {
        for name in &self.adapters.missed {
            warn!(
                name,
                "the packet filter has no adapter for this connection to the network: all packets \
                 on it bypass the tunnel, except those of locked programs, which are blocked; tick \
                 the packet filter in the connection's properties, or disable the connection"
            );
        }
        match self.adapters.missed.is_empty() {
            true => info!("the packet filter has adapters for all connections to the network"),
            false => self.exemption.revoke(),
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
                        debug!(%to, ?kind, "sending by the system's UDP socket");
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
        self.allow_endpoint_queries();
        if wants_adapters {
            self.next_lookup = Instant::default();
        }
        frames
    }

    /// Logs the packets dropped since the last log line.
    fn log_drops(&mut self) {
        let (before, at) = self.logged_drops;
        let now = now().boot;
        if now.since(at) < DROP_LOG_INTERVAL || !tracing::enabled!(tracing::Level::DEBUG) {
            return;
        }
        let dropped = self.pipeline.dropped();
        for cause in FrameDropReason::ALL {
            let more = dropped.count(cause) - before.count(cause);
            if more > 0 {
                debug!(more, ?cause, "dropped");
            }
        }
        self.logged_drops = (dropped, now);
    }

    /// Lets DNS queries for the names pass that are being looked up.
    fn allow_endpoint_queries(&mut self) {
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
