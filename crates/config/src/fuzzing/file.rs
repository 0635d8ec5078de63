//! Fuzzing entry point for configuration files.

use std::path::Path;

use taupe_protocol::crypto::{Secret, default_provider};
use taupe_protocol::hybrid::Suite;
use taupe_protocol::key::PqPrivateKey;
use zeroize::Zeroizing;

use crate::application::{AppRules, AppsOfUser, Rule};
use crate::file::{
    Dialect, File, Interface, KeyFile, KeyFileProblem, Parsed, Peer, Severity, Transparent,
    parse_with, print, strip, wg_message,
};
use taupe_uapi::key::Encoding;

/// Parses `data` in every dialect.
///
/// Checks that nothing panics, that a file is refused exactly if there is an error, that every
/// diagnostic points into the text and repeats no key, and that an accepted file reads back the
/// same after printing.
pub fn file(data: &[u8]) {
    for dialect in [
        Dialect::Taupe,
        Dialect::WgQuick,
        Dialect::Wg,
        Dialect::Setconf,
    ] {
        let parsed = parse(data, dialect);
        check(data, &parsed);
        if let Some(file) = &parsed.file {
            let again = parse(print(file).as_bytes(), dialect);
            let again = again.file.expect("a printed file is valid");
            assert!(same_file(file, &again), "print and parse change the file");
        }
    }
    check_strip(data);
}

/// Parses with the key files of [`key_file`].
fn parse(data: &[u8], dialect: Dialect) -> Parsed {
    parse_with(data, dialect, &key_file)
}

/// Key files: a public key of ML-KEM-512, `peer.pq`, and a preshared key, `psk`.
fn key_file(path: &str) -> Result<KeyFile, KeyFileProblem> {
    let text = match path {
        "peer.pq" | "/folder/peer.pq" => {
            let seed = PqPrivateKey::new(Secret::new([7; 64]));
            let key = seed.map(|seed| seed.public(default_provider(), Suite::Hybrid512));
            key.map(|key| Encoding::Base64.encode_pq_public_key(&key) + "\n")
        }
        "psk" => Some(Encoding::Base64.encode(&[9; 32]).as_str().to_owned()),
        _ => None,
    };
    let text = text.ok_or(KeyFileProblem::NoFileAccess)?;
    Ok(KeyFile {
        text: Zeroizing::new(text.into_bytes()),
        others: 0,
    })
}

/// Checks that [`strip`] lengthens no file without `DisallowedIPs`, post-quantum keys or key files,
/// and that a file with them means the same to `wg` and `taupe setconf` as to Taupe.
fn check_strip(data: &[u8]) {
    let stripped = strip(data, Dialect::Taupe, Path::new("/folder"), &key_file);
    let letters: Vec<u8> = data
        .iter()
        .filter(|byte| !matches!(byte, 0 | b' ' | b'\t'..=b'\r'))
        .map(u8::to_ascii_lowercase)
        .collect();
    let narrow = letters.windows(13).any(|part| part == b"disallowedips");
    let of_handshake = ["pqpublickey", "pqprivatekey", "postquantum"]
        .iter()
        .any(|name| {
            letters
                .windows(name.len())
                .any(|part| part == name.as_bytes())
        });
    let has_path = letters.windows(5).any(|part| part == b"file:");
    assert!(
        narrow || of_handshake || has_path || stripped.len() <= data.len() + 2,
        "stripping adds something"
    );
    let before = parse(data, Dialect::Taupe).file;
    let of_taupe = parse(&stripped, Dialect::Setconf).file;
    let after = parse(&stripped, Dialect::Wg).file;
    assert!(
        of_taupe.is_none() || after.is_some(),
        "only Taupe reads it: `wg` stumbles on what only Taupe knows"
    );
    if let (Some(before), Some(after)) = (before, after) {
        let of_taupe = of_taupe.expect("what `wg` reads, Taupe does");
        assert!(
            same_handshakes(&before, &of_taupe),
            "stripping changes handshakes"
        );
        assert_eq!(before.peers.len(), after.peers.len(), "other peers");
        for (before, after) in before.peers.iter().zip(&after.peers) {
            assert!(
                before.disallowed_ips.is_empty() || after.allowed_ips == before.routed(),
                "stripping changes where packets go"
            );
        }
    }
}

fn same_handshakes(a: &File, b: &File) -> bool {
    let of = |file: &File| -> Vec<_> {
        let peers = file.peers.iter();
        let key = |peer: &Peer| peer.pq_public_key.as_ref().map(|key| key.key.clone());
        peers.map(|peer| (key(peer), peer.post_quantum)).collect()
    };
    a.interface.pq_private_key == b.interface.pq_private_key && of(a) == of(b)
}

fn check(data: &[u8], parsed: &Parsed) {
    let Parsed {
        file,
        diagnostics,
        private_key_at,
    } = parsed;
    let refused = diagnostics.iter().any(|d| d.severity == Severity::Error);
    assert_eq!(refused, file.is_none(), "errors and refusal differ");
    let places: Vec<_> = diagnostics.iter().map(|d| (d.line, d.column)).collect();
    assert!(places.is_sorted(), "diagnostics are not in order");
    let lines: Vec<&[u8]> = data.split(|byte| *byte == b'\n').collect();
    for (line, column) in places.into_iter().chain(*private_key_at) {
        assert!(line >= 1 && column >= 1, "not counted from 1");
        let text = lines.get(line - 1).expect("a line of the text");
        assert!(
            column <= text.len() + 1,
            "column {column} is behind the line"
        );
    }
    for diagnostic in diagnostics {
        let text = diagnostic.to_string();
        assert!(!text.contains('\n'), "not one line: {text:?}");
        let longest = text
            .split(|c: char| !c.is_ascii_alphanumeric() && c != '+' && c != '/')
            .map(str::len)
            .max();
        assert!(longest < Some(40), "may repeat a key: {text:?}");
        let _ = wg_message(data, diagnostic);
    }
}

/// Compares two files, except line numbers. The code names every field, so that a new one cannot be
/// forgotten.
#[must_use]
pub fn same_file(a: &File, b: &File) -> bool {
    let File {
        interface,
        peers,
        transparent,
    } = a;
    let Interface {
        private_key,
        private_key_file,
        pq_private_key,
        pq_private_key_file,
        listen_port,
        fwmark,
        addresses,
        dns,
        dns_search,
        mtu,
        table,
        hooks,
        save_config,
        lanes,
    } = interface;
    let other = &b.interface;
    *private_key == other.private_key
        && *private_key_file == other.private_key_file
        && *pq_private_key_file == other.pq_private_key_file
        && *pq_private_key == other.pq_private_key
        && *listen_port == other.listen_port
        && *fwmark == other.fwmark
        && *addresses == other.addresses
        && *dns == other.dns
        && *dns_search == other.dns_search
        && *mtu == other.mtu
        && *table == other.table
        && *hooks == other.hooks
        && *save_config == other.save_config
        && *lanes == other.lanes
        && same_transparent(transparent, &b.transparent)
        && peers.len() == b.peers.len()
        && peers.iter().zip(&b.peers).all(|(a, b)| same_peer(a, b))
}

fn same_transparent(a: &Transparent, b: &Transparent) -> bool {
    let Transparent {
        apps:
            AppRules {
                allowed,
                disallowed,
                children,
                of_user,
            },
        bypass_lan,
        kill_switch,
        forwarded,
        system_bus,
        children: _,
        first: _,
        comment_prefix,
    } = a;
    let same = |a: &[Rule], b: &[Rule]| {
        let applications = a.iter().map(|rule| &rule.application);
        applications.eq(b.iter().map(|rule| &rule.application))
    };
    let user = |of_user: &Option<AppsOfUser>| of_user.as_ref().map(|it| it.user.clone());
    same(allowed, &b.apps.allowed)
        && same(disallowed, &b.apps.disallowed)
        && *bypass_lan == b.bypass_lan
        && *kill_switch == b.kill_switch
        && *forwarded == b.forwarded
        && *system_bus == b.system_bus
        && *children == b.apps.children
        && user(of_user) == user(&b.apps.of_user)
        && a.children == b.children
        && *comment_prefix == b.comment_prefix
}

fn same_peer(a: &Peer, b: &Peer) -> bool {
    let Peer {
        public_key,
        preshared_key,
        preshared_key_file,
        pq_public_key,
        post_quantum,
        endpoint,
        allowed_ips,
        disallowed_ips,
        persistent_keepalive,
        name,
        line: _,
    } = a;
    *public_key == b.public_key
        && *preshared_key == b.preshared_key
        && *preshared_key_file == b.preshared_key_file
        && *pq_public_key == b.pq_public_key
        && *post_quantum == b.post_quantum
        && *endpoint == b.endpoint
        && *allowed_ips == b.allowed_ips
        && *disallowed_ips == b.disallowed_ips
        && *persistent_keepalive == b.persistent_keepalive
        && *name == b.name
}
