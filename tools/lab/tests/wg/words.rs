//! Unknown sub-commands, and the names of sub-commands.

use crate::compare::{Call, Comparison, Outcome};
use taupe_lab::Result;

pub(crate) fn words() -> Result<()> {
    let mut comparison = Comparison::new("words");
    let commands = [
        "show", "showconf", "set", "setconf", "addconf", "syncconf", "genkey", "genpsk", "pubkey",
    ];
    for words in [
        &["-v"][..],
        &["--version"],
        &["version"],
        &["show", "interfaces", "x"],
        &["show", "all", "peers", "x"],
        &["show", "nosuch", "peers", "x"],
        &["show", "-h", "x", "y"],
        &["genkey", ""],
    ] {
        comparison.call(&Call::new(words))?;
    }
    for words in [
        &["-h"][..],
        &["--help"],
        &["help"],
        &["version", "x"],
        &["help", "show"],
        &["-h", "x"],
        &["frobnicate"],
        &["frobnicate", "x"],
        &["Show"],
        &[""],
        &["sho"],
    ] {
        let call = Call::new(words);
        let (debian, taupe) = call.run_both()?;
        comparison.compare(&call.name(), &undescribed(debian), &undescribed(taupe));
    }
    for command in commands {
        let after_commands = [
            &["--help"][..],
            &["-h"],
            &["help"],
            &["--help", "x"],
            &["nosuch"],
            &["nosuch", "x"],
            &["nosuch", "listen-port", "1"],
            &["nosuch", "/dev/null"],
            &["nosuch", "/nonexistent"],
            &["a", "b", "c", "d"],
            &["a/b"],
            &["../x", "listen-port", "1"],
            &["a-name-that-is-much-too-long"],
            &["a-name-that-is-much-too-long", "fwmark", "1"],
            &[""],
            &["."],
        ];
        for after in after_commands {
            // These two print another key each time.
            if command.starts_with("gen") && after.is_empty() {
                continue;
            }
            let call = Call::new(&[&[command], after].concat());
            let (debian, taupe) = call.run_both()?;
            comparison.compare(&call.name(), &undescribed(debian), &undescribed(taupe));
        }
        if !command.starts_with("gen") {
            let call = Call::new(&[command]);
            let (debian, taupe) = call.run_both()?;
            comparison.compare(&call.name(), &undescribed(debian), &undescribed(taupe));
        }
    }
    // There are no devices to show.
    for words in [
        &[][..],
        &["show", "all"],
        &["show", "interfaces"],
        &["show", "all", "dump"],
        &["show", "all", "frobnicate"],
        &["show", "all", ""],
    ] {
        comparison.call(&Call::new::<&str>(words))?;
    }
    comparison.finish()
}

/// Removes descriptions, which are Taupe's own, and the signs that `allowed-ips` supports since
/// 2025.
fn undescribed(mut output: Outcome) -> Outcome {
    for stream in [&mut output.stdout, &mut output.stderr] {
        let text = String::from_utf8_lossy(stream).replace("[+|-]", "");
        let mut lines: Vec<_> = text
            .lines()
            .map(|line| match line.split_once(": ") {
                Some((name, _)) if name.starts_with("  ") => name,
                _ => line,
            })
            .collect();
        if lines.iter().any(|line| line.ends_with("<cmd> [<args>]")) {
            lines.pop();
        }
        *stream = lines.join("\n").into_bytes();
    }
    output
}
