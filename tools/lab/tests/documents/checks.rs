//! Effects of commands: what is prepared before one, and checked after it.

use crate::world::{ETC, SOON, TUNNEL, UPLINK, World};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::fs::PermissionsExt;
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

/// Checks the effect of a command of the guide or README.md about a tunnel. `before` is the network
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
        ["taupe", "allowed-ips", ..] => {
            printed(command, output, "192.169.0.0/16")?;
            printed(command, output, "::/0")?;
            ensure!(!output.stdout.contains("192.168."), "{output:?}");
            Ok(())
        }
        _ if command.text.contains("tee key") => {
            let path = world.folder.join("key");
            let data = fs::metadata(&path).map_err(Error::io("key"))?;
            ensure!(data.permissions().mode() & 0o777 == 0o600, "{data:?}");
            let private = fs::read_to_string(&path).map_err(Error::io("key"))?;
            let public = world.near.run_with_input(&["wg", "pubkey"], &private)?;
            ensure!(output.stdout == public.stdout, "{output:?}");
            Ok(())
        }
        _ => Err(without_check(command)),
    }
}

/// Returns the error for a command whose effect no test knows.
pub(crate) fn without_check(command: &Command) -> Error {
    Error::unmet(format!(
        "`{}` has succeeded, and nothing checks its effect: add the check to the scenario",
        command.text
    ))
}

/// Fails unless a command begins like one of these, whose effects its scenario checks.
pub(crate) fn begins_with(command: &Command, beginnings: &[&str]) -> Result<()> {
    let own = own_words(command).join(" ");
    let is_known = beginnings.iter().any(|known| own.starts_with(known));
    ensure!(is_known, "{}", without_check(command));
    Ok(())
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
