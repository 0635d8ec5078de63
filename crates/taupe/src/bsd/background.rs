//! Start of a device in a background process. The starting process waits until the device is ready.
//!
//! The program runs itself again with [`VARIABLE`] set. The background process's standard input is a
//! socket, to which it writes either [`READY`], or [`FAILED`] and the reason. If it dies before, the
//! socket closes.

use super::device::NAME_FILE;
use crate::system;
use std::env;
use std::fmt::Display;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path;
use std::process::{Command, ExitStatus, Stdio};
use taupe_os_bsd::descriptor::close_on_exec_except;

/// Environment variable of a background process.
const VARIABLE: &str = "TAUPE_STARTER";

const READY: u8 = b'+';
const FAILED: u8 = b'-';

/// Maximum length of a reason in bytes. The rest is not read.
const LONGEST: u64 = 4096;

/// Reason why there is no device in the background.
#[derive(Debug, thiserror::Error)]
pub(super) enum DetachError {
    /// The reason that the background process reported.
    #[error("{0}")]
    Reported(String),
    #[error(
        "the background process ended before the interface was ready ({0}); run it with \
         --foreground to see more"
    )]
    Died(ExitStatus),
    #[error("cannot go to the background: {0}; --foreground does without")]
    Start(#[source] io::Error),
}

/// Starts the device `interface` in a background process, which inherits the descriptors `passed`, and
/// waits until it is ready.
pub(super) fn start(interface: &str, passed: &[RawFd]) -> Result<(), DetachError> {
    close_on_exec_except(passed);
    let (mut ours, theirs) = UnixStream::pair().map_err(DetachError::Start)?;
    let program = env::current_exe().map_err(DetachError::Start)?;
    let logs = env::var_os("LOG_LEVEL").is_some_and(|level| !level.is_empty());
    let mut command = Command::new(program);
    command
        // The program may have been called by the name of a link to it.
        .arg0("taupe")
        .args(["device", "--foreground", "--", interface])
        .env(VARIABLE, "1")
        .current_dir("/")
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null());
    // A relative path is one of this process's folder.
    if let Some(path) = env::var_os(NAME_FILE).filter(|path| !path.is_empty()) {
        command.env(NAME_FILE, path::absolute(path).map_err(DetachError::Start)?);
    }
    if !logs {
        command.stderr(Stdio::null());
    }
    let mut child = command.spawn().map_err(DetachError::Start)?;
    // It has a copy of the other end, which must not stay open here.
    drop(command);
    let mut report = Vec::new();
    let mut first = [0];
    match ours.read_exact(&mut first) {
        Ok(()) if first == [READY] => return Ok(()),
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return Err(DetachError::Died(child.wait().map_err(DetachError::Start)?));
        }
        Err(error) => return Err(DetachError::Start(error)),
    }
    let read = ours.take(LONGEST).read_to_end(&mut report);
    read.map_err(DetachError::Start)?;
    let _ = child.wait();
    let reason = String::from_utf8_lossy(&report).into_owned();
    Err(DetachError::Reported(reason))
}

/// The process that has started this one and waits for a report.
pub(super) struct Caller(UnixStream);

impl Caller {
    /// Returns the starter of this process, if it is a background process. Detaches it from its
    /// terminal.
    pub(super) fn of_this_process() -> io::Result<Option<Self>> {
        if env::var_os(VARIABLE).is_none() {
            return Ok(None);
        }
        rustix::process::setsid()?;
        Ok(Some(Self(OwnedFd::from(system::stdin()?).into())))
    }

    /// Reports that the device is ready. If the starter is gone, nobody needs the report.
    pub(super) fn ready(mut self) {
        let _ = self.0.write_all(&[READY]);
        let _ = self.0.shutdown(std::net::Shutdown::Both);
    }

    /// Reports why there is no device.
    pub(super) fn failed(mut self, reason: &dyn Display) {
        let _ = write!(self.0, "{}{reason}", char::from(FAILED));
        let _ = self.0.shutdown(std::net::Shutdown::Both);
    }
}
