//! `taupe device`: a device that `wg` and `wg-quick` configure.

use super::background::{self, Caller, DetachError};
use super::network::{TunInterface, Underlay};
use crate::passed_descriptor::{Descriptor, NotDescriptor, TUN, UAPI};
use crate::{FAILED, MISUSED, complain, logging, peer_notices};
use rustix::fs::Mode;
use std::env;
use std::fs;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use taupe_forwarder::device::{Device, Event, Events, Exit, LinkState, events};
use taupe_os_bsd::System;
use taupe_os_bsd::descriptor;
use taupe_os_bsd::device_name::{DeviceName, NameError};
use taupe_os_bsd::directory_watch::DirectoryWatch;
use taupe_os_bsd::interface::is_up;
use taupe_os_bsd::ioctl;
use taupe_os_bsd::outer_path::OuterPath;
use taupe_os_bsd::routing::{Change, Notification, RoutingSocket};
use taupe_os_bsd::tun::{OpenError, Tun};
use taupe_protocol::Notice;
use taupe_runtime::configuration_socket::names_an_endpoint;
use taupe_runtime::configuration_socket::{self, AnswerRequest, ListenError, Listener, SocketFile};
use taupe_runtime::resolver::{Resolver, SystemResolver};
use taupe_runtime::services::Services;
use taupe_uapi::Request;
use tracing::{info, warn};
use zeroize::Zeroizing;

/// The folder for the state of peers, such as handshake timestamps (hier(7): data of system programs).
const STATE: &str = "/var/db/taupe";

/// Variable with the path of a file that gets the interface's name, as in wireguard-go.
pub(super) const NAME_FILE: &str = "WG_TUN_NAME_FILE";

/// MTU of a new interface in bytes, as on Linux and of wireguard-go: with it, datagrams fit into an
/// uplink of 1500 bytes.
const DEFAULT_MTU: u32 = 1420;

/// Reason why a device could not be started or run to its end.
#[derive(Debug, thiserror::Error)]
enum DeviceError {
    #[error(transparent)]
    Name(#[from] NameError),
    #[error(transparent)]
    Tun(#[from] OpenError),
    #[error("{variable}={value}: {reason}")]
    Variable {
        variable: &'static str,
        value: String,
        reason: String,
    },
    #[error("{variable}: descriptor {number} cannot be used: {source}")]
    Descriptor {
        variable: &'static str,
        number: RawFd,
        source: io::Error,
    },
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error("{NAME_FILE}: cannot write {}: {source}", .path.display())]
    NameFile { path: PathBuf, source: io::Error },
    #[error("cannot {what}: {source}")]
    System {
        what: &'static str,
        source: io::Error,
    },
    #[error("{interface} ended: {source}")]
    Ended {
        interface: String,
        source: io::Error,
    },
    #[error(transparent)]
    Background(#[from] DetachError),
    #[error("the starting process has received the reason")]
    Reported,
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> DeviceError {
    move |source| DeviceError::System { what, source }
}

/// Runs the device in this process, or starts it in the background.
pub(super) fn main(interface: &str, foreground: bool) -> ExitCode {
    let name = match DeviceName::parse(System::HERE, interface) {
        Ok(name) => name,
        Err(error) => return complain(&error, MISUSED),
    };
    let foreground = foreground || env::var_os("WG_PROCESS_FOREGROUND").is_some_and(|it| it == "1");
    let passed = match Passed::in_environment() {
        Ok(passed) => passed,
        Err(error) => return complain(&error, MISUSED),
    };
    let done = match foreground {
        true => run(&name, passed),
        false => background::start(interface, &passed.numbers()).map_err(DeviceError::from),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(DeviceError::Reported) => ExitCode::from(FAILED),
        Err(error) => complain(&error, FAILED),
    }
}

/// Numbers of descriptors that the caller has passed on.
#[derive(Clone, Copy)]
struct Passed {
    tun: Option<RawFd>,
    uapi: Option<RawFd>,
}

impl Passed {
    fn in_environment() -> Result<Self, DeviceError> {
        Ok(Self {
            tun: number_in(TUN)?,
            uapi: number_in(UAPI)?,
        })
    }

    fn numbers(self) -> Vec<RawFd> {
        self.tun.into_iter().chain(self.uapi).collect()
    }
}

fn number_in(variable: &'static str) -> Result<Option<RawFd>, DeviceError> {
    let Some(value) = env::var_os(variable).filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    let value = value.to_string_lossy();
    let parsed = value.parse().map(Descriptor::number);
    parsed.map_err(|error: NotDescriptor| DeviceError::Variable {
        variable,
        value: value.into_owned(),
        reason: error.to_string(),
    })
}

/// Returns a duplicate of a descriptor that the caller has passed on.
fn inherited(variable: &'static str, number: RawFd) -> Result<OwnedFd, DeviceError> {
    descriptor::inherited(number).map_err(|source| DeviceError::Descriptor {
        variable,
        number,
        source,
    })
}

fn run(name: &DeviceName, passed: Passed) -> Result<(), DeviceError> {
    let starter = Caller::of_this_process().map_err(system("leave the terminal"))?;
    let level = env::var_os("LOG_LEVEL");
    let level = level.as_deref().map(|word| word.to_string_lossy());
    logging::begin(logging::level(level.as_deref()));
    match (Running::start(name, passed), starter) {
        (Ok(running), starter) => {
            if let Some(starter) = starter {
                starter.ready();
            }
            running.finish()
        }
        (Err(error), Some(starter)) => {
            starter.failed(&error);
            Err(DeviceError::Reported)
        }
        (Err(error), None) => Err(error),
    }
}

/// Removes the file with the interface's name.
struct NameFile(PathBuf);

impl Drop for NameFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Passes requests of clients to the device.
struct Clients {
    events: Events,
    resolver: Arc<dyn Resolver>,
}

impl AnswerRequest for Clients {
    fn answer(&self, request: Request) -> Option<Zeroizing<String>> {
        if names_an_endpoint(&request) {
            self.resolver.prepare();
        }
        self.events.answer(request)
    }

    fn interface_index(&self, name: &str) -> Option<u32> {
        taupe_client::zone::index(name)
    }
}

/// A device whose configuration socket answers.
struct Running {
    interface: String,
    device: Device<TunInterface, Underlay>,
    events: std::sync::mpsc::Receiver<Event>,
    _socket: Option<Arc<SocketFile>>,
    _name_file: Option<NameFile>,
}

impl Running {
    fn start(name: &DeviceName, passed: Passed) -> Result<Self, DeviceError> {
        crate::system::disable_core_files();
        let (sender, events) = events();
        // A signal that arrives during the start ends the device after it, so that the socket's file
        // is removed.
        let end = sender.clone();
        crate::system::on_signal(move || end.send(Event::End(Exit::Stopped)), || {})
            .map_err(system("catch signals"))?;
        // Files of the device must only be accessible to its owner.
        let umask = rustix::process::umask(Mode::RWXG | Mode::RWXO);
        let tun = match passed.tun {
            Some(number) => Tun::from_fd(inherited(TUN, number)?)?,
            None => {
                let tun = Tun::create(name)?;
                tun.set_mtu(DEFAULT_MTU)
                    .map_err(system("set the interface's MTU"))?;
                tun
            }
        };
        let interface = tun.name().to_owned();
        let index = tun.index().map_err(system("find the interface"))?;
        let name_file = write_name(&interface)?;
        let Listener { socket, file } = match passed.uapi {
            Some(number) => Listener::from_fd(inherited(UAPI, number)?)?,
            None => Listener::bind(&interface)?,
        };
        // `taupe up` runs commands of the file in this process, which have the user's. The state of
        // peers has modes of its own.
        rustix::process::umask(umask);
        let file = file.map(Arc::new);
        watch_links(index, &interface, &sender)?;
        if let Some(file) = &file {
            watch_socket(file, &sender)?;
        }
        let resolver: Arc<dyn Resolver> = Arc::new(SystemResolver::default());
        let wake = sender.clone();
        let services = Services::new(
            Some(Path::new(STATE)),
            Arc::clone(&resolver),
            Arc::new(move || wake.send(Event::WorkDue)),
        );
        let device = Device::new(
            TunInterface(tun),
            Underlay::new(OuterPath::Any),
            services,
            &sender,
            tell,
        );
        let clients = Arc::new(Clients {
            events: sender,
            resolver,
        });
        spawn("uapi", move || {
            configuration_socket::serve(&socket, &clients);
        })?;
        info!("{interface} is ready");
        Ok(Self {
            interface,
            device,
            events,
            _socket: file,
            _name_file: name_file,
        })
    }

    /// Runs the device until it ends.
    fn finish(self) -> Result<(), DeviceError> {
        let interface = self.interface;
        match self.device.run(&self.events) {
            Exit::InterfaceDeleted => info!("{interface} was deleted"),
            Exit::SocketRemoved => info!("the socket of {interface} was removed"),
            Exit::Stopped => info!("{interface} has stopped"),
            Exit::Failed(source) => return Err(DeviceError::Ended { interface, source }),
        }
        Ok(())
    }
}

fn tell(notice: &Notice) {
    warn!("{}", peer_notices::text(notice));
}

/// Writes the interface's name where the caller wants it, as wg-quick of macOS does.
fn write_name(interface: &str) -> Result<Option<NameFile>, DeviceError> {
    let Some(path) = env::var_os(NAME_FILE).filter(|path| !path.is_empty()) else {
        return Ok(None);
    };
    let path = PathBuf::from(path);
    match fs::write(&path, format!("{interface}\n")) {
        Ok(()) => Ok(Some(NameFile(path))),
        Err(source) => Err(DeviceError::NameFile { path, source }),
    }
}

/// Tells the device of changes to its interface and to the network.
fn watch_links(index: u32, interface: &str, events: &Events) -> Result<(), DeviceError> {
    let failed = "watch the interface";
    let mut socket = RoutingSocket::open(None).map_err(system(failed))?;
    let (events, interface) = (events.clone(), interface.to_owned());
    // Changes before the socket was opened are in the state that is read now.
    events.send(match link_state(index).map_err(system(failed))? {
        Some(state) => Event::Link(state),
        None => Event::End(Exit::InterfaceDeleted),
    });
    spawn("routes", move || {
        loop {
            let notification = match socket.receive(None) {
                Ok(notification) => notification,
                Err(error) => {
                    warn!(%error, "changes of the network are no longer noticed");
                    return;
                }
            };
            let changes = notification.iter().flat_map(Notification::changes);
            for change in changes {
                if matches!(change, Change::Unknown) || change == Change::Link(index) {
                    match link_state(index) {
                        Ok(Some(state)) => events.send(Event::Link(state)),
                        Ok(None) => return events.send(Event::End(Exit::InterfaceDeleted)),
                        Err(error) => warn!(%error, "the state of {interface} cannot be read"),
                    }
                }
                // FreeBSD reports a cable that was plugged in as a change of its interface only.
                if change != Change::Link(index) {
                    events.send(Event::NetworkChanged);
                }
            }
        }
    })
}

/// Returns `None` if the interface does not exist.
fn link_state(index: u32) -> io::Result<Option<LinkState>> {
    let state = ioctl::interface_state(index)?;
    Ok(state.map(|(flags, mtu)| LinkState {
        up: is_up(flags),
        mtu,
    }))
}

/// Ends the device when the file of its socket is removed, as wg-quick does it.
fn watch_socket(file: &Arc<SocketFile>, events: &Events) -> Result<(), DeviceError> {
    let folder = file.path().parent().unwrap_or(Path::new("/"));
    let watch = DirectoryWatch::new(folder).map_err(system("watch the configuration socket"))?;
    let (file, events) = (Arc::downgrade(file), events.clone());
    spawn("socket", move || {
        while file.upgrade().is_some_and(|file| file.exists()) {
            if let Err(error) = watch.wait() {
                warn!(%error, "removal of the configuration socket is no longer noticed");
                return;
            }
        }
        events.send(Event::End(Exit::SocketRemoved));
    })
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), DeviceError> {
    let thread = thread::Builder::new().name(name.into()).spawn(work);
    thread.map(drop).map_err(system("start a thread"))
}
