//! Programs run by a test: checked when they end, observed while they run.

use crate::console;
use crate::error::{Error, Result};
use rustix::process::{Pid, Signal, kill_process, setpriority_process};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Folder inside a sandbox for the output of [`Process`]es.
pub const LOGS: &str = "/run/lab/logs";

/// Output of a program that ended successfully.
#[derive(Debug, Clone)]
pub struct Output {
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Output {
    /// Returns standard output without surrounding white space.
    pub fn text(&self) -> &str {
        self.stdout.trim()
    }
}

/// Result of a program that may have failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// Its exit status; `None` if a signal ended it.
    pub status: Option<i32>,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

/// Returns the path of a program that a command of this name would start; `None` if it is not
/// installed.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let folders = std::env::split_paths(&path);
    let paths = folders.map(|folder| folder.join(name));
    let is_program = |path: &PathBuf| {
        let data = fs::metadata(path);
        data.is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
    };
    paths.into_iter().find(is_program)
}

/// Runs a command to its end and returns its exit status and output.
///
/// # Errors
///
/// [`Error::Start`].
pub fn attempt(place: &str, command: Command, input: Option<&str>) -> Result<Attempt> {
    let output = collect(place, command, input)?;
    Ok(Attempt {
        status: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// Runs a command to its end, with `input` as its standard input.
///
/// `place` names where it runs, for messages only.
///
/// # Errors
///
/// [`Error::Start`], or [`Error::Command`] if the exit status is not zero.
pub fn run(place: &str, command: Command, input: Option<&str>) -> Result<Output> {
    let line = command_line(&command);
    let output = collect(place, command, input)?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() {
        return Err(Error::Command {
            command: line,
            place: place.to_owned(),
            status: output.status.to_string(),
            output: format!("{stderr}{stdout}"),
        });
    }
    Ok(Output { stdout, stderr })
}

fn collect(place: &str, mut command: Command, input: Option<&str>) -> Result<std::process::Output> {
    let line = command_line(&command);
    console::warn(format_args!("{} {place}: {line}", uptime()));
    let start = |source| Error::Start {
        command: line.clone(),
        place: place.to_owned(),
        source,
    };
    let mut child = command
        .stdin(input.map_or_else(Stdio::null, |_| Stdio::piped()))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(start)?;
    std::thread::scope(|scope| {
        if let (Some(mut pipe), Some(input)) = (child.stdin.take(), input) {
            // A program that ends without reading its input gives the reason itself.
            scope.spawn(move || drop(pipe.write_all(input.as_bytes())));
        }
        child
            .wait_with_output()
            .map_err(Error::io(format!("waiting for `{line}`")))
    })
}

/// A program that keeps running in the background.
///
/// Dropping this kills it, and so does the end of the sandbox. Its output goes to a file under
/// [`LOGS`], printed if the test fails.
#[derive(Debug)]
pub struct Process {
    child: Child,
    command: String,
    log: PathBuf,
}

impl Process {
    /// Starts a command on behalf of `place`.
    ///
    /// # Errors
    ///
    /// [`Error::Start`], [`Error::Io`].
    pub fn start(place: &str, mut command: Command) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let line = command_line(&command);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        fs::create_dir_all(LOGS).map_err(Error::io(LOGS))?;
        let program: String = line
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
            .take(60)
            .collect();
        let log = Path::new(LOGS).join(format!("{number:02}-{place}-{program}"));
        let file = File::create(&log).map_err(Error::io(log.display().to_string()))?;
        let copy = file
            .try_clone()
            .map_err(Error::io(log.display().to_string()))?;
        eprintln!("{} {place}: {line} &", uptime());
        let child = command
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(copy)
            .spawn()
            .map_err(|source| Error::Start {
                command: line.clone(),
                place: place.to_owned(),
                source,
            })?;
        Ok(Self {
            child,
            command: line,
            log,
        })
    }

    /// Returns the process id, as seen inside the sandbox.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns true if the process has a descriptor of a process, whose end it can wait for
    /// (pidfd_open(2)).
    pub fn watches_a_process(&self) -> bool {
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", self.id()));
        let mut links = descriptors.into_iter().flatten().flatten();
        links.any(|it| {
            std::fs::read_link(it.path()).is_ok_and(|to| to.ends_with("anon_inode:[pidfd]"))
        })
    }

    /// Returns the ids of the processes of the program: its own, and before it those of its packet
    /// processes (`docs/design/confinement.md`), which carry packets and configuration.
    pub fn all_ids(&self) -> Vec<u32> {
        let mut ids = packet_processes(self.id());
        ids.push(self.id());
        ids
    }

    /// Returns the id of the process that carries packets.
    pub fn packet_process_id(&self) -> u32 {
        packet_processes(self.id())
            .pop()
            .unwrap_or_else(|| self.id())
    }

    /// Returns the ids of its children with this first argument.
    pub fn children(&self, argument: &str) -> Vec<u32> {
        children(self.id(), argument)
    }

    /// Returns the command line with which it was started.
    pub fn command(&self) -> &str {
        &self.command
    }

    /// Returns its output so far.
    pub fn output(&self) -> String {
        fs::read(&self.log).map_or_else(
            |error| format!("({}: {error})", self.log.display()),
            |bytes| String::from_utf8_lossy(&bytes).into_owned(),
        )
    }

    /// Returns true if it still runs.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the system call fails.
    pub fn runs(&mut self) -> Result<bool> {
        let ended = self.child.try_wait();
        Ok(ended.map_err(Error::io(&*self.command))?.is_none())
    }

    /// Sends it a signal.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if it no longer exists.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(Pid::from_child(&self.child), signal)
            .map_err(Error::io(format!("signal to `{}`", self.command)))
    }

    /// Waits until it ends by itself.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] if it does not.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let mut status = None;
        wait_until(&format!("end of `{}`", self.command), limit, || {
            status = self.child.try_wait().map_err(Error::io("waitpid"))?;
            Ok(status.is_some())
        })?;
        status.ok_or_else(|| Error::unmet("a process that ended has no status"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the packet processes of a process, the newest last.
fn packet_processes(parent: u32) -> Vec<u32> {
    children(parent, "packet-process")
}

/// Returns the children of a process with this first argument, the newest last.
fn children(parent: u32, argument: &str) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{parent}/task"));
    let tasks = tasks.into_iter().flatten().flatten();
    let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let children = children.collect::<String>();
    let ids = children.split_whitespace().filter_map(|id| id.parse().ok());
    let mut ids: Vec<u32> = ids
        .filter(|id| {
            let arguments = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
            arguments.split(|byte| *byte == 0).nth(1) == Some(argument.as_bytes())
        })
        .collect();
    ids.sort_unstable();
    ids
}

/// Environment variable for tests that run on an emulated processor: the factor by which their time
/// limits are longer.
pub(crate) const PATIENCE_FACTOR: &str = "TAUPE_LAB_PATIENCE";

/// Returns the factor by which time limits are longer than on a real processor; 1 on a real one.
fn patience() -> u32 {
    let factor = std::env::var(PATIENCE_FACTOR).ok();
    factor.and_then(|factor| factor.parse().ok()).unwrap_or(1)
}

/// Returns true in an emulated machine, where answers come late.
pub fn is_emulated() -> bool {
    patience() > 1
}

/// Checks `condition` every 10 ms until it returns true. On an emulated processor, the limit is
/// longer.
///
/// # Errors
///
/// [`Error::Timeout`] naming `what`, or the error of the condition.
pub fn wait_until(
    what: &str,
    limit: Duration,
    condition: impl FnMut() -> Result<bool>,
) -> Result<()> {
    poll_until(what, limit, Duration::from_millis(10), condition)
}

/// As [`wait_until`], with another interval, for measurements.
///
/// # Errors
///
/// As [`wait_until`].
pub fn poll_until(
    what: &str,
    limit: Duration,
    pause: Duration,
    mut condition: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let limit = limit * patience();
    let start = Instant::now();
    loop {
        if condition()? {
            return Ok(());
        }
        if start.elapsed() > limit {
            return Err(Error::Timeout {
                what: what.to_owned(),
                limit,
            });
        }
        std::thread::sleep(pause);
    }
}

/// Gives this test, and all that it starts from now on, more of the processors than other programs:
/// for tests that need a rate, which a busy machine would not reach.
///
/// # Errors
///
/// [`Error::Io`].
pub fn outrank_others() -> Result<()> {
    setpriority_process(None, -15).map_err(Error::io("a higher priority"))
}

/// Returns the seconds since the machine started, to order the lines of a failed test.
pub(crate) fn uptime() -> String {
    let text = fs::read_to_string("/proc/uptime").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}

/// Returns the command as typed, without the prefix that enters the namespace.
fn command_line(command: &Command) -> String {
    let words: Vec<_> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy())
        .collect();
    match words.iter().map(AsRef::as_ref).collect::<Vec<_>>()[..] {
        ["ip", "netns", "exec", _, ref inner @ ..] => inner.join(" "),
        ref all => all.join(" "),
    }
}
