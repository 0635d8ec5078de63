//! Effects of commands: what is prepared before one, and checked after it.

use crate::world::{ETC, SOON, TUNNEL, UPLINK, World};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use taupe_lab::documents::Command;
use taupe_lab::process::{Output, wait_until};
use taupe_lab::sandbox::scratch;
use taupe_lab::{Error, Result, ensure};

/// The words of a command without `sudo`, its option and variables.
pub(crate) fn own_words(command: &Command) -> Vec<String> {
    let words = command.words().into_iter();
    words
        .skip_while(|word| word == "sudo" || word == "-E" || word.contains('='))
        .collect()
}

/// Checks that a command has printed this.
pub(crate) fn printed(command: &Command, output: &Output, expected: &str) -> Result<()> {
    let all = format!("{}{}", output.stdout, output.stderr);
    ensure!(
        all.contains(expected),
        "`{}` does not print {expected:?}: {all}",
        command.text
    );
    Ok(())
}

/// Checks that `systemctl enable` has made the links of all units, and that their files are there.
pub(crate) fn enabled(command: &Command) -> Result<()> {
    let words = own_words(command);
    let units: Vec<_> = words.iter().filter(|word| word.contains('@')).collect();
    ensure!(!units.is_empty(), "{words:?} has no unit");
    for unit in units {
        let found = fs::read_dir(scratch("systemd/etc/systemd/system"))
            .map_err(Error::io("links of systemd"))?
            .flatten()
            .any(|target| target.path().join(format!("{unit}.service")).is_symlink());
        ensure!(found, "{unit} is not enabled");
        let instance = unit.split_once('@').unwrap_or_default().1;
        let file = format!("{ETC}/{instance}.conf");
        ensure!(fs::exists(&file).unwrap_or(false), "{unit}: no {file}");
    }
    Ok(())
}

/// Checks the state of a tunnel after a command of the guide or README.md. `before` is the network
/// without a tunnel.
pub(crate) fn after(world: &World, command: &Command, output: &Output, before: &str) -> Result<()> {
    let words = own_words(command);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match &*words {
        ["taupe", "check", ..] => printed(command, output, "is fine"),
        ["taupe", "up", ..] => world.must_be("curl", Some(TUNNEL), "up"),
        ["taupe", "reload", ..] => {
            let mtu = world.near.run(&["cat", "/sys/class/net/wg0/mtu"])?;
            ensure!(mtu.text() == "1380", "MTU {}", mtu.text());
            world.must_be("curl", Some(TUNNEL), "reload")
        }
        ["taupe", "status", ..] => printed(command, output, ": up"),
        ["taupe", "show", ..] => {
            printed(command, output, "interface: wg0")?;
            printed(command, output, "latest handshake")
        }
        ["taupe", "down", ..] => {
            let now = world.network()?;
            ensure!(now == before, "down leaves\n{now}\ninstead of\n{before}");
            world.must_be("curl", Some(UPLINK), "down")
        }
        ["systemctl", ..] => enabled(command),
        _ => Ok(()),
    }
}

/// Kills the process of a tunnel by SIGKILL.
pub(crate) fn kill_tunnel(world: &World, interface: &str) -> Result<()> {
    let socket = format!("/var/run/wireguard/{interface}.sock");
    let listed = world.near.run(&["ss", "-xlpH", "src", &socket])?.stdout;
    let number = listed.split("pid=").nth(1);
    let number = number.and_then(|rest| rest.split([',', ')']).next()?.parse().ok());
    let process = number.and_then(Pid::from_raw);
    let process = process.ok_or_else(|| Error::unmet(format!("no process at {socket}")))?;
    kill_process(process, Signal::KILL).map_err(Error::io("kill"))?;
    wait_until("end of the interface", SOON, || {
        let shown = ["ip", "link", "show", "dev", interface];
        Ok(world.near.attempt(&shown)?.status != Some(0))
    })
}
