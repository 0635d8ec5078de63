//! Configuration requests, and the watch on the configuration socket's file.

use std::os::fd::OwnedFd;

use rustix::fs::inotify;
use taupe_runtime::configuration::{self, Refusal};
use taupe_uapi::{Errno, Request, SetRequest, Status};
use tracing::warn;
use zeroize::Zeroizing;

use super::{Control, system};
use crate::lifecycle::StartError;
use taupe_runtime::configuration_socket::SocketFile;

impl Control {
    pub(super) fn handle_request(&mut self, request: Request) -> Zeroizing<String> {
        match request {
            Request::Get => {
                taupe_uapi::answer_get(&self.driver.device().status(), self.port, self.mark)
            }
            Request::Set(set) => {
                let answer = match self.apply(set) {
                    Ok(()) => Status::SUCCESS.to_string(),
                    Err(refusal) => refusal.answer(),
                };
                Zeroizing::new(answer)
            }
        }
    }

    /// Applies the whole request, or nothing of it.
    fn apply(&mut self, request: SetRequest) -> Result<(), Refusal> {
        let SetRequest {
            listen_port,
            fwmark,
            device,
        } = request;
        let update = self.driver.prepare(device).map_err(configuration::refuse)?;
        if listen_port.is_some() {
            // If the interface has just come up, a port in use must be refused. The loop may not
            // have read the kernel's notice yet, so check now.
            self.check_link();
        }
        let previous_mark = self.mark;
        if let Some(mark) = fwmark {
            self.set_mark(mark)?;
        }
        if let Some(port) = listen_port
            && let Err(error) = self.set_port(port)
        {
            warn!(%error, port, "configuration refused");
            let _ = self.set_mark(previous_mark);
            return Err(Errno::AddressInUse.into());
        }
        self.own_pq_key
            .apply(self.driver.device_mut(), update)
            .map_err(configuration::refuse)
    }
}

/// The configuration socket's file and an inotify watch for its removal.
pub(super) struct WatchedSocket {
    file: SocketFile,
    pub(super) watch: OwnedFd,
}

impl WatchedSocket {
    pub(super) fn new(file: SocketFile) -> Result<Self, StartError> {
        let watch = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)
            .map_err(system("cannot make an inotify"))?;
        // Removing the file of an open socket changes its link count (ATTRIB).
        let events = inotify::WatchFlags::ATTRIB
            | inotify::WatchFlags::DELETE_SELF
            | inotify::WatchFlags::MOVE_SELF;
        inotify::add_watch(&watch, file.path(), events)
            .map_err(system("cannot watch the configuration socket"))?;
        Ok(Self { file, watch })
    }

    /// Reads pending events and checks whether the file is gone.
    pub(super) fn is_gone(&self) -> bool {
        let mut events = [0_u8; 4096];
        while matches!(rustix::io::read(&self.watch, &mut events), Ok(length) if length > 0) {}
        !self.file.exists()
    }
}
