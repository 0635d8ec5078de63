//! The records of a journal, and the state that they add up to.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::JournalError;
use super::header::{AnyHeader, Header, VERSION};
use crate::bypass::Bypass;
use crate::change::Change;
use crate::file_stamp::FileStamp;
use crate::identity::Socket;
use crate::namespace::Namespace;
use crate::step_table::block;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Record {
    /// The step with this number is about to be executed.
    Do(usize, Change),
    /// The step was undone.
    Undone(usize),
    /// The device's interface has this index.
    Interface(u32),
    /// A command of the file has altered the result of the step with this number.
    Altered(usize),
    /// The device's process has this configuration socket.
    Socket(Socket),
    /// The [state of the device](crate::LastState), before commands of the file run. A gateway's is
    /// long, and only these commands need it.
    Device(Box<RawValue>),
    /// The foreign routes that bypassed the tunnel when it came up.
    Bypasses(Vec<Bypass>),
    /// `up` was completed.
    Complete,
    /// Taupe saved the file.
    Saved(Option<FileStamp>),
}

/// The contents of a journal.
#[derive(Debug)]
pub(super) struct Contents {
    pub(super) header: Header,
    /// The steps by number; `None` if undone.
    pub(super) steps: Vec<Option<Change>>,
    /// The numbers of the steps that a command of the file has altered.
    pub(super) altered: BTreeSet<usize>,
    pub(super) interface: Option<u32>,
    pub(super) socket: Option<Socket>,
    pub(super) device: Option<Box<RawValue>>,
    /// `None` in a journal of a version that did not look for such routes.
    pub(super) bypasses: Option<Vec<Bypass>>,
    pub(super) complete: bool,
}

impl Contents {
    pub(super) fn new(header: Header) -> Self {
        Self {
            header,
            steps: Vec::new(),
            altered: BTreeSet::new(),
            interface: None,
            socket: None,
            device: None,
            bypasses: None,
            complete: false,
        }
    }

    /// Parses a journal. Returns `None` if the writer ended before the first step.
    pub(super) fn read(path: &Path, whole: &[u8]) -> Result<Option<Self>, JournalError> {
        let malformed = |index: usize, reason: &dyn std::fmt::Display| JournalError::Malformed {
            path: path.to_owned(),
            line: index + 1,
            reason: reason.to_string(),
        };
        let mut lines = whole.split(|byte| *byte == b'\n').enumerate();
        let (_, header) = lines.next().unwrap_or_default();
        if header.is_empty() {
            return Ok(None);
        }
        let found: AnyHeader = serde_json::from_slice(header).map_err(|e| malformed(0, &e))?;
        if found.version != VERSION {
            return Err(JournalError::Version {
                path: path.to_owned(),
                found: found.version,
            });
        }
        let mut contents = Self::new(serde_json::from_slice(header).map_err(|e| malformed(0, &e))?);
        for (index, line) in lines.filter(|(_, line)| !line.is_empty()) {
            let record = serde_json::from_slice(line).map_err(|e| malformed(index, &e))?;
            contents.add(record).map_err(|e| malformed(index, &e))?;
        }
        Ok(Some(contents))
    }

    /// Returns true if the tunnel was brought up in this network namespace, and its device is
    /// running.
    pub(super) fn is_running(&self, interface: &str) -> bool {
        self.complete
            && self.header.namespace == Namespace::current()
            && self.interface.is_some()
            && (self.interface == taupe_os_linux::interface::index(interface)
                || self.lives(interface))
    }

    /// Returns true if the device's process is running, even if its interface has another name.
    pub(super) fn lives(&self, interface: &str) -> bool {
        self.socket.is_some_and(|socket| socket.lives(interface))
    }

    pub(super) fn applied(&self) -> Vec<(usize, Change)> {
        let steps = self.steps.iter().enumerate();
        steps
            .filter(|(number, _)| !self.altered.contains(number))
            .filter_map(|(number, change)| Some((number, change.clone()?)))
            .collect()
    }

    /// Returns true if a step rejects packets, also without a device.
    pub(super) fn blocks(&self) -> bool {
        block(self.steps.iter().flatten())
    }

    pub(super) fn add(&mut self, record: Record) -> Result<(), String> {
        match record {
            Record::Do(number, change) if number == self.steps.len() => {
                self.steps.push(Some(change));
            }
            Record::Do(number, _) => {
                let expected = self.steps.len();
                return Err(format!("step {number} where step {expected} should be"));
            }
            Record::Undone(number) => match self.steps.get_mut(number) {
                Some(step) => *step = None,
                None => return Err(format!("there is no step {number}")),
            },
            Record::Interface(index) => self.interface = Some(index),
            Record::Socket(socket) => self.socket = Some(socket),
            Record::Altered(number) => drop(self.altered.insert(number)),
            Record::Device(state) => self.device = Some(state),
            Record::Bypasses(bypasses) => self.bypasses = Some(bypasses),
            Record::Complete => self.complete = true,
            Record::Saved(seen) => self.header.seen = seen,
        }
        Ok(())
    }
}

/// Returns the complete lines, without an incomplete last one.
pub(super) fn whole_lines(text: &[u8]) -> &[u8] {
    let end = text.iter().rposition(|byte| *byte == b'\n');
    end.and_then(|end| text.get(..=end)).unwrap_or_default()
}

pub(super) fn line(value: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    Ok(line)
}
