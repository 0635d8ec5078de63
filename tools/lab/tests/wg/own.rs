//! Taupe's additional output and its own messages.

use crate::compare::{Call, KEYS, Outcome, Program, with_keys};
use std::process::Command;
use taupe_lab::host::Host;
use taupe_lab::peers::Implementation;
use taupe_lab::sandbox::scratch_file;
use taupe_lab::{Error, Result, ensure, uapi};

/// Runs `taupe WORDS`.
fn taupe(words: &[&str]) -> Result<Outcome> {
    let output = Command::new(Implementation::Taupe.program()?)
        .args(words.iter().map(|word| with_keys(word)))
        .env("WG_ENDPOINT_RESOLUTION_RETRIES", "0")
        .output()
        .map_err(Error::io("taupe"))?;
    Ok(Outcome {
        status: output.status.code(),
        stdout: output.stdout,
        stderr: output.stderr,
    })
}

/// A key given instead of a file name causes a message with a remedy, which does not repeat the
/// key.
pub(crate) fn key_for_a_file() -> Result<()> {
    let host = Host::new("a")?;
    let _tunnel = Implementation::Taupe.start(&host, "wg0")?;
    let before = uapi::exchange("wg0", "get=1\n\n")?;
    for words in [
        &["set", "wg0", "private-key", "{K1}"][..],
        &["set", "wg0", "peer", "{P1}", "preshared-key", "{P2}"],
    ] {
        for result in [taupe(words)?, Call::new(words).run(Program::Taupe)?] {
            ensure!(result.status == Some(1), "{result}");
            let text = result.err();
            for part in ["command line", "ps", "umask 077", "FILE", "<("] {
                ensure!(text.contains(part), "no {part}: {result}");
            }
            let repeated = KEYS.iter().any(|(_, key)| text.contains(key));
            ensure!(!repeated && result.out().is_empty(), "{result}");
        }
    }
    ensure!(
        uapi::exchange("wg0", "get=1\n\n")? == before,
        "the device has changed"
    );
    Ok(())
}

/// `taupe show` prints the output of `wg show`, and more after it.
pub(crate) fn more() -> Result<()> {
    let host = Host::new("a")?;
    let _tunnel = Implementation::Taupe.start(&host, "wg0")?;
    let file = scratch_file(
        "wg0.conf",
        &with_keys(
            "[Interface]\nPrivateKey = {K1}\n[Peer]\nPublicKey = {P1}\nEndpoint = localhost:5\n\
             AllowedIPs = 192.0.2.1\n[Peer]\nPublicKey = {P2}\nEndpoint = 127.0.0.1:6\n\
             AllowedIPs = 192.0.2.2\n",
        ),
    )?;
    for program in ["taupe", "wg"] {
        uapi::set("wg0", "replace_peers=true\n")?;
        let words = ["setconf", "wg0", file.as_str()];
        let result = match program {
            "taupe" => taupe(&words)?,
            _ => Call::new(&words).run(Program::Taupe)?,
        };
        ensure!(
            result.status == Some(0) && result.err().is_empty(),
            "{result}"
        );
        let more = taupe(&["show", "wg0"])?.out();
        let plain = Call::new(&["show", "wg0"]).run(Program::Debian)?.out();
        let lines: Vec<_> = more.lines().filter(|line| !plain.contains(line)).collect();
        ensure!(
            lines == ["  endpoint name: localhost:5"],
            "{program}: {more}"
        );
        // The output for programs is the same.
        for field in crate::show::FIELDS {
            let words = ["show", "wg0", field];
            let debian = Call::new(&words).run(Program::Debian)?;
            ensure!(taupe(&words)? == debian, "{field}");
        }
        ensure!(
            taupe(&["showconf", "wg0"])? == Call::new(&["showconf", "wg0"]).run(Program::Debian)?,
            "showconf"
        );
    }
    // Setting an address removes the name.
    let words = ["set", "wg0", "peer", "{P1}", "endpoint", "127.0.0.1:5"];
    let result = taupe(&words)?;
    ensure!(result.status == Some(0), "{result}");
    let more = taupe(&["show", "wg0"])?.out();
    ensure!(!more.contains("endpoint name"), "{more}");
    // A device that does not support names gets none.
    let fake = crate::fake::Fake::start("wf")?;
    fake.answer("errno=0\n\n");
    let words = ["set", "wf", "peer", "{P1}", "endpoint", "localhost:5"];
    let result = taupe(&words)?;
    ensure!(result.status == Some(0), "{result}");
    let requests = fake.requests().concat();
    ensure!(requests.contains("endpoint=127.0.0.1:5\n"), "{requests}");
    ensure!(!requests.contains("localhost"), "{requests}");
    Ok(())
}

/// Taupe's own messages name all positions and remedies at once.
pub(crate) fn messages() -> Result<()> {
    let host = Host::new("a")?;
    let _tunnel = Implementation::Taupe.start(&host, "wg0")?;
    let file = scratch_file(
        "bad.conf",
        &with_keys(
            "[Interface]\nListenPort = x\nAddress = 192.0.2.1/24\n[Peer]\nPublicKey = {P1}\nAllowedIPs = 192.0.2.1/33\n",
        ),
    )?;
    let output = taupe(&["setconf", "wg0", &file])?;
    ensure!(output.status == Some(1), "{output}");
    for place in [":2:", ":3:", ":6:"] {
        let named = format!("{file}{place}");
        ensure!(
            output.err().contains(&named),
            "{place} is not named: {output}"
        );
    }
    for (words, parts) in [
        (
            &["set", "wg0", "listen-port", "x"][..],
            &["listen-port", "65535"][..],
        ),
        (&["set", "wg0", "fwmark", "x"], &["fwmark", "off"]),
        (&["set", "wg0", "frobnicate"], &["frobnicate", "peer"]),
        (&["set", "wg0", "peer", "x"], &["peer", "base64"]),
        (
            &["set", "wg0", "peer", "{P1}", "allowed-ips", "x"],
            &["allowed-ips", "192.0.2.0/24"],
        ),
        (
            &["set", "wg0", "peer", "{P1}", "endpoint", "nosuch.invalid:5"],
            &["nosuch.invalid", "address"],
        ),
        (&["setconf", "wg0", "/nonexistent"], &["/nonexistent"]),
        (&["setconf", "wg0", "/tmp"], &["/tmp", "directory"]),
        (&["show", "nosuch"], &["nosuch", "no such device"]),
    ] {
        let output = taupe(words)?;
        ensure!(output.status == Some(1), "{words:?}: {output}");
        for part in parts {
            ensure!(
                output.err().contains(part),
                "{words:?}, no {part}: {output}"
            );
        }
    }
    Ok(())
}

/// No message of either program repeats a secret.
pub(crate) fn secrets() -> Result<()> {
    let host = Host::new("a")?;
    let _tunnel = Implementation::Taupe.start(&host, "wg0")?;
    // Almost a key: the last digit has too many bits.
    let secret = "YGBgYGBgYGBgYGBgYGBgYGBgYGBgYGBgYGBgYGBgYGB=";
    let files = [
        secret.to_owned(),
        format!("[Interface]\nPrivateKey = {secret}\n"),
        format!("[Interface]\nprivate key={secret}\n"),
        format!("[Interface]\nPrivateKey = \"{secret}\"\n"),
        format!("[Peer]\nPrivateKey = {secret}\n"),
        format!("PrivateKey = {secret}\n"),
        with_keys(&format!(
            "[Peer]\nPublicKey = {{P1}}\nPresharedKey = {secret}\n"
        )),
        with_keys(&format!(
            "[Peer]\nPublicKey = {{P1}}\nPresharedKey = x{secret}\n"
        )),
    ];
    for (index, text) in files.iter().enumerate() {
        let file = scratch_file(&format!("secret{index}"), text)?;
        let calls: [&[&str]; 3] = [
            &["setconf", "wg0", &file],
            &["set", "wg0", "private-key", &file],
            &["set", "wg0", "peer", "{P1}", "preshared-key", &file],
        ];
        for words in calls {
            for output in [taupe(words)?, Call::new(words).run(Program::Taupe)?] {
                ensure!(output.status == Some(1), "{words:?}: {output}");
                let reported =
                    output.err().contains(&secret[..30]) || output.out().contains(&secret[..30]);
                ensure!(!reported, "{words:?}: {output}");
            }
        }
    }
    Ok(())
}
