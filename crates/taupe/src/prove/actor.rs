//! The probe in the place of the application's executable.
//!
//! Rules recognise a process by its executable's path and name, its user and its control group. The
//! probe has all of them. Its executable is a copy of this program, on a file system in memory that
//! only the probe's mount namespace has, and that is mounted over the application's path there. The
//! system's files do not change. When the probe has ended, the kernel removes the namespace and the
//! copy, also if this process was killed.

use super::plan::PlannedProbe;
use super::probe::{ARGUMENT, Kind, PROGRAM, ProbeAnswer, READY};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, unmount,
};
use std::fs::{self, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use taupe_inspect::processes::Subject;
use taupe_os_linux::descriptor::close_on_exec_except;
use taupe_os_linux::namespace::{NamespaceKind, unshare};

/// Time for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Longest answer in bytes.
const MAX_ANSWER: usize = 4096;

/// Folders over which the copy's file system can be mounted for a moment.
const FOLDERS: [&str; 4] = ["/run", "/tmp", "/mnt", "/var"];

/// Mount point of cgroup2.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Reason why there is no probe.
#[derive(Debug, thiserror::Error)]
pub(super) enum ActorError {
    #[error("cannot read this program: {0}")]
    Program(#[source] io::Error),
    #[error("cannot put the probe into the place of {path}: {source}")]
    Place { path: String, source: io::Error },
    #[error("cannot start the probe: {0}")]
    Start(#[source] io::Error),
}

/// A running probe. It ends when it is dropped.
pub(super) struct Actor {
    child: Child,
    requests: Option<ChildStdin>,
    answers: ChildStdout,
    /// Properties that it has in common with the application.
    pub(super) description: String,
}

/// Starts the probe with the properties of a process or an executable.
pub(super) fn start(subject: &Subject) -> Result<Actor, ActorError> {
    let (mut child, account) = thread::scope(|scope| {
        let thread = thread::Builder::new().name("probe".into());
        // Only this thread enters the namespace, and its child inherits it.
        let started = thread.spawn_scoped(scope, || spawn(subject));
        let ended = started.map_err(ActorError::Start)?.join();
        ended.unwrap_or_else(|_| Err(ActorError::Start(io::ErrorKind::Other.into())))
    })?;
    let (requests, answers) = (child.stdin.take(), child.stdout.take());
    let Some(answers) = answers else {
        return Err(ActorError::Start(io::ErrorKind::BrokenPipe.into()));
    };
    let mut description = format!(
        "it ran from the path {} as user {}",
        subject.shown_path(),
        account.uid
    );
    if subject.id.is_none() {
        description += ", since the application does not run";
    }
    if let Some(entered) = enter_cgroup(subject, child.id()) {
        description += &match entered {
            Ok(()) => format!(" in the control group {}", subject.shown_cgroup()),
            Err(error) => format!(
                "; it could not enter the control group {}: {error}",
                subject.shown_cgroup()
            ),
        };
    }
    let mut actor = Actor {
        child,
        requests,
        answers,
        description,
    };
    match actor.answer().map_err(ActorError::Start)? {
        line if line == READY => Ok(actor),
        _ => Err(ActorError::Start(io::ErrorKind::InvalidData.into())),
    }
}

/// Moves the probe into the control group of a running process, if it is another one.
fn enter_cgroup(subject: &Subject, probe: u32) -> Option<io::Result<()>> {
    let own = Subject::of(std::process::id())?;
    if subject.id.is_none() || own.cgroup() == subject.cgroup() {
        return None;
    }
    let relative = subject
        .cgroup()
        .strip_prefix("/")
        .unwrap_or(subject.cgroup());
    let list = Path::new(CGROUPS).join(relative).join("cgroup.procs");
    Some(fs::write(list, probe.to_string()))
}

/// User and group of a process.
#[derive(Clone, Copy)]
struct Account {
    uid: u32,
    gid: u32,
}

impl Account {
    const ROOT: Self = Self { uid: 0, gid: 0 };

    /// The user `nobody`.
    const NOBODY: Self = Self {
        uid: 65_534,
        gid: 65_534,
    };

    /// Returns that of a running application. Another one would run as the user who called sudo. Root's
    /// rights would allow the probe leaks that the application cannot make.
    fn of(subject: &Subject) -> Self {
        let variable = |name| std::env::var(name).ok()?.parse().ok();
        let by_sudo = || {
            Some(Self {
                uid: variable("SUDO_UID")?,
                gid: variable("SUDO_GID")?,
            })
        };
        match subject.id {
            Some(id) => Self {
                uid: subject.uid,
                gid: group(id).unwrap_or(subject.uid),
            },
            None => by_sudo().unwrap_or(Self::NOBODY),
        }
    }
}

fn spawn(subject: &Subject) -> Result<(Child, Account), ActorError> {
    let path = subject.path();
    let place = |source: io::Error| ActorError::Place {
        path: subject.shown_path(),
        source,
    };
    let program = fs::read("/proc/self/exe").map_err(ActorError::Program)?;
    let folder = FOLDERS.into_iter().find(|folder| !path.starts_with(folder));
    let (Some(folder), Some(name)) = (folder, path.file_name()) else {
        return Err(place(io::ErrorKind::InvalidInput.into()));
    };
    unshare(NamespaceKind::Mount).map_err(place)?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).map_err(|error| place(error.into()))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("taupe-probe", folder, "tmpfs", flags, c"mode=755")
        .map_err(|error| place(error.into()))?;
    let copy = Path::new(folder).join(name);
    fs::write(&copy, program).map_err(place)?;
    fs::set_permissions(&copy, Permissions::from_mode(0o755)).map_err(place)?;
    mount_bind(&copy, path).map_err(|error| place(error.into()))?;
    // The mount of the file keeps the file system.
    unmount(folder, UnmountFlags::DETACH).map_err(|error| place(error.into()))?;
    let run = |account: Account| {
        let mut command = Command::new(path);
        command
            .arg0(PROGRAM)
            .arg(ARGUMENT)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // A terminal's interrupt is for this process, which ends the probe.
            .process_group(0);
        if account.uid != Account::ROOT.uid {
            command.gid(account.gid).uid(account.uid);
        }
        command.spawn().map(|child| (child, account))
    };
    // Its parent may have left descriptors open that are no concern of the probe.
    close_on_exec_except(&[]).map_err(ActorError::Start)?;
    let account = Account::of(subject);
    let started = match run(account) {
        // Only root can reach the executable.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && subject.id.is_none() => {
            run(Account::ROOT)
        }
        started => started,
    };
    started.map_err(ActorError::Start)
}

/// Returns the group of a process.
fn group(id: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let groups = status.lines().find_map(|line| line.strip_prefix("Gid:"))?;
    groups.split_whitespace().next()?.parse().ok()
}

impl Actor {
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Has the probe send a packet. After an error, the probe cannot be asked again: a late answer would
    /// count for the next packet.
    pub(super) fn ask(&mut self, planned: &PlannedProbe, nonce: &str) -> io::Result<ProbeAnswer> {
        let destination = planned.destination.map(|one| one.to_string());
        let destination = destination.unwrap_or_default();
        let binding = planned.binding.as_deref().unwrap_or_default();
        let request = format!("{} {destination} {nonce} {binding}\n", planned.kind.word());
        let requests = self.requests.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        requests.write_all(request.as_bytes())?;
        let answer = ProbeAnswer::parse(&self.answer()?).ok_or(io::ErrorKind::InvalidData)?;
        Ok(match answer {
            // Only a connection is recognised by its port.
            ProbeAnswer::Sent { .. } if planned.kind != Kind::Tcp => {
                ProbeAnswer::Sent { port: None }
            }
            answer => answer,
        })
    }

    /// Reads a line. The probe writes one for each request.
    fn answer(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        let end = Instant::now() + PATIENCE;
        while line.len() < MAX_ANSWER {
            let left = end.saturating_duration_since(Instant::now());
            let patience = Timespec::try_from(left).ok();
            let ready = poll(
                &mut [PollFd::new(&self.answers, PollFlags::IN)],
                patience.as_ref(),
            );
            match ready {
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
            let mut part = [0; 512];
            let count = self.answers.read(&mut part)?;
            line.extend_from_slice(&part[..count]);
            match line.iter().position(|byte| *byte == b'\n') {
                Some(end) if end + 1 == line.len() => {
                    return Ok(String::from_utf8_lossy(&line).into_owned());
                }
                Some(_) => break,
                None if count == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                None => {}
            }
        }
        Err(io::ErrorKind::InvalidData.into())
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        // Nothing of the probe needs an orderly end.
        drop(self.requests.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Starts a shell in place of the probe.
    fn shell(script: &str) -> Actor {
        let mut child = Command::new("/bin/sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        Actor {
            requests: child.stdin.take(),
            answers: child.stdout.take().expect("a pipe"),
            child,
            description: String::new(),
        }
    }

    fn ask(script: &str, kind: Kind) -> io::Result<ProbeAnswer> {
        let planned = PlannedProbe {
            name: "udp",
            kind,
            destination: "192.0.2.1:9".parse().ok(),
            binding: None,
            skipped: None,
        };
        shell(script).ask(&planned, "nonce")
    }

    #[test]
    fn a_probe_that_ends_or_answers_twice_is_an_error() {
        for (script, expected) in [
            ("read line", io::ErrorKind::UnexpectedEof),
            ("read line; printf sent", io::ErrorKind::UnexpectedEof),
            (
                "read line; printf 'sent\\nsent\\n'",
                io::ErrorKind::InvalidData,
            ),
            ("read line; echo other", io::ErrorKind::InvalidData),
        ] {
            let error = ask(script, Kind::Udp).expect_err(script);
            assert_eq!(error.kind(), expected, "{script}");
        }
    }

    #[test]
    fn only_a_connection_has_a_port() {
        let script = "read line; echo sent 1000";
        for (kind, port) in [(Kind::Tcp, Some(1000)), (Kind::Udp, None)] {
            let answer = ask(script, kind).expect("an answer");
            assert_eq!(answer, ProbeAnswer::Sent { port });
        }
    }
}
