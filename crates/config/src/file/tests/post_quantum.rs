//! Post-quantum keys in files.

use taupe_protocol::crypto::{Secret, default_provider};
use taupe_protocol::update::{DeviceStatus, Suite};
use zeroize::Zeroizing;

use super::*;
use crate::fuzzing::same_file;
use taupe_uapi::key::{Encoding, PqKeyError};
use taupe_uapi::show;
use taupe_uapi::{Device, push_peer};

fn seed(byte: u8) -> PqPrivateKey {
    PqPrivateKey::new(Secret::new([byte; 64])).expect("not zero")
}

fn public(byte: u8, parameters: Suite) -> PqPublicKey {
    seed(byte).public(default_provider(), parameters)
}

fn base64(key: &PqPublicKey) -> String {
    Encoding::Base64.encode_pq_public_key(key)
}

/// Returns the file of a tunnel with a seed, and lines of its only peer.
fn text(peer: &str) -> String {
    let own = Encoding::Base64.encode_pq_private_key(&seed(8));
    format!(
        "[Interface]\nPrivateKey = {OWN}\nPqPrivateKey = {}\n[Peer]\nPublicKey = {PEER}\n\
         AllowedIPs = ::/0\n{peer}\n",
        own.as_str()
    )
}

/// Parses with a folder of key files.
fn in_folder(text: &str, dialect: Dialect) -> Parsed {
    parse_with(text.as_bytes(), dialect, &folder)
}

fn folder(path: &str) -> Result<KeyFile, KeyFileProblem> {
    let seed_3 = Encoding::Base64.encode_pq_private_key(&seed(3));
    let (text, others) = match path {
        "keys/peer.pq" | "/folder/keys/peer.pq" => (
            format!("{}\n", base64(&public(1, Suite::Hybrid768))).into_bytes(),
            0o4,
        ),
        "seed.pq" | "/folder/seed.pq" => (seed_3.as_bytes().to_vec(), 0),
        "own.key" | "/keys/own.key" => (format!("{OWN}\r\n").into_bytes(), 0),
        "open.key" => (OWN.into(), 0o4),
        "psk" => (OTHER.into(), 0),
        "long" => return Err(KeyFileProblem::TooLong),
        "binary" => (vec![0xff; 1580], 0),
        "short" => (b"abc".to_vec(), 0),
        _ => return Err(KeyFileProblem::Unreadable("No such file".to_owned())),
    };
    let text = Zeroizing::new(text);
    Ok(KeyFile { text, others })
}

fn only(parsed: &Parsed) -> &Diagnostic {
    match parsed.diagnostics.as_slice() {
        [one] => one,
        all => panic!("{} diagnostics: {all:?}", all.len()),
    }
}

#[test]
fn keys_with_and_without_a_comment_prefix() {
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
    // The key begins like a path.
    let slashes = Encoding::Base64.encode_pq_private_key(&seed(0xff));
    let own = Encoding::Base64.encode_pq_private_key(&seed(8));
    let file = clean(&text("").replace(own.as_str(), &slashes));
    assert!(file.interface.pq_private_key == Some(seed(0xff)));
    let file = clean(&text("PostQuantum = off"));
    assert_eq!(file.peers[0].post_quantum, Some(PostQuantum::Off));
    assert!(file.peers[0].pq_public_key.is_none());
}

#[test]
fn a_peer_without_an_ml_kem_key_gives_a_warning() {
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
fn a_private_ml_kem_key_is_required() {
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
    assert_eq!(one.kind.needed_key(), Some(Key::PqPrivateKey));
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
                key,
                problem: KeyFileProblem::Unreadable("No such file".to_owned()),
            },
        ),
        (
            "long",
            DiagnosticKind::KeyFile {
                key,
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
            DiagnosticKind::KeyFile {
                key,
                problem: KeyFileProblem::NotText,
            },
        ),
    ] {
        let parsed = in_folder(&with(path), Dialect::Taupe);
        let one = only(&parsed);
        assert_eq!(one.kind, kind);
        assert_eq!((one.line, one.column), (7, 15));
        assert!(parsed.file.is_none());
    }
    // Without access to files, the file is refused: if the key were left out, the handshake would
    // be weaker.
    let parsed = quick(&with("keys/peer.pq"));
    let problem = KeyFileProblem::NoFileAccess;
    assert_eq!(only(&parsed).kind, DiagnosticKind::KeyFile { key, problem });
}

/// A file whose secret keys are in separate files.
const IN_FILES: &str = "[Interface]\nPrivateKey = file:own.key\nPqPrivateKey = file: seed.pq # x\n\
                        [Peer]\nPublicKey = PEER\nPresharedKey = file:psk\nAllowedIPs = ::/0\n";

#[test]
fn secret_keys_may_be_in_files() {
    let text = IN_FILES.replace("PEER", PEER);
    for dialect in [Dialect::Taupe, Dialect::Setconf] {
        let parsed = in_folder(&text, dialect);
        assert_eq!(parsed.diagnostics, []);
        let file = parsed.file.expect("a file");
        let own = Encoding::Base64.private_key(OWN).expect("a key");
        assert!(file.interface.private_key == own);
        assert!(file.interface.pq_private_key == Some(seed(3)));
        let psk = Encoding::Base64.preshared_key(OTHER).expect("a key");
        assert!(file.peers[0].preshared_key == Some(psk));
        let again = in_folder(&print(&file), dialect).file.expect("a file");
        assert!(same_file(&file, &again));
    }
    // `wg` and `wg-quick` do not support key files.
    for dialect in [Dialect::Wg, Dialect::WgQuick] {
        let plain = text.replace("PqPrivateKey", "# PqPrivateKey");
        let parsed = in_folder(&plain, dialect);
        let problem = KeyProblem::Path;
        let kind = |key| DiagnosticKind::NotAKey { key, problem };
        let kinds: Vec<_> = parsed.diagnostics.iter().map(|one| &one.kind).collect();
        assert_eq!(
            kinds,
            [&kind(Key::PrivateKey), &kind(Key::PresharedKey)],
            "{dialect:?}"
        );
    }
}

#[test]
fn files_of_secret_keys_are_checked() {
    let with = |path: &str| {
        let text = format!("[Interface]\nPrivateKey = {path}\n");
        in_folder(&text, Dialect::Taupe)
    };
    let key = Key::PrivateKey;
    let open = with("file:open.key");
    let kind = DiagnosticKind::KeyFileAccessible { key, mode: 0o4 };
    assert_eq!(only(&open).kind, kind);
    assert!(open.file.is_some());
    for (path, kind) in [
        (
            "file:nothing",
            DiagnosticKind::KeyFile {
                key,
                problem: KeyFileProblem::Unreadable("No such file".to_owned()),
            },
        ),
        (
            "file:short",
            DiagnosticKind::NotAKey {
                key,
                problem: KeyProblem::Length { found: 3 },
            },
        ),
        (
            "/keys/own.key",
            DiagnosticKind::NotAKey {
                key,
                problem: KeyProblem::PathWithoutPrefix,
            },
        ),
    ] {
        let parsed = with(path);
        assert_eq!(only(&parsed).kind, kind, "{path}");
        assert!(parsed.file.is_none(), "{path}");
    }
    let fix = only(&with("/keys/own.key")).kind.fix();
    assert_eq!(fix, "write file: before the path");
}

/// `wg` gets the key itself. A line that is a comment to `wg` gets an absolute path.
#[test]
fn strip_replaces_key_files_by_their_keys() {
    let text = IN_FILES.replace("PEER", PEER);
    let stripped = strip(
        text.as_bytes(),
        Dialect::Taupe,
        Path::new("/folder"),
        &folder,
    );
    let expected = format!(
        "[Interface]\nPrivateKey = {OWN}\n#@taupe:PqPrivateKey = file: /folder/seed.pq # x\n\
         [Peer]\nPublicKey = {PEER}\nPresharedKey = {OTHER}\nAllowedIPs = ::/0\n\n"
    );
    assert_eq!(String::from_utf8_lossy(&stripped), expected);
    let missing = b"[Interface]\nPrivateKey = file:nothing\n";
    let stripped = strip(missing, Dialect::Taupe, Path::new("/folder"), &folder);
    assert_eq!(*stripped, [&missing[..], b"\n"].concat());
}

/// The path remains while the device has the key of the file.
#[test]
fn saved_files_name_the_key_files_again() {
    let old = in_folder(&IN_FILES.replace("PEER", PEER), Dialect::Taupe);
    let old = old.file.expect("a file");
    let saved = |psk: &PresharedKey, own: [u8; 32]| {
        let mut peers = Vec::new();
        push_peer(&mut peers, old.peers[0].public_key);
        peers[0].preshared_key = psk.clone();
        let status = DeviceStatus {
            private_key: PrivateKey::new(own),
            pq_private_key: Some(seed(3)),
            peers,
        };
        save(
            &old,
            &Current {
                status: &status,
                listen_port: 0,
                fwmark: 0,
                addresses: &[],
                dns: &[],
                dns_search: &[],
                mtu: 1420,
            },
        )
        .to_string()
    };
    let own = *old.interface.private_key.as_ref().expect("a key").expose();
    let psk = old.peers[0].preshared_key.clone().expect("a key");
    let same = saved(&psk, own);
    for line in [
        "\nPrivateKey = file:own.key\n",
        "\n#@taupe:PqPrivateKey = file:seed.pq\n",
        "\nPresharedKey = file:psk\n",
    ] {
        assert!(same.contains(line), "{same}");
    }
    let others = saved(&PresharedKey::new([3; 32]), [5; 32]);
    assert!(
        !others.contains("file:own.key") && !others.contains("file:psk"),
        "{others}"
    );
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
            let found = format!("{one} {one:?}");
            assert!(!found.contains(&secret[..12]), "{found}");
        }
    }
}

/// `wg-quick` reports post-quantum keys as it reports Taupe's other keys. `wg` ignores comments.
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
    assert_eq!(kinds(&bare, Dialect::WgQuick), ["NotForWgQuick"; 3]);
    assert_eq!(kinds(&bare, Dialect::Wg), ["NotForWg"; 3]);
    assert_eq!(kinds(&marked, Dialect::WgQuick), ["NotForWgQuick"; 3]);
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
    // Taupe's other comments do not concern a device.
    let apps = format!("{marked}#@taupe:AllowedApps = curl\n#@ws:KillSwitch = nonsense\n");
    assert_eq!(kinds(&apps, Dialect::Setconf), [""; 0]);
}

#[test]
fn strip_makes_comments_that_taupe_reads() {
    let lines = "PqPublicKey = file: keys/peer.pq # of a\n #@taupe: postquantum=prefer";
    let stripped = strip(
        text(lines).as_bytes(),
        Dialect::Taupe,
        Path::new("/folder"),
        &folder,
    );
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
    // In `wg-quick`'s dialect they stay, so that `wg` reports them as errors.
    let quick = strip(
        text(lines).as_bytes(),
        Dialect::WgQuick,
        Path::new("/folder"),
        &folder,
    );
    assert!(quick.windows(14).any(|part| part == b"\nPqPublicKey ="));
}

#[test]
fn post_quantum_settings_of_a_device_are_saved_and_shown() {
    let mut peers = Vec::new();
    push_peer(&mut peers, PublicKey([1; 32]));
    peers[0].pq_public_key = Some(public(1, Suite::Hybrid768));
    peers[0].post_quantum = Some(PostQuantum::Prefer);
    peers[0].allowed_ips = vec![taupe_uapi::prefix::parse("::/0").expect("a network")];
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
    // The path remains while the peer has the key of the file.
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
    // `wg` prints only the keys that it knows.
    let mut shown = String::new();
    show::showconf(&mut shown, &device, false, &|_| None).expect("a String takes everything");
    assert!(!shown.contains('#'));
    assert!(parse(shown.as_bytes(), Dialect::Wg).file.is_some());
}

/// Callers that need no keys can parse the file regardless of its key files.
#[test]
fn keys_in_files_are_left_out() {
    for path in ["nothing", "long", "binary", "short", "open.key", ""] {
        let text = format!(
            "[Interface]\nPrivateKey = file:{path}\n#@taupe:PqPrivateKey = file:{path}\n\
             Address = 10.0.0.1/32\n[Peer]\nPublicKey = {PEER}\nPresharedKey = file: {path}\n\
             PqPublicKey = file:{path}\nPostQuantum = require\nAllowedIPs = ::/0\n\
             AllowedApps = curl\n"
        );
        let parsed = parse_without_key_files(text.as_bytes(), Dialect::Taupe);
        assert_eq!(parsed.diagnostics, [], "{path}");
        let file = parsed.file.expect(path);
        assert!(file.interface.private_key.is_none() && file.interface.pq_private_key.is_none());
        assert_eq!(file.transparent.apps.allowed.len(), 1);
        let [peer] = file.peers.as_slice() else {
            panic!("{} peers", file.peers.len());
        };
        assert!(peer.preshared_key.is_none() && peer.pq_public_key.is_none());
    }
    // Other errors are still reported.
    let wrong = format!(
        "[Interface]\nPrivateKey = file:nothing\nMTU = many\n[Peer]\nPublicKey = file:nothing\n\
         PresharedKey = {}\nAllowedIPs = ::/0\n",
        &OTHER[..40]
    );
    let parsed = parse_without_key_files(wrong.as_bytes(), Dialect::Taupe);
    let lines: Vec<_> = parsed.diagnostics.iter().map(|one| one.line).collect();
    assert_eq!(lines, [3, 5, 6]);
    let quick = parse_without_key_files(b"[Interface]\nPrivateKey = file:a\n", Dialect::WgQuick);
    assert!(matches!(only(&quick).kind, DiagnosticKind::NotAKey { .. }));
}
