//! Tests of tunnels in the foreground with the real device, in a sandbox.

#![cfg(target_os = "linux")]

mod commands;
#[expect(dead_code, reason = "some of it is for other tests")]
mod sandbox;

use commands::{FILE, fails, journals, succeeds, write};
use rustix::process::{Pid, Signal};
use sandbox::{Killed, LIMIT, Process, TAUPE, get, has_interface, run, sandboxed, wait_until};
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};

/// `up --foreground`. This process acts as its service manager.
struct Foreground {
    child: Killed,
    manager: UnixDatagram,
}

impl Foreground {
    fn start() -> Self {
        let _ = fs::remove_file("/run/notify");
        let manager = UnixDatagram::bind("/run/notify").expect("bound");
        manager.set_read_timeout(Some(LIMIT)).expect("set");
        let mut command = Command::new(TAUPE);
        command.args(["up", "--foreground", FILE]);
        command.env("NOTIFY_SOCKET", "/run/notify");
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        let child = Killed(command.spawn().expect("started"));
        let foreground = Self { child, manager };
        assert_eq!(foreground.told(), "READY=1\nSTATUS=wg0 is up\n");
        assert!(has_interface("wg0"));
        foreground
    }

    fn told(&self) -> String {
        let mut buffer = [0; 256];
        let length = self.manager.recv(&mut buffer).expect("a message");
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }

    fn process(&self) -> Process {
        Process::new(Pid::from_child(&self.child.0))
    }

    /// Waits until it has printed this text.
    fn says(&mut self, what: &str) {
        let stderr = self.child.0.stderr.as_mut().expect("piped");
        let mut text = Vec::new();
        while !text.ends_with(what.as_bytes()) {
            let mut byte = [0];
            let read = stderr.read(&mut byte).expect("read");
            assert_eq!(read, 1, "{}", String::from_utf8_lossy(&text));
            text.extend(byte);
        }
    }

    /// Returns its exit status and what it has printed since.
    fn end(mut self) -> (Option<i32>, String) {
        assert_eq!(self.told(), "STOPPING=1\n");
        let mut text = String::new();
        let mut stderr = self.child.0.stderr.take().expect("piped");
        stderr.read_to_string(&mut text).expect("read");
        let status = self.child.0.wait().expect("waited").code();
        assert!(!has_interface("wg0"), "{text}");
        assert!(!Path::new("/var/run/wireguard/wg0.sock").exists(), "{text}");
        assert_eq!(journals(), 0, "{text}");
        (status, text)
    }
}

#[test]
fn in_the_foreground_a_signal_takes_it_down() {
    sandboxed("in_the_foreground_a_signal_takes_it_down", || {
        write("PreDown = grep -q %i: /proc/net/dev && touch /run/goes-down");
        for signal in [Signal::TERM, Signal::INT] {
            let foreground = Foreground::start();
            foreground.process().send(signal);
            let (status, text) = foreground.end();
            assert_eq!(status, Some(0), "{text}");
            fs::remove_file("/run/goes-down").expect("PreDown was run");
        }
    });
}

#[test]
fn in_the_foreground_an_end_comes_though_a_command_fails() {
    sandboxed(
        "in_the_foreground_an_end_comes_though_a_command_fails",
        || {
            write("PreDown = false");
            let foreground = Foreground::start();
            foreground.process().send(Signal::TERM);
            let (status, text) = foreground.end();
            assert_eq!(status, Some(1), "{text}");
            assert!(text.contains("PreDown"), "{text}");
        },
    );
}

#[test]
fn in_the_foreground_a_deleted_interface_is_an_accident() {
    sandboxed(
        "in_the_foreground_a_deleted_interface_is_an_accident",
        || {
            write("PostDown = touch /run/went-down");
            let foreground = Foreground::start();
            assert!(run("ip", &["link", "del", "wg0"]).status.success());
            let (status, text) = foreground.end();
            assert_eq!(status, Some(1), "{text}");
            assert!(
                text.contains("another program has deleted the interface"),
                "{text}"
            );
            assert!(Path::new("/run/went-down").exists());
        },
    );
}

#[test]
fn in_the_foreground_down_is_a_good_end() {
    sandboxed("in_the_foreground_down_is_a_good_end", || {
        write("PostDown = echo went down >>/run/went-down");
        let foreground = Foreground::start();
        let text = fails(&["up", FILE]);
        assert!(text.contains("wg0 is up already"), "{text}");
        succeeds(&["down", FILE]);
        let (status, text) = foreground.end();
        assert_eq!(status, Some(0), "{text}");
        assert!(text.ends_with("wg0 has been taken down\n"), "{text}");
        let times = fs::read_to_string("/run/went-down").expect("it was run");
        assert_eq!(times, "went down\n");
    });
}

#[test]
fn in_the_foreground_commands_keep_the_caller_s_umask() {
    sandboxed("in_the_foreground_commands_keep_the_caller_s_umask", || {
        write("PostUp = touch /run/made");
        rustix::process::umask(rustix::fs::Mode::WGRP | rustix::fs::Mode::WOTH);
        let foreground = Foreground::start();
        let mode = |path: &str| fs::metadata(path).expect("file").permissions().mode() & 0o777;
        assert_eq!(mode("/run/made"), 0o644);
        assert_eq!(mode("/var/run/wireguard/wg0.sock"), 0o600);
        foreground.process().send(Signal::TERM);
        foreground.end();
    });
}

#[test]
fn in_the_foreground_a_hangup_is_a_reload() {
    sandboxed("in_the_foreground_a_hangup_is_a_reload", || {
        write("");
        let mut foreground = Foreground::start();
        let state = || get("/var/run/wireguard/wg0.sock").expect("it answers");
        write("ListenPort = 4711");
        foreground.process().send(Signal::HUP);
        wait_until("the new port", || state().contains("\nlisten_port=4711\n"));
        // A file with errors does not affect the tunnel.
        write("ListenPort = 4712\nColour = red");
        foreground.process().send(Signal::HUP);
        foreground.says("wg0 stays up\n");
        assert!(state().contains("\nlisten_port=4711\n"));
        foreground.process().send(Signal::TERM);
        let (status, text) = foreground.end();
        assert_eq!(status, Some(0), "{text}");
    });
}
