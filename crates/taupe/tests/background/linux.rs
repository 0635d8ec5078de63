//! Tests of devices in the background.

mod bench;
mod fake;

use bench::{Bench, Killed, check, finished, stderr, wait_for, wait_until};
use fake::Fake;
use libtest_mimic::{Arguments, Failed, Trial};
use rustix::fs::fstat;
use rustix::process::{Pid, Signal, Uid, geteuid, kill_process};
use rustix::thread::set_thread_uid;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode, Output, Stdio};
use std::time::{Duration, Instant};

type Outcome = Result<(), Failed>;
type Test = (&'static str, fn() -> Outcome);

const LIMIT: Duration = Duration::from_secs(20);

/// Variable with the folder in which the device records its state.
const DIRECTORY: &str = "FAKE_DEVICE_DIRECTORY";

const TESTS: &[Test] = &[
    ("the_caller_hears_of_a_device_that_is_ready", ready),
    ("the_background_is_cut_off_from_the_caller", cut_off),
    ("a_command_substitution_returns", substitution),
    ("a_reason_reaches_the_caller", reason),
    ("a_reason_is_told_once_also_with_logs", reason_once),
    ("a_long_reason_is_cut_and_nobody_waits", long_reason),
    ("a_death_before_the_report_is_told", death),
    ("a_device_that_nobody_waits_for_ends", abandoned),
    ("a_signal_before_it_is_ready_is_kept", early_signal),
    ("a_signal_ends_it", signal),
    ("logs_go_to_standard_error_when_asked_for", logs),
    ("logs_that_nobody_reads_any_more_end_nothing", closed_logs),
    ("the_foreground_stays", foreground),
    ("a_failure_while_running_is_told", broken),
    (
        "passed_descriptors_reach_the_device_and_no_others_do",
        descriptors,
    ),
    ("a_descriptor_that_is_not_open_is_told", no_descriptor),
    ("boringtun_s_files_are_written", files),
    ("a_variable_alone_makes_no_background_process", variable),
    ("only_a_device_s_arguments_obey_a_socket", other_arguments),
    ("a_socket_of_another_user_is_not_obeyed", other_user),
];

pub(crate) fn main() -> ExitCode {
    if std::env::var_os(DIRECTORY).is_some() {
        return taupe_command::main::<Fake>();
    }
    let trials = TESTS.iter().map(|&(name, test)| Trial::test(name, test));
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}

fn ready() -> Outcome {
    let bench = Bench::new();
    let output = bench.run(&["device", "works"]);
    check(output.status.code() == Some(0), stderr(&output))?;
    check(
        output.stdout.is_empty() && output.stderr.is_empty(),
        "it says nothing",
    )?;
    wait_for(&bench.file("running"));
    check(bench.runs(), "it goes on")
}

fn cut_off() -> Outcome {
    let bench = Bench::new();
    bench.run(&["device", "works"]);
    for fd in 0..3 {
        let target = bench.situation(&format!("fd {fd} "));
        check(
            target.as_deref() == Some("/dev/null"),
            format!("{fd}: {target:?}"),
        )?;
    }
    let pid = bench.situation("pid ");
    check(bench.situation("session ") == pid, "a session of its own")?;
    check(
        bench.situation("cwd ").as_deref() == Some("/"),
        "in the root",
    )?;
    check(
        bench.situation("umask ").as_deref() == Some("0077"),
        "for the owner only",
    )
}

/// Runs a script in a shell, with the program's path in `$T`.
fn shell(bench: &Bench, script: &str) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", script]).env("T", Bench::program());
    bench.prepare(&mut command);
    finished(command)
}

fn substitution() -> Outcome {
    // Descriptor 9 stands for one that the program does not know: the shell's own standard output.
    for redirection in ["", "2>&1", "9>&1", "9>&1 2>&1"] {
        let bench = Bench::new();
        let script = format!(r#"x=$("$T" device works {redirection}); echo "$? [$x]""#);
        let output = shell(&bench, &script);
        check(
            output.stdout == b"0 []\n",
            format!("{redirection}: {output:?}"),
        )?;
        check(bench.runs(), "it goes on")?;
    }
    Ok(())
}

fn reason() -> Outcome {
    let bench = Bench::new();
    let output = bench.run(&["device", "fails"]);
    check(output.status.code() == Some(1), output.status)?;
    let text = stderr(&output);
    check(text == "taupe: the fake device: fails as told\n", text)?;
    check(output.stdout.is_empty(), "nothing on standard output")?;
    wait_until("its end", || !bench.runs());
    Ok(())
}

fn reason_once() -> Outcome {
    for arguments in [&["device", "fails"][..], &["device", "-f", "fails"]] {
        let bench = Bench::new();
        let mut command = bench.command(arguments);
        command.env("LOG_LEVEL", "trace");
        let output = finished(command);
        let text = stderr(&output);
        check(output.status.code() == Some(1), output.status)?;
        check(text.matches("fails as told").count() == 1, text)?;
    }
    Ok(())
}

fn long_reason() -> Outcome {
    let bench = Bench::new();
    let output = bench.run(&["device", "fails-long"]);
    check(output.status.code() == Some(1), output.status)?;
    let text = stderr(&output);
    check(
        text.starts_with("taupe: the fake device: xxx"),
        "the beginning",
    )?;
    check(text.len() < 5000, text.len())
}

fn death() -> Outcome {
    let bench = Bench::new();
    let output = bench.run(&["device", "dies"]);
    check(output.status.code() == Some(1), output.status)?;
    let text = stderr(&output);
    check(
        text.contains("before the interface was ready (signal: 9"),
        &text,
    )?;
    check(text.contains("--foreground"), text)
}

fn abandoned() -> Outcome {
    let bench = Bench::new();
    let mut starter = Killed(bench.command(&["device", "slow"]).spawn()?);
    bench.text("situation");
    starter.0.kill()?;
    starter.0.wait()?;
    fs::write(bench.file("go"), "")?;
    check(
        bench.text("ended") == "stopped",
        "it is stopped, not forgotten",
    )
}

fn early_signal() -> Outcome {
    let bench = Bench::new();
    let mut starter = Killed(bench.command(&["device", "slow"]).spawn()?);
    bench.text("situation");
    kill_process(bench.pid(), Signal::TERM)?;
    fs::write(bench.file("go"), "")?;
    check(starter.0.wait()?.success(), "it was ready before it ended")?;
    check(bench.text("ended") == "stopped", "it is stopped")
}

fn signal() -> Outcome {
    for signal in [Signal::TERM, Signal::INT] {
        let bench = Bench::new();
        bench.run(&["device", "works"]);
        kill_process(bench.pid(), signal)?;
        check(bench.text("ended") == "stopped", "it is stopped")?;
        wait_until("its end", || !bench.runs());
    }
    Ok(())
}

fn logs() -> Outcome {
    let bench = Bench::new();
    let errors = File::create(bench.file("errors"))?;
    let mut command = bench.command(&["device", "works"]);
    command.env("LOG_LEVEL", "verbose").stderr(errors);
    let output = command.stdout(Stdio::piped()).output()?;
    check(output.status.success(), output.status)?;
    // A reader of standard output alone does not have to wait, as above.
    check(output.stdout.is_empty(), "nothing on standard output")?;
    wait_for(&bench.file("running"));
    let text = fs::read_to_string(bench.file("errors"))?;
    check(text.contains("INFO works is ready"), &text)?;
    check(!text.contains('\u{1b}'), "no colours in a file")?;

    let quiet = Bench::new();
    let mut command = quiet.command(&["device", "works"]);
    command.env("LOG_LEVEL", "silent");
    check(finished(command).stderr.is_empty(), "silent is silent")
}

fn closed_logs() -> Outcome {
    let bench = Bench::new();
    let (reader, writer) = io::pipe()?;
    let mut command = bench.command(&["device", "works"]);
    command.env("LOG_LEVEL", "verbose").stderr(writer);
    check(command.status()?.success(), "it is ready")?;
    wait_for(&bench.file("running"));
    drop((command, reader));
    // The device tries to log that it stops.
    kill_process(bench.pid(), Signal::TERM)?;
    check(bench.text("ended") == "stopped", "it is stopped")
}

fn foreground() -> Outcome {
    let ways: [(&[&str], Option<&str>); 3] = [
        (&["device", "-f", "works"], None),
        (&["device", "works", "--foreground"], None),
        (&["device", "works"], Some("1")),
    ];
    for (arguments, variable) in ways {
        let bench = Bench::new();
        let mut command = bench.command(arguments);
        if let Some(value) = variable {
            command.env("WG_PROCESS_FOREGROUND", value);
        }
        let mut child = Killed(command.spawn()?);
        wait_for(&bench.file("running"));
        check(bench.pid() == Pid::from_child(&child.0), "the same process")?;
        check(
            bench.situation("session ") != bench.situation("pid "),
            "the same session",
        )?;
        check(child.0.try_wait()?.is_none(), "it stays")?;
        kill_process(bench.pid(), Signal::TERM)?;
        check(child.0.wait()?.code() == Some(0), "a signal is a good end")?;
        check(bench.text("ended") == "stopped", "it is stopped")?;
    }
    Ok(())
}

fn broken() -> Outcome {
    let bench = Bench::new();
    let output = bench.run(&["device", "-f", "breaks"]);
    check(output.status.code() == Some(1), output.status)?;
    let text = stderr(&output);
    check(text == "taupe: breaks ended: it broke as told\n", text)
}

fn descriptors() -> Outcome {
    let bench = Bench::new();
    fs::write(bench.file("tun"), "")?;
    fs::write(bench.file("other"), "")?;
    let script = r#"WG_TUN_FD=7 "$T" device works 7<"$D/tun" 8<"$D/other""#;
    let script = script.replace("$D", &bench.0.display().to_string());
    let output = shell(&bench, &script);
    check(output.status.success(), stderr(&output))?;
    let tun = bench.situation("fd 7 ");
    check(
        tun == Some(bench.file("tun").display().to_string()),
        format!("{tun:?}"),
    )?;
    let all = bench.text("situation");
    check(!all.contains("/other"), &all)?;
    // Two references: the descriptor that was passed, and the device's own.
    check(all.matches("/tun\n").count() == 2, all)
}

fn no_descriptor() -> Outcome {
    for arguments in [&["device", "works"][..], &["device", "-f", "works"]] {
        for variable in ["WG_TUN_FD", "WG_UAPI_FD"] {
            let bench = Bench::new();
            let mut command = bench.command(arguments);
            command.env(variable, "1000000");
            let output = finished(command);
            let text = stderr(&output);
            check(output.status.code() == Some(1), output.status)?;
            check(
                text.contains(&format!("{variable}: descriptor 1000000")),
                &text,
            )?;
            check(text.contains("Bad file descriptor"), text)?;
        }
    }
    Ok(())
}

fn files() -> Outcome {
    let bench = Bench::new();
    let name = |name: &str| bench.file(name).display().to_string();
    fs::write(
        bench.file("pid-file"),
        "a number that is longer than the new one\n",
    )?;
    let mut command = bench.command(&["--log", &name("log"), "--pid-file", &name("pid-file")]);
    command.args(["-v", "info", "works"]).arg0("boringtun-cli");
    let output = finished(command);
    check(
        output.status.success() && output.stderr.is_empty(),
        stderr(&output),
    )?;
    let pid = bench.pid().as_raw_nonzero();
    check(bench.text("pid-file") == format!("{pid}\n"), "its number")?;
    check(bench.text("log").contains("works is ready"), "its logs")?;

    let other = Bench::new();
    let mut command = other.command(&["--pid-file", &name("pid-file"), "fails"]);
    command.arg0("boringtun-cli");
    check(finished(command).status.code() == Some(1), "it fails")?;
    check(
        bench.text("pid-file") == format!("{pid}\n"),
        "the first one's number stays",
    )?;

    let full = Bench::new();
    let mut command = full.command(&["--pid-file", "/dev/full", "works"]);
    command.arg0("boringtun-cli");
    check(finished(command).status.code() == Some(1), "no number")?;
    let start = Instant::now();
    while full.runs() {
        check(start.elapsed() < LIMIT, "a start that fails leaves none")?;
        std::thread::sleep(Duration::from_millis(10));
    }

    let nowhere = Bench::new();
    let mut command = nowhere.command(&["--log", "/nowhere/log", "works"]);
    command.arg0("boringtun-cli");
    let output = finished(command);
    check(output.status.code() == Some(1), output.status)?;
    check(
        stderr(&output).contains("cannot write /nowhere/log"),
        stderr(&output),
    )?;
    check(!nowhere.file("situation").exists(), "nothing was started")
}

/// A device's child processes inherit its environment, and may have a pipe as standard input.
fn variable() -> Outcome {
    let bench = Bench::new();
    let mut command = bench.command(&["device", "works"]);
    let (reader, writer) = io::pipe()?;
    command.env("TAUPE_STARTER", "9:1234").stdin(reader);
    let output = command.output()?;
    drop((command, writer));
    check(output.status.success(), stderr(&output))?;
    let stdin = bench.situation("fd 0 ");
    check(stdin.as_deref() == Some("/dev/null"), format!("{stdin:?}"))?;
    check(bench.runs(), "it went to the background by itself")
}

/// Runs a command with `theirs` as the socket of its starting process, which sends no plan. Returns
/// the output and the report.
fn run_for(
    mut command: Command,
    (mut ours, theirs): (UnixStream, UnixStream),
) -> Result<(Output, Vec<u8>), Failed> {
    let stat = fstat(&theirs)?;
    command.env("TAUPE_STARTER", format!("{}:{}", stat.st_dev, stat.st_ino));
    command.stdin(OwnedFd::from(theirs));
    ours.shutdown(Shutdown::Write)?;
    let output = command.output()?;
    drop(command);
    let mut report = Vec::new();
    ours.read_to_end(&mut report)?;
    Ok((output, report))
}

fn other_arguments() -> Outcome {
    let bench = Bench::new();
    let (_, report) = run_for(bench.command(&["device", "works"]), UnixStream::pair()?)?;
    check(
        report.starts_with(b"-"),
        "a device reports that it has no plan",
    )?;
    let (output, report) = run_for(bench.command(&["check", "/nowhere"]), UnixStream::pair()?)?;
    check(report.is_empty(), String::from_utf8_lossy(&report))?;
    check(stderr(&output).contains("/nowhere"), stderr(&output))
}

fn other_user() -> Outcome {
    if !geteuid().is_root() {
        // Only root can make a socket as another user.
        return Ok(());
    }
    let pair = std::thread::spawn(|| {
        set_thread_uid(Uid::from_raw(65534))?;
        UnixStream::pair()
    });
    let pair = pair.join().expect("no panic")?;
    let bench = Bench::new();
    let (output, report) = run_for(bench.command(&["device", "works"]), pair)?;
    check(report.is_empty(), String::from_utf8_lossy(&report))?;
    check(output.status.success(), stderr(&output))?;
    check(bench.runs(), "it went to the background by itself")
}
