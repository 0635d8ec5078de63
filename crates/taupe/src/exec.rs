//! `taupe exec`: runs a command whose only network is a tunnel, without root.
//!
//! This process runs the device, in its own network namespace. The crate `taupe-sandbox` creates
//! the command's namespaces and starts the command there.

mod advice;
mod plan;
mod session;
mod signals;

use crate::arguments::{DeviceSettings, ExecOrder, SandboxOrder};
use crate::confinement::Confinement;
use crate::console::say;
use crate::endpoints;
use crate::peer_notices;
use crate::remarks::with_command;
use crate::state_dir::StateDir;
use crate::system::disable_core_files;
use session::Session;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::ExitCode;
use taupe_adapter::Compatibility;
use taupe_config::file::File;
use taupe_engine::{Engine, Offloads, Options, StartError, TunSource, UapiSource, Underlay};
use taupe_inspect::check::{self, Checked, Unreadable, check_without_apps};
use taupe_inspect::conf::{self, Conf};
use taupe_inspect::is_root;
use taupe_sandbox::{
    JoinError, NOT_SET_UP, Namespaces, PendingSandbox, Rendezvous, RendezvousError, create_sandbox,
};

/// Reason why the command was not started.
#[derive(Debug, thiserror::Error)]
enum ExecError {
    #[error(transparent)]
    Conf(#[from] conf::ConfError),
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// The errors have been printed.
    #[error("{file} has {errors}; nothing was started")]
    Wrong { file: String, errors: String },
    #[error(transparent)]
    Endpoint(#[from] endpoints::Unresolved),
    #[error("{0}{advice}", advice = advice::place(.0))]
    Place(#[from] RendezvousError),
    #[error("cannot join: {0}{advice}", advice = advice::join(.0))]
    Join(#[from] JoinError),
    #[error("{0}{advice}", advice = advice::sandbox(.0))]
    Sandbox(#[from] taupe_sandbox::SandboxError),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(
        "UDP port {0} is not available: it is in use, or it takes root; delete the line ListenPort, \
         unless peers begin handshakes"
    )]
    Port(u16),
    #[error("the device refuses the settings of the file: {0}")]
    Configure(#[source] taupe_client::Error),
    #[error("cannot {what}: {source}")]
    System {
        what: &'static str,
        source: io::Error,
    },
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> ExecError {
    move |source| ExecError::System { what, source }
}

/// Runs the command. Returns the command's exit status.
pub(crate) fn main(order: &ExecOrder) -> ExitCode {
    let ended = match &order.sandbox {
        SandboxOrder::New { file, hide_session } => {
            begin(file, *hide_session, &order.command, &order.device)
        }
        SandboxOrder::Join { name } => {
            let name = name.to_string_lossy();
            let namespaces = Namespaces::request(&name).map_err(ExecError::Join);
            namespaces.map(|namespaces| taupe_sandbox::join(&namespaces, &order.command))
        }
    };
    match ended {
        Ok(status) => status.into(),
        Err(failure) => crate::complain(&failure, NOT_SET_UP),
    }
}

/// Runs the first command of a tunnel. Returns after the last command has ended.
fn begin(
    word: &OsStr,
    hide_session: bool,
    command: &[OsString],
    settings: &DeviceSettings,
) -> Result<u8, ExecError> {
    let conf = Conf::find(word, Compatibility::Taupe)?;
    let mut file = read(&conf)?;
    for sentence in plan::without_effect(&mut file, is_root()) {
        say(&format_args!("taupe: {}: {sentence}", conf.shown.display()));
    }
    let name = conf.interface.as_str();
    let shared = Rendezvous::reserve(name)?;
    let state_dir = StateDir::find()?;
    if let Some(doubt) = state_dir.warning(&file) {
        say(&format_args!("taupe: {}: {doubt}", conf.shown.display()));
    }
    let endpoints = endpoints::endpoints(&file)?;
    let config = plan::sandbox_config(name, &file, &endpoints, hide_session, shared.folder());
    // `create_sandbox` forks, so this must still be the only thread.
    let PendingSandbox {
        tun,
        watch,
        namespaces,
        remarks,
        child,
    } = create_sandbox(&config, command)?;
    for remark in remarks {
        say(&format_args!("taupe: {remark}"));
    }
    // A core file would contain keys. If the system refuses, core files stay enabled.
    disable_core_files();
    // Threads inherit the signal mask, so it is set before they start.
    let signals = signals::block().map_err(system("catch signals"))?;
    settings.logging.begin();
    let (listener, connection) = private_socket(&shared.folder().join(format!("{name}.device")))
        .map_err(system("make the device's socket"))?;
    let state_dir = state_dir.path();
    // Threads inherit the restriction, so it comes before they start.
    let confinement = Confinement::of_threads(&file, state_dir.as_deref(), shared.folder());
    let options = Options {
        interface: name.to_owned(),
        tun: TunSource::Elsewhere { tun, watch },
        underlay: Underlay::Here,
        outer_mark: None,
        tap: None,
        uapi: UapiSource::Fd(listener),
        // A confined process loads no program into the kernel.
        offloads: Offloads {
            flood_filter: false,
            ..settings.offloads
        },
        state_dir,
        notices: Some(Box::new(|notice| {
            say(&format_args!("taupe: {}", peer_notices::text(&notice)))
        })),
    };
    let device = Engine::start(options)?;
    let configured = taupe_client::apply_over(
        connection,
        &taupe_client::setconf_request(&file, &endpoints),
    );
    configured.map_err(|error| refused(error, file.interface.listen_port))?;
    drop(file);
    confinement.finish();
    let child = child.release()?;
    Session::new(name, shared, namespaces, child)
        .run(device, signals)
        .map_err(system("start a thread"))
}

/// Reads the file and prints its errors and warnings.
fn read(conf: &Conf) -> Result<File, ExecError> {
    let Checked { file, remarks, .. } = check_without_apps(conf, Compatibility::Taupe)?;
    for remark in &remarks {
        say(&with_command(remark));
    }
    file.ok_or_else(|| ExecError::Wrong {
        file: conf.shown.display().to_string(),
        errors: check::count(&remarks),
    })
}

/// Returns the failure for a device that refuses the file. `port` is the file's port.
fn refused(error: taupe_client::Error, port: Option<u16>) -> ExecError {
    let in_use = rustix::io::Errno::ADDRINUSE.raw_os_error();
    match port {
        Some(port @ 1..) if error.errno() == in_use => ExecError::Port(port),
        _ => ExecError::Configure(error),
    }
}

/// Creates a listening socket and a connection to it. Other processes cannot connect: the path is
/// in a folder of this user, and is removed before this returns.
fn private_socket(path: &Path) -> io::Result<(OwnedFd, UnixStream)> {
    let remove = || match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    };
    remove()?;
    let listener = UnixListener::bind(path)?;
    let connection = UnixStream::connect(path);
    remove()?;
    Ok((listener.into(), connection?))
}
