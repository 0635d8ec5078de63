//! What carries a tunnel: frames of the packet filter through the pipeline, datagrams by the
//! UDP sockets, time, names of endpoints, files, and what clients want changed.

use super::owners::System;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, channel};
use std::time::Duration;
use taupe_config::uapi::{Errno, Request, SetRequest, Status, answer_get};
use taupe_protocol::crypto::default_provider;
use taupe_protocol::message::classify;
use taupe_protocol::time::{Instant, Now};
use taupe_protocol::{Device, Notice, Random};
use taupe_transparent::frames::{
    Causes, Dropped, Event, Frame, Output, PacketTap, Pipeline, Settings, TapError,
};
use taupe_upkeep::configuration::{Refusal, complete};
use taupe_upkeep::labels::Labels;
use taupe_upkeep::latches::Latches;
use taupe_upkeep::names::{Answer, Lookups, Question};
use taupe_upkeep::own_key::OwnKey;
use taupe_upkeep::resolver::SystemResolver;
use tracing::{debug, info, warn};
use zeroize::Zeroizing;

/// The longest wait for frames, after which it is looked at what else there is.
const LONGEST_WAIT: Duration = Duration::from_millis(50);

/// From one word to the log of what was dropped to the next.
const BETWEEN_DROPS: Duration = Duration::from_secs(1);

/// Ports that are tried until both families have the same.
const TRIES: usize = 16;

/// What is asked of who carries a tunnel.
pub(super) enum Asked {
    /// A client's request, and where the answer goes.
    Configuration(Request, SyncSender<Zeroizing<String>>),
    /// The machine has woken up.
    Awoke,
    /// To end.
    End,
}

/// The UDP sockets that have the tunnel's port, so that nobody else has.
pub(super) struct Sockets {
    v4: UdpSocket,
    /// Where there is IPv6.
    v6: Option<UdpSocket>,
    pub(super) port: u16,
}

impl Sockets {
    /// Binds a port of both families; any for 0.
    pub(super) fn bind(port: u16) -> io::Result<Self> {
        let mut tries = TRIES;
        loop {
            let v4 = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))?;
            let bound = v4.local_addr()?.port();
            let v6 = match UdpSocket::bind((Ipv6Addr::UNSPECIFIED, bound)) {
                Ok(socket) => Some(socket),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                    tries -= 1;
                    if port != 0 || tries == 0 {
                        return Err(error);
                    }
                    continue;
                }
                Err(error) => {
                    debug!(%error, "no IPv6");
                    None
                }
            };
            return Ok(Self {
                v4,
                v6,
                port: bound,
            });
        }
    }

    fn send(&self, to: SocketAddr, message: &[u8]) {
        let socket = match to {
            SocketAddr::V4(_) => Some(&self.v4),
            SocketAddr::V6(_) => self.v6.as_ref(),
        };
        let Some(socket) = socket else {
            debug!(%to, "this system has no socket of that family");
            return;
        };
        // A datagram that is lost is sent again, or its sender is used to it.
        if let Err(error) = socket.send_to(message, to) {
            debug!(%to, %error, "sending failed");
        }
    }
}

/// Why a device cannot have what its file says.
#[derive(Debug, thiserror::Error)]
#[error("the tunnel cannot have what its file says: {}", .0.trim())]
pub(super) struct Refused(String);

/// What carries a tunnel.
pub(super) struct Carrier<T> {
    pipeline: Pipeline,
    tap: T,
    sockets: Sockets,
    labels: Labels,
    latches: Latches,
    own_key: OwnKey,
    lookups: Lookups,
    answers: Receiver<Answer>,
    asked: Receiver<Asked>,
    tell: fn(&Notice),
    /// What the log has been told of frames that were dropped, and when.
    told: (Causes, Instant),
}

impl<T: PacketTap> Carrier<T> {
    /// Makes a device of a request, with what is remembered in a folder. Nothing is intercepted
    /// before [`Self::run`].
    ///
    /// # Errors
    ///
    /// When the device refuses.
    pub(super) fn new(
        tap: T,
        sockets: Sockets,
        settings: Settings,
        request: SetRequest,
        state_dir: &Path,
        asked: Receiver<Asked>,
        tell: fn(&Notice),
    ) -> Result<Self, Refused> {
        // Who asks for attention does so in the thread that looks by itself.
        let device = Device::new(default_provider(), Box::new(SystemRandom), Arc::new(|| {}));
        let (send, answers) = channel();
        let report = move |answer| {
            let _ = send.send(answer);
        };
        let mut carrier = Self {
            pipeline: Pipeline::new(device, settings, Box::new(System)),
            tap,
            sockets,
            labels: Labels::new(Some(state_dir)),
            latches: Latches::new(Some(state_dir)),
            own_key: OwnKey::default(),
            lookups: Lookups::new(Arc::new(SystemResolver::default()), report),
            answers,
            asked,
            tell,
            told: Default::default(),
        };
        let refused = |refusal: Refusal| Refused(refusal.answer());
        carrier.apply(request).map_err(refused)?;
        Ok(carrier)
    }

    /// Carries the tunnel until the end is asked for.
    ///
    /// # Errors
    ///
    /// When the packet filter fails.
    pub(super) fn run(mut self) -> Result<(), TapError> {
        let ended = self.carry();
        self.pipeline.close(now());
        let closed = self.do_outputs();
        ended.and(closed)
    }

    fn carry(&mut self) -> Result<(), TapError> {
        self.look_at_adapters()?;
        self.tap.set_mtu_decrement(self.pipeline.mtu_decrement())?;
        self.pipeline.set_up(now());
        loop {
            while let Ok(asked) = self.asked.try_recv() {
                match asked {
                    Asked::Configuration(request, answer) => {
                        let text = self.handle_request(request);
                        // Who asked may be gone.
                        let _ = answer.try_send(text);
                    }
                    Asked::Awoke => {
                        info!("the machine has slept: shaking hands anew");
                        self.pipeline.device().handle_awakening(now());
                    }
                    Asked::End => return Ok(()),
                }
            }
            while let Ok(answer) = self.answers.try_recv() {
                self.move_endpoint(answer);
            }
            self.pipeline.settle(now());
            self.do_outputs()?;
            self.tell_of_drops();
            let wait = wait(self.pipeline.next_deadline());
            let pipeline = &mut self.pipeline;
            let judge = &mut |frame: Frame<'_>| pipeline.handle_frame(now(), frame);
            match self.tap.read(wait, judge)? {
                Event::Read => {}
                Event::Adapters => {
                    self.look_at_adapters()?;
                    self.tap.set_mtu_decrement(self.pipeline.mtu_decrement())?;
                }
            }
        }
    }

    fn look_at_adapters(&mut self) -> Result<(), TapError> {
        let adapters = self.tap.adapters()?;
        for adapter in &adapters {
            debug!(
                name = adapter.name,
                index = adapter.index,
                mtu = adapter.mtu,
                "adapter"
            );
        }
        self.pipeline.set_adapters(now(), adapters);
        Ok(())
    }

    /// Does what the pipeline wants done, in order.
    fn do_outputs(&mut self) -> Result<(), TapError> {
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
                Output::ReserveLabels { public_key, up_to } => {
                    self.labels.store(&public_key, up_to);
                }
                Output::Latch {
                    public_key,
                    peer,
                    latched,
                } => self.latches.store(&public_key, peer, latched),
                Output::Resolve { public_key, name } => {
                    debug!(%name, "a peer is silent: looking its name up");
                    let question = Question { public_key, name };
                    if let Err(question) = self.lookups.ask(question, 0) {
                        let Question { public_key, name } = question;
                        let device = self.pipeline.device();
                        device.handle_addresses(now(), &public_key, &name, &[]);
                    }
                }
                Output::Notice(notice) => (self.tell)(&notice),
                Output::Adapters => wants_adapters = true,
            }
        }
        if !frames.is_empty() {
            self.tap.inject(&frames)?;
        }
        if wants_adapters {
            self.look_at_adapters()?;
        }
        Ok(())
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

    fn move_endpoint(&mut self, answer: Answer) {
        let Question { public_key, name } = answer.question;
        let addresses = answer.addresses.unwrap_or_else(|error| {
            info!(%name, %error, "a silent peer's name cannot be looked up; its endpoint stays");
            Vec::new()
        });
        let device = self.pipeline.device();
        let moved = device.handle_addresses(now(), &public_key, &name, &addresses);
        if let Some(endpoint) = moved {
            info!(%name, %endpoint, "a silent peer's endpoint moves");
        }
        self.lookups.proceed(0);
    }

    fn handle_request(&mut self, request: Request) -> Zeroizing<String> {
        match request {
            Request::Get => answer_get(&self.pipeline.device().status(), self.sockets.port, 0),
            Request::Set(set) => Zeroizing::new(match self.apply(set) {
                Ok(()) => Status::SUCCESS.to_string(),
                Err(refusal) => refusal.answer(),
            }),
        }
    }

    /// Applies a request whole, or nothing of it. Rules of applications and networks stay the
    /// file's.
    fn apply(&mut self, request: SetRequest) -> Result<(), Refusal> {
        let SetRequest {
            listen_port,
            fwmark,
            mut device,
        } = request;
        let own = self.sockets.port;
        if listen_port.is_some_and(|port| port != 0 && port != own) {
            let reason = "the port of a tunnel that runs stays; write ListenPort in its file, and \
                          start it anew";
            return Err(Refusal::with_reason(Errno::AddressInUse, &reason));
        }
        if fwmark.is_some_and(|mark| mark != 0) {
            let reason = "packets have no marks on Windows; leave fwmark out, or set it to off";
            return Err(Refusal::with_reason(Errno::Invalid, &reason));
        }
        let running = self.pipeline.device();
        complete(running, &mut self.labels, &self.latches, &mut device)?;
        let concerned = self.own_key.concerns(&device);
        if let Err(error) = running.update(now(), device) {
            warn!(%error, "configuration refused");
            return Err(Errno::Invalid.into());
        }
        if concerned {
            self.own_key.look(running);
        }
        Ok(())
    }
}

fn wait(deadline: Option<Instant>) -> Duration {
    let left = deadline.map(|at| at.since(now().boot));
    left.map_or(LONGEST_WAIT, |left| left.min(LONGEST_WAIT))
}

fn now() -> Now {
    let (boot, wall) = taupe_sys::clock::now();
    Now {
        boot: Instant(boot),
        wall,
    }
}

/// The operating system's randomness.
struct SystemRandom;

impl Random for SystemRandom {
    fn fill(&mut self, bytes: &mut [u8]) {
        taupe_sys::random::fill(bytes);
    }
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
