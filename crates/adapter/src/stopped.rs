//! Continuing stopped processes of devices.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, Signal, kill_process};
use taupe_os_linux::packet_process::broker_of;

/// Continues the process that listens at a socket and its broker if they are stopped (SIGSTOP), because
/// a stopped process cannot end. `connection` is the result of connecting to the socket; it is an error if
/// the queue of the process is full.
pub(crate) fn resume(path: &Path, connection: &io::Result<UnixStream>) {
    let process = match connection {
        Ok(stream) => socket_peercred(stream).ok().map(|peer| peer.pid),
        Err(_) => listener(path),
    };
    for process in process.into_iter().chain(process.and_then(broker_of)) {
        resume_process(process);
    }
}

fn resume_process(process: Pid) {
    let status = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The state follows the name, which ends with the last parenthesis (proc_pid_stat(5)).
    let is_stopped = status
        .rsplit_once(')')
        .is_some_and(|(_, rest)| rest.trim_start().starts_with('T'));
    if is_stopped {
        let _ = kill_process(process, Signal::CONT);
    }
}

/// Flags of a listening socket (`__SO_ACCEPTCON` of `linux/net.h`) in the format of
/// `/proc/net/unix`.
const LISTENS: &[u8] = b"00010000";

/// Returns the process that listens at a path in this network namespace, without connecting to it.
fn listener(path: &Path) -> Option<Pid> {
    let table = fs::read("/proc/thread-self/net/unix").ok()?;
    let inode = table.split(|byte| *byte == b'\n').find_map(|line| {
        // Num RefCount Protocol Flags Type St Inode Path (proc_net_unix(5)).
        let mut words = line
            .split(|byte| *byte == b' ')
            .filter(|word| !word.is_empty());
        let flags = words.nth(3)?;
        let inode = words.nth(2)?;
        let is_it = flags == LISTENS && words.next()? == path.as_os_str().as_bytes();
        is_it.then(|| String::from_utf8_lossy(inode).into_owned())
    })?;
    let link = format!("socket:[{inode}]");
    let has_socket = |process: &Pid| {
        let files = fs::read_dir(format!("/proc/{process}/fd"));
        let mut files = files.into_iter().flatten().flatten();
        files.any(|file| fs::read_link(file.path()).is_ok_and(|to| to.as_os_str() == link.as_str()))
    };
    let processes = fs::read_dir("/proc").ok()?.flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(Pid::from_raw)
        .find(has_socket)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    #[test]
    fn the_process_of_a_socket_is_found_without_a_connection() {
        let path = std::env::temp_dir().join(format!("taupe-stopped-{}", std::process::id()));
        assert_eq!(super::listener(&path), None);
        let listener = UnixListener::bind(&path).expect("a socket");
        let found = super::listener(&path);
        std::fs::remove_file(&path).expect("removed");
        assert_eq!(found, Some(rustix::process::getpid()));
        drop(listener);
        assert_eq!(super::listener(&path), None);
    }
}
