//! The background process of `taupe up`. The starting process waits until the tunnel is up.
//!
//! The program runs itself again with [`VARIABLE`] set. The background process's standard input is a
//! socket, to which it writes [`READY`] or [`FAILED`]. It prints errors and notes itself. When the
//! tunnel is up, it closes standard output, and standard error unless `LOG_LEVEL` is set. If it dies
//! before, the socket closes.

use crate::passed_descriptor::{TUN, UAPI};
use crate::system;
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitStatus};
use taupe_adapter_bsd::name_file;
use taupe_config::file::Compatibility;
use taupe_inspect::conf::Conf;
use taupe_os_bsd::System;

/// Environment variable of a background process.
const VARIABLE: &str = "TAUPE_UP";

/// Variable with the path of a file that gets the interface's name.
const NAME_FILE: &str = "WG_TUN_NAME_FILE";

/// A file that discards output and is empty.
const NOWHERE: &str = "/dev/null";

const READY: u8 = b'+';
const FAILED: u8 = b'-';

/// Reason why there is no tunnel in the background.
#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    #[error("the background process ended before the tunnel was up ({0})")]
    Died(ExitStatus),
    /// The background process has printed the reason.
    #[error("the background process could not bring the tunnel up")]
    Failed,
    #[error("cannot go to the background: {0}; --foreground does without")]
    Start(#[source] io::Error),
}

/// Returns the variable's value: the id of the starting process, and the command whose behaviour to
/// follow.
fn value(parent: u32, compatibility: Compatibility) -> String {
    match compatibility {
        Compatibility::Taupe => format!("{parent} taupe"),
        Compatibility::WgQuick => format!("{parent} wg-quick"),
    }
}

/// Brings a tunnel up in a background process, and waits until it is up.
pub(super) fn start(
    conf: &Conf,
    override_routes: bool,
    compatibility: Compatibility,
) -> Result<(), StartError> {
    let (mut ours, theirs) = UnixStream::pair().map_err(StartError::Start)?;
    let program = env::current_exe().map_err(StartError::Start)?;
    let mut command = Command::new(program);
    command
        // The program may have been called by the name of a link to it.
        .arg0("taupe")
        .args(["up", "--foreground"])
        .args(override_routes.then_some("--override-routes"))
        .args(["--", &conf.word()])
        .env(VARIABLE, value(std::process::id(), compatibility))
        // Descriptors for `taupe device` are not passed on.
        .env_remove(TUN)
        .env_remove(UAPI)
        .env(NAME_FILE, name_file(conf.interface.as_str()))
        // Standard output is that of the file's commands.
        .stdin(OwnedFd::from(theirs));
    let mut child = command.spawn().map_err(StartError::Start)?;
    // It has a copy of the other end, which must not stay open here.
    drop(command);
    let mut first = [0];
    match ours.read(&mut first).map_err(StartError::Start)? {
        1 if first == [READY] => Ok(()),
        1 => {
            let _ = child.wait();
            Err(StartError::Failed)
        }
        _ => Err(StartError::Died(child.wait().map_err(StartError::Start)?)),
    }
}

/// Has the device write the name of its interface to a file, for which macOS chooses it. Runs the
/// program again if the environment does not say so yet.
pub(super) fn name_interface(tunnel: &str) -> io::Result<()> {
    if System::HERE == System::FreeBsd {
        return Ok(());
    }
    let path = name_file(tunnel);
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    if env::var_os(NAME_FILE).is_some_and(|value| value == *path) {
        return Ok(());
    }
    let mut command = Command::new(env::current_exe()?);
    command.args(env::args_os().skip(1)).env(NAME_FILE, path);
    Err(command.arg0("taupe").exec())
}

/// The process that has started this one and waits for a report.
pub(super) struct UpCaller {
    socket: UnixStream,
    compatibility: Compatibility,
}

impl UpCaller {
    /// Returns the starter of this process, if it is a background process. Detaches it from its
    /// terminal.
    pub(super) fn of_this_process() -> io::Result<Option<Self>> {
        let parent = rustix::process::getppid();
        let parent = parent.and_then(|pid| u32::try_from(pid.as_raw_nonzero().get()).ok());
        let given = env::var_os(VARIABLE);
        // A command of the file that calls this program inherits the variable.
        let is_of = |compatibility: &Compatibility| {
            let expected = parent.map(|parent| value(parent, *compatibility));
            given.is_some() && given == expected.map(OsString::from)
        };
        let all = [Compatibility::Taupe, Compatibility::WgQuick];
        let Some(compatibility) = all.into_iter().find(is_of) else {
            return Ok(None);
        };
        rustix::process::setsid()?;
        let socket = UnixStream::from(OwnedFd::from(system::stdin()?));
        socket.set_nonblocking(true)?;
        // Commands of the file must not read the socket, or keep it open.
        dup2_stdin(fs::File::open(NOWHERE)?)?;
        Ok(Some(Self {
            socket,
            compatibility,
        }))
    }

    /// Returns the command whose behaviour to follow.
    pub(super) const fn compatibility(&self) -> Compatibility {
        self.compatibility
    }

    /// Returns true if that process has ended, so that nobody waits for the tunnel.
    pub(super) fn has_gone(&self) -> bool {
        matches!((&self.socket).read(&mut [0]), Ok(0))
    }

    /// Reports that the tunnel is up, and leaves the starter's standard output and error. If the
    /// starter is gone, nobody needs the report.
    pub(super) fn ready(mut self) {
        let logs = env::var_os("LOG_LEVEL").is_some_and(|level| !level.is_empty());
        if let Ok(nowhere) = fs::OpenOptions::new().write(true).open(NOWHERE) {
            let _ = dup2_stdout(&nowhere);
            if !logs {
                let _ = dup2_stderr(&nowhere);
            }
        }
        // Folders in which the command was called can be unmounted.
        let _ = env::set_current_dir("/");
        let _ = self.socket.write_all(&[READY]);
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }

    /// Reports that there is no tunnel.
    pub(super) fn failed(mut self) {
        let _ = self.socket.write_all(&[FAILED]);
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }
}
