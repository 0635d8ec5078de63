//! Times of Taupe's commands, for a tunnel with a selected application.

use std::process::Command;
use std::time::{Duration, Instant};
use taupe_lab::host::{Host, neighbours};
use taupe_lab::peers::Implementation;
use taupe_lab::process::Process;
use taupe_lab::sandbox::scratch_file;
use taupe_lab::server::Server;
use taupe_lab::{Error, Result, ensure};

/// Name of the tunnel.
const TUNNEL: &str = "home";

/// A command, from its start to its end.
#[derive(Debug, Clone, PartialEq)]
pub struct CommandTimes {
    /// Name of the command in reports.
    pub name: &'static str,
    /// Seconds, in the order of the rounds.
    pub seconds: Vec<f64>,
}

impl CommandTimes {
    /// Returns the time that nine of ten runs did not exceed.
    pub fn p90(&self) -> Option<f64> {
        let mut sorted = self.seconds.clone();
        sorted.sort_by(f64::total_cmp);
        // Nearest rank.
        let rank = (sorted.len() * 9).div_ceil(10);
        sorted.get(rank.checked_sub(1)?).copied()
    }
}

/// Times of all commands.
#[derive(Debug, Clone, PartialEq)]
pub struct CommandsFound {
    /// The commands, in the order in which they were executed.
    pub commands: Vec<CommandTimes>,
    /// Mean number of runnable processes in the minute before (`/proc/loadavg`).
    pub load: f64,
}

/// Runs each command `rounds` times, on machines of its own.
///
/// # Errors
///
/// [`Error::Command`] with the output of a command that fails.
pub fn measure(rounds: u32) -> Result<CommandsFound> {
    let load = load()?;
    let (near, far) = neighbours()?;
    near.ip(&["route", "add", "default", "via", "192.0.2.2"])?;
    let server = Server::start(&near, &far)?;
    let rules = "AllowedApps = /usr/bin/curl\nDNS = 10.77.0.1";
    let text = server.file(rules, "AllowedIPs = 0.0.0.0/0\nPersistentKeepalive = 25");
    let file = &*scratch_file(&format!("{TUNNEL}.conf"), &text)?;
    let program = Implementation::Taupe.program()?.display().to_string();
    let mut application = Process::start(near.name(), near.command(&["sleep", "1000"]))?;
    let mut all: Vec<CommandTimes> = Vec::new();
    for _ in 0..rounds {
        for (name, arguments) in commands(file) {
            let took = run(&near, &program, &arguments)?;
            match all.iter_mut().find(|known| known.name == name) {
                Some(known) => known.seconds.push(took.as_secs_f64()),
                None => all.push(CommandTimes {
                    name,
                    seconds: vec![took.as_secs_f64()],
                }),
            }
        }
    }
    ensure!(application.runs()?, "{}", application.output());
    Ok(CommandsFound {
        commands: all,
        load,
    })
}

/// Returns the commands of a round, each with its name in reports.
fn commands(file: &str) -> [(&'static str, Vec<&str>); 13] {
    [
        ("help", vec!["help"]),
        ("check", vec!["check", file]),
        ("up", vec!["up", file]),
        ("status", vec!["status"]),
        ("status-json", vec!["status", "--json", TUNNEL]),
        ("flows", vec!["flows"]),
        (
            "explain",
            vec!["explain", "/usr/bin/curl", "198.51.100.1:443"],
        ),
        ("app-allow", vec!["app", "allow", file, "/usr/bin/wget"]),
        ("app-remove", vec!["app", "remove", file, "/usr/bin/wget"]),
        ("reload", vec!["reload", file]),
        ("doctor", vec!["doctor"]),
        ("down", vec!["down", file]),
        ("doctor-fresh", vec!["doctor", "--fresh"]),
    ]
}

fn run(near: &Host, program: &str, arguments: &[&str]) -> Result<Duration> {
    let (took, output) = near.enter(|| {
        let mut command = Command::new(program);
        let begin = Instant::now();
        let output = command.args(arguments).output();
        Ok((begin.elapsed(), output.map_err(Error::io(program))?))
    })?;
    // `status` has a status of its own for a degraded tunnel, and `doctor` for warnings.
    let is_expected = output.status.success() || ["status", "doctor"].contains(&arguments[0]);
    ensure!(
        is_expected,
        "{arguments:?}: {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(took)
}

fn load() -> Result<f64> {
    let path = "/proc/loadavg";
    let text = std::fs::read_to_string(path).map_err(Error::io(path))?;
    let load = text.split(' ').next().and_then(|word| word.parse().ok());
    load.ok_or_else(|| Error::unmet(format!("{path}: {text}")))
}

#[cfg(test)]
mod tests {
    use super::CommandTimes;

    #[test]
    fn nine_of_ten_runs_are_not_slower() {
        let times = |seconds: &[f64]| CommandTimes {
            name: "up",
            seconds: seconds.to_vec(),
        };
        let ten: Vec<_> = (1..=10).rev().map(f64::from).collect();
        assert_eq!(times(&ten).p90(), Some(9.0));
        assert_eq!(times(&[3.0]).p90(), Some(3.0));
        assert_eq!(times(&[2.0, 1.0]).p90(), Some(2.0));
        assert_eq!(times(&[]).p90(), None);
    }
}
