//! Packs, which must not need any program of the machine.

use super::Folder;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn pack(folder: &Path, contestants: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taupe-lab"));
    command
        .arg("pack")
        .arg(folder)
        .args(["--contestants", contestants]);
    command.output().expect("it starts")
}

/// Starts the pack's script, without a program on its path.
fn run_from(pack: &Path, out: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new("/bin/sh");
    command
        .arg(pack.join("taupe-lab"))
        .args(["run", "--from"])
        .arg(pack)
        .arg("--out")
        .arg(out)
        .args(arguments)
        .env_clear()
        .env("PATH", "/nonexistent")
        .stdin(Stdio::null());
    command.output().expect("it starts")
}

#[test]
fn a_pack_runs_by_itself() {
    let (folder, out) = (Folder::new("pack"), Folder::new("from-pack"));
    let output = pack(&folder.0, "direct,taupe");
    let result = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(
        result.contains("direct, taupe; ") && result.contains("compressed "),
        "{result}"
    );

    let arguments = [
        "--only",
        "startup,throughput,beside",
        "--rounds",
        "1",
        "--seconds",
        "1",
    ];
    let output = run_from(&folder.0, &out.0, &arguments);
    let result = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{result}\n{errors}");
    let report = out.report();
    assert!(report.complete, "{report:?}");
    // There is no perf in a pack.
    let failures = report.failures.iter().map(|failure| &*failure.what);
    assert_eq!(failures.collect::<Vec<_>>(), ["cost/syscalls"]);
    for contestant in ["direct", "taupe"] {
        for metric in ["startup", "tcp/4/up", "beside/100mbit/1/p50"] {
            let samples = report.samples(contestant, metric);
            assert_eq!(samples.len(), 1, "{contestant} {metric}");
        }
    }
    // Nothing stays mounted, and the run has put nothing into the pack.
    let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
    let path = folder.0.display().to_string();
    assert!(!mounts.contains(&path), "{mounts}");
    let names = fs::read_dir(folder.0.join("files")).expect("a folder");
    let mut names: Vec<_> = names.flatten().map(|entry| entry.file_name()).collect();
    names.retain(|name| name == "proc" || name == "run" || name == "tmp");
    assert!(names.is_empty(), "{names:?}");

    // A file is missing.
    fs::remove_file(folder.0.join("files/usr/bin/iperf3")).expect("a file");
    let output = run_from(&folder.0, &out.0, &arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(
        errors.contains("usr/bin/iperf3: the file is missing; copy the pack"),
        "{errors}"
    );
}

#[test]
fn impossible_packs_are_refused() {
    let folder = Folder::new("no-pack");
    let refused = |contestants: &str, reason: &str| {
        let output = pack(&folder.0, contestants);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains(reason), "{errors}");
    };
    refused("openvpn-tls-aes", "packs do not contain OpenVPN");
    refused("gotaton", "there is no contestant gotaton");
    fs::write(folder.0.join("letter.txt"), "").expect("a file");
    refused("direct", "has other files than those of a pack");
    assert!(folder.0.join("letter.txt").exists());
}
