//! Devices in user space: the exchange on a connection.

use std::io::{self, Read as _, Write as _};
use std::time::{Duration, Instant};

use taupe_uapi::{AnswerError, Device, GetAnswer, SetAnswer, SetRequest, write_set};
use zeroize::Zeroizing;

use crate::error::Error;
use crate::public_keys::public_key;
use crate::system::public::{Stream, zone};
use crate::system::{ANSWER_TIMEOUT, is_timeout, set_timeout};

/// Additional time for each block of a request: the device computes a shared secret for every
/// peer.
const TIMEOUT_PER_BLOCK: Duration = Duration::from_secs(1);

/// Bytes of an answer, at most: a few hundred for each of the largest number of peers.
const MAX_ANSWER: u64 = 1 << 30;

/// Time that an answer may take from its first byte, besides that for its bytes.
const PATIENCE: Duration = Duration::from_secs(30);

/// Bytes per second of the slowest answer.
const SLOWEST: u64 = 1 << 20;

/// Bytes read or written at a time.
const BLOCK: usize = 64 << 10;

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
    receive(&mut stream, |bytes| answer.push(bytes))?;
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
        return match receive(&mut stream, |bytes| answer.push(bytes)) {
            Ok(()) => answer.finish().map_err(|_| error.into()),
            Err(_) => Err(error.into()),
        };
    }
    let mut stream = set_timeout(stream, ANSWER_TIMEOUT + TIMEOUT_PER_BLOCK * blocks)?;
    let mut answer = SetAnswer::new();
    receive(&mut stream, |bytes| answer.push(bytes))?;
    Ok(answer.finish()?)
}

/// Reads an answer up to its end or the end of the connection. A device that sends byte after byte must
/// not keep its client for ever.
fn receive(
    stream: &mut Stream,
    mut take: impl FnMut(&[u8]) -> Result<bool, AnswerError>,
) -> Result<(), Error> {
    let mut block = Zeroizing::new(vec![0; BLOCK]);
    let mut began = None;
    let mut total = 0;
    loop {
        let length = match stream.read(&mut block) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            length => length?,
        };
        let bytes = block.get(..length).unwrap_or_default();
        if bytes.is_empty() || take(bytes)? {
            return Ok(());
        }
        total += bytes.len() as u64;
        let began = *began.get_or_insert_with(Instant::now);
        if total > MAX_ANSWER || began.elapsed() > PATIENCE + Duration::from_secs(total / SLOWEST) {
            let why = "the device's answer does not end";
            return Err(io::Error::new(io::ErrorKind::TimedOut, why).into());
        }
    }
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
