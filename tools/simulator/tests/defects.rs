//! Every planted defect is found, each in a process of its own.
#![cfg(all(feature = "fake", feature = "planted-defects"))]

use std::process::Command;

use taupe_protocol::planted::Defect;

#[test]
fn every_planted_defect_is_found_and_by_the_invariant_it_breaks() {
    for (name, defect) in Defect::ALL {
        let output = Command::new(env!("CARGO_BIN_EXE_taupe-simulator"))
            .args(["--defect", name])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{name}: {text}");
        let invariants: &[&str] = match defect {
            Defect::NonceReuse => &["CounterOnce"],
            Defect::ReplayWindowOffByOne => &["Unauthenticated", "Delivery"],
            Defect::LateKey => &["KeyUse"],
            Defect::UnauthRoam => &["Unauthenticated"],
            Defect::MissedDeadline => &["Deadline"],
            Defect::LostStaged => &["Staged", "Deadline", "Liveness"],
            Defect::ClockLockout => &["Liveness"],
            Defect::PqPartMixup => &["Unauthenticated"],
            Defect::PqReinstall => &["CounterOnce", "Unauthenticated"],
            Defect::PqEarlyCommit => &["Provisional"],
        };
        let line = text.lines().last().unwrap_or_default();
        assert!(line.starts_with(&format!("found {name} after ")), "{line}");
        assert!(invariants.iter().any(|i| line.ends_with(i)), "{line}");
    }
}

#[test]
fn an_episode_fails_with_its_defect_and_holds_without() {
    let replay = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_taupe-simulator"))
            .args(["--replay", "1"])
            .args(arguments)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), text)
    };
    let (code, text) = replay(&["--defect", "unauth-roam"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("FAILED: Unauthenticated"));
    let (code, text) = replay(&[]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("every invariant held"));
}
