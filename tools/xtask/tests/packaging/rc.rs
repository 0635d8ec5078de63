//! FreeBSD's rc.d script, with stand-ins for rc.subr and `taupe`.

use crate::place::{Place, parses, program, shells};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// A faked FreeBSD with the installed script.
struct Machine {
    place: Place,
    script: PathBuf,
}

/// Result of a verb of the script.
struct Answer {
    status: i32,
    out: String,
    err: String,
    calls: Vec<String>,
}

impl Machine {
    fn new(settings: &str) -> Self {
        let place = Place::new("FreeBSD");
        place.installed(&[]);
        let script = place.prefix().join("etc/rc.d/taupe");
        let text = fs::read_to_string(&script).expect("script");
        let subr = place.folder.join("rc.subr");
        fs::write(&subr, include_str!("rc.subr")).expect("file");
        assert!(!text.contains("%%"), "{text}");
        let text = text.replace("/etc/rc.subr", &subr.display().to_string());
        fs::write(&script, text).expect("file");
        fs::create_dir(place.folder.join("rc.conf.d")).expect("folder");
        let machine = Self { place, script };
        machine.set(settings);
        machine
    }

    /// Writes rc.conf.
    fn set(&self, settings: &str) {
        fs::write(self.place.folder.join("rc.conf"), settings).expect("file");
    }

    /// Installs a script with the name of that of wireguard-tools.
    fn add_rival(&self) {
        let rival = self.place.prefix().join("etc/rc.d/wireguard");
        program(&rival, "#!/bin/sh\n");
    }

    fn run_by(&self, shell: &[String], arguments: &[&str]) -> Answer {
        let mut command = Command::new(&shell[0]);
        command.args(&shell[1..]).args(arguments);
        let output = command
            .env("RC_ROOT", &self.place.folder)
            .env_remove("LOG_LEVEL")
            .output()
            .expect("a shell");
        Answer {
            status: output.status.code().expect("no signal"),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
            calls: self.place.calls(),
        }
    }

    /// Runs a verb as `service taupe` does, by each shell, and returns the answer of the first one.
    /// The others must give the same.
    fn service(&self, arguments: &[&str]) -> Answer {
        let mut first = None;
        for shell in shells() {
            let script = self.script.to_str().expect("text");
            let answer = self.run_by(&shell, &[&[script], arguments].concat());
            let first = first.get_or_insert_with(|| answer.copy());
            assert_eq!(answer.calls, first.calls, "{shell:?}");
            assert_eq!(answer.status, first.status, "{shell:?}: {}", answer.err);
            assert_eq!(
                (&answer.out, &answer.err),
                (&first.out, &first.err),
                "{shell:?}"
            );
        }
        first.expect("a shell")
    }
}

impl Answer {
    fn copy(&self) -> Self {
        Self {
            status: self.status,
            out: self.out.clone(),
            err: self.err.clone(),
            calls: self.calls.clone(),
        }
    }

    /// Checks the status, the calls of `taupe`, and the lines of the script on standard error.
    fn is(&self, status: i32, calls: &[&str], warnings: &[&str]) {
        assert_eq!(self.calls, calls, "{}", self.err);
        let ours = self.err.lines().filter(|line| !line.starts_with("taupe: "));
        let ours: Vec<_> = ours
            .map(|line| line.trim_start_matches("WARNING: "))
            .collect();
        assert_eq!(ours, warnings);
        assert_eq!(self.status, status, "{}", self.err);
    }
}

const TWO: &str = "taupe_enable=YES\ntaupe_interfaces=\"wg0 wg1\"\n";

#[test]
fn every_shell_parses_the_script_and_rcorder_its_head() {
    let machine = Machine::new("");
    for shell in shells() {
        parses(&shell, &machine.script);
    }
    let text = fs::read_to_string(&machine.script).expect("script");
    // rcorder(8) stops at the first line after these that is none of them.
    let head: Vec<_> = text.lines().skip(2).take(4).collect();
    let expected = [
        "# PROVIDE: taupe wireguard",
        "# REQUIRE: DAEMON",
        "# KEYWORD: nojailvnet shutdown",
        "",
    ];
    assert_eq!(head, expected);
}

#[test]
fn tunnels_start_in_order_and_stop_in_reverse_order() {
    let machine = Machine::new(TWO);
    machine
        .service(&["start"])
        .is(0, &["up wg0", "up wg1"], &[]);
    machine
        .service(&["stop"])
        .is(0, &["down wg1", "down wg0"], &[]);
    let all = ["down wg1", "down wg0", "up wg0", "up wg1"];
    machine.service(&["restart"]).is(0, &all, &[]);
    machine
        .service(&["restart", "wg1"])
        .is(0, &["down wg1", "up wg1"], &[]);
    // An interface of the command line need not be in the list.
    machine.service(&["start", "wg7"]).is(0, &["up wg7"], &[]);
}

#[test]
fn boot_and_shutdown_read_the_script_into_a_shell() {
    let machine = Machine::new(TWO);
    let script = machine.script.display();
    for shell in shells() {
        for (verb, calls) in [
            ("faststart", ["up wg0", "up wg1"]),
            ("faststop", ["down wg1", "down wg0"]),
        ] {
            // As run_rc_script of rc.subr does.
            let command = format!("(set {verb}; . {script})");
            machine.run_by(&shell, &["-c", &command]).is(0, &calls, &[]);
        }
    }
}

#[test]
fn one_failure_stops_no_other_tunnel_and_is_reported() {
    let machine = Machine::new(TWO);
    machine.place.fail(&["up wg0", "down wg1"]);
    let warning = "taupe: start failed for wg0";
    let answer = machine.service(&["start"]);
    answer.is(1, &["up wg0", "up wg1"], &[warning]);
    assert!(
        answer.err.contains("taupe: up wg0 failed"),
        "{}",
        answer.err
    );
    let warning = "taupe: stop failed for wg1";
    machine
        .service(&["stop"])
        .is(1, &["down wg1", "down wg0"], &[warning]);
    // A tunnel that could not be stopped is started nevertheless.
    machine.place.fail(&["down wg0", "down wg1"]);
    let all = ["down wg1", "down wg0", "up wg0", "up wg1"];
    let warning = "taupe: stop failed for wg1 wg0";
    machine.service(&["restart"]).is(0, &all, &[warning]);
}

#[test]
fn nothing_is_done_if_nothing_is_configured_or_enabled() {
    let machine = Machine::new("taupe_enable=YES\n");
    let warning = "taupe has no interfaces: set taupe_interfaces in /etc/rc.conf";
    for verb in ["start", "stop", "reload", "status"] {
        machine.service(&[verb]).is(1, &[], &[warning]);
    }
    machine.set("taupe_interfaces=wg0\n");
    let answer = machine.service(&["start"]);
    answer.is(0, &[], &[]);
    assert!(
        answer.out.contains("Set taupe_enable to YES"),
        "{}",
        answer.out
    );
    machine.service(&["faststart"]).is(0, &[], &[]);
    machine.service(&["onestart"]).is(0, &["up wg0"], &[]);
    machine.set("wireguard_enable=YES\nwireguard_interfaces=wg0\ntaupe_enable=NO\n");
    machine.service(&["start"]).is(0, &[], &[]);
}

#[test]
fn wireguard_s_variables_do_as_in_the_comparison_of_2022() {
    let lines = "wireguard_enable=\"YES\"\nwireguard_interfaces=\"wg0\"\n";
    let machine = Machine::new(lines);
    machine.service(&["start"]).is(0, &["up wg0"], &[]);
    machine.service(&["stop"]).is(0, &["down wg0"], &[]);
    machine.service(&["status"]).is(0, &["show wg0"], &[]);
    machine.set(&format!("{lines}wireguard_env=LOG_LEVEL=debug\n"));
    machine.service(&["start"]).is(0, &["up wg0 at debug"], &[]);
    // Taupe's own variables come first, one by one.
    machine.set(&format!(
        "{lines}taupe_interfaces=wg1\ntaupe_env=LOG_LEVEL=info\n"
    ));
    machine.service(&["start"]).is(0, &["up wg1 at info"], &[]);
    machine.set(&format!("{lines}taupe_interfaces=\n"));
    let warning = "taupe has no interfaces: set taupe_interfaces in /etc/rc.conf";
    machine.service(&["start"]).is(1, &[], &[warning]);
    // They may also be in a file of the other script's own.
    machine.set("taupe_enable=YES\n");
    let own = machine.place.folder.join("rc.conf.d/wireguard");
    fs::write(own, "wireguard_interfaces=wg3\n").expect("file");
    machine.service(&["start"]).is(0, &["up wg3"], &[]);
}

#[test]
fn an_interface_of_the_other_script_is_left_to_it() {
    let machine = Machine::new("");
    machine.add_rival();
    let rival = machine.place.prefix().join("etc/rc.d/wireguard");
    let left = |names: &str| {
        let rival = rival.display();
        format!("taupe leaves {names} to {rival}, because wireguard_enable is on")
    };
    let theirs = "wireguard_enable=YES\nwireguard_interfaces=\"wg0 wg2\"\n";
    machine.set(&format!("{theirs}{TWO}"));
    machine
        .service(&["start"])
        .is(0, &["up wg1"], &[&left("wg0")]);
    machine
        .service(&["stop"])
        .is(0, &["down wg1"], &[&left("wg0")]);
    machine.service(&["faststop"]).is(0, &["down wg1"], &[]);
    machine
        .service(&["status"])
        .is(0, &["show wg1"], &[&left("wg0")]);
    let calls = [
        "strip wg1",
        "syncconf wg1 /dev/stdin",
        "< [Interface]",
        "< # \\n of wg1",
    ];
    machine.service(&["reload"]).is(0, &calls, &[&left("wg0")]);
    machine
        .service(&["onestart", "wg2"])
        .is(0, &[], &[&left("wg2")]);
    // Without variables of Taupe's own, everything is left, in one line.
    machine.set(theirs);
    machine.service(&["start"]).is(0, &[], &[&left("wg0 wg2")]);
    // The other script starts nothing if it is not enabled.
    machine.set(&format!("{TWO}wireguard_interfaces=\"wg0 wg2\"\n"));
    machine
        .service(&["start"])
        .is(0, &["up wg0", "up wg1"], &[]);
    machine.set(&format!(
        "{TWO}wireguard_interfaces=wg0\nwireguard_enable=NO\n"
    ));
    machine
        .service(&["start"])
        .is(0, &["up wg0", "up wg1"], &[]);
}

#[test]
fn status_names_each_tunnel() {
    let machine = Machine::new(TWO);
    let answer = machine.service(&["status"]);
    answer.is(0, &["show wg0", "show wg1"], &[]);
    assert_eq!(answer.out, "wg0 is up.\nwg1 is up.\n");
    machine.place.fail(&["show wg0"]);
    let answer = machine.service(&["status"]);
    answer.is(1, &["show wg0", "show wg1"], &[]);
    assert_eq!(answer.out, "wg0 is not up.\nwg1 is up.\n");
}

#[test]
fn reload_applies_files_and_never_an_empty_one() {
    let machine = Machine::new(TWO);
    let of = |name: &str| {
        [
            format!("strip {name}"),
            format!("syncconf {name} /dev/stdin"),
            "< [Interface]".to_owned(),
            format!("< # \\n of {name}"),
        ]
    };
    let answer = machine.service(&["reload"]);
    assert_eq!(answer.calls, [of("wg0"), of("wg1")].concat());
    assert_eq!((answer.status, answer.err.as_str()), (0, ""));
    machine.place.fail(&["strip wg0"]);
    let answer = machine.service(&["reload"]);
    assert_eq!(
        answer.calls,
        [&["strip wg0".to_owned()][..], &of("wg1")].concat()
    );
    assert_eq!(answer.status, 1);
    assert!(
        answer.err.contains("reload failed for wg0\n"),
        "{}",
        answer.err
    );
    machine.place.fail(&["syncconf wg1 /dev/stdin"]);
    let answer = machine.service(&["reload"]);
    assert_eq!(answer.status, 1);
    assert!(
        answer.err.contains("reload failed for wg1\n"),
        "{}",
        answer.err
    );
}
