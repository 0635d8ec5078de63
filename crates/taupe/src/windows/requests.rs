//! Requests of the pipe's clients, and the services of a tunnel's device.

use super::arguments::WindowsMode;
use std::path::Path;
use std::sync::Arc;
use taupe_config::file::File;
use taupe_protocol::{Device, Wake};
use taupe_runtime::configuration::{Refusal, refuse};
use taupe_runtime::names::Question;
use taupe_runtime::own_pq_key::OwnPqKey;
use taupe_runtime::resolver::SystemResolver;
use taupe_runtime::services::Services;
use taupe_runtime::unresolved::UnresolvedEndpoints;
use taupe_uapi::{Errno, Request, SetRequest, Status, answer_get};
use zeroize::Zeroizing;

/// The device refuses the configuration file.
#[derive(Debug, thiserror::Error)]
#[error("the device refuses the file's settings: {}", .0.trim())]
pub(super) struct RefusedConfiguration(String);

impl From<Refusal> for RefusedConfiguration {
    fn from(refusal: Refusal) -> Self {
        Self(refusal.answer())
    }
}

/// Returns the end of the warning about an endpoint without an address. An adapter has no routes
/// before endpoints have addresses.
fn effect_without_address(mode: WindowsMode) -> &'static str {
    match mode {
        WindowsMode::Frames => "traffic for this peer is blocked until it has one",
        WindowsMode::Adapter => {
            "until it has one, the adapter has no addresses and no routes, and all traffic goes \
             outside the tunnel"
        }
    }
}

/// Returns the services of a file's device. `wake` is called when the address of an endpoint has
/// been found.
pub(super) fn services(state_dir: &Path, file: &File, mode: WindowsMode, wake: Wake) -> Services {
    let resolver = Arc::new(SystemResolver::default());
    Services::new(Some(state_dir), resolver, wake)
        .with_unresolved(unresolved(file), effect_without_address(mode))
}

/// Returns the endpoints that a file gives by name.
fn unresolved(file: &File) -> UnresolvedEndpoints {
    UnresolvedEndpoints::new(file.peers.iter().filter_map(|peer| {
        let question = Question {
            public_key: peer.public_key,
            name: peer.endpoint_name()?,
        };
        Some((question, peer.line))
    }))
}

/// Carries out requests of clients.
pub(super) struct Requests {
    own_pq_key: OwnPqKey,
    /// Port of the UDP sockets, which cannot change.
    port: u16,
}

impl Requests {
    /// Requests to a device whose sockets have this port.
    pub(super) fn new(port: u16) -> Self {
        Self {
            own_pq_key: OwnPqKey::default(),
            port,
        }
    }

    /// Carries out a request, and returns the answer.
    pub(super) fn handle(
        &mut self,
        device: &mut Device,
        services: &mut Services,
        request: Request,
    ) -> Zeroizing<String> {
        match request {
            Request::Get => answer_get(&device.status(), self.port, 0),
            Request::Set(set) => Zeroizing::new(match self.apply(device, services, set) {
                Ok(()) => Status::SUCCESS.to_string(),
                Err(refusal) => refusal.answer(),
            }),
        }
    }

    /// Applies a request completely or not at all. Rules about applications and networks are not
    /// changed.
    pub(super) fn apply(
        &mut self,
        device: &mut Device,
        services: &mut Services,
        request: SetRequest,
    ) -> Result<(), Refusal> {
        let SetRequest {
            listen_port,
            fwmark,
            device: update,
        } = request;
        if listen_port.is_some_and(|port| port != 0 && port != self.port) {
            let reason = "the port of a running tunnel cannot change; write ListenPort into its \
                          file, and restart it";
            return Err(Refusal::with_reason(Errno::AddressInUse, &reason));
        }
        if fwmark.is_some_and(|mark| mark != 0) {
            let reason = "packets have no marks on Windows; omit fwmark, or set it to off";
            return Err(Refusal::with_reason(Errno::Invalid, &reason));
        }
        let update = services.prepare(device, update).map_err(refuse)?;
        self.own_pq_key.apply(device, update).map_err(refuse)
    }
}

#[cfg(test)]
mod tests {
    use super::{WindowsMode, effect_without_address, unresolved};
    use taupe_config::file::{Dialect, parse};
    use taupe_protocol::time::Instant;

    #[test]
    fn the_warning_says_what_happens_to_packets_without_an_endpoint() {
        let of_frames = effect_without_address(WindowsMode::Frames);
        assert!(of_frames.contains("blocked"), "{of_frames}");
        let of_adapter = effect_without_address(WindowsMode::Adapter);
        assert!(!of_adapter.contains("blocked"), "{of_adapter}");
        assert!(of_adapter.contains("outside the tunnel"), "{of_adapter}");
    }

    #[test]
    fn names_of_a_file_are_looked_up_and_addresses_are_not() {
        let text = "[Interface]\nPrivateKey = yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=\n\
                    [Peer]\nPublicKey = xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=\n\
                    AllowedIPs = ::/0\nEndpoint = one.example:51820\n\
                    [Peer]\nPublicKey = HIgo9xNzJMWLKASShiTqIybxZ0U3wGLiUeJ1PKf8ykw=\n\
                    AllowedIPs = 10.0.0.0/8\nEndpoint = 192.0.2.1:51820\n";
        let file = parse(text.as_bytes(), Dialect::Taupe).file.expect("a file");
        let mut names = unresolved(&file);
        let question = names.due(Instant::default()).expect("a name");
        assert_eq!(question.name.host(), "one.example");
        assert!(names.due(Instant::default()).is_none());
    }
}
