//! What a device has beside its packets, whichever way these go: labels and latches on disk,
//! names of endpoints, and what clients of the pipe ask for.

use super::names::Names;
use crate::silence;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use taupe_protocol::key::PublicKey;
use taupe_protocol::update::{EndpointName, PeerUpdate};
use taupe_protocol::{Device, Output};
use taupe_runtime::clock::now;
use taupe_runtime::configuration::{Refusal, complete};
use taupe_runtime::labels::Labels;
use taupe_runtime::latches::Latches;
use taupe_runtime::names::{Answer, Lookups, Question};
use taupe_runtime::own_key::OwnKey;
use taupe_runtime::resolver::SystemResolver;
use taupe_uapi::{Errno, Request, SetRequest, Status, answer_get};
use tracing::{debug, info, warn};
use zeroize::Zeroizing;

/// Why a device cannot have what its file says.
#[derive(Debug, thiserror::Error)]
#[error("the tunnel cannot have what its file says: {}", .0.trim())]
pub(super) struct Refused(String);

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self(refusal.answer())
    }
}

/// What it has.
pub(super) struct Upkeep {
    labels: Labels,
    latches: Latches,
    own_key: OwnKey,
    /// Endpoints without an address yet.
    names: Names,
    lookups: Lookups,
    /// What is being looked up.
    questions: Vec<Question>,
    /// Whether that has changed since somebody asked.
    has_changed: bool,
    answers: Receiver<Answer>,
    /// The UDP sockets', which stays.
    port: u16,
    /// What becomes of packets while an endpoint has no address.
    meanwhile: &'static str,
}

/// With frames.
const HELD_BACK: &str = "what is to be sent there is held back until it has one";

/// With an adapter.
const IN_THE_CLEAR: &str = "until it has one, the adapter has no addresses and no routes, and \
                            everything goes the network's own way, outside the tunnel";

impl Upkeep {
    /// With what is remembered in a folder.
    pub(super) fn new(state_dir: &Path, names: Names, port: u16) -> Self {
        let (send, answers) = channel();
        let report = move |answer| {
            let _ = send.send(answer);
        };
        Self {
            labels: Labels::new(Some(state_dir)),
            latches: Latches::new(Some(state_dir)),
            own_key: OwnKey::default(),
            names,
            lookups: Lookups::new(Arc::new(SystemResolver::default()), report),
            questions: Vec::new(),
            has_changed: false,
            answers,
            port,
            meanwhile: HELD_BACK,
        }
    }

    /// The same for an adapter, which has no routes before endpoints have addresses.
    pub(super) fn of_adapter(mut self) -> Self {
        self.meanwhile = IN_THE_CLEAR;
        self
    }

    /// Does what the device wants done that is no datagram: those are sent by who has the
    /// sockets.
    pub(super) fn do_output(&mut self, device: &mut Device, output: Output) {
        match output {
            Output::Transmit { .. } => {}
            Output::ReserveLabels { public_key, up_to } => self.labels.store(&public_key, up_to),
            Output::Latch {
                public_key,
                peer,
                latched,
            } => self.latches.store(&public_key, peer, latched),
            Output::Resolve { public_key, name } => self.resolve(device, public_key, name),
            Output::Notice(notice) => warn!("{}", silence::text(&notice)),
        }
    }

    /// Whether every endpoint that has a name has had an address.
    pub(super) fn has_endpoints(&self) -> bool {
        self.names.is_empty()
    }

    /// Takes the addresses that have been found, and has names looked up that are due.
    pub(super) fn look_names_up(&mut self, device: &mut Device) {
        while let Ok(answer) = self.answers.try_recv() {
            self.settle(device, answer.question, answer.addresses);
            self.lookups.proceed(0);
        }
        while let Some(question) = self.names.due(now().boot) {
            self.ask(device, question);
        }
    }

    /// The network has changed: names without an address are worth another try.
    pub(super) fn hurry(&mut self) {
        self.names.hurry();
    }

    /// Has the name of a silent peer looked up.
    fn resolve(&mut self, device: &mut Device, public_key: PublicKey, name: EndpointName) {
        debug!(%name, "a peer is silent: looking its name up");
        self.ask(device, Question { public_key, name });
    }

    /// The hosts whose addresses are being looked up, if they are others than the last time.
    pub(super) fn hosts_sought(&mut self) -> Option<Vec<Box<str>>> {
        let hosts = self.questions.iter().map(|it| it.name.host().into());
        std::mem::take(&mut self.has_changed).then(|| hosts.collect())
    }

    fn ask(&mut self, device: &mut Device, question: Question) {
        self.questions.push(question.clone());
        self.has_changed = true;
        if let Err(question) = self.lookups.ask(question, 0) {
            let error = io::Error::other("too many names are being looked up");
            self.settle(device, question, Err(error));
        }
    }

    fn settle(
        &mut self,
        device: &mut Device,
        question: Question,
        found: io::Result<Vec<SocketAddr>>,
    ) {
        self.questions.retain(|asked| *asked != question);
        self.has_changed = true;
        match self.names.has(&question) {
            true => self.find_endpoint(device, &question, found),
            false => move_endpoint(device, &question, found),
        }
    }

    /// Takes the first address of an endpoint, unless it has one from elsewhere by now.
    fn find_endpoint(
        &mut self,
        device: &mut Device,
        question: &Question,
        found: io::Result<Vec<SocketAddr>>,
    ) {
        let Question { public_key, name } = question;
        let peers = device.status().peers;
        let peer = peers.iter().find(|peer| peer.public_key == *public_key);
        if peer.is_none_or(|peer| peer.endpoint.is_some()) {
            self.names.forget(question);
            return;
        }
        let first = found.and_then(|all| {
            let none = "none of its addresses can be sent to";
            all.into_iter().next().ok_or_else(|| io::Error::other(none))
        });
        let endpoint = match first {
            Ok(endpoint) => endpoint,
            Err(error) => {
                let text = format_args!(
                    "it has no address now: {}; it is looked up again",
                    self.meanwhile
                );
                match self.names.fail(now().boot, question) {
                    Some(line) => warn!(line, %name, %error, "an endpoint: {text}"),
                    None => debug!(%name, %error, "an endpoint still has no address"),
                }
                return;
            }
        };
        let mut request = SetRequest::default();
        request.device.peers.push(PeerUpdate {
            update_only: true,
            endpoint: Some(endpoint),
            endpoint_name: Some(Some(name.clone())),
            ..PeerUpdate::new(*public_key)
        });
        info!(%name, %endpoint, "an endpoint has an address");
        self.names.forget(question);
        // What is wrong with it has been logged.
        let _ = self.apply(device, request);
    }

    /// Does what a client asks for, and the answer.
    pub(super) fn handle_request(
        &mut self,
        device: &mut Device,
        request: Request,
    ) -> Zeroizing<String> {
        match request {
            Request::Get => answer_get(&device.status(), self.port, 0),
            Request::Set(set) => Zeroizing::new(match self.apply(device, set) {
                Ok(()) => Status::SUCCESS.to_string(),
                Err(refusal) => refusal.answer(),
            }),
        }
    }

    /// Applies a request whole, or nothing of it. Rules of applications and networks stay the
    /// file's.
    pub(super) fn apply(
        &mut self,
        device: &mut Device,
        request: SetRequest,
    ) -> Result<(), Refusal> {
        let SetRequest {
            listen_port,
            fwmark,
            device: mut update,
        } = request;
        if listen_port.is_some_and(|port| port != 0 && port != self.port) {
            let reason = "the port of a tunnel that runs stays; write ListenPort in its file, and \
                          start it anew";
            return Err(Refusal::with_reason(Errno::AddressInUse, &reason));
        }
        if fwmark.is_some_and(|mark| mark != 0) {
            let reason = "packets have no marks on Windows; leave fwmark out, or set it to off";
            return Err(Refusal::with_reason(Errno::Invalid, &reason));
        }
        complete(device, &mut self.labels, &self.latches, &mut update)?;
        let concerned = self.own_key.concerns(&update);
        if let Err(error) = device.update(now(), update) {
            warn!(%error, "configuration refused");
            return Err(Errno::Invalid.into());
        }
        if concerned {
            self.own_key.look(device);
        }
        Ok(())
    }
}

fn move_endpoint(device: &mut Device, question: &Question, found: io::Result<Vec<SocketAddr>>) {
    let Question { public_key, name } = question;
    let addresses = found.unwrap_or_else(|error| {
        info!(%name, %error, "a silent peer's name cannot be looked up; its endpoint stays");
        Vec::new()
    });
    let moved = device.handle_addresses(now(), public_key, name, &addresses);
    if let Some(endpoint) = moved {
        info!(%name, %endpoint, "a silent peer's endpoint moves");
    }
}

#[cfg(test)]
mod tests {
    use super::{Names, Upkeep, now};
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};
    use taupe_config::file::{Dialect, parse};
    use taupe_protocol::Device;
    use taupe_protocol::crypto::default_provider;
    use tracing_subscriber::fmt;

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("a log").write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What is said of a name without an address.
    fn said(of: fn(Upkeep) -> Upkeep) -> String {
        let text = "[Interface]\nPrivateKey = yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=\n\
                    [Peer]\nPublicKey = xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=\n\
                    AllowedIPs = ::/0\nEndpoint = one.example:51820\n";
        let file = parse(text.as_bytes(), Dialect::Taupe).file;
        let file = file.expect("a file");
        let random = |bytes: &mut [u8]| bytes.fill(7);
        let mut device = Device::new(default_provider(), Box::new(random), Arc::new(|| {}));
        let folder = std::env::temp_dir();
        let mut upkeep = of(Upkeep::new(&folder, Names::of(&file), 51820));
        let request = taupe_client::request(&file, &[None]);
        assert!(upkeep.apply(&mut device, request).is_ok());
        let question = upkeep.names.due(now().boot).expect("a name");
        let log = Log::default();
        let write = log.clone();
        let subscriber = fmt().with_writer(move || write.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            let none = io::Error::other("no such host");
            upkeep.settle(&mut device, question, Err(none));
        });
        let said = log.0.lock().expect("a log").clone();
        String::from_utf8(said).expect("text")
    }

    #[test]
    fn what_becomes_of_packets_without_an_endpoint_is_said_as_it_is() {
        let of_frames = said(|upkeep| upkeep);
        assert!(of_frames.contains("held back"), "{of_frames}");
        let of_adapter = said(Upkeep::of_adapter);
        assert!(!of_adapter.contains("held back"), "{of_adapter}");
        assert!(of_adapter.contains("outside the tunnel"), "{of_adapter}");
    }
}
