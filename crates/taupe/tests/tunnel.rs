//! Tests of `up` and `down` with the real device, in a sandbox: messages and exit status. The effects
//! on the system are tested in `taupe-adapter` and the lab.

#![cfg(target_os = "linux")]

mod commands;
#[expect(dead_code, reason = "some of it is for other tests")]
mod sandbox;

use commands::{FILE, fails, journals, succeeds, write};
use rustix::process::{Pid, Signal};
use sandbox::{Killed, Process, TAUPE, has_interface, run, sandboxed, wait_until};
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_tunnel_is_up_once_and_down_once() {
    sandboxed("a_tunnel_is_up_once_and_down_once", || {
        write("");
        let text = succeeds(&["up", FILE]);
        let first = "adapter mode, because the file selects no applications and has a peer without Endpoint";
        assert_eq!(text.lines().next(), Some(first), "{text}");
        assert!(
            text.lines().skip(1).all(|line| line.starts_with("[#] ")),
            "{text}"
        );
        assert!(has_interface("wg0"));
        let process = Process::only();

        let text = fails(&["up", FILE]);
        assert!(text.starts_with("taupe: wg0 is up already"), "{text}");
        assert!(has_interface("wg0"));

        succeeds(&["down", FILE]);
        process.wait();
        assert!(!has_interface("wg0"));
        assert_eq!(journals(), 0);
        assert_eq!(fails(&["down", FILE]), "taupe: wg0 is not up\n");
        // Errors in its file do not matter in that case.
        write("MTU = many");
        assert_eq!(fails(&["down", FILE]), "taupe: wg0 is not up\n");
    });
}

/// Lists of processes show which interface a device has. Its settings, and the path of a file, are
/// in neither its arguments nor its environment.
#[test]
fn arguments_of_the_device_s_process_are_its_interface() {
    sandboxed(
        "arguments_of_the_device_s_process_are_its_interface",
        || {
            write("#@taupe:AllowedApps = no-such-application");
            let outer = "/run/tunnels/wg1.conf";
            fs::copy(FILE, outer).expect("copied");
            for options in [&["--adapter"][..], &["--adapter", "--via", outer]] {
                succeeds(&[&["up"], options, &[FILE]].concat());
                let process = Process::only();
                let mut entries = fs::read_dir("/proc").expect("/proc").flatten();
                let is_ours = |entry: &fs::DirEntry| {
                    let program = fs::read_link(entry.path().join("exe"));
                    program.is_ok_and(|path| path == Path::new(TAUPE))
                };
                let entry = entries.find(is_ours).expect("the process").path();
                let arguments = fs::read(entry.join("cmdline")).expect("arguments");
                assert_eq!(arguments, b"taupe\0device\0--\0wg0\0");
                let environment = fs::read(entry.join("environ")).expect("environment");
                let environment = String::from_utf8_lossy(&environment);
                for secret in ["/run/tunnels", "yAnz5TF"] {
                    assert!(!environment.contains(secret), "{environment}");
                }
                succeeds(&["down", FILE]);
                process.wait();
            }
        },
    );
}

#[test]
fn many_routes_are_one_line_unless_asked_for() {
    sandboxed("many_routes_are_one_line_unless_asked_for", || {
        write("");
        let text = fs::read_to_string(FILE).expect("file");
        let networks: Vec<_> = (0..20)
            .map(|one| format!("10.10.{}.0/24", 2 * one))
            .collect();
        fs::write(
            FILE,
            format!("{text}AllowedIPs = {}\n", networks.join(", ")),
        )
        .expect("written");
        symlink(TAUPE, "/run/wg-quick").expect("link");
        // The address's own network is one more route into the tunnel.
        for (program, options, lines) in [
            (TAUPE, &[][..], 1),
            (TAUPE, &["--verbose"], 21),
            (TAUPE, &["--foreground"], 1),
            ("/run/wg-quick", &[], 21),
        ] {
            let mut command = Command::new(program);
            command.arg("up").args(options).arg(FILE);
            command.stdin(Stdio::null()).stderr(Stdio::piped());
            let mut child = Killed(command.spawn().expect("started"));
            wait_until("all routes", || {
                let routes = fs::read_to_string("/proc/net/route").expect("routes");
                routes
                    .lines()
                    .filter(|route| route.starts_with("wg0"))
                    .count()
                    == 22
            });
            succeeds(&["down", FILE]);
            let mut text = String::new();
            let mut stderr = child.0.stderr.take().expect("piped");
            stderr.read_to_string(&mut text).expect("read");
            let is_route = |line: &&str| line.starts_with("[#] ip -4 route add ");
            let told: Vec<_> = text.lines().filter(is_route).collect();
            assert_eq!(told.len(), lines, "{options:?}: {text}");
            let more = "(and 20 more routes; --verbose or LOG_LEVEL=verbose shows each)";
            assert_eq!(told[0].ends_with(more), lines == 1, "{options:?}: {text}");
        }
    });
}

#[test]
fn routes_that_go_are_not_counted_among_those_that_come() {
    sandboxed(
        "routes_that_go_are_not_counted_among_those_that_come",
        || {
            let networks = |second: u8| {
                let networks = (0..10).map(|one| format!("10.{second}.{}.0/24", 2 * one));
                let networks: Vec<_> = networks.collect();
                write("");
                let text = fs::read_to_string(FILE).expect("file");
                let text = format!("{text}AllowedIPs = {}\n", networks.join(", "));
                fs::write(FILE, text).expect("written");
            };
            networks(10);
            succeeds(&["up", FILE]);
            networks(11);
            let text = succeeds(&["reload", FILE]);
            for start in [
                "[#] ip -4 route add 10.11.",
                "[#] ip -4 route delete 10.10.",
            ] {
                let told: Vec<_> = text.lines().filter(|one| one.starts_with(start)).collect();
                assert_eq!(told.len(), 1, "{text}");
                assert!(told[0].contains("(and 9 more routes; "), "{text}");
            }
            succeeds(&["down", FILE]);
        },
    );
}

#[test]
fn a_tunnel_whose_process_was_killed_goes_down_and_comes_up() {
    sandboxed(
        "a_tunnel_whose_process_was_killed_goes_down_and_comes_up",
        || {
            write("PostDown = touch /run/went-down");
            let kill = || {
                let process = Process::only();
                process.send(Signal::KILL);
                process.wait();
            };
            succeeds(&["up", FILE]);
            kill();
            succeeds(&["down", FILE]);
            assert!(Path::new("/run/went-down").exists());
            assert_eq!(journals(), 0);

            succeeds(&["up", FILE]);
            kill();
            succeeds(&["up", FILE]);
            // `down` works without the file.
            fs::remove_file(FILE).expect("removed");
            succeeds(&["down", FILE]);
            assert_eq!(journals(), 0);
            let text = fails(&["down", FILE]);
            assert!(text.contains("there is no file"), "{text}");
        },
    );
}

#[test]
fn a_wrong_file_changes_nothing_and_says_where() {
    sandboxed("a_wrong_file_changes_nothing_and_says_where", || {
        write("MTU = many\nPreUp = touch /run/began\nColour = red");
        let text = fails(&["up", FILE]);
        assert!(text.starts_with(&format!("{FILE}:4:7: error: ")), "{text}");
        assert!(text.contains(&format!("\n{FILE}:6:1: error: ")), "{text}");
        assert_eq!(text.matches("\n  fix: ").count(), 2, "{text}");
        let end = format!("taupe: {FILE} has 2 errors; nothing was changed\n");
        assert!(text.ends_with(&end), "{text}");
        assert!(!has_interface("wg0"));
        assert!(!Path::new("/run/began").exists());
        assert!(!Path::new("/run/taupe").exists());

        let output = run(TAUPE, &["check", FILE]);
        assert_eq!(output.status.code(), Some(1));
        let answer = stdout(&output);
        assert!(
            answer.starts_with(&format!("{FILE}:4:7: error: ")),
            "{answer}"
        );
        let end = format!("{FILE} cannot be used: 2 errors\n");
        assert!(answer.ends_with(&end), "{answer}");

        write("");
        let output = run(TAUPE, &["check", FILE]);
        assert_eq!(output.status.code(), Some(0));
        assert_eq!(stdout(&output), format!("{FILE} is fine\n"));

        fs::set_permissions(FILE, fs::Permissions::from_mode(0o644)).expect("mode");
        let output = run(TAUPE, &["check", FILE]);
        assert_eq!(output.status.code(), Some(0));
        let end = format!("{FILE} can be used, with 1 warning\n");
        assert!(stdout(&output).ends_with(&end), "{output:?}");
    });
}

#[test]
fn what_transparent_mode_cannot_do_is_refused_in_a_sentence() {
    let name = "what_transparent_mode_cannot_do_is_refused_in_a_sentence";
    sandboxed(name, || {
        write("AllowedApps = uid:nobody-of-that-name");
        let text = fails(&["up", "--transparent", FILE]);
        assert!(text.contains("there is no user"), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(!has_interface("wg0"));
    });
}

#[test]
fn a_file_that_chooses_applications_never_tunnels_everything() {
    let name = "a_file_that_chooses_applications_never_tunnels_everything";
    sandboxed(name, || {
        symlink(TAUPE, "/run/wg-quick").expect("link");
        for line in [
            "AllowedApps = no-such-application",
            "#@ws:AllowedApps = no-such-application",
            "#@taupe:DisallowedApps = uid:1000",
            "KillSwitch = app",
        ] {
            write(line);
            succeeds(&["up", "--adapter", FILE]);
            let rules = stdout(&run("ip", &["rule"])) + &stdout(&run("ip", &["-6", "rule"]));
            let (all, some): (Vec<&str>, Vec<&str>) = rules
                .lines()
                .partition(|rule| rule.contains("from all lookup"));
            let usual = ["local", "main", "default"];
            let is_usual = |rule: &&str| usual.iter().any(|table| rule.ends_with(table));
            assert!(all.iter().all(is_usual), "{line}: {rules}");
            let is_narrow = |rule: &&str| {
                let selects = rule.contains("from all fwmark 0x") || rule.contains("from 10.9.0.1");
                selects && !rule.contains("not")
            };
            assert!(
                !some.is_empty() && some.iter().all(is_narrow),
                "{line}: {rules}"
            );
            succeeds(&["down", FILE]);
            let answer = stdout(&run(TAUPE, &["check", FILE]));
            let is_doubted = answer.contains("is called no-such-application");
            assert_eq!(is_doubted, line.contains("no-such-application"), "{answer}");
            let last = match is_doubted {
                true => "can be used, with 1 warning",
                false => "is fine",
            };
            assert!(answer.ends_with(&format!("{FILE} {last}\n")), "{answer}");
            let bare = !line.starts_with('#');
            let answer = stdout(&run(TAUPE, &["strip", FILE]));
            assert_eq!(answer.contains(line), !bare, "{answer}");
            let answer = stdout(&run("/run/wg-quick", &["strip", FILE]));
            assert!(answer.contains(line), "{answer}");
        }
        write("");
        succeeds(&["up", FILE]);
        write("AllowedApps = no-such-application");
        let text = fails(&["reload", FILE]);
        assert!(
            text.contains("AllowedApps selects applications, and this tunnel"),
            "{text}"
        );
        succeeds(&["down", FILE]);
        let text = fails(&["reload", FILE]);
        assert!(
            text.contains("wg0 is not up; `taupe up` brings it up"),
            "{text}"
        );
        // `wg-quick` refuses the key, or ignores it in a comment.
        let output = run("/run/wg-quick", &["up", FILE]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(!has_interface("wg0"));
        write("#@ws:AllowedApps = no-such-application");
        let output = run("/run/wg-quick", &["up", FILE]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains(":4:6: warning: AllowedApps"), "{text}");
        succeeds(&["down", FILE]);
    });
}

#[test]
fn a_signal_ends_the_wait_for_a_name() {
    sandboxed("a_signal_ends_the_wait_for_a_name", || {
        // The sandbox has no network, so the look-up cannot succeed for now.
        write("PreUp = touch /run/began");
        let text = fs::read_to_string(FILE).expect("file");
        fs::write(FILE, text + "Endpoint = peer.example:51820\n").expect("written");
        for (option, expected) in [(None, 1), (Some("--foreground"), 0)] {
            let mut command = Command::new(TAUPE);
            command.arg("up").args(option).arg(FILE);
            command.env("WG_ENDPOINT_RESOLUTION_RETRIES", "infinity");
            command.stdin(Stdio::null()).stderr(Stdio::piped());
            let mut child = Killed(command.spawn().expect("started"));
            wait_until("the PreUp command", || {
                fs::remove_file("/run/began").is_ok()
            });
            let process = Process::new(Pid::from_child(&child.0));
            process.send(Signal::TERM);
            process.wait();
            let status = child.0.wait().expect("waited").code();
            let mut text = String::new();
            let mut stderr = child.0.stderr.take().expect("piped");
            stderr.read_to_string(&mut text).expect("read");
            assert_eq!(status, Some(expected), "{text}");
            assert!(text.contains("interrupted"), "{text}");
            assert!(text.contains("everything is as it was before"), "{text}");
            assert_eq!(journals(), 0, "{text}");
        }
    });
}

#[test]
fn a_failure_on_the_way_up_leaves_nothing() {
    sandboxed("a_failure_on_the_way_up_leaves_nothing", || {
        write("PostUp = echo not today >&2; exit 3");
        for arguments in [&["up", FILE][..], &["up", "--foreground", FILE]] {
            let text = fails(arguments);
            assert!(text.contains("\nnot today\n"), "{text}");
            assert!(!has_interface("wg0"), "{text}");
            assert_eq!(journals(), 0, "{text}");
            assert!(!Path::new("/var/run/wireguard/wg0.sock").exists(), "{text}");
        }
    });
}

#[test]
fn who_may_not_see_the_first_process_is_told_of_a_tunnel_for_all() {
    sandboxed(
        "who_may_not_see_the_first_process_is_told_of_a_tunnel_for_all",
        || {
            write("");
            succeeds(&["up", FILE]);
            // Root in a container that shares the machine's process namespace but lacks the right
            // to trace.
            let confined = |arguments: &[&str]| {
                let without = [
                    "--bounding-set=-sys_ptrace",
                    "--inh-caps=-sys_ptrace",
                    TAUPE,
                ];
                run("setpriv", &[&without, arguments].concat())
            };
            let seen = run(
                "setpriv",
                &["--bounding-set=-sys_ptrace", "ls", "/proc/1/root/"],
            );
            assert!(!seen.status.success(), "it may");
            for (arguments, line) in [
                (&["status", "wg0"][..], "wg0"),
                (&["status", "--json", "wg0"], r#""mode":"adapter""#),
                (&["show", "wg0"], "mode: adapter"),
                (&["flows"], "no connections"),
                (&["flows", "wg0"], "no connections"),
            ] {
                let output = confined(arguments);
                assert_eq!(output.status.code(), Some(0), "{arguments:?}: {output:?}");
                let said = stdout(&output);
                let squeezed = said.replace(r#"": ""#, r#"":""#);
                assert!(squeezed.contains(line), "{arguments:?}: {said}");
            }
            // For a tunnel with marks, `status` cannot tell whether applications use it.
            let mut journals = fs::read_dir("/run/taupe").expect("journals").flatten();
            let journal = journals.next().expect("a journal").path();
            let text = fs::read_to_string(&journal).expect("read");
            let marks = text.replacen(r#""chosen":null"#, r#""chosen":4711"#, 1);
            assert_ne!(marks, text);
            fs::write(&journal, marks).expect("written");
            let output = confined(&["status", "--json", "wg0"]);
            assert_eq!(output.status.code(), Some(2), "{output:?}");
            let said = stdout(&output).replace(r#"": "#, r#"":"#);
            assert!(said.contains(r#""mode":null"#), "{said}");
            assert!(said.contains(r#""out-of-reach""#), "{said}");
            let said = stdout(&confined(&["status", "wg0"]));
            assert!(said.contains("\n  [!] cannot reach "), "{said}");
            assert!(!said.contains("all use it"), "{said}");
            // `flows` cannot tell which connections it carries.
            let output = confined(&["flows"]);
            assert_eq!(output.status.code(), Some(1), "{output:?}");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.contains("/proc/1/root"), "{said}");
            fs::write(&journal, text).expect("written");
            // For a tunnel that is down, `status` cannot tell whether applications are blocked.
            succeeds(&["down", FILE]);
            let output = confined(&["status", "--json", FILE]);
            assert_eq!(output.status.code(), Some(1), "{output:?}");
            let said = stdout(&output);
            assert!(said.contains(r#""out-of-reach""#), "{said}");
            assert!(said.contains("/proc/1/root"), "{said}");
        },
    );
}

#[test]
fn who_is_not_root_is_told_and_wg_quick_calls_sudo() {
    sandboxed("who_is_not_root_is_told_and_wg_quick_calls_sudo", || {
        write("");
        // A user namespace without a mapping for any user.
        let nobody = |program: &str, arguments: &[&str]| {
            let mut command = Command::new("unshare");
            command.args(["--user", program]).args(arguments);
            command.env("PATH", "/run/bin:/usr/sbin:/usr/bin:/sbin:/bin");
            command.output().expect("unshare(1)")
        };
        for action in ["up", "down", "reload", "save"] {
            let output = nobody(TAUPE, &[action, FILE]);
            assert_eq!(output.status.code(), Some(1));
            assert_eq!(output.stderr, b"taupe: this takes root; run it with sudo\n");
        }
        let output = nobody(TAUPE, &["check", FILE]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        for (arguments, status) in [
            (&["show"][..], 0),
            (&["show", "interfaces"], 0),
            (&["show", "wg0"], 1),
            (&["showconf", "lo"], 1),
            (&["set", "wg0", "fwmark", "1"], 1),
        ] {
            let output = nobody(TAUPE, arguments);
            let text = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(status), "{arguments:?}: {text}");
            assert!(text.contains("only root"), "{arguments:?}: {text}");
        }
        assert_eq!(
            fails(&["show", "lo"]),
            "taupe: lo exists but is not a WireGuard interface\n"
        );
        assert!(fails(&["show", "wg0"]).contains("there is no such device"));

        fs::create_dir("/run/bin").expect("folder");
        symlink(TAUPE, "/run/bin/wg-quick").expect("link");
        let output = nobody("wg-quick", &["up", "wg0"]);
        let text = String::from_utf8_lossy(&output.stderr);
        if run("sh", &["-c", "command -v sudo"]).status.code() != Some(0) {
            assert_eq!(output.status.code(), Some(1));
            assert!(
                text.contains("wg-quick: this takes root, and sudo cannot be run"),
                "{text}"
            );
        }
        fs::write(
            "/run/bin/sudo",
            "#!/bin/sh\nprintf '%s\\n' \"$@\"\nexit 7\n",
        )
        .expect("file");
        let executable = fs::Permissions::from_mode(0o755);
        fs::set_permissions("/run/bin/sudo", executable).expect("mode");
        for action in ["up", "down", "save", "strip"] {
            let output = nobody("wg-quick", &[action, "wg0"]);
            assert_eq!(output.status.code(), Some(7), "{output:?}");
            let words = stdout(&output);
            let words: Vec<_> = words.lines().collect();
            assert_eq!((words[0], words[2]), ("-p", "--"), "{words:?}");
            assert_eq!(words[3..], ["/run/bin/wg-quick", action, "wg0"]);
        }
    });
}

#[test]
fn wg_quick_speaks_as_it_does() {
    sandboxed("wg_quick_speaks_as_it_does", || {
        write("");
        symlink(TAUPE, "/run/wg-quick").expect("link");
        let quick = |arguments: &[&str]| {
            let output = run("/run/wg-quick", arguments);
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            (output.status.code(), text)
        };
        let (status, text) = quick(&["help"]);
        assert_eq!(status, Some(0));
        assert!(text.starts_with("Usage: wg-quick "), "{text}");
        for wrong in [&[][..], &["up"], &["reload", FILE], &["up", FILE, FILE]] {
            assert_eq!(quick(wrong), (Some(1), text.clone()), "{wrong:?}");
        }
        let missing = "wg-quick: `/run/wg1.conf' does not exist\n";
        assert_eq!(quick(&["up", "/run/wg1.conf"]), (Some(1), missing.into()));
        let down = "wg-quick: `wg0' is not a WireGuard interface\n";
        assert_eq!(quick(&["down", FILE]), (Some(1), down.into()));

        let (status, text) = quick(&["up", FILE]);
        assert_eq!(status, Some(0), "{text}");
        let first = "adapter mode, because it is called as wg-quick";
        assert_eq!(text.lines().next(), Some(first), "{text}");
        let (status, text) = quick(&["up", FILE]);
        assert_eq!(status, Some(1));
        assert_eq!(text, "wg-quick: `wg0' already exists\n");
        assert_eq!(quick(&["down", FILE]).0, Some(0));

        // `wg show` uses this name as a keyword, but the kernel accepts such interfaces.
        let listed = "/run/tunnels/interfaces.conf";
        fs::copy(FILE, listed).expect("copied");
        let (status, text) = quick(&["up", listed]);
        assert_eq!(status, Some(0), "{text}");
        assert!(has_interface("interfaces"), "{text}");
        assert_eq!(quick(&["down", listed]).0, Some(0));

        fs::set_permissions(FILE, fs::Permissions::from_mode(0o644)).expect("mode");
        let (_, text) = quick(&["strip", FILE]);
        assert_eq!(text, format!("Warning: `{FILE}' is world accessible\n"));
    });
}

#[test]
fn lists_of_networks_are_one_line() {
    let output = run(
        TAUPE,
        &["allowed-ips", "10.0.0.0/30,fd00::1", "--except", "10.0.0.1"],
    );
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(stdout(&output), "10.0.0.0/32, 10.0.0.2/31, fd00::1/128\n");
    let output = run(
        TAUPE,
        &["allowed-ips", "10.0.0.1", "--except", "10.0.0.0/8"],
    );
    assert_eq!(
        (output.status.code(), stdout(&output).as_str()),
        (Some(0), "\n")
    );
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("no network is left"), "{text}");
}

#[test]
fn what_cannot_be_printed_is_a_failure_that_says_so() {
    sandboxed("what_cannot_be_printed_is_a_failure_that_says_so", || {
        write("");
        // `show` needs an interface to print something.
        succeeds(&["device", "wg0"]);
        for arguments in [
            &["check", FILE][..],
            &["strip", FILE],
            &["allowed-ips", "10.0.0.0/8"],
            &["--help"],
            &["help", "up"],
            &["device", "-h"],
            &["--version"],
            &["genkey"],
            &["show"],
        ] {
            let print_to = |stdout: Stdio| {
                let mut command = Command::new(TAUPE);
                command.args(arguments).stdin(Stdio::null()).stdout(stdout);
                let output = command.stderr(Stdio::piped()).output().expect("started");
                let text = String::from_utf8_lossy(&output.stderr).into_owned();
                (output.status.code(), text)
            };
            let full = fs::File::options().write(true).open("/dev/full");
            let (status, text) = print_to(full.expect("/dev/full").into());
            assert_eq!(status, Some(1), "{arguments:?}");
            let reason = "cannot write to standard output: No space left";
            assert!(text.contains(reason), "{arguments:?}: {text}");
            // A closed reader, as in `| head -1`, causes no error message.
            let (reader, writer) = std::io::pipe().expect("a pipe");
            drop(reader);
            assert_eq!(
                print_to(writer.into()),
                (Some(1), String::new()),
                "{arguments:?}"
            );
        }
    });
}
