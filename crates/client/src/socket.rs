//! Devices in user space.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use taupe_config::uapi::{AnswerError, Device, GetAnswer, SetAnswer, SetRequest, write_set};
use zeroize::Zeroizing;

use crate::{Error, public_key};

const DIRECTORY: &str = "/var/run/wireguard";

const SUFFIX: &str = ".sock";

/// How much is read or written at a time, in bytes.
const BLOCK: usize = 64 << 10;

/// The names of all sockets on which somebody listens.
pub(crate) fn interfaces() -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(DIRECTORY) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let file = entry?.file_name();
        // A name that is not text is none of an interface that can be called.
        let name = file.to_str().and_then(|file| file.strip_suffix(SUFFIX));
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            continue;
        };
        if matches!(connect(name), Ok(Some(_)) | Err(_)) {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

/// A connection to the device of that name; `None` when no program in user
/// space is that device. A socket that nobody listens on is removed.
pub(crate) fn connect(interface: &str) -> io::Result<Option<UnixStream>> {
    let Some(path) = path(interface) else {
        return Ok(None);
    };
    match UnixStream::connect(&path) {
        Ok(stream) => Ok(Some(stream)),
        // Longer than an address can be.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            // Whoever is faster has done the same.
            let _ = fs::remove_file(&path);
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Where the socket is, if there is one.
fn path(interface: &str) -> Option<PathBuf> {
    if interface.contains('/') {
        return None;
    }
    let path = Path::new(DIRECTORY).join(format!("{interface}{SUFFIX}"));
    let found = fs::metadata(&path).is_ok_and(|found| found.file_type().is_socket());
    found.then_some(path)
}

/// Whether the program that listens there still answers: one that was killed is there
/// for a moment, and its connections break. One that is silent for `patience` counts as
/// an answer.
pub(crate) fn answers(mut stream: UnixStream, patience: Duration) -> bool {
    let asked = stream
        .set_read_timeout(Some(patience))
        .and_then(|()| stream.write_all(b"get=1\n\n"));
    let mut first = Zeroizing::new([0]);
    match asked.and_then(|()| stream.read(&mut *first)) {
        Ok(length) => length > 0,
        // The timeout.
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    }
}

pub(crate) fn read(mut stream: UnixStream, interface: &str) -> Result<Device, Error> {
    stream.write_all(b"get=1\n\n")?;
    let mut answer = GetAnswer::new(interface, taupe_sys::interface::index);
    receive(&mut stream, |bytes| answer.push(bytes))?;
    let mut device = answer.finish()?;
    device.public_key = device
        .status
        .private_key
        .as_ref()
        .map(|key| public_key(key.expose()));
    Ok(device)
}

pub(crate) fn apply(mut stream: UnixStream, request: &SetRequest) -> Result<(), Error> {
    let mut text = Blocks {
        stream: &mut stream,
        held: Zeroizing::new(Vec::with_capacity(BLOCK)),
        failed: None,
    };
    let written = write_set(&mut text, request).and_then(|()| text.flush());
    let failed = text.failed;
    if written.is_err() {
        // A device that has had enough of a request may still say why.
        let error = failed.unwrap_or_else(|| io::ErrorKind::BrokenPipe.into());
        let mut answer = SetAnswer::new();
        return match receive(&mut stream, |bytes| answer.push(bytes)) {
            Ok(()) => answer.finish().map_err(|_| error.into()),
            Err(_) => Err(error.into()),
        };
    }
    let mut answer = SetAnswer::new();
    receive(&mut stream, |bytes| answer.push(bytes))?;
    Ok(answer.finish()?)
}

/// Reads up to the end of an answer, or of the connection.
fn receive(
    stream: &mut UnixStream,
    mut take: impl FnMut(&[u8]) -> Result<bool, AnswerError>,
) -> Result<(), Error> {
    let mut block = Zeroizing::new(vec![0; BLOCK]);
    loop {
        let length = match stream.read(&mut block) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            length => length?,
        };
        let bytes = block.get(..length).unwrap_or_default();
        if bytes.is_empty() || take(bytes)? {
            return Ok(());
        }
    }
}

/// Writes text in blocks, none of which stays in memory.
struct Blocks<'a> {
    stream: &'a mut UnixStream,
    held: Zeroizing<Vec<u8>>,
    failed: Option<io::Error>,
}

impl Blocks<'_> {
    fn flush(&mut self) -> std::fmt::Result {
        let written = self.stream.write_all(&self.held);
        self.held.clear();
        written.map_err(|error| {
            self.failed = Some(error);
            std::fmt::Error
        })
    }
}

impl std::fmt::Write for Blocks<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let mut text = text.as_bytes();
        while !text.is_empty() {
            if self.held.len() == BLOCK {
                self.flush()?;
            }
            let room = BLOCK - self.held.len();
            let (now, later) = text.split_at(room.min(text.len()));
            self.held.extend_from_slice(now);
            text = later;
        }
        Ok(())
    }
}
