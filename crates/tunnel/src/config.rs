//! Configuration of a tunnel.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;

use taupe_config::file::{Diagnostic, Dialect, Endpoint, File, Severity, parse};
use taupe_protocol::Wake;
use taupe_protocol::key::PublicKey;
use taupe_protocol::time::Tai64N;
use taupe_runtime::names::Question;
use taupe_runtime::pinned_pq::PinnedPeersError;
use taupe_runtime::resolver::SystemResolver;
use taupe_runtime::saved_state::{SavedState, StateFiles};
use taupe_runtime::services::Services;
use taupe_runtime::unresolved::UnresolvedEndpoints;
use taupe_stack::DEFAULT_MTU;
use taupe_stack::keepalive::Keepalive;
use taupe_stack::settings::{Addresses, Settings};

/// Configuration of a tunnel: a file, the folder of its saved state, and options of connections.
pub struct Config {
    file: File,
    state_dir: Option<PathBuf>,
    keepalive: Option<Keepalive>,
}

/// The text is no valid configuration.
#[derive(Debug, thiserror::Error)]
#[error("the configuration has errors: {}", listed(.0))]
pub struct ConfigError(pub Vec<Diagnostic>);

/// Joins errors, which contain their lines.
fn listed(all: &[Diagnostic]) -> String {
    let all = all.iter().map(ToString::to_string);
    all.collect::<Vec<_>>().join("; ")
}

impl Config {
    /// Parses a configuration file. The text contains a secret: its owner must zeroise it.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] with all errors of the text.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let parsed = parse(text.as_bytes(), Dialect::Taupe);
        parsed.file.map(Self::from).ok_or_else(|| {
            let mut errors = parsed.diagnostics;
            errors.retain(|one| one.severity == Severity::Error);
            ConfigError(errors)
        })
    }

    /// Sets the folder for state that outlasts the tunnel: handshake timestamps, and peers pinned to
    /// post-quantum handshakes by `PostQuantum = prefer`. The folder is created if necessary.
    ///
    /// Without a folder, nothing is saved. If the clock of the machine is then set back, peers refuse
    /// handshakes until it is past the last one. With `PostQuantum = prefer`, no pin outlasts
    /// the tunnel: each new tunnel may fall back to ordinary handshakes until a hybrid one is confirmed.
    #[must_use]
    pub fn state_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.state_dir = Some(folder.into());
        self
    }

    /// Sets TCP keepalive for all connections of the tunnel, those of listeners too. Without it, an
    /// idle connection stays open until a program closes it, also if the other side is no longer
    /// there. [`TcpStream::set_keepalive`](crate::TcpStream::set_keepalive) sets it for one connection.
    ///
    /// `PersistentKeepalive` in the file is about the tunnel, not about its connections.
    #[must_use]
    pub fn keepalive(mut self, keepalive: Keepalive) -> Self {
        self.keepalive = Some(keepalive);
        self
    }

    /// Returns the settings of the tunnel. `wake` is called when an endpoint's address is found.
    pub(crate) fn settings(self, wake: Wake) -> Settings {
        let Self {
            file,
            state_dir,
            keepalive,
        } = self;
        let address = |endpoint: &Option<Endpoint>| match endpoint {
            Some(Endpoint::Address(address)) => Some(*address),
            _ => None,
        };
        let peers = file.peers.iter();
        let endpoints: Vec<_> = peers.map(|peer| address(&peer.endpoint)).collect();
        let interface = &file.interface;
        let saved: Box<dyn SavedState> = match &state_dir {
            Some(folder) => Box::new(StateFiles::new(Some(folder))),
            None => Box::new(NothingSaved),
        };
        let resolver = Arc::new(SystemResolver::default());
        let services = Services::with_state(saved, resolver, wake)
            .with_unresolved(unresolved(&file), "the tunnel sends nothing to this peer");
        Settings {
            device: taupe_client::setconf_request(&file, &endpoints).device,
            listen_port: interface.listen_port.unwrap_or(0),
            addresses: Addresses::first(interface.addresses.iter().map(|one| one.addr())),
            mtu: interface.mtu.map_or(DEFAULT_MTU, |mtu| mtu as usize),
            dns: interface.dns.clone(),
            keepalive,
            services,
            notices: None,
        }
    }
}

impl From<File> for Config {
    fn from(file: File) -> Self {
        Self {
            file,
            state_dir: None,
            keepalive: None,
        }
    }
}

impl TryFrom<&str> for Config {
    type Error = ConfigError;

    fn try_from(text: &str) -> Result<Self, ConfigError> {
        Self::parse(text)
    }
}

impl From<Infallible> for ConfigError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
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

/// State of a tunnel without a folder for it.
struct NothingSaved;

impl SavedState for NothingSaved {
    fn timestamp(&mut self, _: &PublicKey) -> Tai64N {
        Tai64N::ZERO
    }

    fn save_timestamp(&mut self, _: &PublicKey, _: Tai64N) {}

    fn pinned_peers(&mut self, _: &PublicKey) -> Result<BTreeSet<PublicKey>, PinnedPeersError> {
        Ok(BTreeSet::new())
    }

    fn save_pin(&mut self, _: &PublicKey, _: PublicKey, _: bool) {}
}
