use super::{nothing, parse, refusal};
use crate::arguments::boringtun::Boringtun;
use crate::arguments::command_line;
use crate::arguments::device::DeviceProgram;
use clap::CommandFactory as _;
use std::ffi::OsString;

#[test]
fn help_and_version_are_no_mistakes() {
    let version = format!("taupe {}", crate::command_line::VERSION);
    assert!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");
    for line in [
        "taupe --version",
        "taupe -V",
        "wireguard-go --version",
        "boringtun-cli -V",
    ] {
        let (text, status) = refusal(line, &[]);
        assert_eq!((text.trim(), status), (&*version, 0), "{line}");
    }
    for (line, words) in [
        ("taupe help", &["device", "Exit status", "--version"][..]),
        ("taupe --help", &["device", "Exit status"]),
        (
            "taupe help up",
            &[
                "/etc/resolv.conf.before-taupe",
                "WG_ENDPOINT_RESOLUTION_RETRIES",
                "No effect in",
                "taupe.conf(5)",
            ],
        ),
        (
            "taupe help reload",
            &["WG_ENDPOINT_RESOLUTION_RETRIES", "No effect in", "not run"],
        ),
        ("taupe help save", &["Comments", "0600"]),
        (
            "taupe help down",
            &["nothing of it is left", "taupe.conf(5)"],
        ),
        ("taupe help check", &["with warnings", "taupe.conf(5)"]),
        (
            "taupe help device",
            &["--no-offload", "TAUPE_OFFLOAD", "WG_TUN_FD", "Exit status"],
        ),
        (
            "taupe device --help",
            &["--no-offload", "LOG_LEVEL", "Usage: taupe device"],
        ),
        (
            "wireguard-go --help",
            &["Usage: wireguard-go", "LOG_LEVEL", "Exit status"],
        ),
        (
            "boringtun-cli --help",
            &["--uapi-fd", "WG_LOG_LEVEL", "Exit status"],
        ),
    ] {
        let (text, status) = refusal(line, &[]);
        assert_eq!(status, 0, "{line}: {text}");
        for word in words {
            assert!(text.contains(word), "{line}: no {word} in {text}");
        }
    }
}

#[test]
fn each_subcommand_of_wg_has_help() {
    for command in "show showconf set setconf addconf syncconf genkey genpsk pubkey".split(' ') {
        let (help, status) = refusal(&format!("taupe help {command}"), &[]);
        assert_eq!(status, 0, "{command}");
        assert!(help.contains(&format!("Usage: taupe {command}")), "{help}");
        for flag in ["--help", "-h"] {
            let asked = refusal(&format!("taupe {command} {flag}"), &[]);
            assert_eq!(asked, (help.clone(), 0), "{command} {flag}");
        }
    }
    let (show, _) = refusal("taupe show --help", &[]);
    for (field, _) in taupe_uapi::show::Field::ALL {
        assert!(show.contains(&format!("\n  {field} ")), "{field}: {show}");
    }
}

#[test]
fn the_definition_has_no_contradictions() {
    command_line().debug_assert();
}

#[test]
fn help_under_other_names_fits_80_columns() {
    for command in [DeviceProgram::command(), Boringtun::command()] {
        let mut command = command.term_width(80);
        for text in [command.render_help(), command.render_long_help()] {
            for line in text.to_string().lines() {
                assert!(line.chars().count() <= 80, "{line}");
            }
        }
    }
}

/// Separates words; those in single quotes are one.
fn words(line: &str) -> Vec<&str> {
    let mut words = Vec::new();
    for (index, part) in line.split('\'').enumerate() {
        match index % 2 {
            0 => words.extend(part.split_whitespace()),
            _ => words.push(part),
        }
    }
    words
}

#[test]
fn examples_are_accepted() {
    let mut commands = vec![command_line()];
    commands[0].build();
    let mut count = 0;
    while let Some(mut command) = commands.pop() {
        let subcommands = command.get_subcommands();
        commands.extend(subcommands.filter(|one| one.get_name() != "help").cloned());
        let help = command.render_long_help().to_string();
        let examples = help.trim_end().rsplit("\n\n").next().unwrap_or_default();
        for line in examples.lines().map(str::trim) {
            let line = line.strip_prefix("(umask 077; ").unwrap_or(line);
            let line = line.strip_prefix("sudo ").unwrap_or(line);
            // The rest is the shell's.
            let words = words(line)
                .into_iter()
                .take_while(|word| !matches!(*word, "<" | ">"));
            let words: Vec<_> = words.map(OsString::from).collect();
            if words.first().is_some_and(|word| word == "taupe") {
                parse(&words, &nothing).unwrap_or_else(|error| panic!("{line}: {error}"));
                count += 1;
            }
        }
    }
    assert!(count > 40, "{count} examples");
}
