//! The process that becomes the command.

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
use taupe_os_linux::namespace::{Kind, enter_new};
use taupe_os_linux::process::keep_network_sockets;
use taupe_os_linux::watch::LinkWatch;

use crate::hidden::Covered;
use crate::refusal::{Facts, Refusal, failed};
use crate::{Enclosed, Error, Namespaces, Plan, Waiting, files, message, network, rights};

/// The exit status when there is no cell, or the command cannot be let into it.
pub const NOT_SET_UP: u8 = 125;

/// The exit status when the command cannot be started.
pub const NOT_EXECUTABLE: u8 = 126;

/// The exit status when there is no such command.
pub const NOT_FOUND: u8 = 127;

/// The TUN is served.
pub(crate) const GO: &[u8] = b"go";

/// A cell has been opened; what follows are remarks, a line each.
const OPENED: u8 = b'+';

/// There is none; what follows is why.
const REFUSED: u8 = b'-';

/// Opens a cell, and becomes the command when it is let go. Returns only if it does not
/// become that, with the status to end with.
pub(crate) fn run(plan: &Plan, socket: OwnedFd, command: &[OsString]) -> u8 {
    let core = rights::without_core();
    let mut remarks = Vec::new();
    let folder = env::current_dir();
    let covered;
    let told = match open(plan, &mut remarks) {
        Ok((descriptors, found)) => {
            covered = found;
            let mut text = vec![OPENED];
            text.extend(remarks.join("\n").bytes());
            let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
            message::send(socket.as_fd(), &text, &descriptors)
        }
        Err(refusal) => {
            let text = format!("{}{refusal}", char::from(REFUSED));
            // If nobody hears it, nobody is left who asked.
            let _ = message::send(socket.as_fd(), text.as_bytes(), &[]);
            return NOT_SET_UP;
        }
    };
    if told.is_err() {
        return NOT_SET_UP;
    }
    match message::receive(socket.as_fd()) {
        Ok(Some(_)) => become_command(folder, Some(&covered), Some(core), command),
        // The tunnel has ended before it began, which is told of there.
        Ok(None) | Err(_) => NOT_SET_UP,
    }
}

/// What the child has said of its cell.
pub(crate) fn opened(message: message::Message, waiting: Waiting) -> Result<Enclosed, Error> {
    let (first, text) = message.text.split_first().ok_or(Error::Died)?;
    let text = String::from_utf8_lossy(text);
    if *first != OPENED {
        return Err(Error::Refused(text.into_owned()));
    }
    let descriptors: Result<[OwnedFd; 6], _> = message.descriptors.try_into();
    let Ok([tun, notices, questions, user, network, mount]) = descriptors else {
        // There is no room for them here (RLIMIT_NOFILE).
        let source = rustix::io::Errno::MFILE.into();
        return Err(Error::Process(source));
    };
    Ok(Enclosed {
        tun,
        watch: LinkWatch::from_sockets([notices, questions]).map_err(Error::Process)?,
        namespaces: Namespaces {
            user,
            network,
            mount,
        },
        remarks: text.lines().map(str::to_owned).collect(),
        waiting,
    })
}

/// Moves this process into new namespaces and makes them a cell: its TUN, the two sockets
/// that watch it, and the namespaces; and the paths that it covers.
fn open(plan: &Plan, remarks: &mut Vec<String>) -> Result<([OwnedFd; 6], Covered), Refusal> {
    // They are nobody's before they are mapped.
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    let facts = Facts::gather();
    let enter = |kind| {
        let entered = enter_new(kind);
        entered.map_err(|source| Refusal::namespace(kind, source, &facts))
    };
    enter(Kind::User)?;
    let write = |file: &str, text: String| {
        let path = format!("/proc/self/{file}");
        let written = fs::write(&path, text);
        written.map_err(|error| Refusal::step(failed(format!("write {path}"), error), &facts))
    };
    // Without which an ordinary user's groups may not be mapped (user_namespaces(7)).
    write("setgroups", "deny".to_owned())?;
    write("uid_map", format!("{user} {user} 1"))?;
    write("gid_map", format!("{group} {group} 1"))?;
    enter(Kind::Network)?;
    enter(Kind::Mount)?;
    let network::Opened { tun, watch } = network::set_up(plan, group, &facts, remarks)?;
    let covered = files::set_up(plan, remarks);
    let covered = covered.map_err(|error| Refusal::step(error, &facts))?;
    let namespace = |kind: Kind| {
        let path = format!("/proc/self/ns/{}", kind.name());
        let file = fs::File::open(&path).map(OwnedFd::from);
        file.map_err(|error| Refusal::step(failed(format!("open {path}"), error), &facts))
    };
    let [notices, questions] = watch.into_sockets();
    let descriptors = [
        tun,
        notices,
        questions,
        namespace(Kind::User)?,
        namespace(Kind::Network)?,
        namespace(Kind::Mount)?,
    ];
    Ok((descriptors, covered))
}

/// Makes this process, which must have one thread, the command in a cell that is there.
/// Returns only if it cannot, with the status to end with, after saying why.
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
            say(&format!("cannot enter the tunnel's namespaces: {error}"));
            return NOT_SET_UP;
        }
    }
    become_command(folder, None, None, command)
}

/// Enters the current folder again by its path, which leads into the cell's file system. Until
/// then this process is still in the machine's.
///
/// The path may not lead to the folder: another file system may be mounted over it, or a process
/// with more rights may have entered it. Then this process stays, as it would without a cell,
/// unless the cell covers the path.
fn go_to(folder: &Path, covered: Option<&Covered>) -> io::Result<()> {
    env::set_current_dir(folder).or_else(|error| match covered {
        Some(covered) if !covered.has(folder) => Ok(()),
        // One that joins has come to the root of the cell's file systems.
        _ => Err(error),
    })
}

fn become_command(
    folder: io::Result<PathBuf>,
    covered: Option<&Covered>,
    core: Option<rights::Core>,
    command: &[OsString],
) -> u8 {
    if let Err(error) = folder.and_then(|folder| go_to(&folder, covered)) {
        say(&format!(
            "the present folder cannot be entered from the tunnel: {error}; go to another one \
             first (`cd /`)"
        ));
        return NOT_SET_UP;
    }
    let core = core.map_or(Ok(()), rights::Core::restore);
    if let Err(error) = core.and_then(|()| rights::give_up()) {
        say(&format!("cannot give up rights: {error}"));
        return NOT_SET_UP;
    }
    if let Err(error) = keep_network_sockets() {
        say(&format!(
            "cannot look for sockets of the network outside: {error}"
        ));
        return NOT_SET_UP;
    }
    let Some((program, arguments)) = command.split_first() else {
        return NOT_FOUND;
    };
    let error = Command::new(program).args(arguments).exec();
    say(&format!("{}: {error}", program.display()));
    match error.kind() {
        io::ErrorKind::NotFound => NOT_FOUND,
        _ => NOT_EXECUTABLE,
    }
}

/// The process that started this one has nothing to say of it any more.
fn say(sentence: &str) {
    let _ = io::stderr().write_all(format!("taupe: {sentence}\n").as_bytes());
}
