//! A folder for one device, and the commands that start it.

use super::{DIRECTORY, LIMIT, Outcome};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// A folder for one device. Dropping it ends the device.
pub(crate) struct Bench(pub(crate) PathBuf);

impl Bench {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("taupe-background-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).expect("directory");
        Self(path)
    }

    pub(crate) fn program() -> PathBuf {
        std::env::current_exe().expect("this executable")
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(Self::program());
        command.args(arguments);
        self.prepare(&mut command);
        command
    }

    pub(crate) fn prepare(&self, command: &mut Command) {
        for name in [
            "LOG_LEVEL",
            "WG_TUN_FD",
            "WG_UAPI_FD",
            "WG_PROCESS_FOREGROUND",
        ] {
            command.env_remove(name);
        }
        command.env(DIRECTORY, &self.0);
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        finished(self.command(arguments))
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        wait_for(&self.file(name));
        fs::read_to_string(self.file(name)).expect("readable")
    }

    pub(crate) fn situation(&self, key: &str) -> Option<String> {
        let text = self.text("situation");
        let value = text.lines().find_map(|line| line.strip_prefix(key));
        value.map(|value| value.trim().to_owned())
    }

    pub(crate) fn pid(&self) -> Pid {
        let pid = self.situation("pid ").and_then(|text| text.parse().ok());
        Pid::from_raw(pid.expect("a number")).expect("a process")
    }

    pub(crate) fn runs(&self) -> bool {
        let executable = fs::read_link(format!("/proc/{}/exe", self.pid().as_raw_nonzero()));
        executable.is_ok_and(|path| path == Self::program())
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if self.file("situation").exists() && self.runs() {
            let _ = kill_process(self.pid(), Signal::KILL);
        }
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns the end of a command and its output. Waits, within the limit, for all processes that
/// share its streams.
pub(crate) fn finished(mut command: Command) -> Output {
    command.stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("started");
    let pid = Pid::from_child(&child);
    let (sender, receiver) = channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    match receiver.recv_timeout(LIMIT) {
        Ok(output) => output.expect("output"),
        Err(_) => {
            let _ = kill_process(pid, Signal::KILL);
            panic!("still not ended, or a stream still open, after {LIMIT:?}");
        }
    }
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn check(holds: bool, what: impl std::fmt::Display) -> Outcome {
    if holds {
        Ok(())
    } else {
        Err(what.to_string().into())
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

pub(crate) fn wait_for(path: &Path) {
    wait_until(&path.display().to_string(), || path.exists());
}

pub(crate) fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LIMIT, "timed out waiting for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
