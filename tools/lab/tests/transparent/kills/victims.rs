//! The processes of the program on a machine, found by `/proc`.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use rustix::process::{Pid, Signal, kill_process};
use taupe_lab::host::Host;
use taupe_lab::peers::Implementation;
use taupe_lab::{Error, Result};

/// A process to kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Victim {
    /// The process of the device that has rights.
    Broker,
    /// The process of the device that has none.
    PacketProcess,
    /// The command that the user runs.
    UserCommand,
}

/// The program on one machine.
pub(super) struct Program {
    path: PathBuf,
    /// Inode number of the machine's network namespace.
    network: u64,
}

impl Program {
    pub(super) fn on(host: &Host) -> Result<Self> {
        let path = Implementation::Taupe.program()?;
        let path = path.canonicalize().map_err(Error::io("the program"))?;
        let name = format!("/run/netns/{}", host.name());
        let network = fs::metadata(&name).map_err(Error::io(name))?.ino();
        Ok(Self { path, network })
    }

    /// Returns its running processes. A process that has ended and has not been waited for is none.
    pub(super) fn processes(&self) -> Result<Vec<(Pid, Victim)>> {
        let entries = fs::read_dir("/proc").map_err(Error::io("/proc"))?;
        let names = entries.flatten().map(|entry| entry.file_name());
        let ids = names.filter_map(|name| name.to_str()?.parse().ok());
        Ok(ids
            .filter_map(Pid::from_raw)
            .filter_map(|id| Some((id, self.role(id)?)))
            .collect())
    }

    fn role(&self, id: Pid) -> Option<Victim> {
        let folder = format!("/proc/{}", id.as_raw_nonzero());
        if fs::read_link(format!("{folder}/exe")).ok()? != self.path {
            return None;
        }
        if fs::metadata(format!("{folder}/ns/net")).ok()?.ino() != self.network {
            return None;
        }
        let line = fs::read(format!("{folder}/cmdline")).ok()?;
        let mut words = line.split(|byte| *byte == 0).skip(1);
        Some(match words.next() {
            Some(b"packet-process") => Victim::PacketProcess,
            Some(b"device") => Victim::Broker,
            _ => Victim::UserCommand,
        })
    }

    /// Kills a process with this role. Returns false if there is none.
    pub(super) fn kill(&self, victim: Victim) -> Result<bool> {
        let processes = self.processes()?;
        let found = processes.iter().find(|(_, role)| *role == victim);
        Ok(found.is_some_and(|(id, _)| kill_process(*id, Signal::KILL).is_ok()))
    }
}
