//! Messages by `sendmsg`, with control messages.

use crate::descriptors::{Descriptor, Kind, socket_option};
use crate::intruder::{Intruder, Outcome};
use rustix::io::Errno;
use taupe_lab::Result;

/// A control message: its level, its type and its content.
pub(crate) type Control = (i32, i32, Vec<u8>);

/// Returns the control message by which copies of descriptors are sent.
pub(crate) fn rights(descriptors: &[u64]) -> Option<Control> {
    let numbers = descriptors
        .iter()
        .map(|number| u32::try_from(*number).unwrap_or(u32::MAX))
        .flat_map(u32::to_ne_bytes);
    let content = (libc::SOL_SOCKET, libc::SCM_RIGHTS, numbers.collect());
    (!descriptors.is_empty()).then_some(content)
}

/// Sends bytes with a control message on a connected socket.
pub(crate) fn send(
    intruder: &mut Intruder,
    socket: u64,
    text: &[u8],
    control: Option<Control>,
) -> Result<Outcome> {
    send_to(intruder, socket, &[], text, control)
}

/// Sends bytes with a control message to an address, a `struct sockaddr`.
fn send_to(
    intruder: &mut Intruder,
    socket: u64,
    address: &[u8],
    text: &[u8],
    control: Option<Control>,
) -> Result<Outcome> {
    let text = [intruder.place(text)?, text.len() as u64];
    let control = match control {
        Some((level, kind, content)) => {
            // `struct cmsghdr`.
            let mut bytes = words(&[16 + content.len() as u64]);
            bytes.extend(level.to_ne_bytes());
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(content);
            bytes.resize(bytes.len().next_multiple_of(8), 0);
            [intruder.place(&bytes)?, bytes.len() as u64]
        }
        None => [0, 0],
    };
    let address = match address {
        [] => [0, 0],
        bytes => [intruder.place(bytes)?, bytes.len() as u64],
    };
    let message = head(intruder, address, text, control)?;
    let flags = u64::from((libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT).cast_unsigned());
    let outcome = intruder.call(libc::SYS_sendmsg, [socket, message, flags, 0, 0, 0])?;
    intruder.clear();
    Ok(outcome)
}

/// Writes a `struct msghdr`, and returns where it is. Its parts are given by where they are and their
/// length.
pub(crate) fn head(
    intruder: &mut Intruder,
    [address, address_length]: [u64; 2],
    text: [u64; 2],
    [control, control_length]: [u64; 2],
) -> Result<u64> {
    let vector = intruder.place(&words(&text))?;
    let words = words(&[
        address,
        address_length,
        vector,
        1,
        control,
        control_length,
        0,
    ]);
    intruder.place(&words)
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Sends datagrams with a mark of their own, which takes a capability. Returns those that were not
/// refused.
pub(crate) fn mark_all(intruder: &mut Intruder, descriptors: &[Descriptor]) -> Result<Vec<String>> {
    let mut escapes = Vec::new();
    for descriptor in descriptors.iter().filter(|it| it.kind == Kind::Udp) {
        let mark = (
            libc::SOL_SOCKET,
            libc::SO_MARK,
            7_u32.to_ne_bytes().to_vec(),
        );
        let domain = socket_option(intruder, descriptor.number, libc::SO_DOMAIN)?;
        // Port 9 of the loopback address.
        let length = if domain.cast_signed() == libc::AF_INET {
            16
        } else {
            28
        };
        let mut address = vec![0; length];
        address[..2].copy_from_slice(&u16::try_from(domain).unwrap_or(0).to_ne_bytes());
        address[3] = 9;
        match length {
            16 => address[4..8].copy_from_slice(&[127, 0, 0, 1]),
            _ => address[23] = 1,
        }
        let socket = descriptor.number;
        let outcome = send_to(intruder, socket, &address, b"datagram", Some(mark))?;
        if outcome != Outcome::Failed(Errno::PERM) {
            escapes.push(format!("a mark of {descriptor:?}: {outcome:?}"));
        }
    }
    Ok(escapes)
}
