//! Receiving datagrams and their control messages.

use std::{io, net::IpAddr, os::fd::AsFd, sync::atomic::Ordering};

use arrayvec::ArrayVec;
use rustix::io::Errno;

use super::{
    MAX_RECEIVES, PacketInfo, RECEIVE_LEN, Receive, Received,
    control::Control,
    message::{self, Call},
    socket::Socket,
};

impl Socket {
    /// Waits for datagrams and returns all batches that are queued, up to [`MAX_RECEIVES`], with
    /// one system call. If a sandbox forbids `recvmmsg`, each call returns one batch. Each batch
    /// takes [`crate::udp::RECEIVE_LEN`] bytes of `buffer`, which should have
    /// [`crate::udp::RECEIVE_BUFFER_LEN`] bytes.
    ///
    /// # Errors
    ///
    /// Unexpected errors of the kernel. ICMP errors of earlier sends are not reported.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Receive> {
        self.receive_with(buffer, true)
    }

    /// Like [`Socket::receive`] but does not wait, for a caller to which `poll(2)` reported the
    /// socket as readable. Returns `None` if there is nothing to receive.
    ///
    /// # Errors
    ///
    /// Those of [`Socket::receive`].
    pub fn receive_ready(&self, buffer: &mut [u8]) -> io::Result<Option<Receive>> {
        match self.receive_with(buffer, false) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            received => received.map(Some),
        }
    }

    fn receive_with(&self, buffer: &mut [u8], waits: bool) -> io::Result<Receive> {
        while !self.stopped.load(Ordering::Relaxed) {
            let rooms = buffer.chunks_mut(RECEIVE_LEN);
            // For a single batch `recvmsg` suffices.
            let call = if rooms.len() == 1 || self.lacks_recvmmsg.load(Ordering::Relaxed) {
                Call::Recvmsg
            } else {
                Call::Recvmmsg
            };
            match message::receive(self.fd.as_fd(), rooms, call, waits) {
                Ok(messages) => {
                    let starts = (0..).step_by(RECEIVE_LEN);
                    let received = starts.zip(&messages).map_while(received);
                    let received: ArrayVec<_, MAX_RECEIVES> = received.collect();
                    // After a shutdown the call returns an empty message without a sender.
                    if received.is_empty() {
                        break;
                    }
                    return Ok(Receive::Datagrams(received));
                }
                Err(error) if is_icmp_error_or_interrupt(&error) => {}
                Err(error) if call == Call::Recvmmsg && is_call_unavailable(&error) => {
                    self.lacks_recvmmsg.store(true, Ordering::Relaxed);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Receive::Stopped)
    }
}

/// Converts a received message; `None` if it has no sender.
fn received((start, message): (usize, &message::ReceivedMessage)) -> Option<Received> {
    let mut received = Received {
        start,
        len: message.len,
        segment: message.len,
        from: message.from?,
        local: None,
        ecn: 0,
        truncated: message.truncated,
    };
    read_control(&message.control, &mut received);
    Some(received)
}

fn read_control(control: &Control, received: &mut Received) {
    let int = |data: &[u8]| data.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
    for (level, kind, data) in control.iter() {
        match (level, kind) {
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                // The local address (`ipi_spec_dst`), which for broadcasts differs from the
                // destination in the header.
                if let (Some(interface), Some(&[_, _, _, _, a, b, c, d])) =
                    (int(data), data.first_chunk())
                {
                    let address = IpAddr::from([a, b, c, d]);
                    received.local = Some(PacketInfo { address, interface });
                }
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                if let Some((address, rest)) = data.split_first_chunk::<16>() {
                    received.local = int(rest).map(|interface| PacketInfo {
                        address: IpAddr::from(*address),
                        interface,
                    });
                }
            }
            (libc::IPPROTO_IP, libc::IP_TOS) => {
                received.ecn = data.first().map_or(0, |tos| tos & 3);
            }
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                received.ecn = int(data).map_or(0, |tclass| (tclass & 3) as u8);
            }
            (libc::SOL_UDP, libc::UDP_GRO) => {
                if let Some(size @ 1..) = int(data) {
                    received.segment = (size as usize).min(received.len);
                }
            }
            _ => {}
        }
    }
}

/// Returns true if the error comes from an ICMP message about an earlier datagram, or from an
/// interrupted call.
fn is_icmp_error_or_interrupt(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(
            Errno::CONNREFUSED
                | Errno::CONNRESET
                | Errno::HOSTUNREACH
                | Errno::NETUNREACH
                | Errno::HOSTDOWN
                | Errno::NETDOWN
                | Errno::NONET
                | Errno::NOPROTOOPT
                | Errno::PROTO
                | Errno::MSGSIZE
                | Errno::INTR
        )
    )
}

/// Returns true if the system call does not exist or is forbidden.
fn is_call_unavailable(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NOSYS | Errno::PERM)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_messages_of_lying_length_are_skipped() {
        let blank = Received {
            start: 0,
            len: 10,
            segment: 10,
            from: "1.2.3.4:5".parse().unwrap(),
            local: None,
            ecn: 0,
            truncated: false,
        };
        for (level, kind) in [
            (libc::IPPROTO_IP, libc::IP_PKTINFO),
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO),
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
            (libc::SOL_UDP, libc::UDP_GRO),
        ] {
            let mut control = Control::new();
            control.push(level, kind, &[0xff; 3]);
            let mut received = blank;
            read_control(&control, &mut received);
            assert_eq!(received, blank);
        }
        let mut control = Control::new();
        control.push(libc::SOL_UDP, libc::UDP_GRO, &1000u32.to_ne_bytes());
        let mut received = blank;
        read_control(&control, &mut received);
        assert_eq!(received.segment, 10);
    }
}
