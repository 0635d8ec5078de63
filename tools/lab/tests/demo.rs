//! `make demo`: it shows the expected evidence, ends, and stays on request.

use std::process::{Command, Output, Stdio};

fn demo(environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taupe-demo"));
    command.env_remove("KEEP").envs(environment.iter().copied());
    command.stdin(Stdio::null()).output().expect("it starts")
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The important lines, with their expected content.
const LINES: [(&str, &str); 17] = [
    (
        "before, A",
        "comes from 203.0.113.7, home's own IPv4 address",
    ),
    ("taupe up", "took "),
    (
        "A",
        "comes from 198.51.100.1, the VPN server's IPv4 address",
    ),
    (
        "A",
        "comes from 2001:db8:2::1, the VPN server's IPv6 address",
    ),
    ("A in clear", "0 packets on home's cable"),
    ("A in the LAN", "comes from 192.168.1.10"),
    ("B", "comes from 203.0.113.7, home's own IPv4 address"),
    ("B", "comes from 2001:db8:1::10, home's own IPv6 address"),
    ("configuration", ": as before"),
    ("links", "one more: home"),
    ("kill -9 of taupe", "A is refused after "),
    ("A in clear", "0 packets, also of a download"),
    ("B", "comes from 203.0.113.7"),
    ("taupe up", "took "),
    ("A", "comes from 198.51.100.1"),
    ("taupe down", ": as before"),
    ("A", "comes from 203.0.113.7"),
];

#[test]
fn the_post_quantum_tutorial_is_true() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taupe-demo"));
    let output = command.arg("--post-quantum").stdin(Stdio::null()).output();
    let output = output.expect("it starts");
    let printed = printed(&output);
    let result = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{printed}{result}");
    for line in [
        "bob# ping -c 3 -i 0.2 10.9.0.1",
        "ok      post-quantum: hybrid-768",
        "carol# wireguard-go wg0",
        "all checks passed",
    ] {
        assert!(printed.lines().any(|it| it == line), "{line}: {printed}");
    }
}

#[test]
fn every_line_of_the_demo_holds() {
    let output = demo(&[]);
    let printed = printed(&output);
    let result = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{printed}{result}");
    let mut lines = printed.lines();
    for (what, found) in LINES {
        let start = format!("ok      {what:16}  ");
        assert!(
            lines.any(|line| line.starts_with(&start) && line.contains(found)),
            "{what}, {found}, in this order: {printed}"
        );
    }
    assert!(!printed.contains("FAILED"), "{printed}");
    let last = printed.lines().last().unwrap_or_default();
    assert!(last.starts_with("all checks passed"), "{last}");
}

#[test]
fn a_failed_claim_is_reported() {
    let output = demo(&[("TAUPE_BIN", "/bin/false")]);
    let printed = printed(&output);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(printed.contains("FAILED"), "{printed}");
    let last = printed.lines().last().unwrap_or_default();
    assert!(last.starts_with("failed checks: "), "{printed}");
}

#[test]
fn namespaces_left_for_inspection_can_be_removed() {
    let output = demo(&[("KEEP", "1")]);
    let printed = printed(&output);
    let lines = || printed.lines();
    let (_, first) = lines()
        .last()
        .and_then(|line| line.split_once("kill -9 "))
        .expect("how to remove it");
    let process = std::path::PathBuf::from(format!("/proc/{first}"));
    assert!(process.exists(), "{printed}");
    let run = |line: &str| {
        let output = Command::new("sh").args(["-c", line]).output();
        self::printed(&output.expect("it starts")).trim().to_owned()
    };
    let asks = lines().filter(|line| line.ends_with("http://web.example.net"));
    let who: Vec<String> = asks.map(|line| run(&format!("{line} -4"))).collect();
    run(&format!("kill -9 {first}"));
    let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while process.exists() {
        assert!(std::time::Instant::now() < end, "{first} does not end");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(who, ["198.51.100.1", "203.0.113.7"], "{printed}");
    assert_eq!(output.status.code(), Some(0), "{printed}");
}
