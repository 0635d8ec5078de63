//! Runs all inputs of all corpora on a stable toolchain: seeds, and inputs that a fuzzer has found.

use std::fs;
use std::path::Path;

use taupe_fuzz::{TARGETS, Target};

fn replay((name, target): Target) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(name);
    let mut count = 0;
    let entries = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    for entry in entries {
        let path = entry.expect("a readable folder").path();
        let input = fs::read(&path).expect("a readable file");
        let run = || target(&input);
        if std::panic::catch_unwind(run).is_err() {
            panic!("{}", path.display());
        }
        count += 1;
    }
    assert!(count >= 20, "{name}: {count} inputs");
}

#[test]
fn message() {
    replay(TARGETS[0]);
}

#[test]
fn handshake() {
    replay(TARGETS[1]);
}

#[test]
fn transport() {
    replay(TARGETS[2]);
}

#[test]
fn uapi() {
    replay(TARGETS[3]);
}

#[test]
fn inner() {
    replay(TARGETS[4]);
}

#[test]
fn split_merge() {
    replay(TARGETS[5]);
}

#[test]
fn file() {
    replay(TARGETS[6]);
}

#[test]
fn translate() {
    replay(TARGETS[7]);
}

#[test]
fn proxy() {
    replay(TARGETS[8]);
}

#[test]
fn parts() {
    replay(TARGETS[9]);
}

#[test]
fn c_surface() {
    replay(TARGETS[10]);
}

#[test]
fn frames() {
    replay(TARGETS[11]);
}

#[test]
fn broker() {
    replay(TARGETS[12]);
}

#[test]
fn broker_answers() {
    replay(TARGETS[13]);
}

#[test]
fn netlink() {
    replay(TARGETS[14]);
}

#[test]
fn bpf() {
    replay(TARGETS[15]);
}

#[test]
fn differential() {
    replay(TARGETS[16]);
}

#[test]
fn dns() {
    replay(TARGETS[17]);
}

#[test]
fn service() {
    replay(TARGETS[18]);
}

/// A substitute for a fuzzer: the seeds with changed bytes, the same in each run.
#[test]
fn frames_at_random() {
    let seeds = taupe_fuzz::seeds("frames");
    let mut state = 1_u64;
    let mut random = |below: usize| {
        // Knuth's MMIX.
        state = state.wrapping_mul(6_364_136_223_846_793_005);
        state = state.wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for _ in 0..1500 {
        let mut input = seeds[random(seeds.len())].clone();
        for _ in 0..random(24) {
            let at = random(input.len().max(1));
            match (random(3), input.get_mut(at)) {
                (0, Some(byte)) => *byte = random(256) as u8,
                (1, Some(_)) => input.truncate(at),
                _ => input.extend((0..random(64)).map(|_| random(256) as u8)),
            }
        }
        if std::panic::catch_unwind(|| taupe_fuzz::frames(&input)).is_err() {
            panic!("{input:02x?}");
        }
    }
}

#[test]
fn there_is_a_test_for_every_target() {
    let names = TARGETS.map(|(name, _)| name);
    let tested = [
        "message",
        "handshake",
        "transport",
        "uapi",
        "inner",
        "split_merge",
        "file",
        "translate",
        "proxy",
        "parts",
        "c_surface",
        "frames",
        "broker",
        "broker_answers",
        "netlink",
        "bpf",
        "differential",
        "dns",
        "service",
    ];
    assert_eq!(names, tested);
}
