//! Set-up of a file's tunnel.

use super::Driver;
use super::adapter::{self, AdapterTunnel};
use super::arguments::Mode;
use super::carrier::{Asked, Carrier, Means, addresses};
use super::lock::{Gate, NotLocked};
use super::pipe::Server;
use super::requests::{CarriedBy, RefusedFile, services};
use super::sockets::Sockets;
use std::ffi::OsStr;
use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use taupe_config::destinations::table_for_peers;
use taupe_config::file::{Compatibility, Endpoint, File, Key, Table};
use taupe_inspect::check::{self, Checked, Unreadable, check};
use taupe_inspect::conf::{self, Conf};
use taupe_inspect::interface::InterfaceName;
use taupe_os_windows::access;
use taupe_os_windows::pipe::{self, Listener};
use taupe_os_windows::service;
use taupe_os_windows::wintun::CreateError;
use taupe_transparent_windows::{Rules, Settings, TapError, UnsuitableRule};
use tracing::{debug, info, warn};

/// Administrator rights are required.
const NO_RIGHTS: u8 = 3;
/// The tunnel or service exists already.
const THERE: u8 = 4;
/// The service does not exist.
const MISSING: u8 = 5;
/// No packet filter is installed.
const NO_DRIVER: u8 = 6;
/// Wintun is missing.
const NO_WINTUN: u8 = 7;

/// Reason why there is no tunnel, or why it has ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error(transparent)]
    Conf(#[from] conf::Error),
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// The errors have been printed.
    #[error("{file} has {errors}; nothing was done")]
    Wrong { file: String, errors: String },
    #[error("{file}: {source}; nothing was done")]
    Rules {
        file: String,
        source: UnsuitableRule,
    },
    #[error(
        "{file} has no Address: what applications send needs one to come from in the tunnel; \
         write the one that the other side gives this machine"
    )]
    NoAddress { file: String },
    #[error(
        "the tunnel {0} runs already, here or as a service; `taupe show {0}` tells how it is; \
         nothing was done"
    )]
    Running(InterfaceName),
    #[error(
        "only an elevated administrator may make the configuration pipe of {0}; open a terminal \
         with \"Run as administrator\"; nothing was done"
    )]
    NoRights(InterfaceName),
    #[error("cannot make the configuration pipe of {name}: {source}")]
    Pipe {
        name: InterfaceName,
        source: io::Error,
    },
    #[error("{0}; nothing was done")]
    NoDriver(#[source] TapError),
    #[error(
        "{file} has {key} (line {line}), which is for tunnels without an adapter: leave out \
         --adapter, or the keys about applications; nothing was done"
    )]
    OfFilter { file: String, key: Key, line: usize },
    #[error("{0}{advice}; nothing was done", advice = adapter_advice(.0))]
    NoAdapter(#[from] CreateError),
    #[error(
        "the adapter cannot have what the file says: {0}{advice}; it is removed again",
        advice = address_advice(.0)
    )]
    Addressing(#[source] io::Error),
    #[error(
        "the adapter cannot have the file's name servers: {0}; without DNS in the file, the \
         system's are asked; the adapter is removed again"
    )]
    NameServers(#[source] io::Error),
    #[error("the adapter is gone: {0}; has it been removed or disabled?")]
    AdapterGone(#[source] io::Error),
    #[error(
        "UDP port {port} cannot be had: {source}; another program has it, or a tunnel that runs: \
         write another ListenPort, or none"
    )]
    Port { port: u16, source: io::Error },
    #[error(
        "cannot make the folder {} for what must be remembered: {source}; make it for administrators \
         alone", .path.display()
    )]
    State { path: PathBuf, source: io::Error },
    #[error(transparent)]
    RefusedFile(#[from] RefusedFile),
    #[error("cannot catch Ctrl-C: {0}")]
    Interrupt(#[source] io::Error),
    #[error("there can be no further thread: {0}")]
    Thread(#[source] io::Error),
    #[error("the packet filter failed: {0}")]
    Filter(#[source] TapError),
    #[error("cannot write to the event log: {0}")]
    EventLog(#[source] io::Error),
    #[error("cannot make {source_name} known to the event log: {source}")]
    EventSource {
        source_name: String,
        source: io::Error,
    },
    #[error("cannot tell where this program is: {0}")]
    Program(#[source] io::Error),
    #[error("{0}{advice}", advice = service_advice(.0))]
    Service(#[from] service::ServiceError),
    #[error(transparent)]
    Lock(#[from] NotLocked),
}

impl Failure {
    /// Returns the exit status, which the service manager shows.
    pub(super) fn status(&self) -> u8 {
        use service::ServiceError;
        match self {
            Self::NoRights(_) | Self::Service(ServiceError::AccessDenied) => NO_RIGHTS,
            Self::EventSource { source, .. }
            | Self::Lock(NotLocked::System(source) | NotLocked::Unlocking(source))
                if is_refusal(source) =>
            {
                NO_RIGHTS
            }
            Self::Running(_)
            | Self::Service(ServiceError::Exists(_) | ServiceError::Running(_)) => THERE,
            Self::Service(ServiceError::Missing(_) | ServiceError::NotRunning(_)) => MISSING,
            Self::NoDriver(_) => NO_DRIVER,
            Self::NoAdapter(CreateError::Missing) => NO_WINTUN,
            _ => crate::FAILED,
        }
    }

    pub(super) fn complain(&self) -> ExitCode {
        crate::complain(self, self.status())
    }
}

/// Returns advice for an error of creating an adapter, or nothing.
fn adapter_advice(error: &CreateError) -> &'static str {
    match error {
        CreateError::Missing => {
            ", without which there is no adapter: take the one for this processor from \
             https://www.wintun.net, and put it beside taupe.exe"
        }
        CreateError::Library(_) => "; is it the one for this processor, of version 0.14 or later?",
        CreateError::Refused { .. } => "",
    }
}

/// Returns advice for an error of setting an adapter up, or nothing.
fn address_advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "; end what uses it, or take the address from it",
        _ => "",
    }
}

/// Returns advice for an error of a service, or nothing.
fn service_advice(error: &service::ServiceError) -> String {
    use service::ServiceError;
    let advice = match error {
        ServiceError::AccessDenied => "; open a terminal with \"Run as administrator\"",
        ServiceError::Exists(_) => "; uninstall it first, or leave it",
        ServiceError::Missing(_) => "; install it first",
        ServiceError::MarkedForDeletion(_) => {
            "; close the window of Services, or restart the machine"
        }
        ServiceError::Ended { .. } => "; the event log says why",
        ServiceError::TimedOut { name, .. } => {
            return format!("; `sc.exe query {name}` says more");
        }
        ServiceError::NotAService => "; start the service instead",
        ServiceError::Running(_) | ServiceError::NotRunning(_) | ServiceError::System { .. } => "",
    };
    advice.to_owned()
}

fn is_refusal(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

/// A tunnel whose file has been read and can be run.
pub(super) struct Wanted {
    pub(super) conf: Conf,
    pub(super) file: File,
    mode: Mode,
    rules: Rules,
}

impl Wanted {
    /// Reads a file and reports its errors and warnings. Fails if the tunnel cannot be run.
    pub(super) fn read(
        word: &OsStr,
        mode: Mode,
        tell: &dyn Fn(&dyn Display),
    ) -> Result<Self, Failure> {
        let conf = Conf::find(word, Compatibility::Taupe)?;
        let Checked { file, remarks, .. } = check(&conf, Compatibility::Taupe)?;
        for remark in &remarks {
            tell(remark);
        }
        let shown = || conf.shown.display().to_string();
        let file = file.ok_or_else(|| Failure::Wrong {
            file: shown(),
            errors: check::count(&remarks),
        })?;
        if mode == Mode::Adapter
            && let Some((key, line)) = file.transparent.first
        {
            let file = shown();
            return Err(Failure::OfFilter { file, key, line });
        }
        let table = table_for_peers(&file.peers, file.transparent.bypass_lan.unwrap_or(false));
        let rules = Rules::new(file.transparent.apps.clone(), table);
        let rules = rules.map_err(|source| Failure::Rules {
            file: shown(),
            source,
        })?;
        if file.interface.addresses.is_empty() {
            return Err(Failure::NoAddress { file: shown() });
        }
        let unused = unused(&file, mode);
        if !unused.is_empty() {
            let unused = unused.join(", ");
            tell(&format_args!(
                "[!] {}: {unused}: no meaning on Windows, not used",
                shown()
            ));
        }
        Ok(Self {
            conf,
            file,
            mode,
            rules,
        })
    }

    /// Opens the resources of the tunnel, in an order in which a failure leaves nothing behind.
    pub(super) fn open<D: Driver>(
        self,
        asked: (Sender<Asked>, Receiver<Asked>),
    ) -> Result<Tunnel<D>, Failure> {
        if self.mode == Mode::Adapter {
            let tunnel = adapter::open(self, asked)?;
            return Ok(Tunnel::Adapter(Box::new(tunnel)));
        }
        let Self {
            conf, file, rules, ..
        } = self;
        let name = conf.interface;
        let listener = listen(&name)?;
        let tap = D::open().map_err(Failure::NoDriver)?;
        let port = file.interface.listen_port.unwrap_or(0);
        let sockets = Sockets::bind(port).map_err(|source| Failure::Port { port, source })?;
        let (v4, v6) = addresses(file.interface.addresses.iter().map(|one| one.address));
        let settings = Settings {
            v4,
            v6,
            dns: file.interface.dns.clone(),
            mtu: file.interface.mtu.and_then(|mtu| u16::try_from(mtu).ok()),
            port: sockets.port,
            rules,
            forwarded: file.transparent.forwarded.unwrap_or_default(),
            kill_switch: file.transparent.kill_switch.unwrap_or_default(),
        };
        let mut request = taupe_client::setconf_request(&file, &endpoints(&file));
        request.fwmark = None;
        let state = state_folder()?;
        let (ask, asked) = asked;
        let means = Means {
            tap,
            gate: Gate::of(&file.transparent.apps),
            sockets,
        };
        // The main loop checks for answers by itself.
        let services = services(&state, &file, CarriedBy::Frames, Arc::new(|| {}));
        let carrier = Box::new(Carrier::new(means, services, settings, request, asked)?);
        let server = Server::start(listener, ask).map_err(Failure::Thread)?;
        info!("{name} is ready");
        Ok(Tunnel::Frames { carrier, server })
    }
}

/// A tunnel whose resources have been opened.
pub(super) enum Tunnel<D: Driver> {
    /// A tunnel on the frames of the packet filter.
    Frames {
        carrier: Box<Carrier<D::Tap>>,
        server: Server,
    },
    Adapter(Box<AdapterTunnel>),
}

impl<D: Driver> Tunnel<D> {
    /// Runs the tunnel until it is asked to end.
    pub(super) fn run(self) -> Result<(), Failure> {
        let ended = match self {
            Self::Frames { carrier, server } => {
                let ended = carrier.run().map_err(Failure::Filter);
                drop(server);
                ended
            }
            Self::Adapter(tunnel) => tunnel.run(),
        };
        info!("ended");
        ended
    }
}

/// Returns the folder for handshake timestamps and post-quantum peers, which does not depend on the
/// user. Creates it, and its parent, with access for administrators only.
pub(super) fn state_folder() -> Result<PathBuf, Failure> {
    let folder = conf::folder();
    let state = folder.join("state");
    for path in [&folder, &state] {
        access::make_private(path).map_err(|source| Failure::State {
            path: path.clone(),
            source,
        })?;
    }
    match access::exposed(&state) {
        Ok(None) => {}
        Ok(Some(exposed)) => warn!(
            "{exposed}, who could so have handshakes refused, and a peer that is post-quantum \
             taken for one that is not; docs/windows.md says how the folder is made"
        ),
        Err(error) => debug!(%error, folder = %state.display(), "who may change it is not known"),
    }
    Ok(state)
}

/// Creates the configuration pipe of a tunnel. A second instance of the tunnel fails here.
pub(super) fn listen(name: &InterfaceName) -> Result<Listener, Failure> {
    Listener::bind(&pipe::path_of_tunnel(name.as_str())).map_err(|source| {
        let name = name.clone();
        match source.kind() {
            io::ErrorKind::AddrInUse => Failure::Running(name),
            _ if is_refusal(&source) => Failure::NoRights(name),
            _ => Failure::Pipe { name, source },
        }
    })
}

/// Returns the peers' endpoint addresses in the file. Names are looked up later.
pub(super) fn endpoints(file: &File) -> Vec<Option<SocketAddr>> {
    let peers = file.peers.iter();
    peers
        .map(|peer| match &peer.endpoint {
            Some(Endpoint::Address(address)) => Some(*address),
            Some(Endpoint::Name { .. }) | None => None,
        })
        .collect()
}

/// Returns the settings of a file that have no effect here.
fn unused(file: &File, mode: Mode) -> Vec<&'static str> {
    let interface = &file.interface;
    let hooks = &interface.hooks;
    // With an adapter, `Table = off` and search domains have an effect.
    let (has_table, has_search) = match mode {
        Mode::Frames => (
            interface.table != Table::Auto,
            !interface.dns_search.is_empty(),
        ),
        Mode::Adapter => (!matches!(interface.table, Table::Auto | Table::Off), false),
    };
    let all = [
        ("Table", has_table),
        ("FwMark", interface.fwmark.is_some_and(|mark| mark != 0)),
        ("PreUp", !hooks.pre_up.is_empty()),
        ("PostUp", !hooks.post_up.is_empty()),
        ("PreDown", !hooks.pre_down.is_empty()),
        ("PostDown", !hooks.post_down.is_empty()),
        ("SaveConfig", interface.save_config),
        ("search domains in DNS", has_search),
        ("SystemBus", file.transparent.system_bus.is_some()),
        ("Children", file.transparent.children.is_some()),
    ];
    let unused = all.into_iter().filter(|(_, is_there)| *is_there);
    unused.map(|(name, _)| name).collect()
}
