//! The program `resolvconf`, from openresolv or Debian.

use super::{DnsError, Paths, Settings};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Maximum running time. The program may wait 10 s for another instance, and restarts local name
/// servers.
const LIMIT: Duration = Duration::from_secs(60);

/// Returns the program, if there is one that can be used.
///
/// # Errors
///
/// The reason why an existing program cannot be used.
pub(super) fn find(paths: &Paths) -> Result<Option<PathBuf>, String> {
    let Some(path) = paths.program("resolvconf") else {
        return Ok(None);
    };
    // systemd's `resolvconf` is another name of `resolvectl`, which needs systemd-resolved. If
    // systemd-resolved manages the file, Taupe calls it directly.
    let real = path.canonicalize().unwrap_or_default();
    if real.file_name().is_some_and(|name| name == "resolvectl") {
        return Err(format!(
            "{} is another name of resolvectl, which needs systemd-resolved in charge of \
             /etc/resolv.conf",
            path.display()
        ));
    }
    Ok(Some(path))
}

/// Returns the name of an interface's record. Debian's program sorts records by name, and the first
/// pattern of its order has precedence, so this name begins with it.
pub(super) fn record(paths: &Paths, interface: &str) -> String {
    let order = paths.at("/etc/resolvconf/interface-order");
    let order = std::fs::read_to_string(order).unwrap_or_default();
    let prefix = order.lines().find_map(|line| {
        let name = line.trim().strip_suffix('*')?;
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        (!name.is_empty() && name.chars().all(plain)).then_some(name)
    });
    match prefix {
        Some(prefix) => format!("{prefix}.{interface}"),
        None => interface.to_owned(),
    }
}

pub(super) fn adding(record: &str) -> [&str; 5] {
    ["-a", record, "-m", "0", "-x"]
}

pub(super) fn deleting(record: &str) -> [&str; 3] {
    ["-d", record, "-f"]
}

/// Passes the servers to the program.
pub(super) fn add(program: &Path, record: &str, settings: &Settings) -> Result<(), DnsError> {
    let mut text = String::new();
    for server in &settings.servers {
        let _ = writeln!(text, "nameserver {server}");
    }
    if !settings.search.is_empty() {
        let _ = writeln!(text, "search {}", settings.search.join(" "));
    }
    run(program, &adding(record), &text)
}

/// Passes the servers to the program again after another program has rewritten the file. Because it
/// does not write the file for servers that it knows already, `-u` requests this.
pub(super) fn restore(program: &Path, record: &str, settings: &Settings) -> Result<(), DnsError> {
    add(program, record, settings)?;
    run(program, &["-u"], "")
}

/// Makes the program remove the servers.
pub(super) fn delete(program: &Path, record: &str) -> Result<(), DnsError> {
    run(program, &deleting(record), "")
}

/// Returns the servers of a record, from the program or, if that fails, from its file.
pub(super) fn current(paths: &Paths, program: Option<&Path>, interface: &str) -> Option<Settings> {
    let record = record(paths, interface);
    let listed = program.and_then(|program| {
        let mut command = Command::new(program);
        command.args(["-l", &record]);
        let (status, output) = finish(command, "", Output::Collected, LIMIT).ok()?;
        status.success().then_some(output)
    });
    let text = listed.or_else(|| {
        let file = paths.at("/etc/resolvconf/run/interface").join(&record);
        std::fs::read_to_string(file).ok()
    })?;
    let settings = parse(&text, &record);
    (!settings.servers.is_empty()).then_some(settings)
}

/// Parses the lines of one record in `resolv.conf` format. Debian's program lists all records, each
/// after a comment with its name.
fn parse(text: &str, record: &str) -> Settings {
    let mut settings = Settings::default();
    let mut ours = true;
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("# resolv.conf from ") {
            ours = name.trim() == record;
        }
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") if ours => {
                settings
                    .servers
                    .extend(words.next().and_then(|word| word.parse::<IpAddr>().ok()));
            }
            Some("search" | "domain") if ours => {
                settings.search.extend(words.map(str::to_owned));
            }
            _ => {}
        }
    }
    settings
}

enum Output {
    /// Both streams go to this process's standard error, where the user sees them.
    Passed,
    /// Standard output is returned, standard error discarded.
    Collected,
}

fn run(program: &Path, arguments: &[&str], input: &str) -> Result<(), DnsError> {
    let line = || format!("{} {}", program.display(), arguments.join(" "));
    let mut command = Command::new(program);
    command.args(arguments);
    match finish(command, input, Output::Passed, LIMIT) {
        Ok((status, _)) if status.success() => Ok(()),
        Ok((status, _)) => Err(DnsError::Resolvconf {
            command: line(),
            status,
        }),
        Err(source) => Err(DnsError::Start {
            command: line(),
            source,
        }),
    }
}

/// Runs a command for at most `limit`. Returns its standard output if it is collected.
fn finish(
    mut command: Command,
    input: &str,
    output: Output,
    limit: Duration,
) -> io::Result<(ExitStatus, String)> {
    let (stdout, stderr) = match output {
        Output::Passed => {
            let standard_error = io::stderr().as_fd().try_clone_to_owned()?;
            (Stdio::from(standard_error), Stdio::inherit())
        }
        Output::Collected => (Stdio::piped(), Stdio::null()),
    };
    command.stdin(Stdio::piped()).stdout(stdout).stderr(stderr);
    let mut child = command.spawn()?;
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    std::thread::scope(|scope| {
        // A write error is ignored: a program that ends without reading its input reports why.
        scope.spawn(move || stdin.map(|mut pipe| pipe.write_all(input.as_bytes())));
        let reader = scope.spawn(move || {
            let mut text = Vec::new();
            if let Some(pipe) = stdout {
                let _ = pipe.take(1 << 16).read_to_end(&mut text);
            }
            String::from_utf8_lossy(&text).into_owned()
        });
        let ended = ends_within(&child, limit);
        if !matches!(ended, Ok(true)) {
            child.kill()?;
        }
        let status = child.wait()?;
        if !ended? {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("it was killed because it had not ended after {limit:?}"),
            ));
        }
        Ok((status, reader.join().unwrap_or_default()))
    })
}

fn ends_within(child: &std::process::Child, limit: Duration) -> io::Result<bool> {
    let handle = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let end = Instant::now() + limit;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&left)) {
            Ok(events) => return Ok(events > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests;
