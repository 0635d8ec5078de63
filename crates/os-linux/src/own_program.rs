//! Running this program, or one that belongs to it, as a child with other rights.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command};

use crate::descriptor::close_on_exec_except;

/// Environment variables that the child inherits: those that Taupe reads there, and that of the
/// dynamic linker. Others may be secrets of the user who has started this process.
const VARIABLES: [&str; 3] = ["TAUPE_CONFINE", "RUST_BACKTRACE", "LD_LIBRARY_PATH"];

/// Runs this program again, in the directory `/` and with `socket` as its standard input. `name` and
/// `arguments` tell it what it is, and `ps` shows them. Its output goes to `output`, or to this
/// process's.
///
/// The program is `/proc/self/exe`, or without `/proc` the file by which it was started. The child
/// inherits no other descriptors, except without `/proc` those that are not close-on-exec. A signal
/// from the terminal is not sent to it, but to this process.
///
/// # Errors
/// The system's.
pub fn run_again(
    name: &str,
    arguments: &[&str],
    socket: &OwnedFd,
    output: Option<&OwnedFd>,
) -> io::Result<Child> {
    let start = |program: &OsStr| run(program, name, arguments, socket, output);
    match start(OsStr::new("/proc/self/exe")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // Without `/proc`, as in a root directory that has nothing but the program.
            let file = rustix::param::linux_execfn();
            let file = std::path::absolute(OsStr::from_bytes(file.to_bytes()))?;
            start(file.as_os_str())
        }
        started => started,
    }
}

/// Runs a program that belongs to this one in the same manner. `name` is what `ps` shows for it.
///
/// # Errors
/// The system's.
pub fn run_helper(
    program: &Path,
    name: &str,
    socket: &OwnedFd,
    output: Option<&OwnedFd>,
) -> io::Result<Child> {
    run(program.as_os_str(), name, &[], socket, output)
}

fn run(
    program: &OsStr,
    name: &str,
    arguments: &[&str],
    socket: &OwnedFd,
    output: Option<&OwnedFd>,
) -> io::Result<Child> {
    let _ = close_on_exec_except(&[]);
    let mut command = Command::new(program);
    command.env_clear();
    command.envs(
        VARIABLES
            .iter()
            .filter_map(|it| Some((it, env::var_os(it)?))),
    );
    command.arg0(name).args(arguments);
    command.stdin(socket.try_clone()?);
    if let Some(output) = output {
        command
            .stdout(output.try_clone()?)
            .stderr(output.try_clone()?);
    }
    command.current_dir("/").process_group(0);
    command.spawn()
}
