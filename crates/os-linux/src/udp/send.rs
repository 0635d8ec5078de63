//! Sending, with segmentation offload as long as the kernel accepts it.

use std::{
    ffi::c_int,
    hint, io,
    net::{IpAddr, SocketAddr},
    os::fd::AsFd,
    sync::atomic::Ordering,
    thread,
};

use rustix::io::Errno;

use super::{
    Header, PacketInfo, Sent,
    control::Control,
    max_segments,
    message::{self, SockAddr},
    socket::Socket,
};

/// Consecutive batches that the kernel may refuse before batching pauses. One refusal may only mean
/// that the path to one peer has a smaller MTU.
const MAX_CONSECUTIVE_REFUSALS: u32 = 8;

/// Sends without batching before it is tried again. The refusal may have concerned only the path to
/// one peer, or an MTU that an ICMP message reported.
const PAUSE: u32 = 1000;

/// Maximum retries of a send when the kernel has no buffers. Sleeping instead would take
/// milliseconds.
const MAX_RETRIES: u32 = 100;

impl Socket {
    /// Sends `buffer` to `to` as datagrams of `segment` bytes, in order, with as few system calls
    /// as the kernel allows. The last datagram may be shorter.
    ///
    /// `header` sets the IP header fields of each datagram; a single byte sets the TOS or traffic
    /// class. `local` sets the source address, and the interface unless its index is 0. If it no
    /// longer works, the datagrams are sent without it and the result says so.
    ///
    /// If the firewall refuses a datagram (`EPERM`), or it is too large (`EMSGSIZE`), the remaining
    /// ones are still sent.
    pub fn send(
        &self,
        to: SocketAddr,
        local: Option<&PacketInfo>,
        header: impl Into<Header>,
        buffer: &[u8],
        segment: usize,
    ) -> Sent {
        let mut destination = Destination::new(to, local, header.into());
        let result = self.send_to(&mut destination, buffer, segment);
        Sent {
            local_address_dropped: destination.local_address_dropped,
            result,
        }
    }

    fn send_to(
        &self,
        destination: &mut Destination<'_>,
        buffer: &[u8],
        segment: usize,
    ) -> io::Result<()> {
        let segment = if segment == 0 { buffer.len() } else { segment };
        let mut rest = buffer;
        let mut outcome = Ok(());
        loop {
            let batch_len = (segment * max_segments(segment)).min(rest.len());
            let mut sent = 0;
            if batch_len > segment && self.should_segment() {
                sent = self.send_segmented(destination, rest, batch_len, segment)?;
            }
            if sent == 0 {
                let (batch, _) = rest.split_at(batch_len);
                let result = self.send_unsegmented(destination, batch, segment);
                outcome = outcome.and(result);
                if outcome
                    .as_ref()
                    .is_err_and(|error| !concerns_one_datagram(error))
                {
                    break;
                }
                sent = batch_len;
            }
            rest = rest.get(sent..).unwrap_or_default();
            if rest.is_empty() {
                break;
            }
        }
        outcome
    }

    /// Sends batches of `batch_len` bytes, the last maybe shorter, with one system call. Returns
    /// how many bytes were sent: none if the kernel refuses the first batch.
    fn send_segmented(
        &self,
        destination: &mut Destination<'_>,
        batches: &[u8],
        batch_len: usize,
        segment: usize,
    ) -> io::Result<usize> {
        let result = destination.attempt(Some(segment as u16), |to, control| {
            self.send_messages(to, control, batches, batch_len)
        });
        match result {
            Ok(count) => {
                self.consecutive_refusals.store(0, Ordering::Relaxed);
                Ok(batches.len().min(count * batch_len))
            }
            Err(error) => {
                let refused = self
                    .consecutive_refusals
                    .load(Ordering::Relaxed)
                    .saturating_add(1);
                let pauses = match Errno::from_io_error(&error) {
                    // The outgoing interface has no checksum offload.
                    Some(Errno::IO) => true,
                    // The kernel refuses this segment size or this route.
                    Some(Errno::INVAL | Errno::MSGSIZE) => refused >= MAX_CONSECUTIVE_REFUSALS,
                    // The firewall may refuse one datagram and accept the others.
                    Some(Errno::PERM) => return Ok(0),
                    _ => return Err(error),
                };
                self.consecutive_refusals.store(refused, Ordering::Relaxed);
                self.gso_refusals.fetch_add(1, Ordering::Relaxed);
                if pauses {
                    self.gso_pause.store(PAUSE, Ordering::Relaxed);
                }
                // The cause was perhaps not the local address.
                destination.restore_local();
                Ok(0)
            }
        }
    }

    /// Sends datagrams without segmentation offload, with as few system calls as possible.
    fn send_unsegmented(
        &self,
        destination: &mut Destination<'_>,
        batch: &[u8],
        segment: usize,
    ) -> io::Result<()> {
        let mut outcome = Ok(());
        let mut rest = batch;
        loop {
            let result = destination.attempt(None, |to, control| {
                self.send_messages(to, control, rest, segment)
            });
            let done = match result {
                Ok(count) => count,
                Err(error) => {
                    let can_continue = concerns_one_datagram(&error);
                    outcome = outcome.and(Err(error));
                    if !can_continue {
                        return outcome;
                    }
                    1
                }
            };
            rest = rest.get(done * segment..).unwrap_or_default();
            if rest.is_empty() {
                return outcome;
            }
        }
    }

    /// Sends `payload` as messages of `length` bytes, as many as one system call takes. Returns how
    /// many were sent. An error refers to the first message.
    fn send_messages(
        &self,
        to: &SockAddr,
        control: &Control,
        payload: &[u8],
        length: usize,
    ) -> io::Result<usize> {
        let fd = self.fd.as_fd();
        if self.has_sendmmsg && payload.len() > length {
            return message::send_many(fd, to, control, payload.chunks(length));
        }
        let (first, _) = payload.split_at(length.min(payload.len()));
        message::send(fd, to, control, first).map(|()| 1)
    }

    /// Returns [`Socket::gso`], and counts this send against a pause. The counter is not exact:
    /// concurrent threads can only make the pause longer.
    fn should_segment(&self) -> bool {
        let tries = self.gso();
        if !tries {
            let pause = self.gso_pause.load(Ordering::Relaxed);
            let pause = pause.saturating_sub(1);
            self.gso_pause.store(pause, Ordering::Relaxed);
        }
        tries
    }
}

/// Destination of datagrams and their control messages.
struct Destination<'a> {
    to: SockAddr,
    local: Option<&'a PacketInfo>,
    given_local: Option<&'a PacketInfo>,
    /// Set once something was sent after the local address was dropped.
    local_address_dropped: bool,
    header: Header,
    is_v6: bool,
}

impl<'a> Destination<'a> {
    fn new(to: SocketAddr, local: Option<&'a PacketInfo>, header: Header) -> Self {
        // An address of the other family cannot be the source.
        let local = local.filter(|local| local.address.is_ipv4() == to.is_ipv4());
        Self {
            to: to.into(),
            local,
            given_local: local,
            local_address_dropped: false,
            header,
            is_v6: to.is_ipv6(),
        }
    }

    /// Calls `send` until it succeeds or fails permanently. Drops the local address if the error
    /// suggests that it is the cause.
    fn attempt<T>(
        &mut self,
        segment: Option<u16>,
        send: impl Fn(&SockAddr, &Control) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut control = self.control(segment);
        let mut retries = 0;
        loop {
            let error = match send(&self.to, &control) {
                Err(error) => error,
                done => {
                    self.local_address_dropped |=
                        self.local.is_none() && self.given_local.is_some();
                    return done;
                }
            };
            match Errno::from_io_error(&error) {
                Some(Errno::NOBUFS | Errno::AGAIN) if retries < MAX_RETRIES => {
                    retries += 1;
                    hint::spin_loop();
                    thread::yield_now();
                }
                Some(Errno::INTR) => {}
                Some(
                    Errno::INVAL
                    | Errno::NODEV
                    | Errno::NETUNREACH
                    | Errno::HOSTUNREACH
                    | Errno::ADDRNOTAVAIL
                    | Errno::NETDOWN,
                ) if self.local.is_some() => {
                    self.local = None;
                    control = self.control(segment);
                }
                _ => return Err(error),
            }
        }
    }

    /// Restores the local address, unless a send succeeded after it was dropped.
    fn restore_local(&mut self) {
        if !self.local_address_dropped {
            self.local = self.given_local;
        }
    }

    fn control(&self, segment: Option<u16>) -> Control {
        let mut control = Control::new();
        let (level, tclass, hop_limit) = if self.is_v6 {
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_HOPLIMIT)
        } else {
            (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL)
        };
        let mut push = |kind, value: u8| {
            control.push(level, kind, &c_int::from(value).to_ne_bytes());
        };
        push(tclass, self.header.tclass);
        if let Some(hops) = self.header.hop_limit {
            push(hop_limit, hops);
        }
        if let Some(local) = self.local {
            push_packet_info(&mut control, local);
        }
        if let Some(segment) = segment {
            control.push(libc::SOL_UDP, libc::UDP_SEGMENT, &segment.to_ne_bytes());
        }
        control
    }
}

/// `struct in_pktinfo` and `struct in6_pktinfo`.
fn push_packet_info(control: &mut Control, local: &PacketInfo) {
    match local.address {
        IpAddr::V4(address) => {
            let mut info = [0; 12];
            info[..4].copy_from_slice(&local.interface.to_ne_bytes());
            info[4..8].copy_from_slice(&address.octets());
            control.push(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
        }
        IpAddr::V6(address) => {
            let mut info = [0; 20];
            info[..16].copy_from_slice(&address.octets());
            info[16..].copy_from_slice(&local.interface.to_ne_bytes());
            control.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
        }
    }
}

/// Returns true if the error concerns only this datagram, so that the next one may succeed.
fn concerns_one_datagram(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::PERM | Errno::MSGSIZE)
    )
}
