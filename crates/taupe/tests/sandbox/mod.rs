//! Sandbox for tests of the real program. Each test runs a second time, alone, as the first process
//! of new network, mount and process namespaces with empty `/run` and `/var/lib`. When it ends, all
//! of its processes and interfaces end with it. Creating the namespaces takes root, or a kernel
//! that allows unprivileged user namespaces.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, geteuid, pidfd_open, pidfd_send_signal};
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

pub(crate) const TAUPE: &str = env!("CARGO_BIN_EXE_taupe");

/// Time limit of any wait.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// Set in the process inside the sandbox.
const INSIDE: &str = "TAUPE_TEST_INSIDE";

const PREPARE: &str = r#"
    mount -t tmpfs -o mode=755 tmpfs /run && mount -t tmpfs tmpfs /var/lib && exec "$0" "$@"
"#;

/// Runs the body inside the sandbox: in this process if it is inside, otherwise in a new process
/// that runs the test of this name.
pub(crate) fn sandboxed(test: &str, body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    let mut command = Command::new("unshare");
    if !geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args([
        "--net",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]);
    command.args(["sh", "-c", PREPARE]);
    command.arg(std::env::current_exe().expect("this executable"));
    command
        .args([test, "--exact", "--nocapture"])
        // The result is reported once by this process. Panics are printed to standard error.
        .stdout(Stdio::null())
        .env(INSIDE, "1");
    for name in [
        "LOG_LEVEL",
        "WG_TUN_FD",
        "WG_UAPI_FD",
        "WG_PROCESS_FOREGROUND",
        "TAUPE_OFFLOAD",
        "NOTIFY_SOCKET",
        "WG_ENDPOINT_RESOLUTION_RETRIES",
    ] {
        command.env_remove(name);
    }
    let mut sandbox = Killed(command.spawn().expect("unshare(1)"));
    let start = Instant::now();
    loop {
        if let Some(status) = sandbox.0.try_wait().expect("waited") {
            assert!(status.success(), "in the sandbox: {status}");
            return;
        }
        assert!(start.elapsed() < LIMIT * 2, "the sandbox takes too long");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Killed when dropped.
pub(crate) struct Killed(pub(crate) Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn run(program: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    command.output().expect("started")
}

pub(crate) struct Process(OwnedFd);

impl Process {
    /// Returns the program's only process that is no packet process. `/proc` shows no processes
    /// outside the sandbox.
    pub(crate) fn only() -> Self {
        let entries = fs::read_dir("/proc").expect("proc").flatten();
        let ours = entries.filter(|entry| {
            let arguments = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let argument = arguments.split(|byte| *byte == 0).nth(1);
            fs::read_link(entry.path().join("exe")).is_ok_and(|path| path == Path::new(TAUPE))
                && argument != Some(b"packet-process")
        });
        let pid = |text: &str| Pid::from_raw(text.parse().ok()?);
        let all: Vec<_> = ours
            .filter_map(|entry| pid(entry.file_name().to_str()?))
            .collect();
        let [only] = all[..] else {
            panic!("not one process but {}", all.len());
        };
        Self::new(only)
    }

    pub(crate) fn new(pid: Pid) -> Self {
        Self(pidfd_open(pid, PidfdFlags::empty()).expect("a process"))
    }

    pub(crate) fn send(&self, signal: Signal) {
        pidfd_send_signal(&self.0, signal).expect("sent");
    }

    /// Waits until the last thread has ended and all files are closed.
    pub(crate) fn wait(&self) {
        let limit = Timespec::try_from(LIMIT).expect("short");
        let ready = poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&limit));
        assert_eq!(ready, Ok(1), "it does not end");
    }
}

pub(crate) fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LIMIT, "timed out waiting for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) fn has_interface(name: &str) -> bool {
    let devices = fs::read_to_string("/proc/self/net/dev").expect("devices");
    devices
        .lines()
        .any(|line| line.trim_start().starts_with(&format!("{name}:")))
}

/// Returns the reply to `get=1`, or `None` if nothing listens.
pub(crate) fn get(path: impl AsRef<Path>) -> Option<String> {
    let mut stream = UnixStream::connect(path).ok()?;
    stream.set_read_timeout(Some(LIMIT)).expect("set");
    stream.write_all(b"get=1\n\n").expect("sent");
    let mut reply = Vec::new();
    while !reply.ends_with(b"\n\n") {
        let mut byte = [0];
        assert_eq!(stream.read(&mut byte).expect("a reply"), 1, "{reply:?}");
        reply.extend(byte);
    }
    Some(String::from_utf8(reply).expect("text"))
}
