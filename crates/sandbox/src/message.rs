//! Messages with text and descriptors over a SOCK_SEQPACKET socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Most descriptors per message.
const MAX_DESCRIPTORS: usize = 6;

/// The longest text, in bytes. Longer texts are truncated.
const MAX_TEXT: usize = 8192;

/// A received message.
pub(crate) struct Message {
    pub(crate) text: Vec<u8>,
    pub(crate) descriptors: Vec<OwnedFd>,
}

/// Sends a text, which must not be empty, and copies of descriptors.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    text: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::TOOMANYREFS.into());
    }
    let text = text.get(..MAX_TEXT).unwrap_or(text);
    let slices = [IoSlice::new(text)];
    retry_on_intr(|| sendmsg(socket, &slices, &mut control, SendFlags::NOSIGNAL))?;
    Ok(())
}

/// Waits for a message. Returns `None` when the other end is closed.
pub(crate) fn receive(socket: BorrowedFd<'_>) -> io::Result<Option<Message>> {
    let mut text = vec![0; MAX_TEXT];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = retry_on_intr(|| {
        let mut slices = [IoSliceMut::new(&mut text)];
        recvmsg(socket, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC)
    });
    let length = match received {
        Ok(received) => received.bytes,
        Err(Errno::CONNRESET) => 0,
        Err(error) => return Err(error.into()),
    };
    if length == 0 {
        return Ok(None);
    }
    text.truncate(length);
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    Ok(Some(Message { text, descriptors }))
}
