//! Netlink requests and answers (RFC 3549, `netlink(7)`).

use std::{
    io,
    ops::ControlFlow,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use netlink_bindings::{
    builtin::Nlmsghdr,
    consts::{NLM_F_ACK, NLM_F_ACK_TLVS, NLM_F_CAPPED, NLM_F_DUMP_INTR, NLM_F_REQUEST},
    traits::{NetlinkRequest, Protocol as RequestProtocol},
    utils::{find_attr, parse_i32, parse_u16, parse_u32},
};
use rustix::{
    io::Errno,
    net::{
        AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType,
        netlink::SocketAddrNetlink, recvfrom, send, socket_with,
    },
};
use zeroize::Zeroizing;

use super::error::NetlinkError;
use crate::socket_option::{self, IntOption};

/// Error of a request, before the caller adds the subject.
#[derive(Debug)]
pub(crate) struct RequestError {
    pub(super) source: io::Error,
    /// The kernel's explanation.
    pub(super) reason: Option<String>,
}

impl RequestError {
    /// Returns the error number, or `None` if the error is not the system's.
    pub(super) fn errno(&self) -> Option<Errno> {
        Errno::from_io_error(&self.source)
    }

    pub(super) fn is(&self, errno: Errno) -> bool {
        self.errno() == Some(errno)
    }

    /// Adds the request that failed, described by `what`.
    pub(super) fn context(self, what: impl Into<String>) -> NetlinkError {
        NetlinkError {
            what: what.into(),
            reason: self.reason,
            source: self.source,
        }
    }
}

impl From<io::Error> for RequestError {
    fn from(source: io::Error) -> Self {
        Self {
            source,
            reason: None,
        }
    }
}

/// The error without the kernel's explanation, with the error number.
impl From<RequestError> for io::Error {
    fn from(error: RequestError) -> Self {
        error.source
    }
}

impl From<Errno> for RequestError {
    fn from(errno: Errno) -> Self {
        io::Error::from(errno).into()
    }
}

/// A request of a type for which there are no bindings.
pub(super) struct RawRequest<'a> {
    pub(super) message_type: u16,
    pub(super) flags: u16,
    pub(super) body: &'a [u8],
}

impl NetlinkRequest for RawRequest<'_> {
    type ReplyType<'buf> = &'buf [u8];

    fn protocol(&self) -> RequestProtocol {
        RequestProtocol::Raw {
            // The socket determines the protocol.
            protonum: 0,
            request_type: self.message_type,
        }
    }

    fn flags(&self) -> u16 {
        self.flags
    }

    fn payload(&self) -> &[u8] {
        self.body
    }

    fn decode_reply(buf: &[u8]) -> &[u8] {
        buf
    }
}

/// Opens a netlink socket in the calling thread's network namespace; no protocol means
/// `NETLINK_ROUTE`.
pub(super) fn open(protocol: Option<Protocol>, flags: SocketFlags) -> io::Result<OwnedFd> {
    let flags = flags | SocketFlags::CLOEXEC;
    let family = AddressFamily::NETLINK;
    Ok(socket_with(family, SocketType::RAW, flags, protocol)?)
}

/// A netlink socket for requests, in the network namespace it was opened in.
#[derive(Debug)]
pub(crate) struct NetlinkSocket {
    fd: OwnedFd,
    sequence: u32,
    /// The number of the generic netlink family for requests.
    family: Option<u16>,
    /// Zeroed on release because requests and answers may contain keys.
    buffer: Zeroizing<Vec<u8>>,
}

/// Takes over a socket that [`NetlinkSocket::open`] opened, perhaps in another process.
impl From<OwnedFd> for NetlinkSocket {
    fn from(fd: OwnedFd) -> Self {
        Self {
            fd,
            sequence: 0,
            family: None,
            // The kernel fills up to this size with one message of a dump.
            buffer: Zeroizing::new(vec![0; 32 << 10]),
        }
    }
}

impl From<NetlinkSocket> for OwnedFd {
    fn from(socket: NetlinkSocket) -> Self {
        socket.fd
    }
}

impl AsFd for NetlinkSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl NetlinkSocket {
    /// Opens a socket; no protocol means `NETLINK_ROUTE`.
    pub(crate) fn open(protocol: Option<Protocol>) -> Result<Self, RequestError> {
        let fd = open(protocol, SocketFlags::empty())?;
        // Since Linux 4.12, 4.3 and 4.20. Without the first option errors have no text, and without
        // the second they contain the request. Without the last a dump lists more than was
        // requested, so callers check the entries anyway.
        for option in [
            IntOption::ExtendedAck,
            IntOption::CappedAck,
            IntOption::StrictCheck,
        ] {
            let _ = socket_option::set(fd.as_fd(), option, 1);
        }
        Ok(fd.into())
    }

    /// Selects the family, by number, for generic netlink requests.
    pub(super) fn with_family(self, number: u16) -> Self {
        Self {
            family: Some(number),
            ..self
        }
    }

    /// Returns the name of an interface, or its number if it no longer exists.
    pub(super) fn interface_name(&self, index: u32) -> String {
        rustix::net::netdevice::index_to_name(&self.fd, index)
            .unwrap_or_else(|_| format!("interface {index}"))
    }

    /// Sends a request and passes the body of the kernel's answer, if there is one, to `answer`.
    pub(super) fn request(
        &mut self,
        request: &impl NetlinkRequest,
        mut answer: impl FnMut(&[u8]),
    ) -> Result<(), RequestError> {
        let sequence = self.send_request(request)?;
        self.receive_answers(sequence, &mut answer).map(drop)
    }

    /// Sends a dump request, and returns the entries that `read` extracts from the answers.
    pub(super) fn dump<T>(
        &mut self,
        request: &impl NetlinkRequest,
        mut read: impl FnMut(&[u8], &mut Vec<T>),
    ) -> Result<Vec<T>, RequestError> {
        /// Attempts before giving up on a list that changes during every dump.
        const ATTEMPTS: usize = 100;
        for _ in 0..ATTEMPTS {
            let mut all = Vec::new();
            let sequence = self.send_request(request)?;
            let consistent = self.receive_answers(sequence, &mut |body| read(body, &mut all))?;
            if consistent {
                return Ok(all);
            }
        }
        Err(RequestError {
            source: Errno::AGAIN.into(),
            reason: Some("the list keeps changing while the kernel dumps it".to_owned()),
        })
    }

    /// Sends requests that the kernel executes together or not at all. `refused` gets the position
    /// of the request that the kernel refuses.
    pub(super) fn transact(
        &mut self,
        transaction: Transaction,
        refused: impl FnOnce(u32, RequestError) -> RequestError,
    ) -> Result<(), RequestError> {
        let first = self.sequence.wrapping_add(1);
        let count = transaction.offsets.len() as u32;
        self.sequence = self.sequence.wrapping_add(count);
        self.send(&transaction.finish(first))?;
        let outcome = self.receive(|message| {
            let position = message.sequence.wrapping_sub(first);
            match message.content {
                Content::Refused(error) if position < count => {
                    ControlFlow::Break(Err((position, error)))
                }
                Content::Done if position < count => ControlFlow::Break(Ok(())),
                _ => ControlFlow::Continue(()),
            }
        })?;
        outcome.map_err(|(position, error)| refused(position, error))
    }

    /// Sends a request and returns its sequence number.
    fn send_request(&mut self, request: &impl NetlinkRequest) -> Result<u32, RequestError> {
        self.sequence = self.sequence.wrapping_add(1);
        let message_type = message_type(request, self.family)?;
        // Allocated in full at once: a growing vector would leave copies behind.
        let capacity = (HEADER + request.payload().len()).next_multiple_of(4);
        let mut bytes = Zeroizing::new(Vec::with_capacity(capacity));
        push_request(
            &mut bytes,
            request,
            message_type,
            NLM_F_ACK as u16,
            self.sequence,
        );
        self.send(&bytes)?;
        Ok(self.sequence)
    }

    fn send(&self, bytes: &[u8]) -> Result<(), RequestError> {
        loop {
            match send(&self.fd, bytes, SendFlags::empty()) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Passes the bodies of all answers to `answer`. Returns true if they form a consistent
    /// snapshot.
    fn receive_answers(
        &mut self,
        sequence: u32,
        answer: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, RequestError> {
        let mut consistent = true;
        self.receive(|message| {
            if message.sequence != sequence {
                return ControlFlow::Continue(());
            }
            consistent &= !message.interrupted;
            match message.content {
                Content::Answer(body) => {
                    answer(body);
                    ControlFlow::Continue(())
                }
                Content::Done => ControlFlow::Break(Ok(())),
                Content::Refused(error) => ControlFlow::Break(Err(error)),
            }
        })??;
        Ok(consistent)
    }

    /// Passes messages to `take` until it breaks.
    fn receive<T>(
        &mut self,
        mut take: impl FnMut(Message<'_>) -> ControlFlow<T>,
    ) -> Result<T, RequestError> {
        loop {
            let length = self.receive_datagram()?;
            let mut rest = self.buffer.get(..length).unwrap_or_default();
            let mut taken = None;
            while taken.is_none()
                && let Some((message, next)) = Message::split(rest)
            {
                rest = next;
                taken = take(message).break_value();
            }
            if let Some(value) = taken {
                return Ok(value);
            }
        }
    }

    /// Receives a datagram of the kernel into the buffer and returns the number of bytes.
    fn receive_datagram(&mut self) -> Result<usize, RequestError> {
        let receive = |buffer: &mut [u8], flags| loop {
            match recvfrom(&self.fd, &mut *buffer, flags | RecvFlags::TRUNC) {
                Ok((_, length, sender)) => return Ok((length, sender)),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        };
        loop {
            // The message of a link with many virtual functions can exceed any fixed size.
            let (length, _) = receive(&mut self.buffer, RecvFlags::PEEK)?;
            if length > self.buffer.len() {
                self.buffer = Zeroizing::new(vec![0; length]);
            }
            let (length, sender) = receive(&mut self.buffer, RecvFlags::empty())?;
            let sender = sender.and_then(|sender| SocketAddrNetlink::try_from(sender).ok());
            // Other processes can send to this socket, too.
            if sender.is_some_and(|sender| sender.pid() == 0) {
                return Ok(length);
            }
        }
    }
}

/// Requests that the kernel executes together or not at all. The first and the last request delimit
/// the batch.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    bytes: Vec<u8>,
    /// The offset of each request.
    offsets: Vec<usize>,
}

impl Transaction {
    pub(super) fn push(&mut self, request: &impl NetlinkRequest) -> Result<(), RequestError> {
        let message_type = message_type(request, None)?;
        self.offsets.push(self.bytes.len());
        push_request(&mut self.bytes, request, message_type, 0, 0);
        Ok(())
    }

    /// Numbers the requests from `first` and requests an acknowledgement of the last but one. The
    /// delimiters are not acknowledged before Linux 6.10, and errors are reported in any case.
    pub(super) fn finish(mut self, first: u32) -> Vec<u8> {
        let acknowledged = self.offsets.len().checked_sub(2);
        for (position, &offset) in self.offsets.iter().enumerate() {
            let Some(header) = self.bytes.get_mut(offset..offset + HEADER) else {
                continue;
            };
            if Some(position) == acknowledged {
                header[6] |= (NLM_F_ACK as u16).to_ne_bytes()[0];
                header[7] |= (NLM_F_ACK as u16).to_ne_bytes()[1];
            }
            let sequence = first.wrapping_add(position as u32);
            header[8..12].copy_from_slice(&sequence.to_ne_bytes());
        }
        self.bytes
    }
}

/// Returns the message type of a request.
fn message_type(request: &impl NetlinkRequest, family: Option<u16>) -> Result<u16, RequestError> {
    match (request.protocol(), family) {
        (RequestProtocol::Raw { request_type, .. }, _) => Ok(request_type),
        (RequestProtocol::Generic(_), Some(number)) => Ok(number),
        (RequestProtocol::Generic(_), None) => Err(Errno::PROTONOSUPPORT.into()),
    }
}

/// Appends a request with its header.
fn push_request(
    bytes: &mut Vec<u8>,
    request: &impl NetlinkRequest,
    message_type: u16,
    flags: u16,
    sequence: u32,
) {
    let payload = request.payload();
    let header = Nlmsghdr {
        len: (Nlmsghdr::len() + payload.len()) as u32,
        r#type: message_type,
        flags: request.flags() | flags | NLM_F_REQUEST as u16,
        seq: sequence,
        pid: 0,
    };
    bytes.extend(header.as_slice());
    bytes.extend(payload);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

/// A message from the kernel.
#[derive(Debug)]
struct Message<'a> {
    sequence: u32,
    /// True if the list changed while the kernel dumped it.
    interrupted: bool,
    content: Content<'a>,
}

#[derive(Debug)]
enum Content<'a> {
    Answer(&'a [u8]),
    /// The request is complete, or the list ends.
    Done,
    Refused(RequestError),
}

impl<'a> Message<'a> {
    /// Splits off the first message.
    fn split(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        const NLMSG_ERROR: u16 = 2;
        const NLMSG_DONE: u16 = 3;

        let (header, _) = bytes.split_first_chunk::<HEADER>()?;
        let length = parse_u32(header)? as usize;
        let message_type = parse_u16(&header[4..])?;
        let flags = parse_u16(&header[6..])?;
        let body = bytes.get(HEADER..length)?;
        let content = match message_type {
            NLMSG_ERROR | NLMSG_DONE => match parse_i32(body) {
                None => Content::Refused(unreadable()),
                Some(0) => Content::Done,
                Some(code) => Content::Refused(RequestError {
                    source: io::Error::from_raw_os_error(code.wrapping_neg()),
                    reason: explanation(message_type == NLMSG_ERROR, flags, body),
                }),
            },
            _ => Content::Answer(body),
        };
        let message = Self {
            sequence: parse_u32(&header[8..])?,
            interrupted: flags & NLM_F_DUMP_INTR as u16 != 0,
            content,
        };
        let next = length.next_multiple_of(4).min(bytes.len());
        Some((message, bytes.get(next..).unwrap_or_default()))
    }
}

/// Returns the kernel's explanation in an acknowledgement with attributes (Linux 4.12).
fn explanation(echoes: bool, flags: u16, body: &[u8]) -> Option<String> {
    const NLMSGERR_ATTR_MSG: u16 = 1;
    const CODE: usize = 4;

    if flags & NLM_F_ACK_TLVS as u16 == 0 {
        return None;
    }
    let request = if !echoes {
        0
    } else if flags & NLM_F_CAPPED as u16 != 0 {
        HEADER
    } else {
        (parse_u32(body.get(CODE..)?)? as usize).checked_next_multiple_of(4)?
    };
    let attributes = body.get(CODE.checked_add(request)?..)?;
    let text = find_attr(attributes, NLMSGERR_ATTR_MSG)?;
    let text = String::from_utf8_lossy(text.strip_suffix(&[0]).unwrap_or(text));
    (!text.is_empty()).then(|| text.into_owned())
}

/// Passes the content of each answer in a datagram to `answer`. For fuzzers.
#[cfg(any(test, feature = "testing"))]
pub(super) fn read_datagram(mut bytes: &[u8], mut answer: impl FnMut(&[u8])) {
    while let Some((message, rest)) = Message::split(bytes) {
        assert!(rest.len() < bytes.len(), "it never ends");
        bytes = rest;
        match message.content {
            Content::Answer(body) => answer(body),
            Content::Refused(error) => {
                assert!(
                    error
                        .reason
                        .as_ref()
                        .is_none_or(|reason| !reason.is_empty())
                );
                let _ = error.context("do something").to_string();
            }
            Content::Done => {}
        }
    }
}

const HEADER: usize = 16;

/// Error of an answer that lacks the requested data.
pub(super) fn unreadable() -> RequestError {
    RequestError {
        source: io::Error::new(
            io::ErrorKind::InvalidData,
            "the kernel's answer lacks the requested data",
        ),
        reason: None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
        let header = Nlmsghdr {
            len: (HEADER + body.len()) as u32,
            r#type: kind,
            flags,
            seq: 7,
            pid: 0,
        };
        [header.as_slice(), body].concat()
    }

    fn error(bytes: &[u8]) -> (Option<i32>, Option<String>) {
        match Message::split(bytes).unwrap().0.content {
            Content::Refused(error) => (error.source.raw_os_error(), error.reason),
            other => panic!("{other:?}"),
        }
    }

    const WORDS: &[u8] = b"\x0b\0\x01\0not so\0";

    #[test]
    fn refusals_are_read_with_the_kernel_s_words() {
        let code = (-17i32).to_ne_bytes();
        let echo = message(24, 0, b"12345678");
        let capped = (NLM_F_ACK_TLVS | NLM_F_CAPPED) as u16;
        let uncapped = NLM_F_ACK_TLVS as u16;
        let expected = (Some(17), Some("not so".to_owned()));
        let body = [&code, &echo[..HEADER], WORDS].concat();
        assert_eq!(error(&message(2, capped, &body)), expected);
        assert_eq!(error(&message(2, 0, &body)), (Some(17), None));
        let body = [&code, &echo[..], WORDS].concat();
        assert_eq!(error(&message(2, uncapped, &body)), expected);
        let body = [&code, WORDS].concat();
        assert_eq!(error(&message(3, uncapped, &body)), expected, "of a dump");
        assert_eq!(error(&message(2, 0, b"")).0, None, "too short");
    }

    #[test]
    fn messages_are_split() {
        let bytes = [
            message(24, NLM_F_DUMP_INTR as u16, b"odd\0").as_slice(),
            &message(2, 0, &[0; 20]),
        ]
        .concat();
        let (first, rest) = Message::split(&bytes).unwrap();
        assert!(first.interrupted);
        assert_eq!(first.sequence, 7);
        assert!(matches!(first.content, Content::Answer(b"odd\0")));
        let (second, rest) = Message::split(rest).unwrap();
        assert!(!second.interrupted);
        assert!(matches!(second.content, Content::Done));
        assert!(Message::split(rest).is_none());
    }

    proptest! {
        #[test]
        fn any_bytes_end(
            kind in 0u16..5,
            flags in any::<u16>(),
            length in 0u32..80,
            mut bytes in prop::collection::vec(any::<u8>(), 16..120),
        ) {
            bytes[..4].copy_from_slice(&length.to_ne_bytes());
            bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
            bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
            let mut rest = bytes.as_slice();
            while let Some((_, next)) = Message::split(rest) {
                prop_assert!(next.len() < rest.len());
                rest = next;
            }
        }
    }
}
