//! The system's lists of sockets and processes.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use taupe_transparent_windows::{Holder, Owners, Process, Protocol, Socket};

/// PID of the system's own process.
pub(crate) const KERNEL: u32 = 4;

#[derive(Default)]
pub(crate) struct Listed {
    pub(crate) sockets: Vec<(Protocol, Socket)>,
    pub(crate) processes: Vec<(u32, Process)>,
    pub(crate) reads: usize,
    pub(crate) fails: bool,
}

#[derive(Clone, Default)]
pub(crate) struct System(pub(crate) Arc<Mutex<Listed>>);

impl System {
    pub(crate) fn process(&self, pid: u32, path: &str, started: u64) {
        let name = path.rsplit('\\').next().unwrap_or_default().to_owned();
        let path = path.to_owned();
        let process = Process {
            path,
            name,
            started,
        };
        let processes = &mut self.0.lock().unwrap().processes;
        processes.retain(|(other, _)| *other != pid);
        processes.push((pid, process));
    }

    pub(crate) fn socket(
        &self,
        protocol: Protocol,
        pid: u32,
        local: SocketAddr,
        remote: Option<SocketAddr>,
    ) {
        let socket = Socket {
            local,
            remote,
            pid,
            created: 100,
        };
        self.0.lock().unwrap().sockets.push((protocol, socket));
    }

    pub(crate) fn close(&self, local: SocketAddr) {
        let sockets = &mut self.0.lock().unwrap().sockets;
        sockets.retain(|(_, socket)| socket.local != local);
    }
}

impl Owners for System {
    fn sockets(&mut self, protocol: Protocol) -> io::Result<Vec<Socket>> {
        let mut listed = self.0.lock().unwrap();
        listed.reads += 1;
        if listed.fails {
            return Err(io::Error::other("no list"));
        }
        let sockets = listed.sockets.iter();
        Ok(sockets
            .filter(|(other, _)| *other == protocol)
            .map(|(_, socket)| *socket)
            .collect())
    }

    fn holder(&mut self, pid: u32) -> Holder {
        if pid == KERNEL {
            return Holder::System;
        }
        let listed = self.0.lock().unwrap();
        let mut processes = listed.processes.iter();
        match processes.find(|(other, _)| *other == pid) {
            Some((_, process)) => Holder::Process(process.clone()),
            None => Holder::Unknown,
        }
    }
}
