//! The keys of hybrid handshakes.

use taupe_protocol::crypto::{Secret, default_provider};
use taupe_protocol::update::{DeviceStatus, Suite};
use zeroize::Zeroizing;

use super::*;
use crate::fuzzing::same_file;
use crate::key::{Encoding, PqKeyError};
use crate::show;
use crate::uapi::{Device, push_peer};

fn seed(byte: u8) -> PqPrivateKey {
    PqPrivateKey::new(Secret::new([byte; 64])).expect("not zero")
}

fn public(byte: u8, parameters: Suite) -> PqPublicKey {
    seed(byte).public(default_provider(), parameters)
}

fn base64(key: &PqPublicKey) -> String {
    Encoding::Base64.encode_pq_public_key(key)
}

/// The file of a tunnel with a seed, and lines of its only peer.
fn text(peer: &str) -> String {
    let own = Encoding::Base64.encode_pq_private_key(&seed(8));
    format!(
        "[Interface]\nPrivateKey = {OWN}\nPqPrivateKey = {}\n[Peer]\nPublicKey = {PEER}\n\
         AllowedIPs = ::/0\n{peer}\n",
        own.as_str()
    )
}

/// A folder with one key.
fn in_folder(text: &str, dialect: Dialect) -> Parsed {
    parse_with(text.as_bytes(), dialect, &|path| match path {
        "keys/peer.pq" | "/folder/keys/peer.pq" => {
            let key = base64(&public(1, Suite::Hybrid768));
            Ok(Zeroizing::new(format!("{key}\n").into_bytes()))
        }
        "seed.pq" => Ok(Zeroizing::new(
            Encoding::Base64
                .encode_pq_private_key(&seed(3))
                .as_bytes()
                .to_vec(),
        )),
        "long" => Err(KeyFileProblem::TooLong),
        "binary" => Ok(Zeroizing::new(vec![0xff; 1580])),
        _ => Err(KeyFileProblem::Unreadable("No such file".to_owned())),
    })
}

fn only(parsed: &Parsed) -> &Diagnostic {
    match parsed.diagnostics.as_slice() {
        [one] => one,
        all => panic!("{} diagnostics: {all:?}", all.len()),
    }
}

#[test]
fn bare_or_behind_a_mark() {
    for mark in ["", "#@taupe:"] {
        for suite in [Suite::Hybrid768, Suite::Hybrid512] {
            let key = public(1, suite);
            let line = format!(
                "{mark}PqPublicKey = {}\n{mark}postquantum = Prefer",
                base64(&key)
            );
            let text = text(&line).replace("PqPrivateKey", &format!("{mark}PqPrivateKey"));
            let file = clean(&text);
            assert!(file.interface.pq_private_key == Some(seed(8)));
            let [peer] = file.peers.as_slice() else {
                panic!("not one peer");
            };
            let read = peer.pq_public_key.as_ref().expect("a key");
            assert_eq!(read.key, key);
            assert_eq!(read.key.suite(), suite);
            assert_eq!(peer.post_quantum, Some(PostQuantum::Prefer));
            let again = clean(&print(&file));
            assert!(same_file(&file, &again));
        }
    }
    // It begins as a path does.
    let slashes = Encoding::Base64.encode_pq_private_key(&seed(0xff));
    let own = Encoding::Base64.encode_pq_private_key(&seed(8));
    let file = clean(&text("").replace(own.as_str(), &slashes));
    assert!(file.interface.pq_private_key == Some(seed(0xff)));
    let file = clean(&text("PostQuantum = off"));
    assert_eq!(file.peers[0].post_quantum, Some(PostQuantum::Off));
    assert!(file.peers[0].pq_public_key.is_none());
}

#[test]
fn without_the_peer_s_key_it_is_said_what_that_means() {
    for word in ["require", "prefer"] {
        let parsed = quick(&text(&format!("PostQuantum = {word}")));
        let one = only(&parsed);
        assert_eq!(one.kind, DiagnosticKind::LightHandshakes);
        assert_eq!(
            (one.line, one.column, one.severity),
            (7, 15, Severity::Warning)
        );
        assert!(parsed.file.is_some());
    }
}

#[test]
fn an_own_key_must_be_there() {
    let key = base64(&public(1, Suite::Hybrid768));
    let line = format!("PqPublicKey = {key}");
    let without = |peer: &str, hook: &str| {
        let text = text(peer);
        let lines = text
            .lines()
            .filter(|line| !line.starts_with("PqPrivateKey"));
        let mut lines: Vec<&str> = lines.collect();
        lines.insert(2, hook);
        quick(&lines.join("\n"))
    };
    let parsed = without(&line, "# no hook");
    let one = only(&parsed);
    assert_eq!(one.kind, DiagnosticKind::NoPqPrivateKey);
    assert_eq!(
        (one.line, one.column, one.severity),
        (7, 15, Severity::Error)
    );
    assert!(one.kind.fix("taupe").contains("`taupe genkey --pq`"));
    let off = format!("{line}\nPostQuantum = off");
    let hook = "PostUp = taupe set %i pq-private-key /etc/seed";
    for parsed in [without(&off, ""), without(&line, hook)] {
        assert_eq!(parsed.diagnostics, []);
    }
}

#[test]
fn a_key_may_be_in_a_file() {
    let with = |path: &str| text(&format!("PqPublicKey = file:{path} # x"));
    let parsed = in_folder(&with("keys/peer.pq"), Dialect::Taupe);
    assert_eq!(parsed.diagnostics, []);
    let file = parsed.file.expect("a file");
    let expected = PeerPqKey {
        key: public(1, Suite::Hybrid768),
        file: Some("keys/peer.pq".to_owned()),
    };
    assert_eq!(file.peers[0].pq_public_key.as_ref(), Some(&expected));
    let again = in_folder(&print(&file), Dialect::Taupe)
        .file
        .expect("a file");
    assert!(same_file(&file, &again));

    let key = Key::PqPublicKey;
    for (path, kind) in [
        (
            "nothing",
            DiagnosticKind::KeyFile {
                problem: KeyFileProblem::Unreadable("No such file".to_owned()),
            },
        ),
        (
            "long",
            DiagnosticKind::KeyFile {
                problem: KeyFileProblem::TooLong,
            },
        ),
        (
            "seed.pq",
            DiagnosticKind::NotAPqKey {
                key,
                problem: PqKeyError::PrivateForPublic,
            },
        ),
        (
            "binary",
            DiagnosticKind::NotAPqKey {
                key,
                problem: PqKeyError::Character { position: 1 },
            },
        ),
    ] {
        let parsed = in_folder(&with(path), Dialect::Taupe);
        let one = only(&parsed);
        assert_eq!(one.kind, kind);
        assert_eq!((one.line, one.column), (7, 15));
        assert!(parsed.file.is_none());
    }
    // Who has no files refuses: without the key the handshake would be a weaker one.
    let parsed = quick(&with("keys/peer.pq"));
    let problem = KeyFileProblem::NotHere;
    assert_eq!(only(&parsed).kind, DiagnosticKind::KeyFile { problem });
}

#[test]
fn a_seed_is_in_no_diagnostic() {
    let secret = Encoding::Base64.encode_pq_private_key(&seed(8));
    let secret = secret.as_str();
    for lines in [
        format!("PqPublicKey = {secret}"),
        format!("PresharedKey = {secret}"),
        format!("PqPublicKey = file:{secret}"),
        format!("PqPublicKey {secret}"),
        secret.to_owned(),
        format!("PqPrivateKey = {secret}"),
        format!("PostQuantum = {secret}"),
    ] {
        let parsed = quick(&text(&lines));
        assert!(parsed.file.is_none(), "{lines}");
        for one in &parsed.diagnostics {
            let told = format!("{} {one:?}", one.told("taupe"));
            assert!(!told.contains(&secret[..12]), "{told}");
        }
    }
}

/// As to other keys of Taupe's, `wg-quick` is told of them, and `wg` reads over comments.
#[test]
fn other_dialects() {
    let key = base64(&public(1, Suite::Hybrid512));
    let bare = text(&format!("PqPublicKey = {key}\nPostQuantum = require"));
    let marked = bare
        .replace("\nPq", "\n#@taupe:Pq")
        .replace("\nPost", "\n#@taupe:Post");
    let kinds = |text: &str, dialect| -> Vec<String> {
        let parsed = parse(text.as_bytes(), dialect);
        assert_eq!(
            parsed.file.is_none(),
            text == bare && dialect != Dialect::Setconf
        );
        parsed.diagnostics.iter().map(name).collect()
    };
    assert_eq!(kinds(&bare, Dialect::Quick), ["NotForQuick"; 3]);
    assert_eq!(kinds(&bare, Dialect::Wg), ["NotForWg"; 3]);
    assert_eq!(kinds(&marked, Dialect::Quick), ["NotForQuick"; 3]);
    assert_eq!(kinds(&marked, Dialect::Wg), [""; 0]);
    for text in [&bare, &marked] {
        assert_eq!(kinds(text, Dialect::Setconf), [""; 0]);
        let file = parse(text.as_bytes(), Dialect::Setconf)
            .file
            .expect("a file");
        assert!(file.interface.pq_private_key == Some(seed(8)));
        assert_eq!(file.peers[0].post_quantum, Some(PostQuantum::Require));
        assert!(file.peers[0].pq_public_key.is_some());
    }
    // Other comments of Taupe's are none of a device's.
    let apps = format!("{marked}#@taupe:AllowedApps = curl\n#@ws:KillSwitch = nonsense\n");
    assert_eq!(kinds(&apps, Dialect::Setconf), [""; 0]);
}

#[test]
fn stripped_they_are_comments_that_taupe_reads() {
    let lines = "PqPublicKey = file: keys/peer.pq # of a\n #@taupe: postquantum=prefer";
    let stripped = strip(text(lines).as_bytes(), Dialect::Taupe, Path::new("/folder"));
    let stripped = core::str::from_utf8(&stripped).expect("text");
    let own = Encoding::Base64.encode_pq_private_key(&seed(8));
    let expected = format!(
        "[Interface]\nPrivateKey = {OWN}\n#@taupe:PqPrivateKey = {}\n[Peer]\nPublicKey = {PEER}\n\
         AllowedIPs = ::/0\n#@taupe:PqPublicKey = file: /folder/keys/peer.pq # of a\n\
         #@taupe:postquantum=prefer\n\n",
        own.as_str()
    );
    assert_eq!(stripped, expected);
    let read = in_folder(stripped, Dialect::Setconf);
    assert_eq!(read.diagnostics, []);
    let whole = in_folder(&text(lines), Dialect::Taupe)
        .file
        .expect("a file");
    let read = read.file.expect("a file");
    let key = |file: &File| {
        file.peers[0]
            .pq_public_key
            .as_ref()
            .map(|key| key.key.clone())
    };
    assert_eq!(key(&read), key(&whole));
    assert_eq!(read.peers[0].post_quantum, Some(PostQuantum::Prefer));
    assert!(parse(stripped.as_bytes(), Dialect::Wg).file.is_some());
    // For `wg-quick` they stay, so that `wg` says that they are an error.
    let quick = strip(text(lines).as_bytes(), Dialect::Quick, Path::new("/folder"));
    assert!(quick.windows(14).any(|part| part == b"\nPqPublicKey ="));
}

#[test]
fn what_runs_is_saved_and_shown_as_a_file() {
    let mut peers = Vec::new();
    push_peer(&mut peers, PublicKey([1; 32]));
    peers[0].pq_public_key = Some(public(1, Suite::Hybrid768));
    peers[0].post_quantum = Some(PostQuantum::Prefer);
    peers[0].allowed_ips = vec![crate::prefix::parse("::/0").expect("a network")];
    let status = DeviceStatus {
        private_key: PrivateKey::new([8; 32]),
        pq_private_key: Some(seed(8)),
        peers,
    };
    let old = in_folder(&text("PqPublicKey = file:keys/peer.pq"), Dialect::Taupe);
    let old = old.file.expect("a file");
    let save_as = |status: &DeviceStatus| {
        let current = Current {
            status,
            listen_port: 0,
            fwmark: 0,
            addresses: &[],
            dns: &[],
            dns_search: &[],
            mtu: 1420,
        };
        save(&old, &current).to_string()
    };
    let saved = save_as(&status);
    let own = Encoding::Base64.encode_pq_private_key(&seed(8));
    let seed_line = format!("\n#@taupe:PqPrivateKey = {}\n", own.as_str());
    assert!(saved.contains(&seed_line), "{saved}");
    // The file of the key, as long as it is the device's.
    let file_line = "\n#@taupe:PqPublicKey = file:keys/peer.pq\n#@taupe:PostQuantum = prefer\n";
    assert!(saved.contains(file_line), "{saved}");
    let other = public(2, Suite::Hybrid768);
    let mut device = Device::new("wg0");
    device.status = status;
    device.status.peers[0].pq_public_key = Some(other.clone());
    let key_line = format!("\n#@taupe:PqPublicKey = {}\n", base64(&other));
    let saved = save_as(&device.status);
    assert!(saved.contains(&key_line), "{saved}");

    let mut shown = String::new();
    show::showconf(&mut shown, &device, true, &|_| None).expect("a String takes everything");
    let file = parse(shown.as_bytes(), Dialect::Setconf)
        .file
        .expect("a file");
    assert!(file.interface.pq_private_key == Some(seed(8)));
    let key = file.peers[0].pq_public_key.as_ref().map(|key| &key.key);
    assert_eq!(key, Some(&other));
    assert_eq!(file.peers[0].post_quantum, Some(PostQuantum::Prefer));
    // `wg` prints what `wg` knows.
    let mut shown = String::new();
    show::showconf(&mut shown, &device, false, &|_| None).expect("a String takes everything");
    assert!(!shown.contains('#'));
    assert!(parse(shown.as_bytes(), Dialect::Wg).file.is_some());
}
