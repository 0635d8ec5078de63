//! Runs the workspace's test programs, several at a time.
//!
//! `cargo test` runs one test program after another: the processors are idle while tests wait, and
//! at the end of each program, while its slowest test runs alone. Each call of cargo also holds the
//! lock of the build folder while it looks for what must be built. So cargo builds all test programs
//! by one call, with one set of features, and this module starts them.

use serde_json::Value;
use std::collections::VecDeque;
use std::io::{self, Read};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

/// Test programs whose tests start other programs and wait for them, the longest first. Each
/// entry is a package and, after a slash, one target; without a slash all targets of the package.
const WAITING: [&str; 8] = [
    "taupe-lab/transparent",
    "taupe-transparent/kernel",
    "taupe-lab/quick",
    "taupe-lab",
    "taupe-bench",
    "taupe-confine/guests",
    "taupe-os-linux",
    "taupe",
];

/// One executable that cargo has built.
struct Program {
    package: String,
    target: String,
    /// The package's folder, in which cargo runs tests.
    folder: PathBuf,
    executable: PathBuf,
}

impl Program {
    fn name(&self) -> String {
        format!("{}/{}", self.package, self.target)
    }

    fn is(&self, pattern: &str) -> bool {
        pattern == self.package || pattern == self.name()
    }

    /// The position of the first entry of [`WAITING`] that names it.
    fn rank(&self) -> Option<usize> {
        WAITING.iter().position(|pattern| self.is(pattern))
    }
}

/// Arguments of the command.
#[derive(Default)]
struct Request {
    build: bool,
    waiting: Option<bool>,
    except: Vec<String>,
    only: Vec<String>,
    beside: usize,
    passed_on: Vec<String>,
}

pub(crate) fn run(arguments: &[&str]) -> Result<(), String> {
    let request = parse(arguments)?;
    let list = target().join("test-programs.json");
    if request.build {
        return build(&list);
    }
    let mut programs = read(&list)?;
    programs.retain(|program| {
        request
            .waiting
            .is_none_or(|waiting| waiting == program.rank().is_some())
            && (request.only.is_empty() || request.only.iter().any(|name| program.is(name)))
            && !request.except.iter().any(|name| program.is(name))
    });
    if programs.is_empty() {
        return Err("no test program is selected".into());
    }
    programs.sort_by_key(|program| program.rank().unwrap_or(usize::MAX));
    let failed = run_all(programs, request.beside.max(1), &request.passed_on);
    if failed.is_empty() {
        return Ok(());
    }
    Err(format!("failed: {}", failed.join(", ")))
}

fn parse(arguments: &[&str]) -> Result<Request, String> {
    let mut request = Request::default();
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let mut value = || {
            words
                .next()
                .map(ToString::to_string)
                .ok_or(format!("{word} wants a value"))
        };
        match *word {
            "--build" => request.build = true,
            "--waiting" => request.waiting = Some(true),
            "--others" => request.waiting = Some(false),
            "--except" => request.except.push(value()?),
            "--only" => request.only.push(value()?),
            "--beside" => {
                let number = value()?;
                let parsed = number.parse();
                request.beside = parsed.map_err(|_| format!("--beside {number}: no number"))?;
            }
            "--" => {
                request.passed_on = words.by_ref().map(ToString::to_string).collect();
            }
            other => return Err(format!("tests: unknown argument {other}")),
        }
    }
    Ok(request)
}

fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from)
}

/// Builds every test program of the workspace and writes down where they are.
fn build(list: &Path) -> Result<(), String> {
    let output = Command::new("cargo")
        .args(["test", "--quiet", "--no-run", "--workspace"])
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo does not start: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo test --no-run: {}", output.status));
    }
    fs::write(list, output.stdout).map_err(|error| format!("{}: {error}", list.display()))
}

/// The executables of cargo's messages, as [`build`] has left them.
fn read(list: &Path) -> Result<Vec<Program>, String> {
    let text = fs::read_to_string(list)
        .map_err(|error| format!("{}: {error}: build first", list.display()))?;
    Ok(text.lines().filter_map(program).collect())
}

fn program(line: &str) -> Option<Program> {
    let message: Value = serde_json::from_str(line).ok()?;
    if message["profile"]["test"] != true {
        return None;
    }
    let manifest = Path::new(message["manifest_path"].as_str()?);
    let folder = manifest.parent()?.to_owned();
    // `path+file:///folder#name@version`, or `…/name#version` if the folder has the same name.
    let id = message["package_id"].as_str()?;
    let (path, fragment) = id.split_once('#')?;
    let package = match fragment.split_once('@') {
        Some((name, _)) => name,
        None => path.rsplit('/').next()?,
    };
    Some(Program {
        package: package.to_owned(),
        target: message["target"]["name"].as_str()?.to_owned(),
        folder,
        executable: message["executable"].as_str()?.into(),
    })
}

/// Runs them, `beside` at a time, and returns the names of those that failed.
fn run_all(programs: Vec<Program>, beside: usize, arguments: &[String]) -> Vec<String> {
    let queue = Mutex::new(VecDeque::from(programs));
    let failed = Mutex::new(Vec::new());
    let next = || queue.lock().ok()?.pop_front();
    thread::scope(|scope| {
        for _ in 0..beside {
            scope.spawn(|| {
                while let Some(program) = next() {
                    if !run_one(&program, arguments) {
                        failed
                            .lock()
                            .iter_mut()
                            .for_each(|failed| failed.push(program.name()));
                    }
                }
            });
        }
    });
    failed.into_inner().unwrap_or_default()
}

/// Runs one program and prints what it has printed, with how long it took.
fn run_one(program: &Program, arguments: &[String]) -> bool {
    let name = program.name();
    let began = Instant::now();
    match outcome(program, arguments) {
        Ok(outcome) => {
            let [printed, complaints] = [&outcome.stdout, &outcome.stderr];
            let [printed, complaints] = [printed, complaints].map(|it| String::from_utf8_lossy(it));
            let (seconds, processor) = (began.elapsed().as_secs_f32(), outcome.processor);
            print!("{name}: {seconds:.1} s, processor {processor:.1} s\n{printed}{complaints}");
            outcome.status.success()
        }
        Err(error) => {
            println!("{name}: does not start: {error}");
            false
        }
    }
}

/// Result of a program that has ended.
struct Outcome {
    status: ExitStatus,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    /// Processor time of it and its children, in seconds.
    processor: f32,
}

fn outcome(program: &Program, arguments: &[String]) -> io::Result<Outcome> {
    let mut child = Command::new(&program.executable)
        .arg("--quiet")
        .args(arguments)
        .current_dir(&program.folder)
        .env("CARGO_MANIFEST_DIR", &program.folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let (out, err) = (child.stdout.take(), child.stderr.take());
    thread::scope(|scope| {
        let other = scope.spawn(|| err.map(|mut err| err.read_to_end(&mut stderr)).transpose());
        let read = out.map(|mut out| out.read_to_end(&mut stdout)).transpose();
        let other = other.join().unwrap_or_else(|panic| resume_unwind(panic));
        read.and(other)
    })?;
    // The child has closed its output. `wait` removes the file with its processor time.
    let processor = loop {
        let stat = fs::read_to_string(format!("/proc/{}/stat", child.id()))?;
        if let Some(seconds) = processor_of_ended(&stat) {
            break seconds;
        }
        thread::sleep(Duration::from_millis(5));
    };
    let status = child.wait()?;
    Ok(Outcome {
        status,
        stdout,
        stderr,
        processor,
    })
}

/// Reads `/proc/PID/stat` (proc(5)): the processor time of a process that has ended, and of its
/// children, in seconds. `None` if it has not ended.
fn processor_of_ended(stat: &str) -> Option<f32> {
    // Linux counts in hundredths of a second here, whatever its timer interrupt does.
    const TICKS_PER_SECOND: f32 = 100.0;
    // The name before it may contain anything.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    if fields.next() != Some("Z") {
        return None;
    }
    let ticks: u32 = fields.skip(10).take(4).flat_map(str::parse::<u32>).sum();
    Some(ticks as f32 / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_read_from_cargos_messages() {
        let line = r#"{"reason":"compiler-artifact","package_id":"path+file:///src/tools/lab#taupe-lab@0.1.0","manifest_path":"/src/tools/lab/Cargo.toml","target":{"name":"quick"},"profile":{"test":true},"executable":"/t/quick-1"}"#;
        let read = program(line).expect("a test program");
        assert_eq!(read.name(), "taupe-lab/quick");
        assert_eq!(read.folder, Path::new("/src/tools/lab"));
        assert_eq!(read.rank(), Some(2));
        assert!(program(&line.replace(r#""test":true"#, r#""test":false"#)).is_none());
        assert!(program("warning: no message").is_none());
    }

    #[test]
    fn processor_time_of_a_program_and_its_children() {
        let fields = "1 2 3 0 -1 4 5 6 7 8 150 50 1000 25 20 0";
        let stat = |state| format!("77 (a) b) {state} {fields}\n");
        assert_eq!(processor_of_ended(&stat("Z")), Some(12.25));
        assert_eq!(processor_of_ended(&stat("R")), None);
    }
}
