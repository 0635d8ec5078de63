//! The command `taupe-lab`: its report after every kind of end.

#[path = "command/packs.rs"]
mod packs;
#[path = "command/parts.rs"]
mod parts;

use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use taupe_bench::results::Report;

/// A folder for a report, removed with its content.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("taupe-lab-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn report(&self) -> Report {
        Report::read(&self.0.join("report.json")).expect("a report")
    }

    fn html(&self) -> String {
        fs::read_to_string(self.0.join("report.html")).expect("a page")
    }

    /// Returns the command lines of a run's processes: all of them have inherited its options,
    /// which name this folder.
    fn processes(&self) -> Vec<String> {
        self.running().into_iter().map(|(_, line)| line).collect()
    }

    /// Returns the ids and command lines of these processes.
    fn running(&self) -> Vec<(Option<Pid>, String)> {
        let name = self.0.to_str().expect("UTF-8");
        let running = |entry: fs::DirEntry| {
            let of_run = fs::read(entry.path().join("environ")).is_ok_and(|environment| {
                String::from_utf8_lossy(&environment)
                    .split('\0')
                    .any(|variable| variable.starts_with("TAUPE_LAB_") && variable.contains(name))
            });
            of_run.then(|| {
                let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
                let id = entry
                    .file_name()
                    .to_str()
                    .and_then(|name| name.parse().ok());
                let line = String::from_utf8_lossy(&line).replace('\0', " ");
                (id.and_then(Pid::from_raw), line)
            })
        };
        let processes = fs::read_dir("/proc").expect("/proc");
        processes.flatten().filter_map(running).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn lab(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taupe-lab"));
    command.arg("run").arg("--out").arg(folder).args(arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(folder: &Path, arguments: &[&str]) -> Output {
    lab(folder, arguments).output().expect("it starts")
}

/// Waits up to ten seconds until `holds` returns true.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < end, "not within 10 s: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Starts a run of several minutes, and waits until it has measured something.
fn begun(folder: &Folder) -> Child {
    let run = [
        "--contestants",
        "direct",
        "--only",
        "throughput",
        "--rounds",
        "100",
    ];
    let child = lab(&folder.0, &run).spawn().expect("it starts");
    let json = folder.0.join("report.json");
    eventually("a first sample", || {
        json.exists() && !folder.report().series.is_empty()
    });
    assert!(!folder.processes().is_empty());
    child
}

fn interrupt(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).expect("it runs");
}

#[test]
fn two_contestants_are_measured() {
    let folder = Folder::new("two");
    #[rustfmt::skip]
    let output = run(&folder.0, &[
        "--contestants", "direct,taupe", "--only", "startup,throughput,latency",
        "--rounds", "2", "--seconds", "1",
    ]);
    let result = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{result}\n{errors}");
    let report = folder.report();
    assert!(report.complete && report.failures.is_empty(), "{report:?}");
    for contestant in ["direct", "taupe"] {
        for metric in ["startup", "tcp/1/up", "tcp/4/down", "latency/idle/p99"] {
            let samples = report.samples(contestant, metric);
            assert_eq!(samples.len(), 2, "{contestant} {metric}");
            assert!(samples.iter().all(|sample| *sample > 0.0), "{samples:?}");
        }
    }
    // Only tunnels have programs; their system calls are measured separately.
    let calls = |contestant| report.samples(contestant, "cost/programs/syscalls");
    assert!(calls("direct").is_empty());
    assert!(matches!(calls("taupe"), [count] if *count > 0.0));
    assert!(result.contains("Taupe"), "{result}");
    assert!(folder.html().contains("<svg"));
    assert!(folder.processes().is_empty());
}

#[test]
fn an_interrupted_run_leaves_a_report_and_nothing_else() {
    for signal in [Signal::INT, Signal::TERM] {
        let folder = Folder::new("interrupted");
        let child = begun(&folder);
        interrupt(&child, signal);
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(130));
        let report = folder.report();
        assert!(!report.complete && report.failures.is_empty(), "{report:?}");
        assert!(folder.html().contains("</html>"));
        assert!(!folder.0.join("log.txt").exists());
        assert_eq!(folder.processes(), [""; 0]);
    }
}

#[test]
fn a_second_interrupt_ends_it_at_once() {
    let folder = Folder::new("twice");
    let child = begun(&folder);
    interrupt(&child, Signal::INT);
    std::thread::sleep(Duration::from_millis(200));
    interrupt(&child, Signal::INT);
    let began = Instant::now();
    let output = child.wait_with_output().expect("it ends");
    assert!(!output.status.success());
    assert!(began.elapsed() < Duration::from_secs(9));
    assert!(!folder.report().complete);
    eventually("no process", || folder.processes().is_empty());
}

#[test]
fn a_killed_run_leaves_nothing() {
    let folder = Folder::new("killed");
    let mut child = begun(&folder);
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    eventually("no process", || folder.processes().is_empty());
    assert!(!folder.report().complete);
}

#[test]
fn a_run_goes_on_when_nobody_reads_what_it_prints() {
    let folder = Folder::new("unread");
    #[rustfmt::skip]
    let mut child = lab(&folder.0, &[
        "--contestants", "direct", "--only", "startup", "--rounds", "3",
    ])
    .spawn()
    .expect("it starts");
    child.stdout.take();
    let mut errors = String::new();
    let mut stderr = child.stderr.take().expect("a pipe");
    stderr.read_to_string(&mut errors).expect("UTF-8");
    let status = child.wait().expect("it ends");
    assert!(status.success() && !errors.contains("panicked"), "{errors}");
    assert!(folder.report().complete);
}

#[test]
fn a_contestant_that_dies_is_shown_and_the_others_go_on() {
    let folder = Folder::new("dies");
    #[rustfmt::skip]
    let child = lab(&folder.0, &[
        "--contestants", "direct,taupe", "--only", "startup,throughput", "--rounds", "1",
        "--seconds", "1",
    ])
    .spawn()
    .expect("it starts");
    eventually("Taupe running", || {
        let json = folder.0.join("report.json");
        json.exists() && !folder.report().samples("taupe", "startup").is_empty()
    });
    for (id, line) in folder.running() {
        if line.contains(" device wg") {
            kill_process(id.expect("an id"), Signal::KILL).expect("it runs");
        }
    }
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{output:?}");
    let report = folder.report();
    assert_eq!(report.samples("direct", "tcp/4/down").len(), 1);
    let failures = &report.failures;
    assert!(!failures.is_empty() && failures.iter().all(|failure| failure.contestant == "taupe"));
    let reported = failures
        .iter()
        .filter(|failure| failure.reason.contains("device wg"));
    assert!(
        reported
            .into_iter()
            .any(|failure| failure.reason.contains("has ended")),
        "{failures:?}"
    );
}

#[test]
fn an_aborted_run_gives_the_reason() {
    let folder = Folder::new("broken");
    let mut child = begun(&folder);
    // The run can write its report until this folder takes the place of the draft.
    let draft = folder.0.join("report.partial");
    eventually("a folder in the way", || {
        fs::create_dir(&draft).is_ok() || draft.is_dir()
    });
    let status = child.wait().expect("it ends");
    assert_eq!(status.code(), Some(2));
    let mut errors = String::new();
    let mut stderr = child.stderr.take().expect("a pipe");
    stderr.read_to_string(&mut errors).expect("UTF-8");
    // The report has two files, and the folder may appear between them.
    let names_the_file = ["json", "html"]
        .iter()
        .any(|kind| errors.contains(&format!("report.{kind}: Is a directory")));
    assert!(names_the_file, "{errors}");
    assert!(errors.contains("log.txt"), "{errors}");
}

#[test]
fn unusable_output_folders_are_refused_before_the_start() {
    let folder = Folder::new("folders");
    let refused = |path: &Path, reason: &str| {
        let output = run(path, &["--contestants", "direct", "--only", "startup"]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains(reason), "{errors}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    };
    refused(Path::new("/proc/sys"), "/proc/sys");
    let hidden = Path::new("/run/taupe-lab-test");
    refused(hidden, "a /run of its own");
    fs::remove_dir(hidden).expect("a folder");
    let bytes = std::os::unix::ffi::OsStrExt::from_bytes(b"\xff");
    let bytes: &std::ffi::OsStr = bytes;
    refused(&folder.0.join(bytes), "not UTF-8");
    let mut other = begun(&folder);
    refused(&folder.0, "another run");
    other.kill().expect("it runs");
    other.wait().expect("it ends");
}

#[test]
fn unavailable_contestants_are_shown_with_the_reason() {
    let folder = Folder::new("refused");
    let cache = folder.0.join("a-file");
    fs::write(&cache, "where the cache should be").expect("a file");
    #[rustfmt::skip]
    let output = lab(&folder.0, &[
        "--contestants", "direct,gotatun", "--only", "startup", "--rounds", "1",
    ])
    .env("TAUPE_CACHE", &cache)
    .output()
    .expect("it starts");
    // The report is complete, but lacks a contestant that was requested.
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("gotatun did not take part: "), "{errors}");
    let report = folder.report();
    assert!(report.complete);
    let entry = report
        .contestants
        .iter()
        .find(|entry| entry.id == "gotatun");
    let reason = entry.and_then(|entry| entry.unavailable.as_deref());
    assert!(
        reason.is_some_and(|reason| reason.contains("a-file")),
        "{report:?}"
    );
    assert!(report.samples("direct", "startup").len() == 1);
    let result = String::from_utf8_lossy(&output.stdout);
    let before = "without gotatun, which cannot run here: ";
    assert!(result.contains(before), "{result}");
    assert!(result.contains("Could not run here"), "{result}");
    assert!(folder.html().contains("a-file"));
}

#[test]
fn invalid_arguments_are_refused_before_the_start() {
    let folder = Folder::new("wrong");
    for (arguments, reason) in [
        (["--contestants", "gotaton"], "no contestant gotaton"),
        (["--only", "speed"], "invalid value 'speed'"),
        (["--seconds", "0"], "not in 1..=600"),
        (["--rounds", "0"], "not in 1..=1000"),
        (["--link", "rope"], "a rate such as 100mbit"),
    ] {
        let output = run(&folder.0, &arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains(reason), "{errors}");
        assert!(!folder.0.join("report.json").exists());
    }
}
