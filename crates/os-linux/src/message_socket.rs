//! Messages with text and descriptors over a `SOCK_SEQPACKET` socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair,
};

/// Descriptors in a message, at most.
pub const MAX_DESCRIPTORS: usize = 40;

/// Bytes of text in a message, at most.
pub const MAX_TEXT: usize = 64 << 10;

/// A received message.
#[derive(Debug)]
pub struct Message {
    /// The text; not empty.
    pub text: Vec<u8>,
    /// Copies of the sender's descriptors.
    pub descriptors: Vec<OwnedFd>,
    /// True if descriptors are missing, because this process can open no more.
    pub lacks_descriptors: bool,
}

/// Returns two sockets that are connected to each other.
///
/// # Errors
///
/// `EMFILE` if there are too many descriptors.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    Ok(socketpair(AddressFamily::UNIX, kind, flags, None)?)
}

/// Sends a text, which must not be empty, and copies of descriptors.
///
/// # Errors
///
/// `EMSGSIZE` if the text is longer than [`MAX_TEXT`], `ETOOMANYREFS` if there are more than
/// [`MAX_DESCRIPTORS`], `EPIPE` if the other end is closed.
pub fn send(socket: BorrowedFd<'_>, text: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    if text.len() > MAX_TEXT {
        return Err(Errno::MSGSIZE.into());
    }
    if descriptors.len() > MAX_DESCRIPTORS {
        return Err(Errno::TOOMANYREFS.into());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::TOOMANYREFS.into());
    }
    let slices = [IoSlice::new(text)];
    match retry_on_intr(|| sendmsg(socket, &slices, &mut control, SendFlags::NOSIGNAL)) {
        // The other end has closed without reading all messages.
        Err(Errno::CONNRESET) => Err(Errno::PIPE.into()),
        sent => Ok(sent.map(drop)?),
    }
}

/// Waits for a message. Returns `None` when the other end is closed.
///
/// # Errors
///
/// As [`receive_any`]; `EMFILE` if descriptors are missing.
pub fn receive(socket: BorrowedFd<'_>) -> io::Result<Option<Message>> {
    match receive_any(socket)? {
        Some(message) if message.lacks_descriptors => Err(Errno::MFILE.into()),
        received => Ok(received),
    }
}

/// Waits for a message, which may lack descriptors. Returns `None` when the other end is closed.
///
/// # Errors
///
/// `EMSGSIZE` if the text is longer than [`send`] permits.
pub fn receive_any(socket: BorrowedFd<'_>) -> io::Result<Option<Message>> {
    let mut text = vec![0; MAX_TEXT];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut receive = || {
        retry_on_intr(|| {
            let mut slices = [IoSliceMut::new(&mut text)];
            recvmsg(socket, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC)
        })
    };
    // The kernel reports once that the other end has closed without reading all messages, even
    // before the messages that it has sent (`unix_release_sock`, `__skb_try_recv_datagram`).
    let received = match receive() {
        Err(Errno::CONNRESET) => receive(),
        received => received,
    }?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(Errno::MSGSIZE.into());
    }
    text.truncate(received.bytes);
    // An empty message is not sent.
    Ok((!text.is_empty()).then_some(Message {
        text,
        descriptors,
        lacks_descriptors: received.flags.contains(ReturnFlags::CTRUNC),
    }))
}

#[cfg(test)]
mod tests {
    use super::{MAX_DESCRIPTORS, MAX_TEXT, pair, receive, send};
    use rustix::fs::fstat;
    use std::io::pipe;
    use std::os::fd::{AsFd as _, BorrowedFd};

    #[test]
    fn texts_and_descriptors_arrive_together_and_in_order() {
        let (near, far) = pair().expect("sockets");
        let (reader, _writer) = pipe().expect("a pipe");
        let most: Vec<BorrowedFd<'_>> = vec![reader.as_fd(); MAX_DESCRIPTORS];
        let longest = vec![b'x'; MAX_TEXT];
        send(near.as_fd(), b"first", &most).expect("sent");
        send(near.as_fd(), &longest, &[]).expect("sent");
        let inode = |fd: BorrowedFd<'_>| fstat(fd).expect("open").st_ino;
        let first = receive(far.as_fd()).expect("readable").expect("a message");
        assert_eq!(first.text, b"first");
        assert_eq!(first.descriptors.len(), MAX_DESCRIPTORS);
        for copy in &first.descriptors {
            assert_eq!(inode(copy.as_fd()), inode(reader.as_fd()));
        }
        let second = receive(far.as_fd()).expect("readable").expect("a message");
        assert_eq!((second.text, second.descriptors.len()), (longest, 0));
        drop(near);
        assert!(receive(far.as_fd()).expect("readable").is_none());
        assert!(send(far.as_fd(), b"late", &[]).is_err());
    }

    #[test]
    fn the_last_message_of_an_end_that_has_left_others_unread_arrives() {
        let (near, far) = pair().expect("sockets");
        send(near.as_fd(), b"unread", &[]).expect("sent");
        send(far.as_fd(), b"last", &[]).expect("sent");
        drop(far);
        let last = receive(near.as_fd()).expect("readable").expect("a message");
        assert_eq!(last.text, b"last");
        assert!(receive(near.as_fd()).expect("readable").is_none());
    }

    #[test]
    fn an_end_that_has_left_messages_unread_is_closed() {
        let (near, far) = pair().expect("sockets");
        send(near.as_fd(), b"unread", &[]).expect("sent");
        drop(far);
        let error = send(near.as_fd(), b"late", &[]).expect_err("closed");
        assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn too_long_messages_are_refused_at_both_ends() {
        let (near, far) = pair().expect("sockets");
        let (reader, _writer) = pipe().expect("a pipe");
        let too_many: Vec<BorrowedFd<'_>> = vec![reader.as_fd(); MAX_DESCRIPTORS + 1];
        assert!(send(near.as_fd(), b"x", &too_many).is_err());
        assert!(send(near.as_fd(), &vec![b'x'; MAX_TEXT + 1], &[]).is_err());
        rustix::net::send(
            &near,
            &vec![b'x'; MAX_TEXT + 1],
            rustix::net::SendFlags::empty(),
        )
        .expect("sent");
        assert!(receive(far.as_fd()).is_err());
    }
}
