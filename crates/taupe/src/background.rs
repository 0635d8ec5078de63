//! Start of a device in a background process. The starting process waits until the device is ready,
//! so that it can report success or the reason for a failure.
//!
//! The program runs itself again. The background process's standard input is a socket. From it the
//! process reads its [`DevicePlan`], and to it the process writes either [`READY`], or [`FAILED`]
//! and the reason. If it dies before, the socket closes. The arguments only show in lists of
//! processes what the process is.
//!
//! The background process keeps no file descriptors of its caller except those that it was told to
//! use, so that no reader of the caller's output pipes waits for the background process.

use crate::arguments::is_of_device;
use crate::device_log::Destination;
use crate::plan::{DevicePlan, PlanError};
use rustix::fs::fstat;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, Signal, geteuid, kill_process};
use std::ffi::OsString;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use taupe_os_linux::descriptor::close_on_exec_except;

/// Environment variable with the device and inode number of the socket at standard input, as
/// systemd's `JOURNAL_STREAM` has them. Child processes of a device inherit the variable, but not
/// this standard input.
const VARIABLE: &str = "TAUPE_STARTER";

const READY: u8 = b'+';
const FAILED: u8 = b'-';

/// Maximum length of a reason in bytes. The rest is not read.
const LONGEST: u64 = 4096;

/// Reason why there is no device in the background.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BackgroundError {
    /// The reason that the background process reported.
    #[error("{0}")]
    Reported(String),
    #[error(
        "the background process ended before the interface was ready ({0}); \
         run it with --foreground to see more"
    )]
    Died(ExitStatus),
    #[error("cannot go to the background: {what}: {source}; --foreground does without")]
    Spawn {
        what: &'static str,
        source: io::Error,
    },
    #[error("cannot send the plan of the device to its process: {0}")]
    Send(#[source] io::Error),
    #[error("cannot write {}: {source}", .path.display())]
    File { path: PathBuf, source: io::Error },
}

fn spawn(what: &'static str) -> impl FnOnce(io::Error) -> BackgroundError {
    move |source| BackgroundError::Spawn { what, source }
}

/// Files of a background process.
pub(crate) struct BackgroundFiles<'a> {
    /// Destination of the log.
    pub(crate) log: &'a Destination,
    /// The file to which the process's id is written.
    pub(crate) pid: Option<&'a Path>,
}

/// Starts a device in a background process with these arguments, and waits until it is ready.
pub(crate) fn start(
    plan: &DevicePlan,
    files: &BackgroundFiles<'_>,
    arguments: &[OsString],
) -> Result<(), BackgroundError> {
    // The file is opened before anything exists that a failure would have to undo. It is not
    // truncated yet, because it may contain the id of another process that runs.
    let pid_file = files.pid.map(|path| append(path, 0o644)).transpose()?;
    let (socket, child) = start_process(plan, files.log, arguments)?;
    let pid = child.id();
    communicate(socket, plan, child)?;
    if let (Some(mut file), Some(path)) = (pid_file, files.pid) {
        let written = file.set_len(0).and_then(|()| writeln!(file, "{pid}"));
        if let Err(source) = written {
            stop(pid);
            return Err(file_error(path)(source));
        }
    }
    Ok(())
}

/// Ends the device that has just been started, because a start that fails must leave none.
fn stop(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    if let Some(pid) = pid {
        // If this fails, the process has already ended.
        let _ = kill_process(pid, Signal::TERM);
    }
}

fn start_process(
    plan: &DevicePlan,
    log: &Destination,
    arguments: &[OsString],
) -> Result<(UnixStream, Child), BackgroundError> {
    let passed_on: Vec<_> = plan.tun.into_iter().chain(plan.uapi).collect();
    close_on_exec_except(&passed_on).map_err(spawn("/proc/self/fd"))?;
    let program = std::env::current_exe().map_err(spawn("/proc/self/exe"))?;
    let (ours, theirs) = UnixStream::pair().map_err(spawn("socketpair"))?;
    let identity = identity(&theirs).map_err(spawn("fstat"))?;
    let log = match log {
        Destination::Nowhere => Stdio::null(),
        Destination::StandardError => Stdio::inherit(),
        Destination::File(path) => append(path, 0o600)?.into(),
    };
    let mut command = Command::new(&program);
    if let Some((name, rest)) = arguments.split_first() {
        command.arg0(name).args(rest);
    }
    // Any other working directory would keep its file system busy.
    command.env(VARIABLE, identity).current_dir("/");
    command.stdin(OwnedFd::from(theirs));
    command.stdout(Stdio::null()).stderr(log);
    let child = command
        .spawn()
        .map_err(spawn("cannot run this program again"))?;
    // The command is dropped here, which closes this process's copy of the other end.
    Ok((ours, child))
}

/// Sends the plan and waits for the report.
fn communicate(
    mut socket: UnixStream,
    plan: &DevicePlan,
    mut child: Child,
) -> Result<(), BackgroundError> {
    // If the process ends before it has read the plan, its exit status gives the reason.
    let is_gone = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    let sent = match plan.write(&mut socket) {
        Err(error) if !is_gone(&error) => {
            let _ = socket.shutdown(Shutdown::Both);
            Err(BackgroundError::Send(error))
        }
        _ => Ok(()),
    };
    let mut first = [0];
    let mut reason = Vec::new();
    // A socket that cannot be read is treated like a closed one. The exit status then gives the
    // reason.
    if socket.read_exact(&mut first).is_ok() {
        if first == [READY] {
            return Ok(());
        }
        let _ = (&socket).take(LONGEST).read_to_end(&mut reason);
    }
    // The socket is closed first, because the child may block on it while this process waits for
    // the child.
    drop(socket);
    let status = child.wait().map_err(spawn("wait"))?;
    sent?;
    if reason.is_empty() {
        return Err(BackgroundError::Died(status));
    }
    Err(BackgroundError::Reported(
        String::from_utf8_lossy(&reason).into_owned(),
    ))
}

fn append(path: &Path, mode: u32) -> Result<File, BackgroundError> {
    let mut options = File::options();
    options.append(true).create(true).mode(mode);
    options.open(path).map_err(file_error(path))
}

fn file_error(path: &Path) -> impl FnOnce(io::Error) -> BackgroundError {
    move |source| BackgroundError::File {
        path: path.to_owned(),
        source,
    }
}

/// The process that started this one in the background.
pub(crate) struct Starter {
    socket: UnixStream,
}

/// The starting process ended before it received the report.
#[derive(Debug)]
pub(crate) struct StarterGone;

impl Starter {
    #[cfg(test)]
    pub(crate) fn at(socket: UnixStream) -> Self {
        Self { socket }
    }

    /// Returns the process that started this one in the background, if any. In that case this
    /// process leaves its session, and its standard input becomes empty.
    ///
    /// A user who may run one command as root, for example by a rule of sudo that keeps the
    /// variable, must not be able to make it a device. Therefore the arguments must be those of a
    /// device, and the socket must come from a process of the same user.
    pub(crate) fn of_this_process(arguments: &[OsString]) -> Result<Option<Self>, BackgroundError> {
        let Some(expected) = std::env::var_os(VARIABLE) else {
            return Ok(None);
        };
        if !is_of_device(arguments) {
            return Ok(None);
        }
        if identity(io::stdin())
            .ok()
            .is_none_or(|identity| expected != *identity)
        {
            return Ok(None);
        }
        // This is the process that made the pair of sockets, even if it has ended since.
        let maker = socket_peercred(io::stdin());
        if !maker.is_ok_and(|maker| maker.uid == geteuid()) {
            return Ok(None);
        }
        let socket = io::stdin().as_fd().try_clone_to_owned();
        let socket = socket.map_err(spawn("standard input"))?;
        let null = File::open("/dev/null").map_err(spawn("/dev/null"))?;
        rustix::stdio::dup2_stdin(null).map_err(|error| spawn("/dev/null")(error.into()))?;
        rustix::process::setsid().map_err(|error| spawn("setsid")(error.into()))?;
        Ok(Some(Self {
            socket: socket.into(),
        }))
    }

    /// Receives the plan of the device.
    pub(crate) fn plan(&mut self) -> Result<DevicePlan, PlanError> {
        DevicePlan::read(&mut self.socket)
    }

    /// Reports that the device is ready.
    pub(crate) fn ready(mut self) -> Result<(), StarterGone> {
        self.socket.write_all(&[READY]).map_err(|_| StarterGone)
    }

    /// Reports why there is no device.
    pub(crate) fn failed(mut self, reason: &dyn Display) {
        // If this fails, no process is left to receive the report.
        let _ = self.socket.write_all(&[FAILED]);
        let _ = write!(self.socket, "{reason}");
    }
}

/// Returns the text of [`VARIABLE`] for a descriptor.
fn identity(descriptor: impl AsFd) -> io::Result<String> {
    let stat = fstat(descriptor)?;
    Ok(format!("{}:{}", stat.st_dev, stat.st_ino))
}
