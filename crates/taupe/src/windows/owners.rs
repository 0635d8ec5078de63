//! Whose a packet is: the system's tables, as the pipeline asks for them.

use std::io;
use taupe_sys::windows::processes;
use taupe_transparent::frames::{Owners, Process, Protocol, Socket};

/// The system's.
pub(super) struct System;

impl Owners for System {
    fn sockets(&mut self, protocol: Protocol) -> io::Result<Vec<Socket>> {
        let rows = match protocol {
            Protocol::Tcp => processes::tcp()?,
            Protocol::Udp => processes::udp()?,
        };
        let rows = rows.into_iter().map(|row| Socket {
            local: row.local,
            remote: row.remote,
            pid: row.pid,
            made: row.created,
        });
        Ok(rows.collect())
    }

    fn process(&mut self, pid: u32) -> Option<Process> {
        let process = processes::process(pid).ok()?;
        let name = process.path.file_name().unwrap_or_default();
        Some(Process {
            name: name.to_string_lossy().into_owned(),
            path: process.path.to_string_lossy().into_owned(),
            started: process.created,
        })
    }
}
