//! Start of a device in a background process. The starting process waits until the device is ready,
//! so that it can report success or the reason for a failure.
//!
//! The program runs itself again with the same arguments. The background process's standard input
//! is the write end of a pipe, to which it writes either [`READY`], or [`FAILED`] and the reason.
//! If it dies before, the pipe closes. It keeps no file descriptors of its caller except those that
//! it was told to use, so that no reader of the caller's output pipes waits for the background
//! process.

use crate::arguments::{DeviceOrder, TUN, UAPI};
use crate::logging::Destination;
use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, PipeReader, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use taupe_os_linux::descriptor::close_on_exec_except;

/// Environment variable that marks standard input as the pipe for the report.
const VARIABLE: &str = "TAUPE_REPORT";

const READY: u8 = b'+';
const FAILED: u8 = b'-';

/// Maximum length of a reason in bytes. The rest is not read.
const LONGEST: u64 = 4096;

/// Reason why there is no device in the background.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
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
    #[error("cannot write {}: {source}", .path.display())]
    File { path: PathBuf, source: io::Error },
}

fn spawn(what: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Spawn { what, source }
}

/// Starts a device in the background and waits until it is ready.
pub(crate) fn start(order: &DeviceOrder, arguments: &[OsString]) -> Result<(), Error> {
    // The file is opened before anything exists that a failure would have to undo. It is not
    // truncated yet, because it may contain the id of another process that runs.
    let pid_file = order.pid_file.as_deref().map(|path| append(path, 0o644));
    let pid_file = pid_file.transpose()?;
    let (report, child) = start_process(order, arguments)?;
    let pid = child.id();
    await_report(report, child)?;
    if let (Some(mut file), Some(path)) = (pid_file, &order.pid_file) {
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
    order: &DeviceOrder,
    arguments: &[OsString],
) -> Result<(PipeReader, Child), Error> {
    let passed_on: Vec<_> = order.tun.into_iter().chain(order.uapi).collect();
    close_on_exec_except(&passed_on).map_err(spawn("/proc/self/fd"))?;
    let program = std::env::current_exe().map_err(spawn("/proc/self/exe"))?;
    let (reader, writer) = io::pipe().map_err(spawn("pipe"))?;
    let logs = match &order.logging.background {
        Destination::Nowhere => Stdio::null(),
        Destination::StandardError => Stdio::inherit(),
        Destination::File(path) => append(path, 0o600)?.into(),
    };
    let mut command = Command::new(&program);
    if let Some((name, rest)) = arguments.split_first() {
        command.arg0(name).args(rest);
    }
    // Any other working directory would keep its file system busy.
    command.env(VARIABLE, "stdin").current_dir("/");
    // Without a number in the order, the environment names a descriptor that is not for this
    // device.
    for (variable, number) in [(TUN, order.tun), (UAPI, order.uapi)] {
        if number.is_none() {
            command.env_remove(variable);
        }
    }
    command.stdin(writer).stdout(Stdio::null()).stderr(logs);
    let child = command
        .spawn()
        .map_err(spawn("cannot run this program again"))?;
    // The command is dropped here, which closes this process's copy of the write end.
    Ok((reader, child))
}

fn await_report(mut report: PipeReader, mut child: Child) -> Result<(), Error> {
    let mut first = [0];
    let mut reason = Vec::new();
    // A pipe that cannot be read is treated like a closed one. The exit status then gives the
    // reason.
    if report.read_exact(&mut first).is_ok() {
        if first == [READY] {
            return Ok(());
        }
        let _ = report.by_ref().take(LONGEST).read_to_end(&mut reason);
    }
    // The pipe is closed first, because the child may block on it while this process waits for the
    // child.
    drop(report);
    let status = child.wait().map_err(spawn("wait"))?;
    if reason.is_empty() {
        return Err(Error::Died(status));
    }
    Err(Error::Reported(
        String::from_utf8_lossy(&reason).into_owned(),
    ))
}

fn append(path: &Path, mode: u32) -> Result<File, Error> {
    let mut options = File::options();
    options.append(true).create(true).mode(mode);
    options.open(path).map_err(file_error(path))
}

fn file_error(path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::File {
        path: path.to_owned(),
        source,
    }
}

pub(crate) struct Starter {
    report: File,
}

/// The starting process ended before it received the report.
#[derive(Debug)]
pub(crate) struct StarterGone;

impl Starter {
    /// Returns the process that started this one in the background, if any. In that case this
    /// process leaves its session, and its standard input becomes empty.
    pub(crate) fn of_this_process() -> Result<Option<Self>, Error> {
        if std::env::var_os(VARIABLE).is_none() || !is_report(io::stdin()) {
            return Ok(None);
        }
        let report = io::stdin().as_fd().try_clone_to_owned();
        let report = report.map_err(spawn("standard input"))?;
        let null = File::open("/dev/null").map_err(spawn("/dev/null"))?;
        rustix::stdio::dup2_stdin(null).map_err(|error| spawn("/dev/null")(error.into()))?;
        rustix::process::setsid().map_err(|error| spawn("setsid")(error.into()))?;
        Ok(Some(Self {
            report: report.into(),
        }))
    }

    /// Reports that the device is ready.
    pub(crate) fn ready(mut self) -> Result<(), StarterGone> {
        self.report.write_all(&[READY]).map_err(|_| StarterGone)
    }

    /// Reports why there is no device.
    pub(crate) fn failed(mut self, reason: &dyn Display) {
        // If this fails, nobody is left to be told.
        let _ = self.report.write_all(&[FAILED]);
        let _ = write!(self.report, "{reason}");
    }
}

/// Checks whether a descriptor is the write end of a pipe. The variable alone is no proof, because
/// child processes of a device inherit it. Other processes have no write end as standard input.
fn is_report(descriptor: impl std::os::fd::AsFd) -> bool {
    let is_pipe = fstat(&descriptor)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo);
    let is_written =
        fcntl_getfl(&descriptor).is_ok_and(|flags| flags & OFlags::ACCMODE == OFlags::WRONLY);
    is_pipe && is_written
}
