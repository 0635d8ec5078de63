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

/// A running script, which ends with the test, and the tunnel with it.
struct Job {
    script: Child,
    /// The file with the tunnel's process.
    running: PathBuf,
}

impl Drop for Job {
    fn drop(&mut self) {
        if let Some(tunnel) = self.tunnel() {
            let _ = Command::new("kill").arg(tunnel).status();
        }
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}

impl Job {
    fn start(place: &Place, shell: &[String], script: &Path) -> Self {
        for file in ["running", "ended"] {
            let _ = fs::remove_file(place.folder.join(file));
        }
        let mut command = Command::new(&shell[0]);
        command.args(&shell[1..]).arg(script).arg("wg0");
        command.stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Self {
            script: command.spawn().expect("a shell"),
            running: place.folder.join("running"),
        }
    }

    /// Returns the process of the tunnel, if it runs.
    fn tunnel(&self) -> Option<String> {
        let process = fs::read_to_string(&self.running).ok()?.trim().to_owned();
        let runs = !process.is_empty() && Path::new("/proc").join(&process).exists();
        runs.then_some(process)
    }

    /// Sends SIGTERM, as launchd does.
    fn terminate(&self) {
        let sent = Command::new("kill")
            .arg(self.script.id().to_string())
            .status();
        assert!(sent.expect("kill").success());
    }

    /// Waits until it has ended, and returns its exit status.
    fn status(&mut self) -> Option<i32> {
        let mut status = None;
        until(|| {
            status = self.script.try_wait().expect("a child");
            status.is_some()
        });
        status.and_then(|status| status.code())
    }
}

/// Waits until it holds, for at most a minute.
fn until(mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(60));
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_script_brings_the_tunnel_up_and_takes_it_down_at_sigterm() {
    let (place, script) = installed();
    for shell in shells() {
        parses(&shell, &script);
        let mut job = Job::start(&place, &shell, &script);
        until(|| job.tunnel().is_some());
        assert_eq!(place.calls(), ["up --foreground wg0"], "{shell:?}");
        job.terminate();
        assert_eq!(job.status(), Some(0), "{shell:?}");
        assert_eq!(place.calls(), ["down wg0"], "{shell:?}");
        assert_eq!(job.tunnel(), None, "{shell:?}");
    }
}

#[test]
fn a_job_ends_with_its_tunnel_and_launchd_starts_it_again_if_the_tunnel_failed() {
    let (place, script) = installed();
    for shell in shells() {
        // 0: another program has taken the tunnel down.
        for status in [0, 1] {
            let mut job = Job::start(&place, &shell, &script);
            until(|| job.tunnel().is_some());
            fs::write(place.folder.join("ended"), status.to_string()).expect("file");
            assert_eq!(job.status(), Some(status), "{shell:?}");
            assert_eq!(place.calls(), ["up --foreground wg0"], "{shell:?}");
        }
    }
    place.fail(&["up --foreground wg0"]);
    for shell in shells() {
        let mut job = Job::start(&place, &shell, &script);
        assert_eq!(job.status(), Some(1), "{shell:?}");
        assert_eq!(place.calls(), ["up --foreground wg0"], "{shell:?}");
    }
}

/// The tunnel's process ends also if `taupe down` fails, and the job is not started again.
#[test]
fn a_failed_down_leaves_no_process() {
    let (place, script) = installed();
    place.fail(&["down wg0"]);
    for shell in shells() {
        let mut job = Job::start(&place, &shell, &script);
        until(|| job.tunnel().is_some());
        job.terminate();
        assert_eq!(job.status(), Some(0), "{shell:?}");
        assert_eq!(job.tunnel(), None, "{shell:?}");
        assert_eq!(place.calls(), ["up --foreground wg0", "down wg0"]);
    }
}
