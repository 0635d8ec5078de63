//! The child process that sets the sandbox up and becomes the command.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::io::Write as _;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{getegid, geteuid};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use taupe_os_linux::namespace::{NamespaceKind, unshare};
use taupe_os_linux::process::close_network_sockets_on_exec;
use taupe_os_linux::watch::LinkWatch;

use crate::config::SandboxConfig;
use crate::hidden::CoveredPaths;
use crate::process::{Namespaces, PendingChild, PendingSandbox, SandboxError};
use crate::setup_error::{SetupError, SystemFacts, failed};
use crate::{files, network, obstacle, rights};
use taupe_os_linux::message_socket as message;

/// Exit status if the sandbox cannot be set up or joined.
pub const NOT_SET_UP: u8 = 125;

/// Exit status if the command cannot be executed.
pub const NOT_EXECUTABLE: u8 = 126;

/// Exit status if the command does not exist.
pub const NOT_FOUND: u8 = 127;

/// First byte of a message from the child: the sandbox is set up; remarks follow, one per line.
const OPENED: u8 = b'+';

/// First byte of a message from the child: setting up failed; the code of the obstacle and the
/// reason follow.
const REFUSED: u8 = b'-';

/// Sets a sandbox up, and becomes the command when the parent releases it. Returns only on failure,
/// with the exit status.
pub(crate) fn run(config: &SandboxConfig, socket: OwnedFd, command: &[OsString]) -> u8 {
    let core = rights::limit_core();
    let mut remarks = Vec::new();
    let folder = env::current_dir();
    let covered;
    let sent = match open(config, &mut remarks) {
        Ok((descriptors, found)) => {
            covered = found;
            let mut text = vec![OPENED];
            text.extend(remarks.join("\n").bytes());
            let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
            message::send(socket.as_fd(), &text, &descriptors)
        }
        Err(error) => {
            let mut text = vec![REFUSED, obstacle::encode(error.obstacle())];
            text.extend(error.to_string().bytes());
            // If sending fails, the parent has ended.
            let _ = message::send(socket.as_fd(), &text, &[]);
            return NOT_SET_UP;
        }
    };
    if sent.is_err() {
        return NOT_SET_UP;
    }
    match message::receive(socket.as_fd()) {
        Ok(Some(_)) => become_command(folder, Some(&covered), Some(core), command),
        // The parent has ended, and has reported the reason.
        Ok(None) | Err(_) => NOT_SET_UP,
    }
}

/// Evaluates the child's first message.
pub(crate) fn parse_setup_message(
    message: message::Message,
    child: PendingChild,
) -> Result<PendingSandbox, SandboxError> {
    let (first, text) = message.text.split_first().ok_or(SandboxError::ChildEnded)?;
    if *first != OPENED {
        let (code, reason) = text.split_first().ok_or(SandboxError::ChildEnded)?;
        return Err(SandboxError::SetupFailed {
            reason: String::from_utf8_lossy(reason).into_owned(),
            obstacle: obstacle::decode(*code),
        });
    }
    let text = String::from_utf8_lossy(text);
    let descriptors: Result<[OwnedFd; 6], _> = message.descriptors.try_into();
    let Ok([tun, notifications, lookup, user, network, mount]) = descriptors else {
        // This process has no free descriptors for them (RLIMIT_NOFILE).
        let source = rustix::io::Errno::MFILE.into();
        return Err(SandboxError::Process(source));
    };
    Ok(PendingSandbox {
        tun,
        watch: LinkWatch::from_sockets([notifications, lookup]).map_err(SandboxError::Process)?,
        namespaces: Namespaces {
            user,
            network,
            mount,
        },
        remarks: text.lines().map(str::to_owned).collect(),
        child,
    })
}

/// Moves this process into new namespaces and sets them up. Returns the TUN, the two sockets that
/// watch it, the namespaces, and the covered paths.
fn open(
    config: &SandboxConfig,
    remarks: &mut Vec<String>,
) -> Result<([OwnedFd; 6], CoveredPaths), SetupError> {
    // Before the mapping is written, they are the overflow IDs.
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    let facts = SystemFacts::read();
    let enter = |kind| {
        let entered = unshare(kind);
        entered.map_err(|source| SetupError::namespace(kind, source, &facts))
    };
    enter(NamespaceKind::User)?;
    let write = |file: &str, text: String| {
        let path = format!("/proc/self/{file}");
        let written = fs::write(&path, text);
        written.map_err(|error| {
            let step = failed(format!("write {path}"), error);
            SetupError::step(step.of_mapping(user), &facts)
        })
    };
    // The kernel lets an unprivileged user map a group only after this (user_namespaces(7)).
    write("setgroups", "deny".to_owned())?;
    write("uid_map", format!("{user} {user} 1"))?;
    write("gid_map", format!("{group} {group} 1"))?;
    enter(NamespaceKind::Network)?;
    enter(NamespaceKind::Mount)?;
    let network::OpenedTun { tun, watch } = network::set_up(config, group, &facts, remarks)?;
    let covered = files::set_up(config, remarks);
    let covered = covered.map_err(|error| SetupError::step(error, &facts))?;
    let namespace = |kind: NamespaceKind| {
        let path = format!("/proc/self/ns/{}", kind.name());
        let file = fs::File::open(&path).map(OwnedFd::from);
        file.map_err(|error| SetupError::step(failed(format!("open {path}"), error), &facts))
    };
    let [notifications, lookup] = watch.into_sockets();
    let descriptors = [
        tun,
        notifications,
        lookup,
        namespace(NamespaceKind::User)?,
        namespace(NamespaceKind::Network)?,
        namespace(NamespaceKind::Mount)?,
    ];
    Ok((descriptors, covered))
}

/// Makes this process, which must have a single thread, the command in an existing sandbox. Returns
/// only on failure, with the exit status, and prints the reason.
pub fn join(namespaces: &Namespaces, command: &[OsString]) -> u8 {
    let folder = env::current_dir();
    let Namespaces {
        user,
        network,
        mount,
    } = namespaces;
    for (namespace, kind) in [
        (user, LinkNameSpaceType::User),
        (network, LinkNameSpaceType::Network),
        (mount, LinkNameSpaceType::Mount),
    ] {
        if let Err(error) = move_into_link_name_space(namespace.as_fd(), Some(kind)) {
            print_error(&format!("cannot enter the tunnel's namespaces: {error}"));
            return NOT_SET_UP;
        }
    }
    become_command(folder, None, None, command)
}

/// Enters the current folder again by its path, which resolves in the sandbox's file system. Until
/// then the process's folder is that of the machine.
///
/// Entering may fail: another file system may be mounted over the path, or only a process with more
/// rights can enter it. Then the process stays in the machine's folder, as it would without a
/// sandbox, unless the sandbox covers the path.
fn enter_folder(folder: &Path, covered: Option<&CoveredPaths>) -> io::Result<()> {
    env::set_current_dir(folder).or_else(|error| match covered {
        Some(covered) if !covered.has(folder) => Ok(()),
        // A process that joins starts at the root of the sandbox's file system.
        _ => Err(error),
    })
}

fn become_command(
    folder: io::Result<PathBuf>,
    covered: Option<&CoveredPaths>,
    core: Option<rights::CoreLimit>,
    command: &[OsString],
) -> u8 {
    if let Err(error) = folder.and_then(|folder| enter_folder(&folder, covered)) {
        print_error(&format!(
            "the current folder cannot be entered from the tunnel: {error}; go to another one \
             first (`cd /`)"
        ));
        return NOT_SET_UP;
    }
    let core = core.map_or(Ok(()), rights::CoreLimit::restore);
    if let Err(error) = core.and_then(|()| rights::drop_all()) {
        print_error(&format!("cannot give up rights: {error}"));
        return NOT_SET_UP;
    }
    if let Err(error) = close_network_sockets_on_exec() {
        print_error(&format!(
            "cannot find sockets of the network outside the sandbox: {error}"
        ));
        return NOT_SET_UP;
    }
    let Some((program, arguments)) = command.split_first() else {
        return NOT_FOUND;
    };
    let error = Command::new(program).args(arguments).exec();
    print_error(&format!("{}: {error}", program.display()));
    match error.kind() {
        io::ErrorKind::NotFound => NOT_FOUND,
        _ => NOT_EXECUTABLE,
    }
}

/// Prints an error. The parent process does not report failures at this stage.
fn print_error(sentence: &str) {
    let _ = io::stderr().write_all(format!("taupe: {sentence}\n").as_bytes());
}
