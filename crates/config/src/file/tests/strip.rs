//! Compares with the output of Debian's `wg-quick strip` (wireguard-tools 1.0.20210914) for the
//! files in `tests/strip`, and with the installed `wg-quick`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{OTHER, OWN, PEER, no_files};
use crate::file::{Dialect, Peer, parse, strip};
use crate::fuzzing::malformed::{hand_written, valid};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/strip")
}

fn files() -> Vec<(PathBuf, Vec<u8>)> {
    let mut files: Vec<_> = fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "conf"))
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect();
    files.sort();
    files
}

fn lossy(text: &[u8]) -> String {
    String::from_utf8_lossy(text).into_owned()
}

#[test]
fn as_observed() {
    let files = files();
    assert!(files.len() >= 13, "{}", files.len());
    for (path, text) in files {
        let expected = fs::read(path.with_extension("stripped")).unwrap();
        let stripped = strip(&text, Dialect::WgQuick, Path::new("/folder"), &no_files);
        assert_eq!(lossy(&stripped), lossy(&expected), "{}", path.display());
        assert_eq!(*stripped, expected, "{}", path.display());
    }
}

#[test]
fn keys_of_taupe_and_the_byte_order_mark_are_removed() {
    for (text, expected) in [
        // Not in [Interface], where `wg` must report an error.
        (
            "[Interface]\nDisallowedIPs = ::/0\n[Peer]\ndisallowedips=::/0\n",
            "[Interface]\nDisallowedIPs = ::/0\n[Peer]\n\n",
        ),
        // Comments stay.
        (
            "[Peer]\n#@ws:DisallowedIPs = ::/0\n",
            "[Peer]\n#@ws:DisallowedIPs = ::/0\n\n",
        ),
        ("\u{feff}[Interface]\nMTU = 1400\n", "[Interface]\n\n"),
    ] {
        assert_eq!(
            lossy(&strip(
                text.as_bytes(),
                Dialect::Taupe,
                Path::new("/folder"),
                &no_files,
            )),
            expected,
            "{text}"
        );
    }
}

#[test]
fn wg_gets_the_allowed_ips_without_the_disallowed_ones() {
    let header = format!("[Interface]\nPrivateKey = {OWN}\n[Peer]\nPublicKey = {PEER}\n");
    for (lines, expected) in [
        (
            "AllowedIPs = 10.0.0.0/8, ::/0\nDisallowedIPs = 10.0.0.0/9, 8000::/1\n",
            "AllowedIPs = 10.128.0.0/9, ::/1\n",
        ),
        // In place of the first line, wherever `DisallowedIPs` stand.
        (
            "  disallowedips=10.0.0.0/9 # x\nallowed ips = 10.0.0.0/8 # x\nEndpoint = 192.0.2.1:5\n\
             ALLOWEDIPS = 11.0.0.0/8\n",
            "AllowedIPs = 10.128.0.0/9, 11.0.0.0/8\nEndpoint = 192.0.2.1:5\n",
        ),
        // In the form of other programs, which is a comment to `wg`.
        (
            "AllowedIPs = 10.0.0.0/8\n#@ws:DisallowedIPs = 10.0.0.0/9\n",
            "AllowedIPs = 10.128.0.0/9\n#@ws:DisallowedIPs = 10.0.0.0/9\n",
        ),
        (
            "#@ws:AllowedIPs = 11.0.0.0/8\nAllowedIPs = 10.0.0.0/8\nDisallowedIPs = 10.0.0.0/9\n",
            "AllowedIPs = 10.128.0.0/9, 11.0.0.0/8\n",
        ),
        // Nothing is excluded; nothing remains.
        (
            "AllowedIPs = 10.0.0.0/24, 10.0.1.0/24\nDisallowedIPs =\n",
            "AllowedIPs = 10.0.0.0/24, 10.0.1.0/24\n",
        ),
        ("AllowedIPs = 10.0.0.0/24\nDisallowedIPs = 0.0.0.0/0\n", ""),
        // Another peer's networks are separate.
        (
            &format!(
                "AllowedIPs = 10.0.0.0/8\n[ peer ]\nPublicKey = {OTHER}\nAllowedIPs = ::/0\n\
                 DisallowedIPs = ::/1\n"
            ),
            &format!(
                "AllowedIPs = 10.0.0.0/8\n[ peer ]\nPublicKey = {OTHER}\nAllowedIPs = 8000::/1\n"
            ),
        ),
    ] {
        let text = format!("{header}{lines}");
        let stripped = strip(
            text.as_bytes(),
            Dialect::Taupe,
            Path::new("/folder"),
            &no_files,
        );
        assert_eq!(lossy(&stripped), format!("{header}{expected}\n"), "{lines}");
        let file = parse(text.as_bytes(), Dialect::Taupe).file.expect(lines);
        let again = parse(&stripped, Dialect::Wg).file.expect(lines);
        let routed = file.peers.iter().map(Peer::routed);
        assert!(routed.eq(again.peers.iter().map(Peer::routed)), "{lines}");
    }
}

#[test]
fn invalid_networks_leave_no_allowed_ips() {
    for lines in [
        "AllowedIPs = 10.0.0.0/8\nDisallowedIPs = 10.0.0.0/33\n",
        "AllowedIPs = 10.0.0.0/8\nDisallowedIPs = 10.0.0.0/9,\n",
        "AllowedIPs = 10.0.0.0/8, x\nDisallowedIPs = 10.0.0.0/9\n",
        "AllowedIPs =\nAllowedIPs = 10.0.0.0/8\nDisallowedIPs = 10.0.0.0/9\n",
    ] {
        let expected = "[Peer]\nAllowedIPs =\n\n";
        for lines in [lines, &lines.replace("Dis", "#@ws:Dis")] {
            let stripped = lossy(&strip(
                format!("[Peer]\n{lines}").as_bytes(),
                Dialect::Taupe,
                Path::new("/folder"),
                &no_files,
            ));
            let plain: Vec<_> = stripped.lines().filter(|l| !l.starts_with('#')).collect();
            assert_eq!(plain.join("\n") + "\n", expected, "{lines}");
        }
    }
    // Neither another peer nor another kind of error matters.
    let text = "[Peer]\nPublicKey = x\nAllowedIPs = ::/0\nDisallowedIPs = ::/1\n\
                [Peer]\nAllowedIPs = x\nMTU = 5\n";
    let expected = "[Peer]\nPublicKey = x\nAllowedIPs = 8000::/1\n\
                    [Peer]\nAllowedIPs = x\nMTU = 5\n\n";
    assert_eq!(
        lossy(&strip(
            text.as_bytes(),
            Dialect::Taupe,
            Path::new("/folder"),
            &no_files,
        )),
        expected
    );
}

/// Removes the folder even if a test fails.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn as_installed() {
    if Command::new("wg-quick").arg("--help").output().is_err() {
        println!("skipped: there is no wg-quick to compare with");
        return;
    }
    let name = format!("taupe-strip-{}", std::process::id());
    let scratch = Scratch(std::env::temp_dir().join(name));
    fs::create_dir(&scratch.0).unwrap();
    let path = scratch.0.join("tp0.conf");
    let observed = files().into_iter().map(|(_, text)| text);
    let malformed = hand_written().into_iter().map(|malformed| malformed.text);
    let texts: Vec<Vec<u8>> = observed
        .chain(malformed)
        .chain((0..50).map(valid))
        .filter(|text| {
            let own = text
                .windows(4)
                .any(|part| part.eq_ignore_ascii_case(b"\ndis"));
            !own && !text.starts_with(b"\xef\xbb\xbf")
        })
        .collect();
    let mut compared = 0;
    for text in &texts {
        fs::write(&path, text).unwrap();
        let output = Command::new("wg-quick")
            .arg("strip")
            .arg(&path)
            .output()
            .unwrap();
        // `wg-quick` refuses a SaveConfig that is neither true nor false.
        if !output.status.success() {
            let found = lossy(&output.stderr);
            assert!(found.contains("neither true nor false"), "{found}");
            continue;
        }
        compared += 1;
        assert_eq!(
            lossy(&strip(
                text,
                Dialect::WgQuick,
                Path::new("/folder"),
                &no_files
            )),
            lossy(&output.stdout),
            "{}",
            lossy(text)
        );
    }
    assert!(compared >= 200, "{compared} of {}", texts.len());
}
