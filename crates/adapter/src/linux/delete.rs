//! Deleting a device.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::{FAREWELL, Linux, gone};
use crate::identity::Socket;
use crate::machine::StepError;
use crate::stopped;

impl Linux<'_> {
    /// Deletes the interface, and waits until its process has released the configuration socket, so
    /// that the next device can use it. If the interface is in another network namespace, ends its
    /// process instead.
    pub(super) fn delete(&mut self) -> Result<(), StepError> {
        if self.not_started {
            return Ok(());
        }
        let interface = self.interface;
        let path = taupe_client::socket_path(interface);
        let stays = |source| StepError::Io {
            what: format!("the process of {interface} does not end"),
            source,
        };
        match (self.link()?, self.socket) {
            (Some(link), _) => gone(self.system.delete_link(link.index), &[Errno::NODEV])?,
            (None, Some(socket)) => return socket.end(interface, FAREWELL).map_err(stays),
            (None, None) => {}
        }
        let end = Instant::now() + FAREWELL;
        loop {
            let connection = taupe_client::connect_to(&path);
            match &connection {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                    if error.kind() == io::ErrorKind::ConnectionRefused {
                        // The process was killed and left its socket behind.
                        let _ = fs::remove_file(&path);
                    }
                    return Ok(());
                }
                // The process still exists; if connecting would block, its queue is full.
                _ if Instant::now() < end => {
                    stopped::resume(&path, &connection);
                    std::thread::sleep(Duration::from_millis(10));
                }
                _ => {
                    return Err(StepError::Io {
                        what: format!(
                            "the process of {interface} does not end: {} still answers",
                            path.display()
                        ),
                        source: io::ErrorKind::TimedOut.into(),
                    });
                }
            }
        }
    }

    /// Removes the configuration socket of a process that was killed while it started the device.
    /// `before` is the socket from before the start, which belongs to another program. Waits until the
    /// process has ended.
    pub(super) fn remove_socket_made_since(&self, before: Option<Socket>) {
        let made = Socket::of(self.interface);
        if made.is_none() || made == before {
            return;
        }
        let path = taupe_client::socket_path(self.interface);
        let end = Instant::now() + FAREWELL;
        while made == Socket::of(self.interface) && Instant::now() < end {
            match taupe_client::connect_to(&path) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    let _ = fs::remove_file(&path);
                    return;
                }
                _ => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }
}
