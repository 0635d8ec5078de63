//! Commands keep their exit status, signals and environment.

use crate::{BEYOND, PROGRAM, World, home};
use rustix::process::Signal;
use std::time::Duration;
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::step;
use taupe_lab::{Result, ensure};

const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn status() -> Result<()> {
    let world = World::new()?;
    for (command, expected) in [
        (&["true"][..], 0),
        (&["bash", "-c", "exit 7"], 7),
        (&["bash", "-c", "kill -9 $$"], 128 + 9),
        (&["bash", "-c", "kill -TERM $$"], 128 + 15),
        (&["/no/such/program"], 127),
        (&["taupe-lab-no-such-program"], 127),
        (&["/etc/passwd"], 126),
        (&["/etc"], 126),
    ] {
        let attempt = world.user(&[&[PROGRAM, "exec", &home(), "--"], command].concat())?;
        ensure!(attempt.status == Some(expected), "{command:?}: {attempt:?}");
        let is_reported = attempt.stderr.contains(command[0]);
        ensure!(
            is_reported == (expected == 126 || expected == 127),
            "{attempt:?}"
        );
    }
    // Also if the caller ignores SIGCHLD.
    let script = "import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.execv(sys.argv[1], sys.argv[1:])";
    let python = ["python3", "-c", script, PROGRAM, "exec", &home(), "--"];
    let attempt = world.user(&[&python[..], &["bash", "-c", "exit 7"]].concat())?;
    ensure!(attempt.status == Some(7), "{attempt:?}");
    let joined = world.user(&[PROGRAM, "exec", "--join", "home", "--", "true"])?;
    ensure!(joined.status == Some(125), "{joined:?}");
    for wrong in [
        &[][..],
        &["--"],
        &["--join", "home", &home(), "--", "true"],
        &["--nonsense"],
    ] {
        let attempt = world.user(&[&[PROGRAM, "exec"], wrong].concat())?;
        ensure!(attempt.status == Some(125), "{wrong:?}: {attempt:?}");
    }
    Ok(())
}

pub(crate) fn signals() -> Result<()> {
    let world = World::new()?;
    let mut command = world.start(
        "for signal in HUP INT QUIT TERM USR1 USR2 ALRM WINCH; do trap \"echo $signal\" $signal; \
         done; echo ready; while :; do sleep 0.05; done",
    )?;
    wait_until("ready", PATIENCE, || {
        Ok(command.output().contains("ready\n"))
    })?;
    for (signal, name) in [
        (Signal::HUP, "HUP"),
        (Signal::INT, "INT"),
        (Signal::QUIT, "QUIT"),
        (Signal::TERM, "TERM"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
        (Signal::ALARM, "ALRM"),
        (Signal::WINCH, "WINCH"),
    ] {
        command.signal(signal)?;
        let line = format!("\n{name}\n");
        wait_until(name, PATIENCE, || Ok(command.output().contains(&line)))?;
    }
    ensure!(command.runs()?, "{}", command.output());
    drop(command);

    step("one that a signal ends says so, and nothing of the tunnel is left");
    let mut command = world.start("echo ready; exec sleep 600")?;
    wait_until("ready", PATIENCE, || {
        Ok(command.output().contains("ready\n"))
    })?;
    command.signal(Signal::TERM)?;
    let status = command.wait(PATIENCE)?;
    ensure!(status.code() == Some(128 + 15), "{status}");
    world.output_of("true").map(drop)
}

/// A user who waits for a silent peer gets one message with the reason, and one when the peer
/// answers.
pub(crate) fn silent_peer() -> Result<()> {
    let world = World::new()?;
    world.far.ip(&["link", "set", "wgfar", "down"])?;
    let command = world.start(&format!(
        "until ping -c 1 -W 1 {BEYOND} >/dev/null; do :; done; echo reached; sleep 600"
    ))?;
    let (silent, heard) = (
        "the tunnel's peer at 192.0.2.2:51821 has not answered for 10 s",
        "the tunnel's peer answers",
    );
    wait_until(silent, PATIENCE, || Ok(command.output().contains(silent)))?;
    ensure!(!command.output().contains(heard), "{}", command.output());
    world.far.ip(&["link", "set", "wgfar", "up"])?;
    wait_until("an answer", PATIENCE, || {
        Ok(command.output().contains("reached\n"))
    })?;
    let result = command.output();
    ensure!(result.contains(heard), "{result}");
    ensure!(result.matches(silent).count() == 1, "{result}");
    Ok(())
}

/// Ctrl-C reaches the terminal's whole foreground group once, not twice.
pub(crate) fn terminal() -> Result<()> {
    let world = World::new()?;
    let script = "import os, pty, select, sys
pid, terminal = pty.fork()
if pid == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
text = b''
def until(word, nudge=b''):
    global text
    while word not in text:
        if select.select([terminal], [], [], 1)[0]:
            text += os.read(terminal, 4096)
        else:
            os.write(terminal, nudge)
until(b'ready')
os.write(terminal, b'\\x03')
# A signal just before the shell's `read` blocks has its trap run only after a line.
until(b'INT', b'\\n')
os.write(terminal, b'done\\n')
try:
    while True:
        more = os.read(terminal, 4096)
        if not more:
            break
        text += more
except OSError:
    pass
status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(text.count(b'INT'), status)";
    let inner = "trap 'echo INT' INT; test -t 0 || echo no terminal; echo ready; \
                 while :; do read -t 600 line && [ \"$line\" = done ] && break; done; \
                 sleep 0.5; exit 9";
    let home = home();
    let words = [
        "python3", "-c", script, PROGRAM, "exec", &home, "--", "bash", "-c", inner,
    ];
    let attempt = world.user(&[&["timeout", "90"], &words[..]].concat())?;
    ensure!(attempt.stdout == "1 9\n", "{attempt:?}");
    Ok(())
}

pub(crate) fn surroundings() -> Result<()> {
    let world = World::new()?;
    let script = format!(
        "cd /usr/share; export WORD=kept; printf given | {PROGRAM} exec {} -- \
         bash -c 'pwd; echo $WORD; cat; echo; ping -n -c 1 -W 20 {BEYOND} >/dev/null && \
         echo answered; umask; trap; ulimit -S -c'",
        home()
    );
    // With SIGHUP ignored, as `nohup` does, a umask and a limit.
    let script = format!("trap '' HUP; umask 027; ulimit -S -c 7; {script}");
    let attempt = world.user(&["bash", "-c", &script])?;
    let expected = "/usr/share\nkept\ngiven\nanswered\n0027\ntrap -- '' SIGHUP\n7\n";
    ensure!(attempt.stdout == expected, "{attempt:?}");
    ensure!(attempt.stderr.is_empty(), "{attempt:?}");

    step("one that joins stands where it was, too");
    let mut first = world.start("echo begun; sleep 600")?;
    wait_until("begun", PATIENCE, || Ok(first.output().contains("begun")))?;
    let script = format!("cd /usr/share && {PROGRAM} exec --join home -- pwd");
    let attempt = world.user(&["bash", "-c", &script])?;
    ensure!(attempt.stdout == "/usr/share\n", "{attempt:?}");
    ensure!(first.runs()?, "{}", first.output());
    Ok(())
}

/// Root has root's rights for files, and none for the network.
pub(crate) fn root() -> Result<()> {
    let world = World::new()?;
    let script = format!(
        "id -u; grep -c '^Cap.*0000000000000000$' /proc/self/status; \
         ip link set home down 2>/dev/null || echo refused; \
         ping -n -c 1 -W 20 {BEYOND} >/dev/null && echo answered"
    );
    let attempt = world
        .near
        .attempt(&[PROGRAM, "exec", &home(), "--", "bash", "-c", &script])?;
    ensure!(attempt.stdout == "0\n5\nrefused\nanswered\n", "{attempt:?}");
    Ok(())
}

/// Started from a folder without a path, as below a `/tmp` over which another one was mounted, the
/// command stays there. It must not stay in a folder that the tunnel's namespace covers.
pub(crate) fn covered_folder() -> Result<()> {
    let world = World::new()?;
    let command = format!("{PROGRAM} exec {} -- cat here", home());
    let below = |folder: &str, over: &str| {
        format!(
            "mkdir -p {folder} && cd {folder} && echo found > here && mount -t tmpfs lab {over} && \
             {command}"
        )
    };
    let script = below("/tmp/a/b", "/tmp");
    let run = |script: &str| {
        world
            .near
            .attempt(&["unshare", "--mount", "bash", "-c", script])
    };
    let attempt = run(&script)?;
    ensure!(attempt.stdout == "found\n", "{attempt:?}");
    let script = below("/run/other/b", "/run/other");
    let attempt = run(&script)?;
    ensure!(attempt.status == Some(125), "{attempt:?}");
    ensure!(attempt.stderr.contains("cannot be entered"), "{attempt:?}");
    Ok(())
}
