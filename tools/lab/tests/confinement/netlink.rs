//! Changes of the network through the netlink sockets that a packet process has.

use crate::descriptors::{Descriptor, Kind};
use crate::intruder::{Intruder, Outcome};
use rustix::io::Errno;
use taupe_lab::{Error, Result};

/// A request to the kernel: a name, the message's type, flags beside `NLM_F_REQUEST` and
/// `NLM_F_ACK`, and the message.
type Change = (&'static str, u16, u16, Vec<u8>);

/// `NLM_F_REQUEST | NLM_F_ACK` of `linux/netlink.h`.
const WITH_ANSWER: u16 = 5;
/// `NLM_F_CREATE | NLM_F_REPLACE`.
const CREATE: u16 = 0x500;
/// `NLMSG_ERROR`.
const ERROR: u16 = 2;

/// Length of a message's head.
const HEAD: usize = 16;

/// Bytes of a received message, more than an answer to a change.
const BUFFER: usize = 32 << 10;

/// Index of `lo`.
const LOOPBACK: u32 = 1;

/// Attempts changes through each netlink socket. Returns those that the kernel did not refuse for
/// lack of a capability, and the number of attempts.
pub(crate) fn attempt_all(
    intruder: &mut Intruder,
    descriptors: &[Descriptor],
) -> Result<(Vec<String>, usize)> {
    let (mut escapes, mut count) = (Vec::new(), 0);
    for descriptor in descriptors {
        match descriptor.kind {
            Kind::Netlink(protocol) if protocol == libc::NETLINK_ROUTE.cast_unsigned() => {}
            Kind::Netlink(_) => {
                escapes.push(format!("{descriptor:?}: another protocol"));
                continue;
            }
            _ => continue,
        }
        for change in changes() {
            count += 1;
            let name = change.0;
            let answer = ask(intruder, descriptor.number, &change, count)?;
            if answer != Some(Errno::PERM) {
                escapes.push(format!("{name} through {descriptor:?}: {answer:?}"));
            }
        }
    }
    Ok((escapes, count))
}

fn changes() -> Vec<Change> {
    // `struct rtmsg`: an IPv4 route of the main table with these lengths, from the administrator.
    let route = |length: u8| vec![2, length, 0, 0, 254, 4, 253, 1, 0, 0, 0, 0];
    let mut new_route = route(24);
    new_route.extend(attribute(1, &[203, 0, 113, 0]));
    new_route.extend(attribute(4, &LOOPBACK.to_ne_bytes()));
    let mut rule = vec![2, 0, 0, 0, 254, 0, 0, 1, 0, 0, 0, 0];
    rule.extend(attribute(6, &1_u32.to_ne_bytes()));
    // `struct ifinfomsg` that takes `lo` down.
    let mut link = vec![0; 16];
    link[4..8].copy_from_slice(&LOOPBACK.to_ne_bytes());
    link[12..].copy_from_slice(&1_u32.to_ne_bytes());
    let mut address = vec![2, 32, 0, 0];
    address.extend(LOOPBACK.to_ne_bytes());
    address.extend(attribute(2, &[203, 0, 113, 1]));
    let mut named = vec![0; 16];
    named.extend(attribute(3, b"escape\0"));
    vec![
        ("RTM_NEWROUTE", libc::RTM_NEWROUTE, CREATE, new_route),
        ("RTM_DELROUTE", libc::RTM_DELROUTE, 0, route(0)),
        ("RTM_NEWRULE", libc::RTM_NEWRULE, CREATE, rule),
        ("RTM_SETLINK", libc::RTM_SETLINK, 0, link.clone()),
        ("RTM_NEWLINK", libc::RTM_NEWLINK, CREATE, named),
        ("RTM_DELLINK", libc::RTM_DELLINK, 0, link),
        ("RTM_NEWADDR", libc::RTM_NEWADDR, CREATE, address),
    ]
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + value.len()).unwrap_or(0);
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Sends a request and returns the error of its answer. The kernel answers before the call returns.
fn ask(
    intruder: &mut Intruder,
    socket: u64,
    (name, kind, flags, body): &Change,
    count: usize,
) -> Result<Option<Errno>> {
    let sequence = 0x7a00_0000 + u32::try_from(count).unwrap_or(0);
    let length = u32::try_from(HEAD + body.len()).unwrap_or(0);
    let mut message = length.to_ne_bytes().to_vec();
    message.extend(kind.to_ne_bytes());
    message.extend((WITH_ANSWER | flags).to_ne_bytes());
    message.extend(sequence.to_ne_bytes());
    message.extend([0; 4]);
    message.extend(body);
    let place = intruder.place(&message)?;
    let sent = [socket, place, message.len() as u64, 0, 0, 0];
    intruder.succeed(libc::SYS_sendto, sent)?;
    let buffer = intruder.place(&[0; BUFFER])?;
    let now = u64::from(libc::MSG_DONTWAIT.cast_unsigned());
    let answer = loop {
        let received = [socket, buffer, BUFFER as u64, now, 0, 0];
        let length = match intruder.call(libc::SYS_recvfrom, received)? {
            Outcome::Returned(length) => usize::try_from(length).unwrap_or(0),
            other => return Err(Error::unmet(format!("no answer to {name}: {other:?}"))),
        };
        // The socket may also receive notices. That of a change has the request's sequence number.
        let bytes = intruder.read(buffer, length.min(BUFFER))?;
        let is_answer = bytes.get(4..6) == Some(&ERROR.to_ne_bytes());
        if is_answer && bytes.get(8..12) == Some(&sequence.to_ne_bytes()) {
            break bytes;
        }
    };
    intruder.clear();
    let code = answer.get(HEAD..HEAD + 4).and_then(|it| it.try_into().ok());
    let code = code.map_or(0, i32::from_ne_bytes);
    Ok((code != 0).then(|| Errno::from_raw_os_error(-code)))
}
