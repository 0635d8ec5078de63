//! Tests that need several processes. A test that needs a process of its own runs this executable
//! again.

#![cfg(target_os = "linux")]

use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;
use taupe_os_linux::signals::Termination;

const LIMIT: Duration = Duration::from_secs(20);

/// Ends the process when the test ends.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Environment variable that is set in the process that a test starts.
const INSIDE: &str = "TAUPE_TEST_INSIDE";

/// Starts one of the tests in a process of its own.
fn start(test: &str) -> Guard {
    let executable = std::env::current_exe().expect("this executable");
    let child = Command::new(executable)
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(INSIDE, "1")
        .stdout(Stdio::piped())
        .spawn();
    Guard(child.expect("started"))
}

/// Returns the first line of a process's output that contains `word`.
fn line_with(child: &mut Guard, word: &str) -> String {
    let output = child.0.stdout.as_mut().expect("piped");
    let mut lines = BufReader::new(output).lines();
    lines
        .find_map(|line| line.ok().filter(|line| line.contains(word)))
        .unwrap_or_else(|| panic!("no line with {word}"))
}

fn pid(child: &Guard) -> Pid {
    Pid::from_child(&child.0)
}

fn signalled(signals: &[Signal]) -> String {
    let mut waiting = start("waiting");
    line_with(&mut waiting, "caught");
    for &signal in signals {
        kill_process(pid(&waiting), signal).expect("sent");
        std::thread::sleep(Duration::from_millis(150));
    }
    let mut rest = String::new();
    let output = waiting.0.stdout.as_mut().expect("piped");
    output.read_to_string(&mut rest).expect("output");
    assert!(waiting.0.wait().expect("waited").success(), "{rest}");
    rest
}

#[test]
fn sigterm_and_sigint_are_told() {
    assert!(signalled(&[Signal::TERM]).contains("ended by SIGTERM, once"));
    assert!(signalled(&[Signal::INT]).contains("ended by SIGINT, once"));
}

#[test]
fn a_second_signal_changes_nothing() {
    let output = signalled(&[Signal::TERM, Signal::TERM, Signal::TERM]);
    assert!(output.contains("ended by SIGTERM, once"), "{output}");
}

/// Does nothing unless one of the tests above started this process.
#[test]
fn waiting() {
    if std::env::var_os(INSIDE).is_none() {
        return;
    }
    let termination = Termination::catch().expect("caught");
    println!("caught");
    // A signal that arrives before `then` is delivered to it.
    std::thread::sleep(Duration::from_millis(75));
    let (sender, receiver) = mpsc::channel();
    termination
        .then(move |signal| sender.send(signal).expect("heard"))
        .expect("thread");
    let signal = receiver.recv_timeout(LIMIT).expect("a signal");
    let more = receiver.recv_timeout(Duration::from_secs(1));
    let times = if more.is_err() { "once" } else { "again" };
    println!("ended by {signal}, {times}");
}
