//! Netlink requests and answers (RFC 3549, `netlink(7)`).

use std::{
    io,
    ops::ControlFlow,
    os::fd::{AsFd, OwnedFd},
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

use super::error::SystemError;
use crate::socket_option::{self, IntOption};

/// Error of a request, before the caller adds the subject.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) source: io::Error,
    /// The kernel's explanation.
    pub(super) reason: Option<String>,
}

impl Refusal {
    pub(super) fn is(&self, errno: Errno) -> bool {
        Errno::from_io_error(&self.source) == Some(errno)
    }

    /// Returns the error for the request described by `what`.
    pub(super) fn of(self, what: impl Into<String>) -> SystemError {
        SystemError {
            what: what.into(),
            reason: self.reason,
            source: self.source,
        }
    }
}

impl From<io::Error> for Refusal {
    fn from(source: io::Error) -> Self {
        Self {
            source,
            reason: None,
        }
    }
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        io::Error::from(errno).into()
    }
}

/// A request whose body consists only of structures.
pub(super) struct Plain<'a> {
    pub(super) kind: u16,
    pub(super) flags: u16,
    pub(super) body: &'a [u8],
}

impl NetlinkRequest for Plain<'_> {
    type ReplyType<'buf> = &'buf [u8];

    fn protocol(&self) -> RequestProtocol {
        RequestProtocol::Raw {
            // The socket determines the protocol.
            protonum: 0,
            request_type: self.kind,
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

/// A netlink socket in the network namespace it was opened in.
#[derive(Debug)]
pub(super) struct Socket {
    fd: OwnedFd,
    sequence: u32,
    /// The number of the generic netlink family for requests.
    family: Option<u16>,
    /// Zeroed on release because requests and answers may contain keys.
    buffer: Zeroizing<Vec<u8>>,
}

impl Socket {
    /// Opens a socket; no protocol means `NETLINK_ROUTE`.
    pub(super) fn open(protocol: Option<Protocol>) -> io::Result<Self> {
        let fd = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            protocol,
        )?;
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
        Ok(Self {
            fd,
            sequence: 0,
            family: None,
            // The kernel fills up to this size with one message of a dump.
            buffer: Zeroizing::new(vec![0; 32 << 10]),
        })
    }

    /// Selects the family, by number, for generic netlink requests.
    pub(super) fn of_family(self, number: u16) -> Self {
        Self {
            family: Some(number),
            ..self
        }
    }

    /// Returns the name of an interface, or its number if it no longer exists.
    pub(super) fn interface(&self, index: u32) -> String {
        rustix::net::netdevice::index_to_name(&self.fd, index)
            .unwrap_or_else(|_| format!("interface {index}"))
    }

    /// Sends a request and passes the body of the kernel's answer, if there is one, to `answer`.
    pub(super) fn ask(
        &mut self,
        request: &impl NetlinkRequest,
        mut answer: impl FnMut(&[u8]),
    ) -> Result<(), Refusal> {
        let sequence = self.request(request)?;
        self.answers(sequence, &mut answer).map(drop)
    }

    /// Sends a request for a list, whose entries `read` extracts from the answers.
    pub(super) fn list<T>(
        &mut self,
        request: &impl NetlinkRequest,
        mut read: impl FnMut(&[u8], &mut Vec<T>),
    ) -> Result<Vec<T>, Refusal> {
        /// Attempts before giving up on a list that changes during every dump.
        const ATTEMPTS: usize = 100;
        for _ in 0..ATTEMPTS {
            let mut all = Vec::new();
            let sequence = self.request(request)?;
            let whole = self.answers(sequence, &mut |body| read(body, &mut all))?;
            if whole {
                return Ok(all);
            }
        }
        Err(Refusal {
            source: Errno::AGAIN.into(),
            reason: Some("it keeps changing while it is being listed".to_owned()),
        })
    }

    /// Sends requests that the kernel executes together or not at all. `refused` gets the position
    /// of the request that the kernel refuses.
    pub(super) fn transact(
        &mut self,
        transaction: Transaction,
        refused: impl FnOnce(u32, Refusal) -> Refusal,
    ) -> Result<(), Refusal> {
        let first = self.sequence.wrapping_add(1);
        let count = transaction.offsets.len() as u32;
        self.sequence = self.sequence.wrapping_add(count);
        self.send(&transaction.finish(first))?;
        let outcome = self.receive(|message| {
            let place = message.sequence.wrapping_sub(first);
            match message.content {
                Content::Refused(refusal) if place < count => {
                    ControlFlow::Break(Err((place, refusal)))
                }
                Content::Done if place < count => ControlFlow::Break(Ok(())),
                _ => ControlFlow::Continue(()),
            }
        })?;
        outcome.map_err(|(place, refusal)| refused(place, refusal))
    }

    fn request(&mut self, request: &impl NetlinkRequest) -> Result<u32, Refusal> {
        self.sequence = self.sequence.wrapping_add(1);
        let kind = kind(request, self.family)?;
        // Allocated in full at once: a growing vector would leave copies behind.
        let capacity = (HEADER + request.payload().len()).next_multiple_of(4);
        let mut bytes = Zeroizing::new(Vec::with_capacity(capacity));
        push_request(&mut bytes, request, kind, NLM_F_ACK as u16, self.sequence);
        self.send(&bytes)?;
        Ok(self.sequence)
    }

    fn send(&self, bytes: &[u8]) -> Result<(), Refusal> {
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
    fn answers(&mut self, sequence: u32, answer: &mut dyn FnMut(&[u8])) -> Result<bool, Refusal> {
        let mut whole = true;
        self.receive(|message| {
            if message.sequence != sequence {
                return ControlFlow::Continue(());
            }
            whole &= !message.interrupted;
            match message.content {
                Content::Answer(body) => {
                    answer(body);
                    ControlFlow::Continue(())
                }
                Content::Done => ControlFlow::Break(Ok(())),
                Content::Refused(refusal) => ControlFlow::Break(Err(refusal)),
            }
        })??;
        Ok(whole)
    }

    /// Passes messages to `take` until it breaks.
    fn receive<T>(
        &mut self,
        mut take: impl FnMut(Message<'_>) -> ControlFlow<T>,
    ) -> Result<T, Refusal> {
        loop {
            let length = self.receive_some()?;
            let mut rest = self.buffer.get(..length).unwrap_or_default();
            let mut enough = None;
            while enough.is_none()
                && let Some((message, next)) = Message::split(rest)
            {
                rest = next;
                enough = take(message).break_value();
            }
            if let Some(value) = enough {
                return Ok(value);
            }
        }
    }

    /// Receives into the buffer and returns the number of bytes.
    fn receive_some(&mut self) -> Result<usize, Refusal> {
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
    pub(super) fn push(&mut self, request: &impl NetlinkRequest) -> Result<(), Refusal> {
        let kind = kind(request, None)?;
        self.offsets.push(self.bytes.len());
        push_request(&mut self.bytes, request, kind, 0, 0);
        Ok(())
    }

    /// Numbers the requests from `first` and requests an acknowledgement of the last but one. The
    /// delimiters are not acknowledged before Linux 6.10, and errors are reported in any case.
    fn finish(mut self, first: u32) -> Vec<u8> {
        let acknowledged = self.offsets.len().checked_sub(2);
        for (place, &offset) in self.offsets.iter().enumerate() {
            let Some(header) = self.bytes.get_mut(offset..offset + HEADER) else {
                continue;
            };
            if Some(place) == acknowledged {
                header[6] |= (NLM_F_ACK as u16).to_ne_bytes()[0];
                header[7] |= (NLM_F_ACK as u16).to_ne_bytes()[1];
            }
            let sequence = first.wrapping_add(place as u32);
            header[8..12].copy_from_slice(&sequence.to_ne_bytes());
        }
        self.bytes
    }
}

/// Returns the message type of a request.
fn kind(request: &impl NetlinkRequest, family: Option<u16>) -> Result<u16, Refusal> {
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
    kind: u16,
    flags: u16,
    sequence: u32,
) {
    let payload = request.payload();
    let header = Nlmsghdr {
        len: (Nlmsghdr::len() + payload.len()) as u32,
        r#type: kind,
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
    Refused(Refusal),
}

impl<'a> Message<'a> {
    /// Splits off the first message.
    fn split(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        const NLMSG_ERROR: u16 = 2;
        const NLMSG_DONE: u16 = 3;

        let (header, _) = bytes.split_first_chunk::<HEADER>()?;
        let length = parse_u32(header)? as usize;
        let kind = parse_u16(&header[4..])?;
        let flags = parse_u16(&header[6..])?;
        let body = bytes.get(HEADER..length)?;
        let content = match kind {
            NLMSG_ERROR | NLMSG_DONE => match parse_i32(body) {
                None => Content::Refused(unreadable()),
                Some(0) => Content::Done,
                Some(code) => Content::Refused(Refusal {
                    source: io::Error::from_raw_os_error(code.wrapping_neg()),
                    reason: explanation(kind == NLMSG_ERROR, flags, body),
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

const HEADER: usize = 16;

/// Error of an answer that lacks the requested data.
pub(super) fn unreadable() -> Refusal {
    Refusal {
        source: io::ErrorKind::InvalidData.into(),
        reason: Some("the kernel's answer lacks what was asked for".to_owned()),
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

    fn refusal(bytes: &[u8]) -> (Option<i32>, Option<String>) {
        match Message::split(bytes).unwrap().0.content {
            Content::Refused(refusal) => (refusal.source.raw_os_error(), refusal.reason),
            other => panic!("{other:?}"),
        }
    }

    const WORDS: &[u8] = b"\x0b\0\x01\0not so\0";

    #[test]
    fn refusals_are_read_with_the_kernel_s_words() {
        let code = (-17i32).to_ne_bytes();
        let echo = message(24, 0, b"12345678");
        let capped = (NLM_F_ACK_TLVS | NLM_F_CAPPED) as u16;
        let whole = NLM_F_ACK_TLVS as u16;
        let said = (Some(17), Some("not so".to_owned()));
        let body = [&code, &echo[..HEADER], WORDS].concat();
        assert_eq!(refusal(&message(2, capped, &body)), said);
        assert_eq!(refusal(&message(2, 0, &body)), (Some(17), None));
        let body = [&code, &echo[..], WORDS].concat();
        assert_eq!(refusal(&message(2, whole, &body)), said);
        let body = [&code, WORDS].concat();
        assert_eq!(refusal(&message(3, whole, &body)), said, "of a dump");
        assert_eq!(refusal(&message(2, 0, b"")).0, None, "too short");
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
