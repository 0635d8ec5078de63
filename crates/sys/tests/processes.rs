//! What only shows between processes. A test that needs a process of its own
//! runs this executable again for one of the tests that are ignored otherwise.

#![cfg(target_os = "linux")]

use rustix::process::{Pid, Signal, geteuid, kill_process, test_kill_process};
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::fd::AsFd as _;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use taupe_sys::namespace::within;
use taupe_sys::parent::die_with;
use taupe_sys::signals::Termination;

const LIMIT: Duration = Duration::from_secs(20);

/// Ended with the test, however that ends.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts one of the ignored tests as a process of its own.
fn start(test: &str) -> Guard {
    let executable = std::env::current_exe().expect("this executable");
    let child = Command::new(executable)
        .args([
            test,
            "--exact",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .stdout(Stdio::piped())
        .spawn();
    Guard(child.expect("started"))
}

/// The first line of a process that contains `word`.
fn line_with(child: &mut Guard, word: &str) -> String {
    let output = child.0.stdout.as_mut().expect("piped");
    let mut lines = BufReader::new(output).lines();
    lines
        .find_map(|line| line.ok().filter(|line| line.contains(word)))
        .unwrap_or_else(|| panic!("no line with {word}"))
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LIMIT, "timed out waiting for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn pid(child: &Guard) -> Pid {
    Pid::from_child(&child.0)
}

// --- network namespaces ---

#[test]
fn work_happens_in_the_other_namespace_and_the_caller_stays() {
    let mut elsewhere = Command::new("unshare");
    if geteuid().is_root() {
        elsewhere.arg("--net");
    } else {
        elsewhere.args(["--user", "--map-root-user", "--net"]);
    }
    let child = Guard(elsewhere.args(["sleep", "60"]).spawn().expect("unshare(1)"));
    let path = format!("/proc/{}/ns/net", child.0.id());
    let name = |path: &str| fs::read_link(path).expect("namespace");
    let here = name("/proc/thread-self/ns/net");
    wait_until("the namespace", || name(&path) != here);

    let namespace = File::open(&path).expect("namespace");
    let seen = within(namespace.as_fd(), || name("/proc/thread-self/ns/net"));
    if geteuid().is_root() {
        assert_eq!(seen.expect("entered"), name(&path));
    } else {
        let error = seen.expect_err("entering takes a privilege");
        assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
    }
    assert_eq!(name("/proc/thread-self/ns/net"), here);
}

#[test]
fn a_panic_of_the_work_reaches_the_caller() {
    if !geteuid().is_root() {
        return; // The work would not begin: see the test above.
    }
    let namespace = File::open("/proc/self/ns/net").expect("namespace");
    let run = || within(namespace.as_fd(), || panic!("from the work"));
    let panic = std::panic::catch_unwind(run).expect_err("panicked");
    assert_eq!(panic.downcast_ref(), Some(&"from the work"));
}

// --- the parent-death signal ---

#[test]
fn a_process_dies_with_its_parent() {
    let mut parent = start("parent");
    let line = line_with(&mut parent, "child=");
    let number = line
        .split("child=")
        .nth(1)
        .and_then(|text| text.trim().parse().ok());
    let child = Pid::from_raw(number.expect("a number")).expect("a process");
    assert!(test_kill_process(child).is_ok(), "the child runs");
    parent.0.kill().expect("killed");
    parent.0.wait().expect("waited");
    // Reaped by whoever adopts it, which may take a moment.
    wait_until("the child's end", || {
        let state = fs::read_to_string(format!("/proc/{}/stat", child.as_raw_nonzero()));
        state.map_or(true, |text| text.contains(") Z "))
    });
}

#[test]
#[ignore = "run by a_process_dies_with_its_parent"]
fn parent() {
    let mut child = start("child");
    let line = line_with(&mut child, "ready");
    assert!(line.contains("alive=true"), "{line}");
    println!("child={}", child.0.id());
    // Killed before this returns; the child is not, by its guard.
    std::thread::sleep(LIMIT);
}

#[test]
#[ignore = "run by a_process_dies_with_its_parent"]
fn child() {
    let parent = rustix::process::getppid().expect("a parent");
    // The parent-death signal is for the end of the thread that started this
    // process, which in `parent` is the test's thread, waiting.
    println!("ready alive={}", die_with(parent).expect("set"));
    std::thread::sleep(LIMIT * 3);
}

#[test]
fn a_parent_that_is_gone_is_noticed() {
    // Nobody is the parent of this process but its parent.
    let mut other = start("stranger");
    let line = line_with(&mut other, "alive=");
    assert!(line.contains("alive=false"), "{line}");
    assert!(other.0.wait().expect("waited").success());
}

#[test]
#[ignore = "run by a_parent_that_is_gone_is_noticed"]
fn stranger() {
    let myself = rustix::process::getpid();
    println!("alive={}", die_with(myself).expect("set"));
}

// --- termination signals ---

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

#[test]
#[ignore = "run by the tests of signals"]
fn waiting() {
    let termination = Termination::catch().expect("caught");
    println!("caught");
    // One that comes before `then` waits for it.
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
