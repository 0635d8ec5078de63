//! Compiles a mutant and runs the kernel tests of transparent mode with it.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::isolation::isolated;
use super::results::BpfOutcome;
use super::{Candidate, FOLDER};

/// Environment variable by which tests take another object.
const OBJECT: &str = "TAUPE_TEST_BPF_OBJECT";

/// Time limit of the tests, several times what they take.
const LIMIT: Duration = Duration::from_secs(420);

/// Tests that are left out: one for another kernel, and two that take most of the time.
const SKIPPED: [&str; 3] = [
    "debian_12",
    "detached_hooks_are_restored",
    "removed_filters_are_restored",
];

/// Test that loads all programs and removes them.
const LOADING: &str = "removed_completely";

/// Parts of messages about programs that the kernel refuses.
const REFUSED: [&str; 2] = ["cannot load the program", "does not accept Taupe"];

/// Folder of the tests' package.
const TESTED: &str = "crates/transparent";

/// Tests beside each other. Most of them wait.
const BESIDE: &str = "12";

/// Headers that are copied beside the programs.
const HEADERS: &str = "bpf";

/// The tests, and a copy of the programs.
pub(super) struct KernelTests {
    program: PathBuf,
    folder: PathBuf,
    /// The object without a fault.
    original: Vec<u8>,
}

impl KernelTests {
    /// Builds the tests, and runs them without a fault.
    pub(super) fn prepare() -> Result<Self, String> {
        let folder = std::env::temp_dir().join(format!("taupe-bpf-mutants-{}", std::process::id()));
        let mut tests = Self {
            program: build()?,
            folder,
            original: Vec::new(),
        };
        tests.copy(None)?;
        tests.original = tests.compile()?.ok_or("the programs do not compile")?;
        match tests.outcome()? {
            (BpfOutcome::Missed, _) => Ok(tests),
            (outcome, note) => Err(format!("without a fault: {outcome:?}, {note}")),
        }
    }

    /// Returns the outcome of a mutant: also the test that fails, or why it cannot run.
    pub(super) fn run(&self, candidate: &Candidate) -> Result<(BpfOutcome, String), String> {
        self.copy(Some(candidate))?;
        let Some(object) = self.compile()? else {
            return Ok((BpfOutcome::Unviable, "it does not compile".to_owned()));
        };
        if object == self.original {
            return Ok((BpfOutcome::Unviable, "the object is the same".to_owned()));
        }
        self.outcome()
    }

    /// Copies the programs, with a fault.
    fn copy(&self, candidate: Option<&Candidate>) -> Result<(), String> {
        let _ = fs::remove_dir_all(&self.folder);
        fs::create_dir_all(&self.folder).map_err(|error| error.to_string())?;
        for folder in [HEADERS, FOLDER] {
            for entry in fs::read_dir(folder).map_err(|error| error.to_string())? {
                let path = entry.map_err(|error| error.to_string())?.path();
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                if !name.ends_with(".h") && name != "taupe.c" {
                    continue;
                }
                let text = fs::read_to_string(&path).map_err(|error| error.to_string())?;
                let text = match candidate.filter(|it| it.file == name) {
                    Some(candidate) => candidate.mutant.apply(&text),
                    None => text,
                };
                fs::write(self.folder.join(&*name), isolated(&name, &text))
                    .map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    /// Compiles as `scripts/bpf` does. Returns `None` if the compiler refuses it.
    fn compile(&self) -> Result<Option<Vec<u8>>, String> {
        let object = self.object();
        let steps: [&[&str]; 3] = [
            // Warnings are allowed: a fault may leave a variable unused.
            &[
                "clang-14",
                "-target",
                "bpf",
                "-mcpu=v3",
                "-O2",
                "-g",
                "-fdebug-compilation-dir=.",
                "-nostdinc",
                "-fno-ident",
                "-I.",
                "-w",
                "-c",
                "taupe.c",
                "-o",
                "taupe.o",
            ],
            &["llvm-strip-14", "--strip-debug", "taupe.o"],
            &[
                "llvm-objcopy-14",
                "--remove-section",
                ".rel.BTF",
                "--remove-section",
                ".rel.BTF.ext",
                "--remove-section",
                ".llvm_addrsig",
                "taupe.o",
            ],
        ];
        for step in steps {
            let output = Command::new(step[0])
                .args(&step[1..])
                .current_dir(&self.folder)
                .output()
                .map_err(|error| format!("{}: {error}", step[0]))?;
            if !output.status.success() {
                return Ok(None);
            }
        }
        fs::read(&object)
            .map(Some)
            .map_err(|error| error.to_string())
    }

    fn object(&self) -> PathBuf {
        self.folder.join("taupe.o")
    }

    /// Runs the tests until the first one fails.
    fn outcome(&self) -> Result<(BpfOutcome, String), String> {
        // A test that loads everything, to see what the verifier says.
        let output = Command::new(&self.program)
            .args(["--exact", LOADING])
            .current_dir(TESTED)
            .env(OBJECT, self.object())
            .output()
            .map_err(|error| format!("{}: {error}", self.program.display()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() && REFUSED.iter().any(|it| text.contains(it)) {
            return Ok((BpfOutcome::Unviable, "the verifier refuses it".to_owned()));
        }
        let mut arguments = vec!["--test-threads", BESIDE];
        for skipped in SKIPPED {
            arguments.extend(["--skip", skipped]);
        }
        for _ in 0..2 {
            let (outcome, note) = self.tests(&arguments)?;
            if outcome != BpfOutcome::Caught {
                return Ok((outcome, note));
            }
            // On a busy machine a test may fail for lack of time.
            if self.tests(&["--exact", &note])?.0 == BpfOutcome::Caught {
                return Ok((outcome, note));
            }
        }
        let note = "tests fail that pass by themselves".to_owned();
        Ok((BpfOutcome::Timeout, note))
    }

    fn tests(&self, arguments: &[&str]) -> Result<(BpfOutcome, String), String> {
        let mut child = Command::new(&self.program)
            .args(arguments)
            .current_dir(TESTED)
            .env(OBJECT, self.object())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("{}: {error}", self.program.display()))?;
        let output = child.stdout.take().ok_or("no output")?;
        let end = Instant::now() + LIMIT;
        let (sender, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut outcome = None;
        while outcome.is_none() {
            let left = end.saturating_duration_since(Instant::now());
            match lines.recv_timeout(left) {
                Ok(line) => outcome = verdict(&line),
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                    outcome = Some((BpfOutcome::Timeout, "no end in time".to_owned()));
                }
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => break,
            }
        }
        // The sandboxes end with it.
        let _ = child.kill();
        let _ = child.wait();
        outcome.ok_or_else(|| "the tests have no result".to_owned())
    }
}

impl Drop for KernelTests {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Returns the outcome that a line of the tests' output decides.
fn verdict(line: &str) -> Option<(BpfOutcome, String)> {
    if let Some(test) = line.strip_prefix("test ")
        && let Some(name) = test.strip_suffix("FAILED")
    {
        let name = name.trim_end().trim_end_matches("...").trim_end();
        return Some((BpfOutcome::Caught, name.to_owned()));
    }
    line.starts_with("test result: ok")
        .then(|| (BpfOutcome::Missed, String::new()))
}

/// Builds the tests and returns their program.
fn build() -> Result<PathBuf, String> {
    let mut command = Command::new("cargo");
    command.args([
        "test",
        "--quiet",
        "--package",
        "taupe-transparent",
        "--test",
        "kernel",
    ]);
    command.args(["--no-run", "--message-format", "json"]);
    let output = command
        .output()
        .map_err(|error| format!("cargo: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let messages = text
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let mut found = None;
    for message in messages {
        let is_kernel = message["target"]["name"] == "kernel";
        if let Some(program) = message["executable"].as_str().filter(|_| is_kernel) {
            found = Some(Path::new(program).to_owned());
        }
    }
    found.ok_or_else(|| String::from_utf8_lossy(&output.stderr).into_owned())
}

#[cfg(test)]
mod tests {
    use super::verdict;
    use crate::bpf_mutants::results::BpfOutcome;

    #[test]
    fn lines_of_the_tests_decide() {
        let caught = (BpfOutcome::Caught, "a_b".to_owned());
        assert_eq!(verdict("test a_b        ... FAILED"), Some(caught));
        assert_eq!(verdict("test a_b        ... ok"), None);
        let missed = (BpfOutcome::Missed, String::new());
        assert_eq!(verdict("test result: ok. 3 passed; 0 failed"), Some(missed));
        assert_eq!(verdict("test result: FAILED. 3 passed; 1 failed"), None);
    }
}
