//! Devices in user space: the exchange on a connection.

use std::io::{self, Read as _, Write as _};
use std::time::Duration;

use taupe_uapi::{Device, GetAnswer, SetAnswer, SetRequest, write_set};
use zeroize::Zeroizing;

use crate::blocks::{BLOCK, read_blocks};
use crate::error::Error;
use crate::public_keys::public_key;
use crate::system::public::{Stream, zone};
use crate::system::{ANSWER_TIMEOUT, is_timeout, set_timeout};

/// Additional time for each block of a request: the device computes a shared secret for every
/// peer.
const TIMEOUT_PER_BLOCK: Duration = Duration::from_secs(1);

/// Checks whether the listening process answers. The socket of a killed process exists for a moment
/// longer, and then connections break. Silence for `timeout` counts as an answer.
pub(crate) fn is_answering(stream: Stream, timeout: Duration) -> bool {
    let mut first = Zeroizing::new([0]);
    let answer = set_timeout(stream, timeout).and_then(|mut stream| {
        stream.write_all(b"get=1\n\n")?;
        stream.read(&mut *first)
    });
    match answer {
        Ok(length) => length > 0,
        Err(error) => is_timeout(&error),
    }
}

pub(crate) fn read(mut stream: Stream, interface: &str) -> Result<Device, Error> {
    stream.write_all(b"get=1\n\n")?;
    let mut answer = GetAnswer::new(interface, &zone::index);
    read_blocks(&mut stream, |bytes| Ok::<_, Error>(answer.push(bytes)?))?;
    let mut device = answer.finish()?;
    device.public_key = device
        .status
        .private_key
        .as_ref()
        .map(|key| public_key(key.expose()));
    Ok(device)
}

pub(crate) fn apply(stream: Stream, request: &SetRequest) -> Result<(), Error> {
    let mut stream = set_timeout(stream, ANSWER_TIMEOUT)?;
    let mut text = BlockWriter {
        stream: &mut stream,
        buffer: Zeroizing::new(Vec::with_capacity(BLOCK)),
        failed: None,
        written: 0,
    };
    let written = write_set(&mut text, request).and_then(|()| text.flush());
    let (failed, blocks) = (text.failed, text.written);
    if written.is_err() {
        // A device that rejects a request early may still send its reason.
        let error = failed.unwrap_or_else(|| io::ErrorKind::BrokenPipe.into());
        let mut answer = SetAnswer::new();
        return match read_blocks(&mut stream, |bytes| Ok::<_, Error>(answer.push(bytes)?)) {
            Ok(()) => answer.finish().map_err(|_| error.into()),
            Err(_) => Err(error.into()),
        };
    }
    let mut stream = set_timeout(stream, ANSWER_TIMEOUT + TIMEOUT_PER_BLOCK * blocks)?;
    let mut answer = SetAnswer::new();
    read_blocks(&mut stream, |bytes| Ok::<_, Error>(answer.push(bytes)?))?;
    Ok(answer.finish()?)
}

/// Writes text in blocks, and erases each.
struct BlockWriter<'a> {
    stream: &'a mut Stream,
    buffer: Zeroizing<Vec<u8>>,
    failed: Option<io::Error>,
    written: u32,
}

impl BlockWriter<'_> {
    fn flush(&mut self) -> std::fmt::Result {
        let written = self.stream.write_all(&self.buffer);
        self.buffer.clear();
        self.written += 1;
        written.map_err(|error| {
            self.failed = Some(error);
            std::fmt::Error
        })
    }
}

impl std::fmt::Write for BlockWriter<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let mut text = text.as_bytes();
        while !text.is_empty() {
            if self.buffer.len() == BLOCK {
                self.flush()?;
            }
            let room = BLOCK - self.buffer.len();
            let (now, later) = text.split_at(room.min(text.len()));
            self.buffer.extend_from_slice(now);
            text = later;
        }
        Ok(())
    }
}
