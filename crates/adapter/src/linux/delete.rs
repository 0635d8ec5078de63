//! The end of a device.

use std::fs;
use std::io;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::{FAREWELL, Linux, gone};
use crate::identity;
use crate::machine::StepError;
use crate::stopped;

impl Linux<'_> {
    /// Deletes the interface, and waits for its process to give up the
    /// configuration socket, so that the next one can have it. An interface in
    /// another network namespace ends with its process.
    pub(super) fn delete(&mut self) -> Result<(), StepError> {
        if self.not_started {
            return Ok(());
        }
        let interface = self.interface;
        let path = identity::path(interface);
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
            match UnixStream::connect(&path) {
                Ok(stream) if Instant::now() < end => {
                    stopped::resume(&stream);
                    std::thread::sleep(Duration::from_millis(10));
                }
                Ok(_) => {
                    return Err(StepError::Io {
                        what: format!(
                            "the process of {interface} does not end: {} still answers",
                            path.display()
                        ),
                        source: io::ErrorKind::TimedOut.into(),
                    });
                }
                // It was killed, and left its socket.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    let _ = fs::remove_file(&path);
                    return Ok(());
                }
                Err(_) => return Ok(()),
            }
        }
    }
}
