//! Several commands in one tunnel.

use crate::{BEYOND, PROGRAM, World, as_user, home};
use rustix::process::Signal;
use std::time::Duration;
use taupe_lab::process::{Process, wait_until};
use taupe_lab::sandbox::step;
use taupe_lab::{Error, Result, ensure};

const PATIENCE: Duration = Duration::from_secs(60);

fn until(process: &Process, word: &str) -> Result<()> {
    wait_until(word, PATIENCE, || Ok(process.output().contains(word)))
}

impl World {
    /// Starts a command that joins a tunnel and keeps running.
    fn start_joined(&self, script: &str) -> Result<Process> {
        let words = [
            PROGRAM, "exec", "--join", "home", "--", "bash", "-c", script,
        ];
        self.near.spawn(&as_user(&words))
    }
}

pub(crate) fn several() -> Result<()> {
    let world = World::new()?;
    step("nobody is there to join");
    let attempt = world.join("true")?;
    ensure!(attempt.status == Some(125), "{attempt:?}");
    ensure!(attempt.stderr.contains("no tunnel home"), "{attempt:?}");

    step("two that join are in the same network as the first");
    let mut first = world.start("readlink /proc/self/ns/net; echo begun; exec sleep 600")?;
    until(&first, "begun")?;
    let script = format!(
        "readlink /proc/self/ns/net; ping -n -c 1 -W 20 {BEYOND} >/dev/null && echo answered"
    );
    let joined = world.join(&script)?;
    let namespace = first.output().lines().next().unwrap_or_default().to_owned();
    ensure!(
        joined.stdout == format!("{namespace}\nanswered\n"),
        "{joined:?}"
    );

    step("a second tunnel of the same name is refused, and one of another name is not");
    let attempt = world.exec("true")?;
    ensure!(attempt.status == Some(125), "{attempt:?}");
    ensure!(attempt.stderr.contains("exec --join home"), "{attempt:?}");
    let other = world.file("other", "", "10.77.0.0/24")?;
    let attempt = world.user(&[PROGRAM, "exec", &other, "--", "true"])?;
    ensure!(attempt.status == Some(0), "{attempt:?}");
    let attempt = world.user(&[PROGRAM, "exec", "--join", "othr", "--", "true"])?;
    ensure!(attempt.stderr.contains("running: home"), "{attempt:?}");

    step("the tunnel outlives the first, and its status is the first's");
    let script = format!(
        "echo joined; until [ -e $HOME/end ]; do sleep 0.05; done; \
         ping -n -c 1 -W 20 {BEYOND} >/dev/null && echo answered; exit 3"
    );
    let mut last = world.start_joined(&script)?;
    until(&last, "joined")?;
    first.signal(Signal::TERM)?;
    until(&first, "home stays for 1 that joined")?;
    let attempt = world.join("true")?;
    ensure!(attempt.status == Some(0), "{attempt:?}");
    ensure!(first.runs()?, "{}", first.output());
    world.user(&["touch", "/run/exec/home/end"])?;
    ensure!(last.wait(PATIENCE)?.code() == Some(3), "{}", last.output());
    ensure!(last.output().contains("answered"), "{}", last.output());
    let status = first.wait(PATIENCE)?;
    ensure!(
        status.code() == Some(128 + 15),
        "{status}: {}",
        first.output()
    );
    let attempt = world.join("true")?;
    ensure!(attempt.status == Some(125), "{attempt:?}");
    world.output_of("true").map(drop)
}

pub(crate) fn ended() -> Result<()> {
    let world = World::new()?;
    let mut first = world.start("echo begun; exec sleep 600")?;
    until(&first, "begun")?;
    let script =
        format!("echo joined; while ping -n -c 1 -W 1 {BEYOND} >/dev/null; do :; done; echo alone");
    let mut other = world.start_joined(&script)?;
    until(&other, "joined")?;
    first.signal(Signal::USR1)?;
    until(&first, "home stays for 1 that joined")?;
    first.signal(Signal::TERM)?;
    let status = first.wait(PATIENCE)?;
    ensure!(status.code() == Some(128 + 10), "{status}");
    until(&other, "alone")?;
    ensure!(other.wait(PATIENCE)?.success(), "{}", other.output());
    Ok(())
}

pub(crate) fn other_users() -> Result<()> {
    let world = World::new()?;
    let mut first = world.start("echo begun; sleep 600")?;
    until(&first, "begun")?;
    #[rustfmt::skip]
    let other = [
        "setpriv", "--reuid", "4799", "--regid", "4799", "--clear-groups",
        "env", "--default-signal", "--chdir=/", "XDG_RUNTIME_DIR=/run/exec/session",
        PROGRAM, "exec", "--join", "home", "--", "true",
    ];
    let attempt = world.near.attempt(&other)?;
    ensure!(attempt.status == Some(125), "{attempt:?}");
    // Root can connect, but gets no answer.
    let connect = "import socket
holder = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
holder.settimeout(60)
holder.connect('/run/exec/session/taupe/home.sock')
print(len(holder.recv(100)))";
    let reported = |command: &[&str]| -> Result<String> {
        let attempt = world.near.attempt(command)?;
        ensure!(attempt.status == Some(0), "{attempt:?}");
        Ok(attempt.stdout)
    };
    let python = ["python3", "-c", connect];
    ensure!(
        reported(&as_user(&python))? == "1\n",
        "the user is not let in"
    );
    ensure!(reported(&python)? == "0\n", "root is let in");
    ensure!(first.runs()?, "{}", first.output());
    let attempt = world.user(&[PROGRAM, "exec", &home(), "--", "true"])?;
    ensure!(attempt.stderr.contains("is running already"), "{attempt:?}");
    Ok(())
}

/// Without a session folder the commands meet in `/tmp`.
pub(crate) fn without_session() -> Result<()> {
    const FOLDER: &str = "/tmp/taupe-4711";
    let world = World::new()?;
    let home = home();
    let begin = [
        "env",
        "-u",
        "XDG_RUNTIME_DIR",
        PROGRAM,
        "exec",
        &home,
        "--",
        "bash",
        "-c",
        "echo begun; exec sleep 600",
    ];
    let mut first = world.near.spawn(&as_user(&begin))?;
    until(&first, "begun")?;
    let join = [
        "env",
        "-u",
        "XDG_RUNTIME_DIR",
        PROGRAM,
        "exec",
        "--join",
        "home",
        "--",
        "ls",
        FOLDER,
    ];
    let joined = world.user(&join)?;
    ensure!(joined.status == Some(0), "{joined:?}");
    ensure!(!joined.stdout.contains("home.sock"), "{joined:?}");
    ensure!(first.runs()?, "{}", first.output());
    drop(first);

    step("somebody else was there first");
    std::fs::remove_dir_all(FOLDER).map_err(Error::io(FOLDER))?;
    std::fs::create_dir(FOLDER).map_err(Error::io(FOLDER))?;
    let attempt = world.user(&begin)?;
    ensure!(attempt.status == Some(125), "{attempt:?}");
    ensure!(
        attempt.stderr.contains(FOLDER) && attempt.stderr.contains("remove it"),
        "{attempt:?}"
    );
    Ok(())
}
