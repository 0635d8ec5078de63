//! Owners of packets, from the system's tables.

use std::io;
use taupe_os_windows::processes;
use taupe_transparent_windows::{Holder, Owners, Process, Protocol, Socket};

/// Process id of the kernel.
const KERNEL: u32 = 4;

/// Tables of the system.
pub(super) struct SystemOwners;

impl Owners for SystemOwners {
    fn sockets(&mut self, protocol: Protocol) -> io::Result<Vec<Socket>> {
        let rows = match protocol {
            Protocol::Tcp => processes::tcp()?,
            Protocol::Udp => processes::udp()?,
        };
        let rows = rows.into_iter().map(|row| Socket {
            local: row.local,
            remote: row.remote,
            pid: row.pid,
            created: row.created,
        });
        Ok(rows.collect())
    }

    fn holder(&mut self, pid: u32) -> Holder {
        if pid == KERNEL {
            return Holder::System;
        }
        // The process does not exist or may not be opened.
        let Ok(process) = processes::process(pid) else {
            return Holder::Unknown;
        };
        let name = process.path.file_name().unwrap_or_default();
        Holder::Process(Process {
            name: name.to_string_lossy().into_owned(),
            path: process.path.to_string_lossy().into_owned(),
            started: process.created,
        })
    }
}
