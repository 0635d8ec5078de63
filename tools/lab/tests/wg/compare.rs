//! Runs the two programs and compares their output.

use crate::differences::DIFFERENCES;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, SystemTime};
use taupe_lab::peers::Implementation;
use taupe_lab::{Error, Result};

/// Clamped private keys, and the public keys of two of them.
pub(crate) const KEYS: [(&str, &str); 4] = [
    ("K1", "WFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFg="),
    ("K2", "YGBgYGBgYGBgYGBgYGBgYGBgYGBgYGBgYGBgYGBgYGA="),
    ("P1", "ERERERERERERERERERERERERERERERERERERERERERE="),
    ("P2", "IiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiI="),
];

/// Replaces names of keys by the keys.
pub(crate) fn with_keys(text: &str) -> String {
    let named = |text: String, (name, key): (&str, &str)| text.replace(&format!("{{{name}}}"), key);
    KEYS.into_iter().fold(text.to_owned(), named)
}

/// Output and exit status of a program.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) status: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

impl Outcome {
    pub(crate) fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub(crate) fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (out, err) = (self.out(), self.err());
        write!(f, "status {:?}\n{out:?}\n{err:?}", self.status)
    }
}

/// The program called `wg`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Program {
    Debian,
    Taupe,
}

/// A call of `wg`.
#[derive(Clone, Default)]
pub(crate) struct Call {
    words: Vec<String>,
    environment: Vec<(&'static str, String)>,
    input: Vec<u8>,
}

impl Call {
    /// Creates a call with the words after `wg`; replaces `{K1}` and the like by keys.
    pub(crate) fn new<W: AsRef<str>>(words: &[W]) -> Self {
        Self {
            words: words.iter().map(|word| with_keys(word.as_ref())).collect(),
            ..Self::default()
        }
    }

    pub(crate) fn env(mut self, name: &'static str, value: &str) -> Self {
        self.environment.push((name, value.to_owned()));
        self
    }

    pub(crate) fn input(mut self, bytes: &[u8]) -> Self {
        self.input = bytes.to_vec();
        self
    }

    /// Returns the call in one line, with `{K1}` and the like for keys.
    pub(crate) fn name(&self) -> String {
        let mut line = String::new();
        for (name, value) in &self.environment {
            let _ = write!(line, "{name}={value} ");
        }
        let words = self.words.iter().map(|word| {
            let plain = |c: char| c.is_ascii_graphic() && c != '\'';
            if !word.is_empty() && word.chars().all(plain) {
                word.clone()
            } else {
                format!("{word:?}")
            }
        });
        line.push_str(&words.collect::<Vec<_>>().join(" "));
        if !self.input.is_empty() {
            let _ = write!(line, " < {:?}", String::from_utf8_lossy(&self.input));
        }
        KEYS.into_iter().fold(line, |line, (name, key)| {
            line.replace(key, &format!("{{{name}}}"))
        })
    }

    /// Runs the call; both programs are called `wg`.
    pub(crate) fn run(&self, program: Program) -> Result<Outcome> {
        self.run_into(program, Stdio::piped())
    }

    /// As [`run`](Self::run), with another standard output.
    pub(crate) fn run_into(&self, program: Program, stdout: Stdio) -> Result<Outcome> {
        let path = match program {
            Program::Debian => "/usr/bin/wg".into(),
            Program::Taupe => Implementation::Taupe.program()?,
        };
        let mut child = Command::new(path)
            .arg0("wg")
            .args(&self.words)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(stdout)
            .stderr(Stdio::piped())
            .spawn()
            .map_err(Error::io("wg"))?;
        if let Some(mut stdin) = child.stdin.take() {
            // A program that does not read its input reports this otherwise.
            let _ = stdin.write_all(&self.input);
        }
        let output = child.wait_with_output().map_err(Error::io("wg"))?;
        Ok(Outcome {
            status: output.status.code(),
            stdout: output.stdout,
            stderr: output.stderr,
        })
    }

    /// Runs both programs: Debian's first and last, until it prints the same twice, so that no
    /// clock has advanced in between. Debian's clock is that of the last tick (`time(3)`), which
    /// reaches a second later than Taupe's, so calls around the start of a second are repeated.
    pub(crate) fn run_both(&self) -> Result<(Outcome, Outcome)> {
        for _ in 0..50 {
            let second = away_from_a_turn();
            let before = self.run(Program::Debian)?;
            let taupe = self.run(Program::Taupe)?;
            let after = self.run(Program::Debian)?;
            if after == before && (taupe == before || wall().as_secs() == second) {
                return Ok((before, taupe));
            }
        }
        let name = self.name();
        Err(Error::unmet(format!(
            "Debian's `wg {name}` never says the same"
        )))
    }
}

fn wall() -> Duration {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or(Duration::ZERO)
}

/// Waits until a second has begun for every clock, and returns it: the longest tick is 10 ms
/// (`CONFIG_HZ=100`).
fn away_from_a_turn() -> u64 {
    let tick = Duration::from_millis(20);
    loop {
        let now = wall();
        if now.subsec_nanos() >= tick.subsec_nanos() {
            return now.as_secs();
        }
        sleep(tick);
    }
}

/// Collects unexpected differences, and expected ones that did not occur.
pub(crate) struct Comparison {
    section: &'static str,
    count: usize,
    met: BTreeSet<&'static str>,
    failures: Vec<String>,
}

impl Comparison {
    /// Starts a comparison for the entries of the table of differences in `section`.
    pub(crate) fn new(section: &'static str) -> Self {
        Self {
            section,
            count: 0,
            met: BTreeSet::new(),
            failures: Vec::new(),
        }
    }

    /// Checks that both programs print the same, unless the table has an entry.
    pub(crate) fn call(&mut self, call: &Call) -> Result<()> {
        let (debian, taupe) = call.run_both()?;
        self.compare(&call.name(), &debian, &taupe);
        Ok(())
    }

    /// Checks that two outputs are equal, unless the table has an entry.
    pub(crate) fn compare(&mut self, case: &str, debian: &Outcome, taupe: &Outcome) {
        let (debian_text, taupe_text) = (debian.to_string(), taupe.to_string());
        self.texts(case, debian == taupe, &debian_text, &taupe_text);
    }

    /// Checks that two effects are equal, unless the table has an entry.
    pub(crate) fn effects(&mut self, case: &str, debian: &str, taupe: &str) {
        self.texts(case, debian == taupe, debian, taupe);
    }

    fn texts(&mut self, case: &str, equal: bool, debian: &str, taupe: &str) {
        self.count += 1;
        let known = DIFFERENCES
            .iter()
            .filter(|known| known.section == self.section)
            .find(|known| {
                let any_verb = case.split_once(' ').map(|(_, text)| text);
                known.case == case || any_verb == Some(known.case)
            });
        let failure = match known {
            None if equal => return,
            None => "differs",
            Some(known) => {
                self.met.insert(known.case);
                if equal {
                    "should differ, and does not"
                } else if !taupe.contains(known.taupe) || debian.contains(known.taupe) {
                    "differs in another way"
                } else {
                    return;
                }
            }
        };
        self.failures.push(format!(
            "{case:?}: {failure}\n--- Debian\n{debian}\n--- Taupe\n{taupe}\n"
        ));
    }

    /// Returns the result of the comparison.
    pub(crate) fn finish(mut self) -> Result<()> {
        for known in DIFFERENCES {
            if known.section == self.section && !self.met.contains(known.case) {
                let case = known.case;
                self.failures
                    .push(format!("{case}: has not been compared\n"));
            }
        }
        taupe_lab::sandbox::figure("comparisons", self.count);
        if self.failures.is_empty() {
            return Ok(());
        }
        let (failures, count) = (self.failures.concat(), self.failures.len());
        Err(Error::unmet(format!("{failures}{count} of {}", self.count)))
    }
}
