//! Tests of post-quantum handshakes, from the creation of keys to the session.

#![cfg(target_os = "linux")]

#[expect(dead_code, reason = "some of it is for other tests")]
mod sandbox;

use sandbox::{LIMIT, TAUPE, sandboxed};
use std::fs;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

/// Runs a program with arguments and input.
fn run(program: &str, words: &[&str], input: &str) -> Output {
    let mut child = Command::new(program)
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    // A command that reads no input may have ended already.
    let _ = child
        .stdin
        .take()
        .expect("piped")
        .write_all(input.as_bytes());
    child.wait_with_output().expect("ended")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn said(words: &[&str], input: &str) -> String {
    let output = run(TAUPE, words, input);
    let error = text(&output.stderr);
    assert!(output.status.success(), "{words:?}: {error}");
    text(&output.stdout)
}

fn refused(words: &[&str], input: &str) -> String {
    let output = run(TAUPE, words, input);
    assert_eq!(output.status.code(), Some(1), "{words:?}");
    assert!(output.stdout.is_empty(), "{words:?}");
    text(&output.stderr)
}

#[test]
fn keys_are_made_and_have_one_public_key_for_each_suite() {
    let seed = said(&["genkey", "--pq"], "");
    assert_eq!(seed.len(), 89, "{seed}");
    assert!(seed.ends_with("==\n"));
    assert_ne!(seed, said(&["genkey", "--pq"], ""));
    let public = said(&["pubkey", "--pq"], &seed);
    assert_eq!(public.len(), 1581);
    for (words, length) in [
        (&["pubkey", "--pq", "--suite", "hybrid-768"][..], 1581),
        (&["pubkey", "--pq", "--suite=hybrid-768"], 1581),
        (&["pubkey", "--pq", "--suite", "hybrid-512"], 1069),
    ] {
        let key = said(words, &seed);
        assert_eq!(
            (key.len(), key == public),
            (length, length == 1581),
            "{words:?}"
        );
        assert_eq!(key, said(words, seed.trim_end()), "{words:?}");
    }
}

#[test]
fn what_is_no_key_is_refused_and_not_repeated() {
    let seed = said(&["genkey", "--pq"], "");
    let classic = said(&["genkey"], "");
    let public = said(&["pubkey", "--pq"], &seed);
    for input in [
        "",
        "x",
        &classic,
        &public,
        &format!("{seed}x"),
        &"A".repeat(88),
    ] {
        let error = refused(&["pubkey", "--pq"], input);
        assert!(error.contains("`taupe genkey --pq`"), "{error}");
        let begin = input.get(..12).unwrap_or("(nothing)");
        assert!(!error.contains(begin), "{error}");
    }
    let error = refused(&["pubkey"], &seed);
    assert!(error.contains("`taupe pubkey --pq`"), "{error}");
    for words in [
        &["genkey", "--pq", "x"][..],
        &["genkey", "pq"],
        &["pubkey", "--pq", "--suite"],
        &["pubkey", "--suite", "hybrid-768"],
    ] {
        assert!(refused(words, "").starts_with("Usage: taupe "), "{words:?}");
    }
    let error = refused(&["pubkey", "--pq", "--suite", "hybrid-light"], &seed);
    assert!(error.contains("has no keys"), "{error}");
}

#[test]
fn a_key_that_everybody_could_read_is_warned_of() {
    let path = std::env::temp_dir().join(format!("taupe-pq-key-{}", std::process::id()));
    let script = r#"umask 022; "$0" genkey --pq > "$1""#;
    let shell = run(
        "sh",
        &["-c", script, TAUPE, &path.display().to_string()],
        "",
    );
    let _ = fs::remove_file(path);
    assert!(text(&shell.stderr).contains("world accessible"));
}

/// `wg` has no such keys.
#[test]
fn as_wg_nothing_is_added() {
    let folder = std::env::temp_dir().join(format!("taupe-pq-wg-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("folder");
    let wg = folder.join("wg");
    std::os::unix::fs::symlink(TAUPE, &wg).expect("linked");
    let wg = wg.display().to_string();
    for (words, expected) in [
        (&["genkey", "--pq"][..], format!("Usage: {wg} genkey\n")),
        (&["pubkey", "--pq"], format!("Usage: {wg} pubkey\n")),
        (
            &["set", "wg9", "pq-private-key", "/dev/null"],
            "Invalid argument: pq-private-key\n".to_owned(),
        ),
    ] {
        let output = run(&wg, words, "");
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        assert_eq!(text(&output.stderr), expected, "{words:?}");
    }
    fs::remove_dir_all(folder).expect("removed");
}

/// One end of a tunnel on the loopback interface.
struct Side {
    name: &'static str,
    public: String,
    pq_public: String,
}

impl Side {
    fn start(name: &'static str, port: &str) -> Self {
        said(&["device", name], "");
        let link = run("ip", &["link", "set", name, "up"], "");
        assert!(link.status.success(), "{}", text(&link.stderr));
        let keys = [said(&["genkey"], ""), said(&["genkey", "--pq"], "")];
        let files = ["", ".pq"].map(|end| format!("/run/{name}.key{end}"));
        for (file, key) in files.iter().zip(&keys) {
            fs::write(file, key).expect("written");
        }
        let [file, pq_file] = &files;
        let words = ["set", name, "listen-port", port, "private-key", file];
        said(&[&words[..], &["pq-private-key", pq_file]].concat(), "");
        let public = said(&["pubkey"], &keys[0]).trim().to_owned();
        let pq_public = said(&["pubkey", "--pq"], &keys[1]);
        fs::write(format!("/run/{name}.pub.pq"), &pq_public).expect("written");
        Self {
            name,
            public,
            pq_public,
        }
    }

    /// Adds the peer and sends to it.
    fn meet(&self, peer: &Self, port: &str, words: &[&str], input: &str) {
        let endpoint = format!("127.0.0.1:{port}");
        let first = [
            "set",
            self.name,
            "peer",
            &peer.public,
            "endpoint",
            &endpoint,
        ];
        let last = ["persistent-keepalive", "1"];
        said(&[&first[..], words, &last].concat(), input);
    }

    /// Waits until `show` prints this line.
    fn shows(&self, line: &str) {
        let begin = Instant::now();
        loop {
            let shown = said(&["show", self.name], "");
            if shown.lines().any(|one| one == line) {
                return;
            }
            assert!(begin.elapsed() < LIMIT, "no {line:?} in:\n{shown}");
            std::thread::sleep(LIMIT / 300);
        }
    }
}

#[test]
fn what_a_session_has_is_shown() {
    sandboxed("what_a_session_has_is_shown", || {
        assert!(run("ip", &["link", "set", "lo", "up"], "").status.success());
        let [a, b] = [("wg0", "1001"), ("wg1", "1002")].map(|(name, port)| Side::start(name, port));
        // One side reads the peer's key from a file, the other from standard input.
        a.meet(&b, "1002", &["pq-public-key", "/run/wg1.pub.pq"], "");
        a.shows("  post-quantum: none (no session; ordinary handshakes are refused)");
        b.meet(&a, "1001", &["pq-public-key", "-"], &a.pq_public);
        for side in [&a, &b] {
            side.shows("  post-quantum: hybrid-768");
        }
        // Each side shows the other's fingerprint, but not the key.
        let [shown_a, shown_b] = [&a, &b].map(|side| said(&["show", side.name], ""));
        let fingerprints = |shown: &str| -> Vec<String> {
            let lines = shown.lines();
            let keys = lines.filter_map(|line| line.strip_prefix("  post-quantum key: "));
            keys.map(|key| key.replace(" (hybrid-768)", "")).collect()
        };
        let mut of_a = fingerprints(&shown_a);
        of_a.reverse();
        assert_eq!((of_a.len(), of_a), (2, fingerprints(&shown_b)));
        assert!(!shown_a.contains(&b.pq_public[..40]), "{shown_a}");

        // The output for programs is the same as that of `wg`.
        let dump = said(&["show", "wg0", "dump"], "");
        let fields: Vec<usize> = dump.lines().map(|line| line.split('\t').count()).collect();
        assert_eq!(fields, [4, 8], "{dump}");

        // Applying the shown configuration changes nothing. A configuration without the keys
        // removes them.
        let conf = said(&["showconf", "wg0"], "");
        assert!(conf.contains("\n#@taupe:PqPublicKey = "), "{conf}");
        fs::write("/run/whole.conf", &conf).expect("written");
        said(&["syncconf", "wg0", "/run/whole.conf"], "");
        a.shows("  post-quantum: hybrid-768");
        assert_eq!(said(&["showconf", "wg0"], ""), conf);
        said(&["setconf", "wg0", "/run/whole.conf"], "");
        assert_eq!(said(&["showconf", "wg0"], ""), conf);
        let lines = conf.lines().filter(|line| !line.starts_with("#@taupe:"));
        let without: Vec<&str> = lines.collect();
        fs::write("/run/without.conf", without.join("\n")).expect("written");
        for command in ["syncconf", "setconf"] {
            said(&["setconf", "wg0", "/run/whole.conf"], "");
            said(&[command, "wg0", "/run/without.conf"], "");
            let shown = said(&["show", "wg0"], "");
            assert!(!shown.contains("post-quantum"), "{command}: {shown}");
        }
    });
}

#[test]
fn what_has_fallen_back_is_said() {
    sandboxed("what_has_fallen_back_is_said", || {
        assert!(run("ip", &["link", "set", "lo", "up"], "").status.success());
        let [a, b] = [("wg0", "1001"), ("wg1", "1002")].map(|(name, port)| Side::start(name, port));
        b.meet(&a, "1001", &[], "");
        let words = ["pq-public-key", "/run/wg1.pub.pq", "post-quantum", "prefer"];
        a.meet(&b, "1002", &words, "");
        a.shows(
            "  post-quantum: none (prefer has fallen back to an ordinary session; no hybrid \
             handshake with the peer is recorded)",
        );
        // Changing the private key ends the session.
        let other = said(&["genkey"], "");
        fs::write("/run/other.key", other).expect("written");
        said(&["set", "wg0", "private-key", "/run/other.key"], "");
        a.shows("  post-quantum: none (no session)");
        said(&["set", "wg0", "private-key", "/run/wg0.key"], "");
        a.shows(
            "  post-quantum: none (prefer has fallen back to an ordinary session; no hybrid \
             handshake with the peer is recorded)",
        );
        // The other side has no post-quantum setting to show.
        assert!(!said(&["show", "wg1"], "").contains("  post-quantum: "));
        let words = ["set", "wg0", "peer", &b.public, "post-quantum", "off"];
        said(&words, "");
        a.shows("  post-quantum: none (off)");
        let key = ["set", "wg0", "peer", &b.public, "pq-public-key"];
        let error = refused(&[&key[..], &["/run/wg1.key.pq"]].concat(), "");
        assert!(
            error.contains("private ML-KEM key, which must stay secret"),
            "{error}"
        );
        let error = refused(&[&key[..], &["/run/nothing"]].concat(), "");
        assert!(error.contains("No such file"), "{error}");
        let error = refused(&[&words[..5], &["maybe"]].concat(), "");
        assert!(error.contains("require, prefer, off or default"), "{error}");
        let published = refused(&[&words[..5], &["repro:k512+tk512"]].concat(), "");
        assert!(
            published.contains("require, prefer, off or default"),
            "{published}"
        );
    });
}

#[test]
fn a_file_s_tunnel_has_what_the_file_says() {
    sandboxed("a_file_s_tunnel_has_what_the_file_says", || {
        assert!(run("ip", &["link", "set", "lo", "up"], "").status.success());
        let b = Side::start("wg1", "1002");
        fs::create_dir_all("/run/conf/keys").expect("folder");
        fs::write("/run/conf/keys/b.pub.pq", &b.pq_public).expect("written");
        let [key, seed] = [said(&["genkey"], ""), said(&["genkey", "--pq"], "")];
        let file = |peer: &str| {
            let text = format!(
                "[Interface]\nPrivateKey = {key}Address = 10.7.0.1/24\n#@taupe:PqPrivateKey = {seed}\
                 [Peer]\nPublicKey = {}\nAllowedIPs = 10.7.0.2\nEndpoint = 127.0.0.1:1002\n\
                 PersistentKeepalive = 1\n{peer}\n",
                b.public
            );
            fs::write("/run/conf/wg0.conf", text).expect("written");
        };
        let conf = "/run/conf/wg0.conf";
        file("PqPublicKey = file:keys/other.pub.pq");
        let error = refused(&["up", conf], "");
        assert!(
            error.contains("wg0.conf:10:15: error: the key file of PqPublicKey"),
            "{error}"
        );
        assert!(error.contains("starts at the folder"), "{error}");

        file("PostQuantum = repro:k512+tk512");
        let error = refused(&["up", conf], "");
        assert!(
            error.contains("wg0.conf:10:15: error: PostQuantum is not require, prefer or off"),
            "{error}"
        );

        file("PqPublicKey = file:keys/b.pub.pq");
        said(&["check", conf], "");
        let pq = said(&["pubkey", "--pq"], &seed);
        fs::write("/run/a.pub.pq", pq).expect("written");
        let public = said(&["pubkey"], &key);
        let words = [
            "set",
            "wg1",
            "peer",
            public.trim(),
            "pq-public-key",
            "/run/a.pub.pq",
        ];
        said(&words, "");
        said(&["up", conf], "");
        let begin = Instant::now();
        let status = loop {
            let status = said(&["status", "--json", "wg0"], "");
            if status.contains("\"hybrid-768\"") || begin.elapsed() > LIMIT {
                break status;
            }
            std::thread::sleep(LIMIT / 300);
        };
        let member = "\"post_quantum\": {\n            \"wanted\": \"require\",\n";
        assert!(status.contains(member), "{status}");
        assert!(status.contains("\"suite\": \"hybrid-768\""), "{status}");
        let status = said(&["status", "wg0"], "");
        assert!(status.contains(", post-quantum: hybrid-768\n"), "{status}");

        // The stripped file is the tunnel's configuration.
        fs::write("/run/stripped.conf", said(&["strip", conf], "")).expect("written");
        said(&["syncconf", "wg0", "/run/stripped.conf"], "");
        let show = said(&["show", "wg0"], "");
        assert!(show.contains("  post-quantum: hybrid-768\n"), "{show}");

        file("PostQuantum = off");
        said(&["reload", conf], "");
        let show = said(&["show", "wg0"], "");
        assert!(show.contains("  post-quantum: none (off)\n"), "{show}");
        said(&["down", conf], "");
    });
}

#[test]
fn a_side_without_a_key_of_its_own_says_so() {
    sandboxed("a_side_without_a_key_of_its_own_says_so", || {
        const LINE: &str = "  post-quantum: none (no PqPrivateKey: this peer needs a hybrid \
                            handshake, so no handshake can begin)";
        assert!(run("ip", &["link", "set", "lo", "up"], "").status.success());
        let b = Side::start("wg1", "1002");
        let log = fs::File::create("/run/log").expect("a file");
        let mut device = Command::new(TAUPE);
        device.args(["device", "-f", "wg0"]).stderr(log);
        let mut device = sandbox::Killed(device.spawn().expect("started"));
        let warned = || text(&fs::read("/run/log").expect("a log"));
        let begin = Instant::now();
        loop {
            let show = run(TAUPE, &["show", "wg0"], "");
            if show.status.success() {
                break;
            }
            let (why, ended) = (text(&show.stderr), device.0.try_wait());
            let waits = begin.elapsed() < LIMIT;
            assert!(waits, "no device: {why}: {ended:?}: {}", warned());
            std::thread::sleep(LIMIT / 300);
        }
        let a = Side {
            name: "wg0",
            public: String::new(),
            pq_public: String::new(),
        };
        let link = run("ip", &["link", "set", "wg0", "up"], "");
        assert!(link.status.success(), "{}", text(&link.stderr));
        // The interface's own keys may be set after the peer.
        for rule in ["prefer", "require"] {
            let words = ["pq-public-key", "/run/wg1.pub.pq", "post-quantum", rule];
            a.meet(&b, "1002", &words, "");
            a.shows(LINE);
        }
        let log = warned();
        assert_eq!(log.matches("no PqPrivateKey").count(), 2, "{log}");
        assert!(log.contains(&b.public), "{log}");
        let seed = said(&["genkey", "--pq"], "");
        fs::write("/run/wg0.key.pq", seed).expect("written");
        said(&["set", "wg0", "pq-private-key", "/run/wg0.key.pq"], "");
        a.shows("  post-quantum: none (no session; ordinary handshakes are refused)");
        said(&["set", "wg0", "pq-private-key", "/dev/null"], "");
        a.shows(LINE);
        assert_eq!(warned().matches("no PqPrivateKey").count(), 3);
        // A peer with `off` causes no warning either.
        let words = ["set", "wg0", "peer", &b.public, "post-quantum", "off"];
        said(&words, "");
        a.shows("  post-quantum: none (off)");
        assert_eq!(warned().matches("no PqPrivateKey").count(), 3);
    });
}

#[test]
fn a_tunnel_without_a_key_of_its_own_is_degraded() {
    sandboxed("a_tunnel_without_a_key_of_its_own_is_degraded", || {
        let pq = said(&["pubkey", "--pq"], &said(&["genkey", "--pq"], ""));
        let public = said(&["pubkey"], &said(&["genkey"], ""));
        let [key, seed] = [said(&["genkey"], ""), said(&["genkey", "--pq"], "")];
        let file = format!(
            "[Interface]\nPrivateKey = {key}PqPrivateKey = {seed}[Peer]\nPublicKey = {public}\
             PqPublicKey = {pq}AllowedIPs = 10.7.0.2\n"
        );
        fs::write("/run/wg0.conf", file).expect("written");
        said(&["up", "/run/wg0.conf"], "");
        let status = |words: &[&str], code| {
            let output = run(TAUPE, &[&["status"], words].concat(), "");
            assert_eq!(output.status.code(), Some(code), "{output:?}");
            text(&output.stdout)
        };
        status(&["wg0"], 0);
        said(&["set", "wg0", "pq-private-key", "/dev/null"], "");
        let shown = status(&["wg0"], 2);
        assert!(shown.contains("no handshake is possible"), "{shown}");
        let json = status(&["--json", "wg0"], 2);
        for member in [
            "\"code\": \"no-pq-private-key\"",
            "\"session\": null",
            "\"text\": \"none (no PqPrivateKey",
        ] {
            assert!(json.contains(member), "{member}: {json}");
        }
        said(&["down", "/run/wg0.conf"], "");
    });
}

#[test]
fn a_record_that_cannot_be_read_is_not_taken_for_none() {
    sandboxed("a_record_that_cannot_be_read_is_not_taken_for_none", || {
        const RECORDS: &str = "/var/lib/taupe/post-quantum";
        fs::create_dir_all("/var/lib/taupe").expect("a folder");
        fs::write(RECORDS, "").expect("a file in the folder's place");
        let public = said(&["pubkey"], &said(&["genkey"], ""));
        let key = said(&["genkey"], "");
        let file = |rule: &str| {
            let text = format!(
                "[Interface]\nPrivateKey = {key}[Peer]\nPublicKey = {public}AllowedIPs = 10.7.0.2\n\
                 PostQuantum = {rule}\n"
            );
            fs::write("/run/wg0.conf", text).expect("written");
        };
        file("prefer");
        let error = refused(&["up", "/run/wg0.conf"], "");
        assert!(error.contains(RECORDS), "{error}");
        assert!(error.contains("PostQuantum = require"), "{error}");
        assert!(!run("ip", &["link", "show", "wg0"], "").status.success());
        // A peer that does not depend on the state still works, and cannot be changed to one that
        // does.
        file("require");
        said(&["up", "/run/wg0.conf"], "");
        let peer = ["set", "wg0", "peer", public.trim(), "post-quantum"];
        let error = refused(&[&peer[..], &["prefer"]].concat(), "");
        assert!(error.contains(RECORDS), "{error}");
        let show = said(&["show", "wg0"], "");
        assert!(show.contains("ordinary handshakes are refused"), "{show}");
        fs::remove_file(RECORDS).expect("removed");
        said(&[&peer[..], &["prefer"]].concat(), "");
        said(&["down", "/run/wg0.conf"], "");
    });
}
