//! Runs every system test in a sandbox of its own.
//!
//! A test file passes a list of [`SystemTest`]s to a [`Suite`]. The outer process lists, filters
//! and counts them in the usual form of `cargo test`. Each test runs in a second process of the
//! same executable, the first one of new PID, mount and network namespaces. When this process ends,
//! for any reason, the kernel kills all processes started below it and removes every namespace,
//! interface and mount (`pid_namespaces(7)`). It ends at the latest when its standard input is
//! closed, which the outer process holds open: a runner killed with SIGKILL also leaves nothing
//! behind.
//!
//! Inside, `/run` is an empty file system of the sandbox (for `ip netns` and the configuration
//! sockets), and `TMPDIR` a directory in it. The rest of the file system is the machine's.

use crate::console;
use crate::error::{Error, Result};
use crate::process::{LOGS, uptime};
use libtest_mimic::{Arguments, Failed, Trial};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::MemfdFlags;
use rustix::mount::{MountFlags, mount};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT};
use signal_hook::flag::register_conditional_default;
use std::cmp::Reverse;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The directory for a test's own files: `TMPDIR` inside a sandbox.
pub const SCRATCH: &str = "/run/lab/scratch";

/// Directories on which a sandbox mounts empty file systems, which hide the machine's files.
pub const HIDDEN: [&str; 2] = ["/run", "/var/lib"];

/// Default number of parallel sandboxes, unless `--test-threads` is given. Most tests spend their
/// time waiting.
const PARALLEL: usize = 6;

/// Default time limit of a test.
const LIMIT: Duration = Duration::from_secs(180);

/// Number of slowest tests that a suite lists at its end.
const SLOWEST: usize = 5;

/// Time between the request to end a sandbox and its killing.
const GRACE: Duration = Duration::from_secs(3);

const INSIDE: &str = "--sandboxed";
const SUPERVISE: &str = "--supervise";
const STEP: &str = "step: ";
const FIGURE: &str = "figure: ";

type Body = Box<dyn Fn() -> Result<()> + Send + Sync>;
type Conclusion = Box<dyn FnOnce(&[Verdict])>;

/// A test: a name and the function to run inside the sandbox.
pub struct SystemTest {
    name: String,
    limit: Duration,
    listed: bool,
    body: Body,
}

impl SystemTest {
    /// Creates a test with the default time limit.
    pub fn new(
        name: impl Into<String>,
        body: impl Fn() -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            limit: LIMIT,
            listed: true,
            body: Box::new(body),
        }
    }

    /// Sets another time limit, after which the sandbox is killed.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Marks it as a helper that another test runs by [`run_sandboxed`]: it is neither listed nor
    /// run by itself.
    pub fn fixture(mut self) -> Self {
        self.listed = false;
        self
    }
}

/// Result of a test.
#[derive(Debug, Clone)]
pub struct Verdict {
    /// The test's name.
    pub name: String,
    /// True if it ended in time, with success.
    pub passed: bool,
    /// Time from the start of the sandbox to its end.
    pub duration: Duration,
    /// Its output; if it failed, also the output of its programs.
    pub output: String,
}

impl Verdict {
    /// Returns the last [`step`] of the test.
    pub fn last_step(&self) -> Option<&str> {
        self.output
            .lines()
            .rev()
            .find_map(|line| line.strip_prefix(STEP))
    }

    fn figures(&self) -> impl Iterator<Item = &str> {
        let lines = self.output.lines();
        lines.filter_map(|line| line.strip_prefix(FIGURE))
    }
}

/// Prints the name of the step that begins, for the analysis of a failure.
pub fn step(name: &str) {
    eprintln!("{STEP}{name}");
}

/// Prints a measured value, also if the test succeeds.
pub fn figure(what: &str, value: impl std::fmt::Debug) {
    eprintln!("{FIGURE}{what}: {value:?}");
}

/// Returns a path in [`SCRATCH`].
pub fn scratch(name: &str) -> PathBuf {
    Path::new(SCRATCH).join(name)
}

/// Writes a file into [`SCRATCH`], readable by root only, and returns its path.
///
/// # Errors
///
/// [`Error::Io`].
pub fn scratch_file(name: &str, content: &str) -> Result<String> {
    use std::os::unix::fs::PermissionsExt;
    let path = scratch(name);
    let what = path.display().to_string();
    fs::write(&path, content).map_err(Error::io(&*what))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).map_err(Error::io(&*what))?;
    Ok(what)
}

/// The tests of one file.
pub struct Suite {
    tests: Vec<SystemTest>,
    parallel: usize,
    prepare: Vec<Body>,
    conclude: Option<Conclusion>,
}

impl Suite {
    /// Creates a suite of these tests, started in this order.
    pub fn new(tests: Vec<SystemTest>) -> Self {
        Self {
            tests,
            parallel: PARALLEL,
            prepare: Vec::new(),
            conclude: None,
        }
    }

    /// Sets the number of parallel tests, unless `--test-threads` is given. The default is six.
    pub fn parallel(mut self, count: usize) -> Self {
        self.parallel = count;
        self
    }

    /// Adds work to do once before the first test, outside any sandbox, such as installing a
    /// program; may be called several times. An error is printed, and the tests run all the same:
    /// those that need the result report it.
    pub fn prepare(mut self, work: impl Fn() -> Result<()> + Send + Sync + 'static) -> Self {
        self.prepare.push(Box::new(work));
        self
    }

    /// Sets a function that gets the verdicts, in the order of the tests, after the last test, such
    /// as one that prints a table.
    pub fn conclude(mut self, work: impl FnOnce(&[Verdict]) + 'static) -> Self {
        self.conclude = Some(Box::new(work));
        self
    }

    /// Runs the suite as the `main` of a test file, with the arguments of `cargo test`.
    pub fn main(self) -> ! {
        let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
        let word = |index: usize| arguments.get(index).and_then(|word| word.to_str());
        match (word(0), word(1), word(2)) {
            (Some(INSIDE), Some(name), None) => self.inside(name),
            (Some(SUPERVISE), Some(name), None) => {
                let verdict = run_sandboxed(name, LIMIT);
                print!("{}", verdict.output);
                std::process::exit(i32::from(!verdict.passed))
            }
            _ => self.outside(),
        }
    }

    /// Runs one test as the first process of its sandbox.
    fn inside(self, name: &str) -> ! {
        let Some(test) = self.tests.into_iter().find(|test| test.name == name) else {
            eprintln!("there is no test called {name}");
            std::process::exit(2);
        };
        std::thread::spawn(|| {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            eprintln!("{} ended from outside", uptime());
            print_logs();
            std::process::exit(3);
        });
        let result = catch_unwind(AssertUnwindSafe(|| {
            accept_signals()?;
            mount_file_systems()?;
            (test.body)()
        }));
        if matches!(result, Ok(Ok(()))) {
            std::process::exit(0);
        }
        let failed_at = uptime();
        print_logs();
        // Last, because `scripts/test` repeats the last lines. A panic has printed its message already.
        if let Ok(Err(error)) = &result {
            eprintln!("{failed_at} {error}");
        }
        std::process::exit(1)
    }

    /// Runs the requested tests, each in its sandbox.
    fn outside(self) -> ! {
        let mut arguments = Arguments::from_args();
        arguments.test_threads.get_or_insert(self.parallel);
        if !arguments.list {
            for work in self.prepare {
                if let Err(error) = work() {
                    eprintln!("preparation failed: {error}");
                }
            }
        }
        let verdicts = Arc::new(Mutex::new(Vec::new()));
        let listed = self.tests.into_iter().filter(|test| test.listed);
        let trials = listed
            .enumerate()
            .map(|(order, test)| {
                let verdicts = Arc::clone(&verdicts);
                Trial::test(test.name.clone(), move || {
                    let verdict = run_sandboxed(&test.name, test.limit);
                    let mut verdicts = verdicts.lock().unwrap_or_else(PoisonError::into_inner);
                    verdicts.push((order, verdict.clone()));
                    drop(verdicts);
                    if verdict.passed {
                        Ok(())
                    } else {
                        Err(Failed::from(verdict.output))
                    }
                })
            })
            .collect();
        let conclusion = libtest_mimic::run(&arguments, trials);
        let mut verdicts =
            std::mem::take(&mut *verdicts.lock().unwrap_or_else(PoisonError::into_inner));
        verdicts.sort_by_key(|(order, _)| *order);
        let verdicts: Vec<Verdict> = verdicts.into_iter().map(|(_, verdict)| verdict).collect();
        for verdict in &verdicts {
            for figure in verdict.figures() {
                println!("{}: {figure}", verdict.name);
            }
        }
        let mut slowest: Vec<&Verdict> = verdicts.iter().collect();
        slowest.sort_by_key(|verdict| Reverse(verdict.duration));
        for verdict in slowest.iter().take(SLOWEST) {
            println!("{}: {:.1} s", verdict.name, verdict.duration.as_secs_f32());
        }
        if let Some(conclude) = self.conclude
            && !arguments.list
        {
            conclude(&verdicts);
        }
        conclusion.exit()
    }
}

/// Restores signals that `nohup` or `&` made this process ignore, for its child processes: a
/// program inherits an ignored signal, but not a handled one (execve(2)).
fn accept_signals() -> Result<()> {
    for signal in [SIGHUP, SIGINT, SIGQUIT] {
        register_conditional_default(signal, Arc::new(AtomicBool::new(true)))
            .map_err(Error::io("handler of a signal"))?;
    }
    Ok(())
}

/// Runs one test of this executable in a new sandbox, and kills the sandbox after `limit`.
pub fn run_sandboxed(name: &str, limit: Duration) -> Verdict {
    let start = Instant::now();
    let (status, mut output) = match supervise(name, limit) {
        Ok(ended) => ended,
        Err(error) => (None, error.to_string()),
    };
    let passed = status.is_some_and(|status| status.success());
    if !passed {
        let how = match status {
            None => format!("not done within {limit:?}"),
            Some(status) if status.signal().is_some() => format!("killed: {status}"),
            Some(status) => status.to_string(),
        };
        output.push_str(&format!("{name}: {how}\n"));
    }
    Verdict {
        name: name.to_owned(),
        passed,
        duration: start.elapsed(),
        output,
    }
}

/// Result of a sandbox started by [`run_attached`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttachedOutcome {
    /// It has ended.
    Ended(ExitStatus),
    /// It stays, independent of this process: see [`detach`].
    Detached {
        /// The exit status that the process inside reports.
        status: u8,
        /// Id of that process outside the sandbox; the sandbox ends with it.
        first: u32,
    },
}

/// Message of [`detach`] to [`run_attached`], followed by a status.
const DETACHED: &str = "\0stays ";

/// Set by [`detach`].
static IS_DETACHED: AtomicBool = AtomicBool::new(false);

/// Runs this executable again as the first process of a new sandbox, as [`Attached::start`] does,
/// and passes its lines to `print` until it ends or requests to stay.
///
/// # Errors
///
/// [`Error::Start`] without `unshare`, [`Error::Io`], those of `print`.
pub fn run_attached(
    inside: &str,
    log: File,
    mut print: impl FnMut(&str) -> Result<()>,
) -> Result<AttachedOutcome> {
    let mut attached = Attached::start_printing(inside, &[], Stdio::piped(), log)?;
    let output = attached.child.stdout.take().map(BufReader::new);
    for line in output.into_iter().flat_map(BufReader::lines) {
        let line = line.map_err(Error::io("output of the sandbox"))?;
        let Some(status) = line.strip_prefix(DETACHED) else {
            print(&line)?;
            continue;
        };
        let outcome = AttachedOutcome::Detached {
            status: status.parse().unwrap_or(u8::MAX),
            first: only_child(attached.child.id())?,
        };
        // Dropping it would end the sandbox.
        std::mem::forget(attached);
        return Ok(outcome);
    }
    let status = attached.child.wait().map_err(Error::io("wait"))?;
    Ok(AttachedOutcome::Ended(status))
}

/// Called by a process that [`run_attached`] has started: keeps the sandbox until this process is killed,
/// and reports an exit status to the outer process.
pub fn detach(status: u8) -> ! {
    IS_DETACHED.store(true, Ordering::Relaxed);
    console::print(format_args!("{DETACHED}{status}\n"));
    loop {
        std::thread::park();
    }
}

/// Returns the process that `unshare` has started.
fn only_child(parent: u32) -> Result<u32> {
    let path = format!("/proc/{parent}/task/{parent}/children");
    let children = fs::read_to_string(&path).map_err(Error::io(&*path))?;
    let child = children.trim().parse();
    child.map_err(|_| Error::unmet(format!("{path}: {children:?}")))
}

/// A sandbox that prints to this process's standard output and takes commands from it. It ends when
/// this process ends or drops it.
#[derive(Debug)]
pub struct Attached {
    child: Child,
    lifeline: Option<ChildStdin>,
}

impl Attached {
    /// Runs this executable again as the first process of a new sandbox, with the argument `inside`
    /// and the given variables in its environment. Its standard output is this process's, and its
    /// standard error goes to `log`.
    ///
    /// # Errors
    ///
    /// [`Error::Start`] without `unshare`, [`Error::Io`].
    pub fn start(inside: &str, environment: &[(&str, &str)], log: File) -> Result<Self> {
        Self::start_printing(inside, environment, Stdio::inherit(), log)
    }

    fn start_printing(
        inside: &str,
        environment: &[(&str, &str)],
        printed: Stdio,
        log: File,
    ) -> Result<Self> {
        let mut child = unshare_command(&[inside])?
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(printed)
            .stderr(log)
            // Interrupts from the terminal go to this process only, which passes them on.
            .process_group(0)
            .spawn()
            .map_err(|source| Error::Start {
                command: "unshare".to_owned(),
                place: "this machine".to_owned(),
                source,
            })?;
        let lifeline = child.stdin.take();
        Ok(Self { child, lifeline })
    }

    /// Asks the process inside to stop; [`begin_attached`] receives the request.
    pub fn request_stop(&mut self) {
        // The write fails if the process has ended already.
        if let Some(lifeline) = &mut self.lifeline {
            let _ = lifeline.write_all(b"stop\n");
        }
    }

    /// Waits up to `limit` for its end; returns its exit status if it has ended.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn ended(&mut self, limit: Duration) -> Result<Option<ExitStatus>> {
        wait(&mut self.child, limit)
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.lifeline = None;
        if !matches!(wait(&mut self.child, GRACE), Ok(Some(_))) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Must be called first by the process that [`Attached::start`] or [`run_attached`] has started. Sets up
/// the sandbox, and ends it when the outer process is gone. Sets `stop` when the outer process asks
/// to stop.
///
/// # Errors
///
/// [`Error::Io`].
pub fn begin_attached(stop: Arc<AtomicBool>) -> Result<()> {
    std::thread::spawn(move || {
        let mut word = [0; 64];
        while matches!(std::io::stdin().read(&mut word), Ok(1..)) {
            stop.store(true, Ordering::Relaxed);
        }
        if !IS_DETACHED.load(Ordering::Relaxed) {
            std::process::exit(130);
        }
    });
    mount_file_systems()
}

/// Returns the command that runs this executable in new namespaces.
fn unshare_command(arguments: &[&str]) -> Result<Command> {
    let executable = std::env::current_exe().map_err(Error::io("own executable"))?;
    let mut command = Command::new("unshare");
    #[rustfmt::skip]
    command
        .args([
            "--pid", "--fork", "--kill-child", "--mount-proc", "--mount", "--net",
            "--propagation", "private", "--",
        ])
        .arg(executable)
        .args(arguments)
        // A call that a confined process must not make ends it, and so fails the test.
        .env("TAUPE_CONFINE", "kill")
        .env("TMPDIR", SCRATCH);
    Ok(command)
}

/// Runs a sandboxed test; no status means that it reached the limit.
fn supervise(name: &str, limit: Duration) -> Result<(Option<ExitStatus>, String)> {
    let printed = rustix::fs::memfd_create("output", MemfdFlags::CLOEXEC)
        .map_err(Error::io("memory for output"))?;
    let mut printed = File::from(printed);
    let copy = || printed.try_clone().map_err(Error::io("dup"));
    let mut child = unshare_command(&[INSIDE, name])?
        .stdin(Stdio::piped())
        .stdout(copy()?)
        .stderr(copy()?)
        .spawn()
        .map_err(|source| Error::Start {
            command: "unshare".to_owned(),
            place: "this machine".to_owned(),
            source,
        })?;
    let lifeline = child.stdin.take();
    let ended = wait(&mut child, limit)?;
    drop(lifeline);
    if ended.is_none() && wait(&mut child, GRACE)?.is_none() {
        child.kill().map_err(Error::io("kill"))?;
        child.wait().map_err(Error::io("wait"))?;
    }
    let mut output = Vec::new();
    printed
        .rewind()
        .and_then(|()| printed.read_to_end(&mut output))
        .map_err(Error::io("output of the sandbox"))?;
    Ok((ended, String::from_utf8_lossy(&output).into_owned()))
}

/// Waits for a child process up to a limit, without polling.
fn wait(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    if let Some(status) = child.try_wait().map_err(Error::io("wait"))? {
        return Ok(Some(status));
    }
    let handle = pidfd_open(Pid::from_child(child), PidfdFlags::empty())
        .map_err(Error::io("pidfd of the sandbox"))?;
    let end = Instant::now() + limit;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(|_| Error::unmet("absurd time limit"))?;
        let mut events = [PollFd::new(&handle, PollFlags::IN)];
        match poll(&mut events, Some(&left)) {
            Ok(0) => return Ok(None),
            Ok(_) => return child.wait().map(Some).map_err(Error::io("wait")),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::io("poll")(error)),
        }
    }
}

/// Sets up the file systems of the sandbox.
fn mount_file_systems() -> Result<()> {
    let none = MountFlags::NOSUID | MountFlags::NODEV;
    // Taupe stores handshake timestamps in /var/lib.
    for directory in HIDDEN {
        mount("lab", directory, "tmpfs", none, None)
            .map_err(Error::io(format!("tmpfs on {directory}")))?;
    }
    // The existing mount shows the machine's interfaces.
    mount("sysfs", "/sys", "sysfs", none, None).map_err(Error::io("sysfs on /sys"))?;
    // perf needs the event descriptions there. Not every kernel has them; tests that need them
    // report it.
    let _ = mount("lab", "/sys/kernel/tracing", "tracefs", none, None);
    for directory in [SCRATCH, LOGS] {
        fs::create_dir_all(directory).map_err(Error::io(directory))?;
    }
    Ok(())
}

/// Prints the last lines of output of each background program.
fn print_logs() {
    const LINES: usize = 40;
    let Ok(entries) = fs::read_dir(LOGS) else {
        return;
    };
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        let text = fs::read(&path).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().collect();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        eprintln!("--- {name}");
        for line in lines.iter().skip(lines.len().saturating_sub(LINES)) {
            eprintln!("{line}");
        }
    }
}
