//! The packet process: runs a device for a broker, without rights.

use crate::confinement::Confinement;
use crate::daemon::LATER_DESCRIPTORS;
use crate::start_advice::start_advice;
use crate::{FAILED, complain, logging};
use rustix::process::{
    DumpableBehavior, Signal, set_dumpable_behavior, set_parent_process_death_signal,
};
use rustix::thread::set_name;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use taupe_broker::{Broker, Command, LinkError, StartOptions};
use taupe_engine::{Engine, OpenedDevice, StartError, Stopper};
use taupe_inspect::traffic::write_report;
use taupe_nat::translate::Translator;
use taupe_os_linux::descriptor::check_room;
use taupe_os_linux::signals::{INTERRUPTIONS, block};
use tracing_subscriber::filter::LevelFilter;

/// Reason why a packet process does not run a device.
#[derive(Debug, thiserror::Error)]
enum PacketProcessError {
    #[error("standard input is not the socket of a broker: {0}")]
    Socket(#[source] io::Error),
    #[error(transparent)]
    Link(#[from] LinkError),
}

/// Runs the device of the broker at standard input, and exits when it has ended.
pub(crate) fn main() -> ExitCode {
    // No other process of this user may read the memory, from the first secret on.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    // Otherwise it would be called `exe`, after `/proc/self/exe`.
    let _ = set_name(c"taupe-packets");
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(&error, FAILED),
    }
}

fn run() -> Result<(), PacketProcessError> {
    // A signal to the whole process group, as from a terminal or a service manager, is for the broker.
    block(&INTERRUPTIONS).map_err(PacketProcessError::Socket)?;
    let socket = take_standard_input().map_err(PacketProcessError::Socket)?;
    let (broker, start_options) = Broker::accept(socket)?;
    let StartOptions {
        mut options,
        translation,
        log_level,
    } = start_options;
    logging::begin(log_level.parse().unwrap_or(LevelFilter::WARN));
    let translator = translation.as_ref().map(Translator::new);
    if let Some(translator) = &translator {
        options.tap = Some(Arc::new(translator.clone()));
    }
    let opened = OpenedDevice::open(options);
    let (engine, tun) = match opened.and_then(|it| start(&broker, it, translator)) {
        Ok(started) => started,
        Err(error) => {
            let advice = start_advice(&error);
            return Ok(broker.failed(format!("{error}{advice}"))?);
        }
    };
    broker.started(tun.as_fd())?;
    drop(tun);
    Ok(broker.ended(engine.run())?)
}

/// Starts an opened device in this process, which gives up its rights. Returns its TUN too.
fn start(
    broker: &Broker,
    mut opened: OpenedDevice,
    translator: Option<Translator>,
) -> Result<(Engine, OwnedFd), StartError> {
    check_room(LATER_DESCRIPTORS).map_err(|source| StartError::System {
        what: "cannot open the files that it needs later",
        source,
    })?;
    if broker.has_ended() {
        // While the process has its rights, dropping the device removes its socket's file. Nobody else
        // would: `up` has looked for the file when the broker ended.
        return Err(StartError::Reported(LinkError::Closed.to_string()));
    }
    let confinement = Confinement::of_packets();
    // The list of calls refuses to change this. If it cannot be set, the end of the broker's socket
    // ends this process.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    opened.leave_removal();
    let tun = opened.clone_tun().map_err(|source| StartError::System {
        what: "cannot copy the TUN's descriptor",
        source,
    })?;
    let stopper = Arc::new(OnceLock::<Stopper>::new());
    let commands = Commands {
        stopper: Arc::clone(&stopper),
        reports: translator.clone().map(begin_reports).transpose()?,
        translator,
    };
    let receiver = broker.clone();
    spawn("broker", move || {
        let error = receiver.run(|command| commands.execute(command));
        if !matches!(error, LinkError::Closed) {
            tracing::error!("{error}");
        }
        // Without its broker the device must not go on. The kernel deletes the interface.
        std::process::exit(FAILED.into());
    })?;
    let engine = Engine::start_opened(opened, broker.environment())?;
    let _ = stopper.set(engine.stopper());
    confinement.finish();
    Ok((engine, tun))
}

/// Clients that may wait for a report of the UDP flows. Others get none.
const WAITING_CLIENTS: usize = 8;

/// Executes the broker's commands.
struct Commands {
    stopper: Arc<OnceLock<Stopper>>,
    translator: Option<Translator>,
    /// Queue of clients that wait for a report.
    reports: Option<SyncSender<UnixStream>>,
}

impl Commands {
    fn execute(&self, command: Command) {
        match (command, &self.translator, &self.reports) {
            (Command::Stop, ..) => match self.stopper.get() {
                Some(stopper) => stopper.stop(),
                // The device has not started yet.
                None => std::process::exit(FAILED.into()),
            },
            (Command::SetMainUplink { v4, v6 }, Some(translator), _) => {
                translator.set_main_uplink(v4, v6);
            }
            (Command::Forget(flows), Some(translator), _) => translator.forget(&flows),
            (Command::Report(client), _, Some(reports)) => {
                if reports.try_send(client).is_err() {
                    tracing::debug!("too many clients ask for the flows at once");
                }
            }
            (command, ..) => tracing::debug!(?command, "the device has no translator"),
        }
    }
}

/// Starts the thread that writes reports. A client may be slow.
fn begin_reports(translator: Translator) -> Result<SyncSender<UnixStream>, StartError> {
    let (sender, clients) = sync_channel::<UnixStream>(WAITING_CLIENTS);
    spawn("flows", move || {
        for client in clients {
            if let Err(error) = write_report(client, &translator) {
                tracing::debug!(%error, "cannot write the flows");
            }
        }
    })?;
    Ok(sender)
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), StartError> {
    let spawned = thread::Builder::new().name(name.into()).spawn(run);
    spawned.map(drop).map_err(|source| StartError::System {
        what: "cannot start a thread",
        source,
    })
}

/// Returns the socket at standard input, which becomes empty.
pub(crate) fn take_standard_input() -> io::Result<OwnedFd> {
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    // Without `/dev`, the number stays taken by the socket.
    if let Ok(null) = File::open("/dev/null") {
        rustix::stdio::dup2_stdin(null)?;
    }
    Ok(socket)
}
