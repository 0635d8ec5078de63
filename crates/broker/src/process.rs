//! The packet process as its broker sees it.

use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, mpsc};
use std::thread;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use taupe_engine::{Environment, Exit, Options, StartError, UapiSource};
use taupe_nat::translate::Settings;
use taupe_os_linux::message_socket;
use taupe_os_linux::own_program::run_again;
use taupe_os_linux::packet_process::{ARGUMENT, PROGRAM};
use taupe_os_linux::watch::link_state;
use taupe_runtime::configuration_socket::{SocketFile, remove_dead};
use tracing::warn;

use crate::control::{Control, PATIENCE};
use crate::link::{Link, LinkError};
use crate::log::CopiedLog;
use crate::server::{Report, Server};
use crate::start::{Start, borrowed, start_error};
use crate::translator::RemoteTranslator;

/// Time that a packet process has to end after it has reported the device's end.
const ENDING: Duration = Duration::from_secs(5);

/// Time that a packet process has to start the device.
const STARTING: Duration = Duration::from_secs(60);

/// A device in a packet process.
pub struct PacketProcess {
    id: u32,
    control: Arc<Control>,
    has_translator: bool,
    thread: JoinHandle<Exit>,
}

impl PacketProcess {
    /// Starts a process that runs a device, and waits until the device has started. The process runs
    /// `/proc/self/exe`, or without `/proc` the file by which this program was started.
    /// With `translation` it has a translator between the TUN and the tunnel. `options.outer_mark` and
    /// `options.state_dir` belong to `environment`; `options.tap` and `options.notices` must be `None`.
    /// The packet process ends with the calling thread, which must therefore be the main thread.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(
        options: Options,
        translation: Option<Settings>,
        environment: Environment,
    ) -> Result<Self, StartError> {
        let interface = options.interface.clone();
        let socket_of = matches!(options.uapi, UapiSource::Bind).then(|| interface.clone());
        let log_level = tracing::level_filters::LevelFilter::current().to_string();
        let has_translator = translation.is_some();
        let (start, descriptors) = Start::new(options, translation, log_level);
        let (ours, theirs) =
            message_socket::pair().map_err(start_error("cannot make a pair of sockets"))?;
        let link = Link::of_broker(ours, PATIENCE);
        let link = Arc::new(link.map_err(start_error("cannot make a pair of sockets"))?);
        // `taupe@.service` does not permit pipes, as these are of the group `@ipc`.
        let pair = UnixStream::pair();
        let (log, output) = pair.map_err(start_error("cannot make a pair of sockets"))?;
        let log = CopiedLog::begin(log).map_err(start_error("cannot start a thread"))?;
        // `taupe_os_linux::packet_process` recognises the process by these arguments.
        let child = run_again(
            PROGRAM,
            &[ARGUMENT, &interface],
            &theirs,
            Some(&output.into()),
        )
        .map_err(start_error("cannot start the packet process"))?;
        drop(theirs);
        let control = Arc::new(Control::new(Arc::clone(&link)));
        let id = child.id();
        let (started, wait) = mpsc::sync_channel(1);
        let supervisor = Supervisor {
            child,
            log,
            control: Arc::clone(&control),
            server: Server::new(environment, Arc::clone(&link)),
            started: Some(started),
            socket_of,
            socket: None,
            tun: None,
        };
        let sent = link.send(&start, &borrowed(&descriptors));
        drop(descriptors);
        let thread = thread::Builder::new()
            .name("broker".into())
            .spawn(move || supervisor.run())
            .map_err(start_error("cannot start a thread"))?;
        let failed = match (wait.recv_timeout(STARTING), sent) {
            (Ok(Ok(())), _) => {
                return Ok(Self {
                    id,
                    control,
                    has_translator,
                    thread,
                });
            }
            (Ok(Err(reason)), _) => reason,
            (Err(RecvTimeoutError::Timeout), _) => {
                link.close();
                let _ = thread.join();
                let reason = format!("its packet process did not start it within {STARTING:?}");
                return Err(StartError::Ended(reason));
            }
            (Err(_), Ok(()) | Err(LinkError::Closed)) => {
                return Err(match thread.join() {
                    Ok(Exit::Failed(reason)) => StartError::Ended(reason),
                    _ => StartError::Ended("the packet process has ended".to_owned()),
                });
            }
            (Err(_), Err(error)) => error.to_string(),
        };
        let _ = thread.join();
        Err(StartError::Reported(failed))
    }

    /// Returns the PID of the process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Returns the translator of the device, if it has one.
    #[must_use]
    pub fn translator(&self) -> Option<RemoteTranslator> {
        let translator = || RemoteTranslator(Arc::clone(&self.control));
        self.has_translator.then(translator)
    }

    /// Returns a function that ends the device.
    pub fn stopper(&self) -> impl FnOnce() + Send + 'static {
        let control = Arc::clone(&self.control);
        move || Control::stop(control)
    }

    /// Waits until the device and its process have ended. By then the socket file that the process
    /// has created is removed.
    #[must_use]
    pub fn run(self) -> Exit {
        let exit = self.thread.join();
        exit.unwrap_or_else(|_| Exit::Failed("the broker's thread panicked".into()))
    }
}

/// The thread that serves the packet process until that ends.
struct Supervisor {
    child: Child,
    log: CopiedLog,
    control: Arc<Control>,
    server: Server,
    /// Gets the result of the start.
    started: Option<mpsc::SyncSender<Result<(), String>>>,
    /// The interface whose socket file the process creates, if it does.
    socket_of: Option<String>,
    /// The file, after the start.
    socket: Option<SocketFile>,
    /// The TUN, after the start. The packet process cannot delete the interface while this is open.
    tun: Option<OwnedFd>,
}

impl Supervisor {
    fn run(mut self) -> Exit {
        let served = self.serve();
        // The interface ends with the packet process now. Otherwise the next `up` would find it.
        drop(self.tun.take());
        let exit = match served {
            Ok(exit) => {
                self.end(ENDING);
                exit
            }
            Err(LinkError::Closed) => {
                let status = self.end(ENDING);
                Exit::Failed(format!("its packet process has ended ({status})"))
            }
            Err(error) => {
                self.end(Duration::ZERO);
                // Logging may block, so it comes last.
                warn!(%error, "the packet process was ended");
                Exit::Failed(error.to_string())
            }
        };
        // Only now nothing carries packets any more.
        self.control.note_end();
        self.log.finish();
        // A process that was killed before it could report has left its file.
        if let Some(interface) = &self.socket_of {
            remove_dead(interface);
        }
        drop(self.socket);
        exit
    }

    /// Handles messages until the device has ended.
    fn serve(&mut self) -> Result<Exit, LinkError> {
        loop {
            let message = self.control.link.receive_text()?;
            // The clock goes on while the packet process does not read its answer.
            let handled = self.control.serve(|| self.server.handle(message))?;
            let report = match handled.finish(&self.control.link) {
                // Nobody waits for the answer. The report of the end may follow.
                Ok(None) | Err(LinkError::Closed) => continue,
                Ok(Some(report)) => report,
                Err(error) => return Err(error),
            };
            match report {
                Report::Started(tun) => {
                    let Some(started) = self.started.take() else {
                        return Err(LinkError::Unexpected("it has started twice"));
                    };
                    self.tun = Some(tun);
                    self.socket = self
                        .socket_of
                        .take()
                        .and_then(|it| SocketFile::of(&it).ok());
                    let _ = started.send(Ok(()));
                }
                Report::Failed(reason) => {
                    if let Some(started) = self.started.take() {
                        let _ = started.send(Err(reason.clone()));
                    }
                    return Ok(Exit::Failed(reason));
                }
                Report::Forgotten => self.control.note_forgotten()?,
                Report::Ended(exit) => {
                    self.check(&exit)?;
                    return Ok(exit);
                }
            }
        }
    }

    /// Checks the reason for which the device has ended. After a failure traffic stays
    /// blocked; after the other reasons it may be unblocked, so they are verified.
    fn check(&self, exit: &Exit) -> Result<(), LinkError> {
        let (is_true, false_claim) = match exit {
            Exit::InterfaceDeleted => {
                let link = self.tun.as_ref().map(|tun| link_state(tun.as_fd()));
                let is_gone = matches!(link, Some(Ok(None)));
                (is_gone, "it says that its interface was deleted")
            }
            Exit::SocketRemoved => {
                let is_gone = self.socket.as_ref().is_some_and(|it| !it.exists());
                (is_gone, "it says that its configuration socket was removed")
            }
            Exit::Stopped => (self.control.is_stopped(), "it says that it was stopped"),
            Exit::Failed(_) => return Ok(()),
        };
        match is_true {
            true => Ok(()),
            false => Err(LinkError::Unexpected(false_claim)),
        }
    }

    /// Waits until the process has ended, and kills it after a time.
    fn end(&mut self, patience: Duration) -> String {
        let began = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return status.to_string(),
                Ok(None) if began.elapsed() < patience => {
                    thread::sleep(Duration::from_millis(1));
                }
                _ => break,
            }
        }
        let _ = self.child.kill();
        match self.child.wait() {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        }
    }
}
