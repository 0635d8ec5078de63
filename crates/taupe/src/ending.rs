//! The end of a device's process. `down` waits for it, so that the tunnel can be brought up again
//! immediately, even a tunnel that carried another one. After a kill, `up` waits for it.

use crate::console::say;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::OwnedFd;
use taupe_adapter::State;
use taupe_os_linux::packet_process::broker_of;

/// Time that a process has to end after its interface was deleted.
const LIMIT: Timespec = Timespec {
    tv_sec: 10,
    tv_nsec: 0,
};

/// A process that is about to end.
pub(crate) struct Ending {
    handle: OwnedFd,
    id: String,
}

impl Ending {
    /// Finds the process of a tunnel that `taupe up` set up, by its configuration socket. If that is a
    /// packet process, it is its broker, which ends last.
    pub(crate) fn of(interface: &str) -> Option<Self> {
        let headers = State::default().here();
        headers.iter().find(|one| one.interface == interface)?;
        let id = server(interface)?;
        Self::of_process(broker_of(id).unwrap_or(id))
    }

    /// Finds the process of an outer device, whose broker has been killed.
    pub(crate) fn of_orphan(interface: &str) -> Option<Self> {
        Self::of_process(server(interface)?)
    }

    fn of_process(id: Pid) -> Option<Self> {
        let handle = pidfd_open(id, PidfdFlags::empty()).ok()?;
        let id = id.as_raw_nonzero().to_string();
        Some(Self { handle, id })
    }

    /// Waits until the process has ended, or prints that it has not.
    pub(crate) fn wait(self) {
        let mut process = [PollFd::new(&self.handle, PollFlags::IN)];
        if poll(&mut process, Some(&LIMIT)) == Ok(0) {
            let id = self.id;
            say(&format_args!(
                "[!] the tunnel's process {id} has not ended within {} s",
                LIMIT.tv_sec
            ));
        }
    }
}

/// Returns the process that listens at a device's configuration socket.
fn server(interface: &str) -> Option<Pid> {
    let socket = taupe_client::socket_path(interface);
    let connection = taupe_client::connect_to(&socket).ok()?;
    Some(socket_peercred(&connection).ok()?.pid)
}
