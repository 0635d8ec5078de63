//! The rights that systemd's units leave to Taupe.

use crate::place::REPOSITORY;
use serde_json::Value;
use std::env;
use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Output};

/// The units, and the exposure that each may have at most, in tenths (`systemd-analyze security`).
const UNITS: [(&str, u32); 3] = [("taupe@", 25), ("taupe-hooks@", 35), ("taupe-lock@", 25)];

/// The units of users without root, and the exposure that each may have at most.
const SERVICE_UNITS: [(&str, u32); 2] = [("taupe-service", 25), ("taupe-dbus", 5)];

/// Settings that do not apply to processes of root.
const WITHOUT_EFFECT: [&str; 2] = ["SupplementaryGroups=", "RemoveIPC="];

#[test]
fn units_expose_no_more_than_their_limits() {
    let folder = Folder::new("limits");
    for (unit, limit) in UNITS {
        let threshold = format!("--threshold={limit}");
        let Some(output) = analyze(&folder.0, unit, &[&threshold]) else {
            return;
        };
        let report = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{unit}: {report}");
        assert!(output.stderr.is_empty(), "{unit}: {output:?}");
    }
}

#[test]
fn units_for_users_expose_no_more_than_their_limits() {
    let folder = Folder::new("users");
    for (unit, limit) in SERVICE_UNITS {
        let template = Path::new(REPOSITORY).join(format!("packaging/service/{unit}.service.in"));
        let text = fs::read_to_string(template).expect("a unit");
        let text = text.replace("@BINDIR@", "/usr/bin");
        let path = folder.0.join(format!("{unit}.service"));
        let text = text.replace("@LIBEXECDIR@", "/usr/libexec");
        fs::write(&path, &text).expect("a unit");
        let mut command = Command::new("systemd-analyze");
        command.args(["security", "--offline=true", "--no-pager"]);
        command.arg(format!("--threshold={limit}")).arg(path);
        let output = match command.output() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            output => output.expect("systemd-analyze"),
        };
        let report = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{unit}: {report}");
    }
}

/// A reader of `systemd-analyze security` finds the reason for each exposed line in a unit:
/// `taupe@.service` for those that all units have.
#[test]
fn each_exposed_line_is_explained() {
    let folder = Folder::new("lines");
    let common = comments("taupe@");
    for (unit, _) in UNITS {
        let Some(output) = analyze(&folder.0, unit, &["--json=short"]) else {
            return;
        };
        let lines: Vec<Value> = serde_json::from_slice(&output.stdout).expect("JSON");
        let comments = common.clone() + &comments(unit);
        let mut exposed = 0;
        for line in &lines {
            let name = line["name"].as_str().expect("a name");
            if line["set"] == Value::Bool(true)
                || line["exposure"].is_null()
                || WITHOUT_EFFECT.contains(&name)
            {
                continue;
            }
            exposed += 1;
            // `CapabilityBoundingSet=~CAP_BPF`, `User=/DynamicUser=`, `SystemCallFilter=~@mount`.
            let (setting, part) = name.split_once('=').expect("a setting");
            let is_explained = match part.strip_prefix('~') {
                Some(group) if setting == "CapabilityBoundingSet" => {
                    let mut granted = granted(unit).into_iter();
                    granted.any(|capability| {
                        is_in(&capability, group) && comments.contains(&capability)
                    })
                }
                Some(group) if group.starts_with('@') => {
                    comments.contains(setting) && comments.contains(group)
                }
                _ => comments.contains(&format!("{setting}=")),
            };
            assert!(is_explained, "{unit} does not explain {name}");
        }
        assert!(exposed > 0, "{unit}: {lines:?}");
        for capability in granted(unit) {
            assert!(comments.contains(&capability), "{unit}: {capability}");
        }
    }
}

/// The two units for a tunnel differ only in rights: what is written above them is the same.
#[test]
fn both_units_of_a_tunnel_run_the_same_commands() {
    let settings = |unit: &str| -> Vec<String> {
        let text = text(unit);
        let lines = text.lines().filter(|line| {
            let key = line.split('=').next().unwrap_or_default();
            key.starts_with("Exec")
                || ["Type", "TimeoutStartSec", "Restart", "After", "Wants"].contains(&key)
        });
        lines.map(str::to_owned).collect()
    };
    assert_eq!(settings("taupe@"), settings("taupe-hooks@"));
    assert_eq!(settings("taupe@").len(), 8);
    let refuses = |unit: &str| text(unit).contains("\nEnvironment=TAUPE_HOOKS=refuse\n");
    assert!(refuses("taupe@") && !refuses("taupe-hooks@"));
}

/// Returns true if a capability belongs to a group as `systemd-analyze` prints it, such as
/// `CAP_(DAC_*|FOWNER|IPC_OWNER)`.
fn is_in(capability: &str, group: &str) -> bool {
    let Some((prefix, rest)) = group.split_once('(') else {
        return capability == group || is_matched(capability, group);
    };
    let mut names = rest.trim_end_matches(')').split('|');
    names.any(|name| is_matched(capability, &format!("{prefix}{name}")))
}

fn is_matched(name: &str, pattern: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == pattern,
    }
}

fn text(unit: &str) -> String {
    let path = Path::new(REPOSITORY).join(format!("packaging/{unit}.service.in"));
    fs::read_to_string(path).expect("a unit")
}

fn comments(unit: &str) -> String {
    let text = text(unit);
    let lines = text.lines().filter(|line| line.starts_with('#'));
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the capabilities that a unit leaves to its processes.
fn granted(unit: &str) -> Vec<String> {
    let text = text(unit);
    let lines = text
        .lines()
        .filter_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    lines
        .flat_map(str::split_whitespace)
        .map(str::to_owned)
        .collect()
}

/// Runs `systemd-analyze security` for an instance of a unit. Returns `None` if there is none.
fn analyze(folder: &Path, unit: &str, options: &[&str]) -> Option<Output> {
    let path = folder.join(format!("{unit}wg0.service"));
    fs::write(&path, text(unit).replace("@BINDIR@", "/usr/bin")).expect("a unit");
    let mut command = Command::new("systemd-analyze");
    command.args(["security", "--offline=true", "--no-pager"]);
    match command.args(options).arg(path).output() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            println!("no systemd-analyze here: exposure not looked at");
            None
        }
        output => Some(output.expect("systemd-analyze")),
    }
}

/// A folder that is removed when it is dropped.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("taupe-units-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("folder");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
