//! Tests of the program with its real device, in a sandbox.

#![cfg(target_os = "linux")]

mod sandbox;

use rustix::process::{Pid, Signal};
use sandbox::{Killed, Process, TAUPE, get, has_interface, run, sandboxed, wait_until};
use std::fs;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

const DIRECTORY: &str = "/var/run/wireguard";

fn start(arguments: &[&str]) {
    let output = run(TAUPE, arguments);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {text}", output.status);
    assert!(
        output.stdout.is_empty() && output.stderr.is_empty(),
        "{text}"
    );
}

fn socket(interface: &str) -> String {
    format!("{DIRECTORY}/{interface}.sock")
}

fn answers(interface: &str) -> bool {
    get(socket(interface)).is_some_and(|reply| reply.ends_with("errno=0\n\n"))
}

/// Checks that a process ends and leaves nothing of its interface behind.
fn expect_gone(process: &Process, interface: &str) {
    process.wait();
    let socket = socket(interface);
    assert!(!Path::new(&socket).exists(), "the socket is gone");
    assert!(!has_interface(interface), "the interface is gone");
}

#[test]
fn it_answers_when_the_command_returns() {
    sandboxed("it_answers_when_the_command_returns", || {
        start(&["device", "wg0"]);
        assert!(answers("wg0"));
        assert!(has_interface("wg0"));
        let mode = |path: &str| fs::metadata(path).expect("metadata").permissions().mode() & 0o777;
        assert_eq!((mode(DIRECTORY), mode(&socket("wg0"))), (0o700, 0o600));
    });
}

#[test]
fn a_second_start_of_a_name_is_refused_and_the_first_goes_on() {
    sandboxed(
        "a_second_start_of_a_name_is_refused_and_the_first_goes_on",
        || {
            start(&["device", "wg0"]);
            for arguments in [&["device", "wg0"][..], &["device", "-f", "wg0"]] {
                let output = run(TAUPE, arguments);
                let text = String::from_utf8_lossy(&output.stderr);
                assert_eq!(output.status.code(), Some(1), "{text}");
                assert!(
                    text.starts_with("taupe: ") && text.contains("wg0"),
                    "{text}"
                );
                assert!(text.contains("in use"), "{text}");
                assert_eq!(text.lines().count(), 1, "{text}");
            }
            assert!(answers("wg0"));
            start(&["device", "wg1"]);
            assert!(answers("wg1") && answers("wg0"));
        },
    );
}

/// Runs a script whose first argument is the program. It must fail with one line.
fn refusal(script: &str) -> String {
    let output = run("sh", &["-c", script, TAUPE]);
    let text = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.starts_with("taupe: "), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

#[test]
fn a_system_without_a_tun_is_told_of_in_one_line() {
    sandboxed("a_system_without_a_tun_is_told_of_in_one_line", || {
        for mode in ["", "-f"] {
            let script = format!("mount -t tmpfs none /dev/net && \"$0\" device wg0 {mode}");
            let text = refusal(&script);
            for word in ["/dev/net/tun", "No such file", "`modprobe tun`", "--device"] {
                assert!(text.contains(word), "{word}: {text}");
            }
            assert!(!text.contains("root"), "{text}");
        }
    });
}

#[test]
fn a_root_without_the_right_to_create_interfaces_is_told_so() {
    sandboxed(
        "a_root_without_the_right_to_create_interfaces_is_told_so",
        || {
            let less = "exec setpriv --bounding-set -net_admin --inh-caps -net_admin \"$0\"";
            let text = refusal(&format!("{less} device -f wg0"));
            for word in ["wg0", "CAP_NET_ADMIN", "--cap-add NET_ADMIN"] {
                assert!(text.contains(word), "{word}: {text}");
            }
            assert!(!has_interface("wg0"));
        },
    );
}

#[test]
fn a_kernel_without_type_information_is_told_of_before_anything_changes() {
    sandboxed(
        "a_kernel_without_type_information_is_told_of_before_anything_changes",
        || {
            let key = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";
            let text = format!(
                "[Interface]\nPrivateKey = {key}\nAddress = 10.9.0.1/24\nAllowedApps = curl\n\
                 [Peer]\nPublicKey = xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=\n\
                 AllowedIPs = 10.9.0.0/24\nEndpoint = 127.0.0.1:9\n"
            );
            fs::write("/run/wg0.conf", text).expect("written");
            let without =
                "[ ! -d /sys/kernel/btf ] || mount -t tmpfs none /sys/kernel/btf || exit 9";
            for command in ["up", "up --transparent", "lock"] {
                let script = format!("{without}; exec \"$0\" {command} /run/wg0.conf");
                let text = refusal(&script);
                for word in [
                    "(BTF)",
                    "/sys/kernel/btf/vmlinux",
                    "CONFIG_DEBUG_INFO_BTF",
                    "`taupe exec`",
                    "nothing was changed",
                ] {
                    assert!(text.contains(word), "{command}: {word}: {text}");
                }
                assert!(!has_interface("wg0"));
            }
        },
    );
}

#[test]
fn a_signal_ends_it_and_removes_what_it_made() {
    sandboxed("a_signal_ends_it_and_removes_what_it_made", || {
        for signal in [Signal::TERM, Signal::INT] {
            start(&["device", "wg0"]);
            let process = Process::only();
            process.send(signal);
            expect_gone(&process, "wg0");
        }
    });
}

#[test]
fn in_the_foreground_a_signal_is_a_good_end() {
    sandboxed("in_the_foreground_a_signal_is_a_good_end", || {
        for signal in [Signal::TERM, Signal::INT] {
            let child = Command::new(TAUPE).args(["device", "wg0", "-f"]).spawn();
            let mut child = Killed(child.expect("started"));
            // The socket answers before the start is complete.
            wait_until("the socket", || answers("wg0"));
            let process = Process::new(Pid::from_child(&child.0));
            process.send(signal);
            assert_eq!(child.0.wait().expect("waited").code(), Some(0));
            expect_gone(&process, "wg0");
        }
    });
}

#[test]
fn a_command_substitution_returns() {
    sandboxed("a_command_substitution_returns", || {
        let script = format!(r#"x=$('{TAUPE}' device wg0 2>&1 9>&1); echo "$? [$x]""#);
        let output = run("sh", &["-c", &script]);
        assert_eq!(output.stdout, b"0 []\n", "{output:?}");
        assert!(answers("wg0"));
    });
}

#[test]
fn deleting_the_interface_ends_it() {
    sandboxed("deleting_the_interface_ends_it", || {
        start(&["device", "wg0"]);
        let process = Process::only();
        assert!(run("ip", &["link", "del", "wg0"]).status.success());
        expect_gone(&process, "wg0");
    });
}

#[test]
fn removing_the_socket_ends_it() {
    sandboxed("removing_the_socket_ends_it", || {
        start(&["device", "wg0"]);
        let process = Process::only();
        fs::remove_file(socket("wg0")).expect("removed");
        expect_gone(&process, "wg0");
    });
}

#[test]
fn what_a_killed_one_left_behind_is_in_nobody_s_way() {
    sandboxed("what_a_killed_one_left_behind_is_in_nobody_s_way", || {
        start(&["device", "wg0"]);
        let first = Process::only();
        first.send(Signal::KILL);
        first.wait();
        assert!(Path::new(&socket("wg0")).exists(), "nobody removed it");
        start(&["device", "wg0"]);
        assert!(answers("wg0"));
    });
}

#[test]
fn a_name_can_be_had_again_at_once() {
    sandboxed("a_name_can_be_had_again_at_once", || {
        for _ in 0..10 {
            start(&["device", "wg0"]);
            assert!(answers("wg0"));
            let process = Process::only();
            process.send(Signal::TERM);
            expect_gone(&process, "wg0");
        }
    });
}

#[test]
fn other_names_of_the_program_do_what_they_promise() {
    sandboxed("other_names_of_the_program_do_what_they_promise", || {
        let calls: [(&str, &[&str]); 3] = [
            ("taupe-device", &["wg0"]),
            ("wireguard-go", &["wg0"]),
            (
                "boringtun-cli",
                &["--disable-drop-privileges", "-t", "4", "wg0"],
            ),
        ];
        for (name, arguments) in calls {
            let path = format!("/run/{name}");
            symlink(TAUPE, &path).expect("link");
            let output = run(&path, arguments);
            assert!(output.status.success(), "{name}: {output:?}");
            assert!(answers("wg0"), "{name}");
            let process = Process::only();
            process.send(Signal::TERM);
            expect_gone(&process, "wg0");
        }
    });
}

#[test]
fn a_socket_that_was_passed_is_listened_on() {
    sandboxed("a_socket_that_was_passed_is_listened_on", || {
        let path = Path::new("/run/passed.sock");
        let listener = UnixListener::bind(path).expect("bound");
        // A shell passes the listener as descriptor 5.
        let script = format!("exec 5<&0 </dev/null; WG_UAPI_FD=5 '{TAUPE}' device wg0");
        let mut command = Command::new("sh");
        command.args(["-c", &script]);
        command.stdin(listener.as_fd().try_clone_to_owned().expect("copy"));
        drop(listener);
        assert!(command.status().expect("started").success());
        drop(command);
        assert!(get(path).is_some_and(|reply| reply.ends_with("errno=0\n\n")));
    });
}

#[test]
fn who_may_not_make_interfaces_is_told() {
    sandboxed("who_may_not_make_interfaces_is_told", || {
        if fs::read_to_string("/proc/self/uid_map")
            .expect("map")
            .split_whitespace()
            .nth(2)
            == Some("1")
        {
            return; // A user namespace of one user has nobody without the right.
        }
        // The program is copied, because its folder may not be accessible to other users.
        fs::copy(TAUPE, "/run/taupe").expect("copied");
        let mut command = Command::new("/run/taupe");
        command.args(["device", "wg0"]).uid(65534);
        let output = command.output().expect("started");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.starts_with("taupe: "), "{text}");
        assert!(!text.contains("panicked"), "{text}");
        assert!(!has_interface("wg0"));
        println!("{text}");
    });
}
