//! The property list of launchd, and the script that it starts.

use crate::place::{Place, parses, shells};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A key of a property list, and the type of its value.
type Key = (&'static str, fn(&Value) -> bool);

/// Keys of launchd.plist(5) of macOS 13 that a tunnel may need.
const KEYS: [Key; 11] = [
    ("Label", Value::is_string),
    ("ProgramArguments", Value::is_array),
    ("RunAtLoad", Value::is_boolean),
    ("KeepAlive", |value| value.is_boolean() || value.is_object()),
    ("ThrottleInterval", Value::is_u64),
    ("ExitTimeOut", Value::is_u64),
    ("ProcessType", Value::is_string),
    ("EnvironmentVariables", Value::is_object),
    ("StandardInPath", Value::is_string),
    ("StandardOutPath", Value::is_string),
    ("StandardErrorPath", Value::is_string),
];

const PROCESS_TYPES: [&str; 4] = ["Background", "Standard", "Adaptive", "Interactive"];

fn installed() -> (Place, PathBuf) {
    let place = Place::new("Darwin");
    place.installed(&[]);
    let script = place.prefix().join("libexec/taupe-launchd");
    (place, script)
}

/// Parses a property list as macOS's `plutil -convert json` would.
fn property_list(path: &Path) -> Value {
    let program = "import json, plistlib, sys; \
                   print(json.dumps(plistlib.load(open(sys.argv[1], 'rb'))))";
    let mut python = Command::new("python3");
    let output = python.args(["-c", program]).arg(path).output();
    let output = output.expect("python3");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn the_property_list_is_well_formed_and_starts_the_script() {
    let (place, script) = installed();
    let template = place.prefix().join("share/taupe/tunnel.plist");
    let text = fs::read_to_string(template).expect("template");
    let named = place.folder.join("taupe.wg0.plist");
    fs::write(&named, text.replace("@NAME@", "wg0")).expect("file");
    let list = property_list(&named);
    for (key, value) in list.as_object().expect("a dictionary") {
        let known = KEYS.iter().find(|(name, _)| name == key);
        assert!(known.is_some_and(|(_, fits)| fits(value)), "{key}: {value}");
    }
    assert_eq!(list["Label"], "taupe.wg0");
    let arguments = [script.to_str().expect("text"), "wg0"];
    assert_eq!(list["ProgramArguments"], Value::from(&arguments[..]));
    assert_eq!(list["RunAtLoad"], true);
    // A job that launchd ends exits with 0, so this does not start it again.
    assert_eq!(
        list["KeepAlive"],
        serde_json::json!({ "SuccessfulExit": false })
    );
    let kind = list["ProcessType"].as_str().expect("text");
    assert!(PROCESS_TYPES.contains(&kind), "{kind}");
    for key in ["StandardOutPath", "StandardErrorPath"] {
        assert_eq!(list[key], "/var/log/taupe.wg0.log", "{key}");
    }
    assert!(!list.to_string().contains('@'), "{list}");
}

/// A running script, which ends with the test.
struct Job(Child);

impl Drop for Job {
    fn drop(&mut self) {
        for child in children(self.0.id()).split_whitespace() {
            let _ = Command::new("kill").arg(child).status();
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Job {
    /// Sends SIGTERM, as launchd does.
    fn terminate(&self) {
        let sent = Command::new("kill").arg(self.0.id().to_string()).status();
        assert!(sent.expect("kill").success());
    }

    /// Waits until it has ended, and returns its exit status.
    fn status(&mut self) -> Option<i32> {
        let mut status = None;
        until(|| {
            status = self.0.try_wait().expect("a child");
            status.is_some()
        });
        status.and_then(|status| status.code())
    }
}

fn start(shell: &[String], script: &Path) -> Job {
    let mut command = Command::new(&shell[0]);
    command.args(&shell[1..]).arg(script).arg("wg0");
    command.stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    Job(command.spawn().expect("a shell"))
}

/// Waits until it holds, for at most ten seconds.
fn until(mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(10));
        sleep(Duration::from_millis(5));
    }
}

/// Returns the children of a process, by `/proc`.
fn children(process: u32) -> String {
    let path = format!("/proc/{process}/task/{process}/children");
    fs::read_to_string(path).unwrap_or_default()
}

#[test]
fn the_script_brings_the_tunnel_up_and_takes_it_down_at_sigterm() {
    let (place, script) = installed();
    for shell in shells() {
        parses(&shell, &script);
        let mut job = start(&shell, &script);
        let mut waiting = String::new();
        until(|| {
            waiting = children(job.0.id());
            let child = waiting.split_whitespace().next().unwrap_or("none");
            let name = fs::read_to_string(format!("/proc/{child}/cmdline"));
            name.is_ok_and(|name| name.contains("86400"))
        });
        assert_eq!(place.calls(), ["up wg0"], "{shell:?}");
        job.terminate();
        assert_eq!(job.status(), Some(0), "{shell:?}");
        assert_eq!(place.calls(), ["down wg0"], "{shell:?}");
        // It leaves no process.
        until(|| !Path::new("/proc").join(waiting.trim()).exists());
    }
}

#[test]
fn a_tunnel_that_cannot_come_up_fails_the_job_so_that_launchd_tries_again() {
    let (place, script) = installed();
    place.fail(&["up wg0"]);
    for shell in shells() {
        let mut job = start(&shell, &script);
        assert_eq!(job.status(), Some(1), "{shell:?}");
        assert_eq!(place.calls(), ["up wg0"], "{shell:?}");
    }
    // A failed `down` is no reason to start the job again.
    place.fail(&["down wg0"]);
    let mut job = start(&shells()[0], &script);
    until(|| !children(job.0.id()).is_empty() && place.folder.join("calls").exists());
    job.terminate();
    assert_eq!(job.status(), Some(0));
    assert_eq!(place.calls(), ["up wg0", "down wg0"]);
}
