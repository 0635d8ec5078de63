//! `taupe service`: executes requests of users without root. The crate `taupe-service` decides which ones.
//!
//! Each change runs this program again as a command, such as `taupe up`, with nothing from the caller in its
//! arguments but the checked name of a tunnel or application. Reports are made in this process.

use crate::system::{disable_core_files, notify_ready};
use crate::{FAILED, complain, flows, logging, status};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, Uid, chmod, chown};
use rustix::io::Errno;
use rustix::net::sockopt::socket_acceptconn;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use taupe_adapter::State;
use taupe_inspect::is_root;
use taupe_inspect::json;
use taupe_inspect::tunnel::names;
use taupe_os_linux::users::user_id;
use taupe_service::{
    Executor, FRONT_USER, FlowView, GROUP, LISTED_FOLDER, Listed, MAX_ERRORS, MAX_OUTPUT, Outcome,
    REGISTRY_FOLDER, Registry, Running, SOCKET, Server, Settings, Target, TunnelName,
};
use taupe_transparent::capture::{is_in_effect, only_user};
use tracing::warn;

/// Time for the front to send a message.
const PATIENCE: Duration = Duration::from_secs(10);

/// Time for a user to authenticate. The front gives polkit 300 seconds.
const AUTHENTICATION: Duration = Duration::from_secs(330);

/// Time for a command, and then to end after SIGTERM.
const COMMAND: [Duration; 2] = [Duration::from_secs(600), Duration::from_secs(10)];

/// Connections that wait to be accepted, at most.
const BACKLOG: i32 = 64;

/// Variables that commands inherit. The last two are for tests. With `LOG_LEVEL`, a tunnel's process would keep
/// the pipe of standard error, whose end this process waits for.
const VARIABLES: [&str; 5] = [
    "PATH",
    "TAUPE_HOOKS",
    "DBUS_SYSTEM_BUS_ADDRESS",
    "TAUPE_CONFINE",
    "RUST_BACKTRACE",
];

/// Reason why the service does not run.
#[derive(Debug, thiserror::Error)]
enum ServiceError {
    #[error(
        "this takes root: systemd starts it (taupe-service.socket); without systemd, start it as root at boot"
    )]
    NotRoot,
    #[error(
        "there is no user {FRONT_USER}: install the package taupe-service, or run systemd-sysusers"
    )]
    NoFront,
    #[error("cannot listen at {SOCKET}: {0}")]
    Socket(#[source] io::Error),
    #[error("cannot use {REGISTRY_FOLDER}: {0}")]
    Registry(#[source] io::Error),
    #[error("cannot find this program: {0}")]
    Program(#[source] io::Error),
    #[error("cannot accept connections: {0}")]
    Accept(#[source] io::Error),
}

/// Serves until it is killed. Tunnels that it has brought up stay.
pub(crate) fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(&error, FAILED),
    }
}

fn run() -> Result<(), ServiceError> {
    if !is_root() {
        return Err(ServiceError::NotRoot);
    }
    // Files of users have keys.
    disable_core_files();
    let level = std::env::var("LOG_LEVEL").ok();
    // Each change is logged, with the user who has requested it.
    logging::begin(logging::level(level.as_deref().or(Some("info"))));
    let front = user_id(FRONT_USER).ok_or(ServiceError::NoFront)?;
    let registry = Registry::open(Path::new(REGISTRY_FOLDER)).map_err(ServiceError::Registry)?;
    // An upgrade replaces the file. After that, commands run the new one, and the path of this process's program
    // ends in "(deleted)".
    let program = std::env::current_exe().map_err(ServiceError::Program)?;
    let listener = listener(front).map_err(ServiceError::Socket)?;
    let server = Server::new(Settings {
        front,
        registry,
        listed: Listed::new(Path::new(LISTED_FOLDER), GROUP),
        executor: Box::new(Commands { program }),
        patience: PATIENCE,
        authentication: AUTHENTICATION,
    });
    notify_ready();
    server.run(&listener).map_err(ServiceError::Accept)
}

/// Returns the listening socket at standard input (systemd's `StandardInput=socket`), or makes one.
fn listener(front: u32) -> io::Result<OwnedFd> {
    let input = io::stdin();
    if socket_acceptconn(&input).unwrap_or(false) {
        return input.as_fd().try_clone_to_owned();
    }
    let folder = Path::new(SOCKET).parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder)?;
    // The front has to reach the socket. The folder of copies inside is private.
    chmod(folder, Mode::from_raw_mode(0o755))?;
    match fs::remove_file(SOCKET) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    // Nobody can connect before it listens.
    bind(&socket, &SocketAddrUnix::new(SOCKET)?)?;
    chmod(SOCKET, Mode::from_raw_mode(0o600))?;
    chown(SOCKET, Some(Uid::from_raw(front)), None)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Commands of this program.
struct Commands {
    program: PathBuf,
}

impl Commands {
    /// Runs this program again with these arguments, and waits for its end.
    fn execute<'a>(&self, arguments: impl IntoIterator<Item = &'a OsStr>) -> Outcome {
        let mut command = Command::new(&self.program);
        command.arg0("taupe").args(arguments);
        match run_command(command, COMMAND) {
            Ok(outcome) => outcome,
            Err(error) => failed(
                &format_args!("cannot run {}: {error}", self.program.display()),
                FAILED,
            ),
        }
    }
}

impl Executor for Commands {
    fn tunnels(&self) -> io::Result<BTreeMap<String, Running>> {
        let all = names().map_err(io::Error::other)?;
        let headers = State::default().here();
        let running = all.into_iter().map(|name| {
            let header = headers.iter().find(|header| header.interface == name);
            let running = Running {
                file: header.map(|header| header.config.clone()),
                // A mark means that the kernel lacks the features of transparent mode.
                is_transparent: header.is_some_and(|header| {
                    header.transparent.translation.is_some() && header.options.chosen.is_none()
                }),
                // A tunnel whose maps cannot be read may select anything.
                selects: is_in_effect(&name).unwrap_or(true),
                only_user: only_user(&name).ok().flatten(),
            };
            (name, running)
        });
        Ok(running.collect())
    }

    fn up(&self, file: &Path, is_transparent: bool) -> Outcome {
        // On a kernel without the features of transparent mode, it fails.
        let mode = is_transparent.then_some(OsStr::new("--transparent"));
        let words = [OsStr::new("up")].into_iter().chain(mode);
        self.execute(words.chain([file.as_os_str()]))
    }

    fn down(&self, target: &Target) -> Outcome {
        self.execute([OsStr::new("down"), word(target)])
    }

    fn reload(&self, file: &Path) -> Outcome {
        self.execute([OsStr::new("reload"), file.as_os_str()])
    }

    fn edit(&self, target: &Target, application: &str, is_allowed: bool) -> Outcome {
        let action = if is_allowed { "allow" } else { "remove" };
        let words = [OsStr::new("app"), OsStr::new(action), word(target)];
        // An application may begin with a dash.
        self.execute(
            words
                .into_iter()
                .chain([OsStr::new("--"), OsStr::new(application)]),
        )
    }

    fn status(&self, names: Option<&BTreeSet<TunnelName>>, json: bool) -> Outcome {
        match status::of_all(json, |name| is_among(names, name)) {
            Ok((state, text)) => Outcome {
                status: state.exit_status(),
                output: text.into_bytes(),
                errors: Vec::new(),
            },
            Err(error) => failed(&error, status::UNKNOWN),
        }
    }

    fn flows(&self, view: &FlowView, json: bool) -> Outcome {
        let mut flows = match flows::look(None) {
            Ok(flows) => flows,
            Err(error) => return failed(&flows::with_advice(&error), FAILED),
        };
        let FlowView {
            user,
            tunnel,
            explained,
        } = view;
        flows.flows.retain(|flow| {
            let is_in = |name: &TunnelName| flow.tunnel.as_deref() == Some(name.as_str());
            user.is_none_or(|user| flow.uid == user) && tunnel.as_ref().is_none_or(is_in)
        });
        for flow in &mut flows.flows {
            // The reason names lines of the tunnel's file.
            let tunnel = flow.tunnel.as_deref();
            if !tunnel.is_some_and(|name| is_among(explained.as_ref(), name)) && explained.is_some()
            {
                flow.why = None;
            }
        }
        let text = match json {
            true => json::text(&flows),
            false => flows::text(&flows),
        };
        Outcome {
            output: text.into_bytes(),
            ..Outcome::default()
        }
    }
}

fn is_among(names: Option<&BTreeSet<TunnelName>>, name: &str) -> bool {
    names.is_none_or(|names| names.iter().any(|one| one.as_str() == name))
}

fn word(target: &Target) -> &OsStr {
    match target {
        Target::File(path) => path.as_os_str(),
        Target::Name(name) => OsStr::new(name.as_str()),
    }
}

fn failed(error: &dyn std::fmt::Display, status: u8) -> Outcome {
    Outcome {
        status,
        output: Vec::new(),
        errors: format!("taupe: {error}\n").into_bytes(),
    }
}

/// Runs a command, and waits for its end. It gets SIGTERM after the first time, and SIGKILL after the second.
fn run_command(mut command: Command, times: [Duration; 2]) -> io::Result<Outcome> {
    command.current_dir("/").env_clear();
    let inherited = VARIABLES.map(|name| (name, std::env::var_os(name)));
    for (name, value) in inherited {
        command.envs(value.map(|value| (name, value)));
    }
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let (output, errors) = (child.stdout.take(), child.stderr.take());
    let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
    let (output, errors) = thread::scope(|scope| {
        scope.spawn(|| end_in_time(&process, times));
        let output = scope.spawn(|| beginning(output, MAX_OUTPUT));
        let errors = beginning(errors, MAX_ERRORS);
        (output.join().unwrap_or_default(), errors)
    });
    let status = child.wait()?;
    let status = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(Outcome {
        status: status.unwrap_or(FAILED),
        output,
        errors,
    })
}

/// Waits for the end of a process, and ends it after these times.
fn end_in_time(process: &OwnedFd, [time, grace]: [Duration; 2]) {
    for (time, signal) in [(time, Signal::TERM), (grace, Signal::KILL)] {
        if has_ended(process, time) {
            return;
        }
        warn!(?signal, "a command takes too long");
        // It fails only if the process has ended.
        let _ = pidfd_send_signal(process, signal);
    }
}

/// Waits for the end of a process. Returns false if it has not ended in this time.
fn has_ended(process: &OwnedFd, time: Duration) -> bool {
    let end = Instant::now() + time;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).ok();
        match poll(&mut [PollFd::new(process, PollFlags::IN)], timeout.as_ref()) {
            Ok(0) => return false,
            Err(Errno::INTR) => {}
            Ok(_) | Err(_) => return true,
        }
    }
}

/// Reads a pipe to its end, and returns the first `most` bytes.
fn beginning(pipe: Option<impl Read>, most: usize) -> Vec<u8> {
    let mut text = Vec::new();
    if let Some(mut pipe) = pipe {
        // A pipe that cannot be read ends the output. The exit status says how the command ended.
        let _ = pipe.by_ref().take(most as u64).read_to_end(&mut text);
        let _ = io::copy(&mut pipe, &mut io::sink());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::run_command;
    use std::process::Command;
    use std::time::{Duration, Instant};

    const SOON: Duration = Duration::from_millis(300);
    const LATE: Duration = Duration::from_secs(500);

    fn run(script: &str, times: [Duration; 2]) -> super::Outcome {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        let begin = Instant::now();
        let outcome = run_command(command, times).expect("a shell");
        assert!(begin.elapsed() < LATE, "it was not ended");
        outcome
    }

    #[test]
    fn commands_end_in_time() {
        let outcome = run("echo done; exit 3", [LATE, LATE]);
        assert_eq!((outcome.status, &*outcome.output), (3, &b"done\n"[..]));
        let outcome = run(
            "trap 'echo ended; exit 4' TERM; while :; do :; done",
            [SOON, LATE],
        );
        assert_eq!((outcome.status, &*outcome.output), (4, &b"ended\n"[..]));
        // It ignores SIGTERM.
        let outcome = run("trap '' TERM; echo begun; exec sleep 600", [SOON, SOON]);
        assert_eq!((outcome.status, &*outcome.output), (1, &b"begun\n"[..]));
    }
}
