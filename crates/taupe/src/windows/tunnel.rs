//! Set-up of a file's tunnel.

use super::Driver;
use super::adapter::{self, AdapterTunnel};
use super::arguments::WindowsMode;
use super::frame_tunnel::{FrameTunnel, Resources, TunnelEvent, addresses};
use super::lock::{LockError, LockExemption};
use super::pipe::Server;
use super::requests::{RefusedConfiguration, services};
use super::sockets::Sockets;
use crate::remarks::with_command;
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

/// Exit statuses: administrator rights are required.
const NO_ADMINISTRATOR: u8 = 3;
/// The tunnel or service exists already.
const EXISTS: u8 = 4;
/// The service does not exist.
const MISSING: u8 = 5;
/// No packet filter is installed.
const NO_DRIVER: u8 = 6;
/// Wintun is missing.
const NO_WINTUN: u8 = 7;

/// Reason why there is no tunnel, or why it has ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum WindowsTunnelError {
    #[error(transparent)]
    Conf(#[from] conf::ConfError),
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
        "{file} has no Address, but packets in the tunnel need a source address; write the one \
         that the peer assigns to this machine"
    )]
    NoAddress { file: String },
    #[error(
        "the tunnel {0} is already running, in another process or as a service; `taupe show {0}` \
         prints its state; nothing was done"
    )]
    Running(InterfaceName),
    #[error(
        "only an elevated administrator may create the configuration pipe of {0}; open a terminal \
         with \"Run as administrator\"; nothing was done"
    )]
    NoRights(InterfaceName),
    #[error("cannot create the configuration pipe of {name}: {source}")]
    Pipe {
        name: InterfaceName,
        source: io::Error,
    },
    #[error("{0}; nothing was done")]
    NoDriver(#[source] TapError),
    #[error(
        "{file}:{line}: {key} is for tunnels without an adapter; omit --adapter, or the keys about \
         applications; nothing was done"
    )]
    AppKeys { file: String, key: Key, line: usize },
    #[error("{0}{advice}; nothing was done", advice = adapter_advice(.0))]
    NoAdapter(#[from] CreateError),
    #[error("cannot give the adapter the file's addresses and routes: {0}{advice}; it is removed again", advice = address_advice(.0))]
    Addressing(#[source] io::Error),
    #[error(
        "cannot give the adapter the file's name servers: {0}; without DNS in the file, the \
         system's are used; the adapter is removed again"
    )]
    NameServers(#[source] io::Error),
    #[error("the adapter has been removed or disabled: {0}")]
    AdapterGone(#[source] io::Error),
    #[error(
        "cannot bind UDP port {port}: {source}; if another program or tunnel uses it, write \
         another ListenPort, or none"
    )]
    Port { port: u16, source: io::Error },
    #[error(
        "cannot create the folder {} for the state of peers: {source}; create it with access for \
         administrators only", .path.display()
    )]
    State { path: PathBuf, source: io::Error },
    #[error(transparent)]
    RefusedConfiguration(#[from] RefusedConfiguration),
    #[error("cannot catch Ctrl-C: {0}")]
    Interrupt(#[source] io::Error),
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
    #[error("the packet filter failed: {0}")]
    Filter(#[source] TapError),
    #[error("cannot write to the event log: {0}")]
    EventLog(#[source] io::Error),
    #[error("cannot register {source_name} with the event log: {source}")]
    EventSource {
        source_name: String,
        source: io::Error,
    },
    #[error("cannot find the path of this program: {0}")]
    Program(#[source] io::Error),
    #[error("{0}{advice}", advice = service_advice(.0))]
    Service(#[from] service::ServiceError),
    #[error(transparent)]
    Lock(#[from] LockError),
}

impl WindowsTunnelError {
    /// Returns the exit status, which the service manager shows.
    pub(super) fn status(&self) -> u8 {
        use service::ServiceError;
        match self {
            Self::NoRights(_) | Self::Service(ServiceError::AccessDenied) => NO_ADMINISTRATOR,
            Self::EventSource { source, .. }
            | Self::Lock(LockError::System(source) | LockError::Unlocking(source))
                if is_refusal(source) =>
            {
                NO_ADMINISTRATOR
            }
            Self::Running(_)
            | Self::Service(ServiceError::Exists(_) | ServiceError::Running(_)) => EXISTS,
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
            ", which an adapter needs; download the one for this processor from \
             https://www.wintun.net, and put it beside taupe.exe"
        }
        CreateError::Library(_) => {
            "; check that it is the one for this processor, of version 0.14 or later"
        }
        CreateError::Refused { .. } => "",
    }
}

/// Returns advice for an error of setting an adapter up, or nothing.
fn address_advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "; end the program that uses the address, or choose another",
        _ => "",
    }
}

/// Returns advice for an error of a service, or nothing.
fn service_advice(error: &service::ServiceError) -> String {
    use service::ServiceError;
    let advice = match error {
        ServiceError::AccessDenied => "; open a terminal with \"Run as administrator\"",
        ServiceError::Exists(_) => "; to replace it, uninstall it first",
        ServiceError::Missing(_) => "; install it first",
        ServiceError::MarkedForDeletion(_) => {
            "; close the window of Services, or restart the machine"
        }
        ServiceError::Ended { .. } => "; see the event log for the reason",
        ServiceError::TimedOut { name, .. } => {
            return format!("; see `sc.exe query {name}`");
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
pub(super) struct PreparedTunnel {
    pub(super) conf: Conf,
    pub(super) file: File,
    mode: WindowsMode,
    rules: Rules,
}

impl PreparedTunnel {
    /// Reads a file and reports its errors and warnings. Fails if the tunnel cannot be run.
    pub(super) fn read(
        word: &OsStr,
        mode: WindowsMode,
        report: &dyn Fn(&dyn Display),
    ) -> Result<Self, WindowsTunnelError> {
        let conf = Conf::find(word, Compatibility::Taupe)?;
        let Checked { file, remarks, .. } = check(&conf, Compatibility::Taupe)?;
        for remark in &remarks {
            report(&with_command(remark));
        }
        let shown = || conf.shown.display().to_string();
        let file = file.ok_or_else(|| WindowsTunnelError::Wrong {
            file: shown(),
            errors: check::count(&remarks),
        })?;
        if mode == WindowsMode::Adapter
            && let Some((key, line)) = file.transparent.first
        {
            let file = shown();
            return Err(WindowsTunnelError::AppKeys { file, key, line });
        }
        let table = table_for_peers(&file.peers, file.transparent.bypass_lan.unwrap_or(false));
        let rules = Rules::new(file.transparent.apps.clone(), table);
        let rules = rules.map_err(|source| WindowsTunnelError::Rules {
            file: shown(),
            source,
        })?;
        if file.interface.addresses.is_empty() {
            return Err(WindowsTunnelError::NoAddress { file: shown() });
        }
        let unused = unused(&file, mode);
        if !unused.is_empty() {
            let unused = unused.join(", ");
            report(&format_args!(
                "[!] {}: {unused}: not used, because it has no effect on Windows",
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
        events: (Sender<TunnelEvent>, Receiver<TunnelEvent>),
    ) -> Result<Tunnel<D>, WindowsTunnelError> {
        if self.mode == WindowsMode::Adapter {
            let tunnel = adapter::open(self, events)?;
            return Ok(Tunnel::Adapter(Box::new(tunnel)));
        }
        let Self {
            conf, file, rules, ..
        } = self;
        let name = conf.interface;
        let listener = listen(&name)?;
        let tap = D::open().map_err(WindowsTunnelError::NoDriver)?;
        let port = file.interface.listen_port.unwrap_or(0);
        let sockets =
            Sockets::bind(port).map_err(|source| WindowsTunnelError::Port { port, source })?;
        let (v4, v6) = addresses(file.interface.addresses.iter().map(|one| one.addr()));
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
        let mut request = taupe_client::setconf_request(&file, &literal_endpoints(&file));
        request.fwmark = None;
        let state_dir = state_folder()?;
        let (sender, events) = events;
        let resources = Resources {
            tap,
            exemption: LockExemption::of(&file.transparent.apps),
            sockets,
        };
        // The main loop checks for answers by itself.
        let services = services(&state_dir, &file, WindowsMode::Frames, Arc::new(|| {}));
        let tunnel = Box::new(FrameTunnel::new(
            resources, services, settings, request, events,
        )?);
        let server = Server::start(listener, sender).map_err(WindowsTunnelError::Thread)?;
        info!("{name} is ready");
        Ok(Tunnel::Frames { tunnel, server })
    }
}

/// A tunnel whose resources have been opened.
pub(super) enum Tunnel<D: Driver> {
    /// A tunnel on the frames of the packet filter.
    Frames {
        tunnel: Box<FrameTunnel<D::Tap>>,
        server: Server,
    },
    Adapter(Box<AdapterTunnel>),
}

impl<D: Driver> Tunnel<D> {
    /// Runs the tunnel until it is asked to end.
    pub(super) fn run(self) -> Result<(), WindowsTunnelError> {
        let ended = match self {
            Self::Frames { tunnel, server } => {
                let ended = tunnel.run().map_err(WindowsTunnelError::Filter);
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
pub(super) fn state_folder() -> Result<PathBuf, WindowsTunnelError> {
    let folder = conf::folder();
    let state_dir = folder.join("state");
    for path in [&folder, &state_dir] {
        access::make_private(path).map_err(|source| WindowsTunnelError::State {
            path: path.clone(),
            source,
        })?;
    }
    match access::exposed(&state_dir) {
        Ok(None) => {}
        Ok(Some(exposed)) => warn!(
            "{exposed}: they could make peers refuse handshakes, and make a post-quantum peer count \
             as an ordinary one; docs/windows.md describes how to create the folder"
        ),
        Err(error) => {
            debug!(%error, folder = %state_dir.display(), "cannot find out who may change it")
        }
    }
    Ok(state_dir)
}

/// Creates the configuration pipe of a tunnel. A second instance of the tunnel fails here.
pub(super) fn listen(name: &InterfaceName) -> Result<Listener, WindowsTunnelError> {
    Listener::bind(&pipe::path_of_tunnel(name.as_str())).map_err(|source| {
        let name = name.clone();
        match source.kind() {
            io::ErrorKind::AddrInUse => WindowsTunnelError::Running(name),
            _ if is_refusal(&source) => WindowsTunnelError::NoRights(name),
            _ => WindowsTunnelError::Pipe { name, source },
        }
    })
}

/// Returns the peers' endpoint addresses in the file. Names are looked up later.
pub(super) fn literal_endpoints(file: &File) -> Vec<Option<SocketAddr>> {
    let peers = file.peers.iter();
    peers
        .map(|peer| match &peer.endpoint {
            Some(Endpoint::Address(address)) => Some(*address),
            Some(Endpoint::Name { .. }) | None => None,
        })
        .collect()
}

/// Returns the settings of a file that have no effect here.
fn unused(file: &File, mode: WindowsMode) -> Vec<&'static str> {
    let interface = &file.interface;
    let hooks = &interface.hooks;
    // With an adapter, `Table = off` and search domains have an effect.
    let (has_table, has_search) = match mode {
        WindowsMode::Frames => (
            interface.table != Table::Auto,
            !interface.dns_search.is_empty(),
        ),
        WindowsMode::Adapter => (!matches!(interface.table, Table::Auto | Table::Off), false),
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
        ("AppsOfUser", file.transparent.apps.of_user.is_some()),
    ];
    let unused = all.into_iter().filter(|(_, is_there)| *is_there);
    unused.map(|(name, _)| name).collect()
}
