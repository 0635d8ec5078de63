//! UDP sockets with segmentation and receive offload.

use std::{
    ffi::c_int,
    hint, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    thread,
};

use arrayvec::ArrayVec;
use rustix::{
    io::Errno,
    net::{
        AddressFamily, Shutdown, SocketFlags, SocketType, bind, getsockname, ipproto, shutdown,
        socket_with, sockopt,
    },
};
use taupe_packet::ip::Family;

use super::{
    BindError, Header, Local, MAX_RECEIVES, Options, RECEIVE_LEN, Receive, Received, Sent,
    control::Control,
    message::{self, Call, Name},
    port, segments_of_a_send,
};
use crate::option::{self, IntOption};

/// An unconnected UDP socket on every local address of one family. Any number
/// of threads may send and receive.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    port: u16,
    gro: bool,
    gso: bool,
    /// Sends to go before batches are tried again.
    gso_pause: AtomicU32,
    gso_refusals: AtomicU64,
    /// Refusals since a batch last went out.
    refused_in_a_row: AtomicU32,
    /// The system has `sendmmsg`, and lets it be used.
    sends_many: bool,
    /// The system has no `recvmmsg`, or does not let it be used.
    receives_singly: AtomicBool,
    stopped: AtomicBool,
    /// How another socket is bound beside it, where datagrams can be told apart.
    beside: Option<(Family, Options)>,
}

/// Batches in a row that the kernel may refuse before there is a pause. One
/// refusal may mean only that the path to one peer takes smaller packets.
const MAX_REFUSED_IN_A_ROW: u32 = 8;

/// Sends without batches before one is tried again. What refused them may have
/// been the path to one peer, or what somebody on the way said of it.
const PAUSE: u32 = 1000;

/// How often a send is tried again when the kernel has no buffers. To sleep
/// would cost milliseconds.
const MAX_RETRIES: u32 = 100;

impl Socket {
    /// Binds `port`, or a free one when it is 0.
    ///
    /// # Errors
    ///
    /// See [`BindError`].
    pub fn bind(family: Family, port: u16, options: Options) -> Result<Self, BindError> {
        let fd = open(family, options)?;
        let keeps = options.keeps;
        let tells_apart = keeps.is_some_and(|first| port::keep(fd.as_fd(), first).is_ok());
        let mut socket = Self::bound(fd, family, port, options)?;
        socket.beside = tells_apart.then_some((family, options));
        Ok(socket)
    }

    /// Binds a second socket to the same port, with the same options but for its buffers. It
    /// gets, from the moment it is bound, all datagrams but those that are empty or begin
    /// with [`Options::keeps`] of this one; of several that the kernel has merged, the first
    /// decides, and what is sent to a broadcast or multicast address comes to both. A
    /// program of the same user can bind the port too from now on, if it asks for that
    /// (`SO_REUSEPORT`).
    ///
    /// # Errors
    ///
    /// See [`BindError`]; [`io::ErrorKind::Unsupported`] where the system cannot tell
    /// datagrams apart (before Linux 4.5) or this socket was not to keep any.
    pub fn bind_beside(&self, buffers: Option<usize>) -> Result<Self, BindError> {
        let unsupported = || failed("telling datagrams apart")(io::ErrorKind::Unsupported);
        let (family, options) = self.beside.ok_or_else(unsupported)?;
        let options = Options { buffers, ..options };
        let fd = open(family, options)?;
        port::share(fd.as_fd(), true).map_err(failed("SO_REUSEPORT"))?;
        // Not before: a port that another program has would have been shared with it.
        port::share(self.as_fd(), true).map_err(failed("SO_REUSEPORT"))?;
        let second = Self::bound(fd, family, self.port, options);
        if second.is_err() {
            let _ = port::share(self.as_fd(), false);
        }
        second
    }

    fn bound(fd: OwnedFd, family: Family, port: u16, options: Options) -> Result<Self, BindError> {
        let gso = options.gso && option::value(fd.as_fd(), IntOption::Segment).is_ok();
        let gro = options.gro
            && merges_received_right(rustix::system::uname().release().to_bytes())
            && option::set(fd.as_fd(), IntOption::Gro, 1).is_ok();
        let any = match family {
            Family::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            Family::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        bind(&fd, &SocketAddr::from((any, port))).map_err(|error| match error {
            Errno::ADDRINUSE => BindError::PortInUse(port),
            error => failed("bind")(error),
        })?;
        let address = getsockname(&fd).map_err(failed("getsockname"))?;
        let address = SocketAddr::try_from(address).map_err(failed("getsockname"))?;
        Ok(Self {
            sends_many: message::can_send_many(fd.as_fd()),
            fd,
            port: address.port(),
            gro,
            gso,
            gso_pause: AtomicU32::new(0),
            gso_refusals: AtomicU64::new(0),
            refused_in_a_row: AtomicU32::new(0),
            receives_singly: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            beside: None,
        })
    }

    /// The port bound.
    pub fn local_port(&self) -> u16 {
        self.port
    }

    /// Changes `SO_MARK` for what is sent from now on; 0 clears it.
    ///
    /// # Errors
    ///
    /// `EPERM` without `CAP_NET_ADMIN`.
    pub fn set_mark(&self, mark: u32) -> io::Result<()> {
        set_mark(self.fd.as_fd(), mark)
    }

    /// Whether the next send goes out as batches.
    pub fn gso(&self) -> bool {
        self.gso && self.gso_pause.load(Ordering::Relaxed) == 0
    }

    /// [`Socket::gso`], and one send less to go. Threads that do this at once
    /// make a pause longer, no more.
    fn tries_batches(&self) -> bool {
        let tries = self.gso();
        if !tries {
            let pause = self.gso_pause.load(Ordering::Relaxed);
            let pause = pause.saturating_sub(1);
            self.gso_pause.store(pause, Ordering::Relaxed);
        }
        tries
    }

    /// Whether receives may bring batches.
    pub fn gro(&self) -> bool {
        self.gro
    }

    /// Batches the kernel refused and that went out singly.
    pub fn gso_refusals(&self) -> u64 {
        self.gso_refusals.load(Ordering::Relaxed)
    }

    /// Waits for datagrams, and takes those along that are there already: one
    /// system call. A sandbox that forbids `recvmmsg` gets one batch a call. Each
    /// [`crate::udp::RECEIVE_LEN`] bytes of `buffer` take one batch; it should have
    /// [`crate::udp::RECEIVE_BUFFER_LEN`].
    ///
    /// # Errors
    ///
    /// Unexpected errors of the kernel. What ICMP reported about earlier sends
    /// is no error.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Receive> {
        self.receive_with(buffer, true)
    }

    /// [`Socket::receive`] without waiting, for who has heard from `poll(2)` that
    /// there is something: `None` when there is nothing all the same.
    ///
    /// # Errors
    ///
    /// Those of [`Socket::receive`].
    pub fn receive_announced(&self, buffer: &mut [u8]) -> io::Result<Option<Receive>> {
        match self.receive_with(buffer, false) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            received => received.map(Some),
        }
    }

    fn receive_with(&self, buffer: &mut [u8], waits: bool) -> io::Result<Receive> {
        while !self.stopped.load(Ordering::Relaxed) {
            let rooms = buffer.chunks_mut(RECEIVE_LEN);
            // For one batch the plainer call does.
            let call = if rooms.len() == 1 || self.receives_singly.load(Ordering::Relaxed) {
                Call::One
            } else {
                Call::Many
            };
            match message::receive(self.fd.as_fd(), rooms, call, waits) {
                Ok(messages) => {
                    let starts = (0..).step_by(RECEIVE_LEN);
                    let received = starts.zip(&messages).map_while(received);
                    let received: ArrayVec<_, MAX_RECEIVES> = received.collect();
                    // Shutting down ends the call as if nothing had been
                    // received from nobody.
                    if received.is_empty() {
                        break;
                    }
                    return Ok(Receive::Datagrams(received));
                }
                Err(error) if reports_an_earlier_send(&error) => {}
                Err(error) if call == Call::Many && refuses_the_call(&error) => {
                    self.receives_singly.store(true, Ordering::Relaxed);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Receive::Stopped)
    }

    /// Sends `buffer` to `to` as datagrams of `segment` bytes, the last maybe
    /// shorter, in order, with as few system calls as the kernel allows.
    ///
    /// `header` is that of each datagram, or its TOS or traffic class byte alone. `local`
    /// fixes the source address, and the interface unless its index is 0; when it does
    /// not work any more, the datagrams go without it and the result says so.
    ///
    /// A datagram the firewall refuses (`EPERM`) or that is too large
    /// (`EMSGSIZE`) does not keep the others from being sent.
    pub fn send(
        &self,
        to: SocketAddr,
        local: Option<&Local>,
        header: impl Into<Header>,
        buffer: &[u8],
        segment: usize,
    ) -> Sent {
        let mut way = Way::new(to, local, header.into());
        let result = self.send_by(&mut way, buffer, segment);
        Sent {
            local_dropped: way.local_dropped,
            result,
        }
    }

    fn send_by(&self, way: &mut Way<'_>, buffer: &[u8], segment: usize) -> io::Result<()> {
        let segment = if segment == 0 { buffer.len() } else { segment };
        let mut rest = buffer;
        let mut outcome = Ok(());
        loop {
            let batch_len = (segment * segments_of_a_send(segment)).min(rest.len());
            let mut sent = 0;
            if batch_len > segment && self.tries_batches() {
                sent = self.send_batches(way, rest, batch_len, segment)?;
            }
            if sent == 0 {
                let (batch, _) = rest.split_at(batch_len);
                let result = self.send_singly(way, batch, segment);
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

    /// Sends batches of `batch_len` bytes, the last maybe shorter, with one
    /// system call. Returns how many bytes went out: none when the kernel does
    /// not take the first batch so.
    fn send_batches(
        &self,
        way: &mut Way<'_>,
        batches: &[u8],
        batch_len: usize,
        segment: usize,
    ) -> io::Result<usize> {
        let result = way.attempt(Some(segment as u16), |to, control| {
            self.send_messages(to, control, batches, batch_len)
        });
        match result {
            Ok(count) => {
                self.refused_in_a_row.store(0, Ordering::Relaxed);
                Ok(batches.len().min(count * batch_len))
            }
            Err(error) => {
                let refused = self
                    .refused_in_a_row
                    .load(Ordering::Relaxed)
                    .saturating_add(1);
                let pauses = match Errno::from_io_error(&error) {
                    // No checksum offload on the way out.
                    Some(Errno::IO) => true,
                    // Not this size, or not this way.
                    Some(Errno::INVAL | Errno::MSGSIZE) => refused >= MAX_REFUSED_IN_A_ROW,
                    // The firewall's verdict on some datagram may not be the
                    // one on the others.
                    Some(Errno::PERM) => return Ok(0),
                    _ => return Err(error),
                };
                self.refused_in_a_row.store(refused, Ordering::Relaxed);
                self.gso_refusals.fetch_add(1, Ordering::Relaxed);
                if pauses {
                    self.gso_pause.store(PAUSE, Ordering::Relaxed);
                }
                // Perhaps it was not the local address.
                way.restore_local();
                Ok(0)
            }
        }
    }

    /// Sends datagrams one by one, with as few system calls as that takes.
    fn send_singly(&self, way: &mut Way<'_>, batch: &[u8], segment: usize) -> io::Result<()> {
        let mut outcome = Ok(());
        let mut rest = batch;
        loop {
            let result = way.attempt(None, |to, control| {
                self.send_messages(to, control, rest, segment)
            });
            let done = match result {
                Ok(count) => count,
                Err(error) => {
                    let goes_on = concerns_one_datagram(&error);
                    outcome = outcome.and(Err(error));
                    if !goes_on {
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

    /// Sends `payload` as messages of `length` bytes, as many as one system call
    /// takes. Returns how many went out; an error concerns the first.
    fn send_messages(
        &self,
        to: &Name,
        control: &Control,
        payload: &[u8],
        length: usize,
    ) -> io::Result<usize> {
        let fd = self.fd.as_fd();
        if self.sends_many && payload.len() > length {
            return message::send_many(fd, to, control, payload.chunks(length));
        }
        let (first, _) = payload.split_at(length.min(payload.len()));
        message::send(fd, to, control, first).map(|()| 1)
    }

    /// Ends every waiting and later [`Socket::receive`] with
    /// [`Receive::Stopped`].
    pub fn shutdown(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        // Reports `ENOTCONN`, because the socket has no peer, and yet wakes
        // every reader.
        let _ = shutdown(&self.fd, Shutdown::Read);
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Where datagrams go and what goes beside them.
struct Way<'a> {
    to: Name,
    local: Option<&'a Local>,
    given_local: Option<&'a Local>,
    /// Something went out after the local address had been given up.
    local_dropped: bool,
    header: Header,
    is_v6: bool,
}

impl<'a> Way<'a> {
    fn new(to: SocketAddr, local: Option<&'a Local>, header: Header) -> Self {
        // An address of the other family cannot be a source.
        let local = local.filter(|local| local.address.is_ipv4() == to.is_ipv4());
        Self {
            to: to.into(),
            local,
            given_local: local,
            local_dropped: false,
            header,
            is_v6: to.is_ipv6(),
        }
    }

    /// Calls `send` until it succeeds or fails for good; gives the local
    /// address up when that may help.
    fn attempt<T>(
        &mut self,
        segment: Option<u16>,
        send: impl Fn(&Name, &Control) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut control = self.control(segment);
        let mut retries = 0;
        loop {
            let error = match send(&self.to, &control) {
                Err(error) => error,
                done => {
                    self.local_dropped |= self.local.is_none() && self.given_local.is_some();
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

    /// Takes back that the local address was given up, unless that has helped.
    fn restore_local(&mut self) {
        if !self.local_dropped {
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
fn push_packet_info(control: &mut Control, local: &Local) {
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

/// What a message is to the caller; `None` if nobody has sent it.
fn received((start, message): (usize, &message::Message)) -> Option<Received> {
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
                // The local address, which differs from the one in the header
                // for broadcasts.
                if let (Some(interface), Some(&[_, _, _, _, a, b, c, d])) =
                    (int(data), data.first_chunk())
                {
                    let address = IpAddr::from([a, b, c, d]);
                    received.local = Some(Local { address, interface });
                }
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                if let Some((address, rest)) = data.split_first_chunk::<16>() {
                    received.local = int(rest).map(|interface| Local {
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

/// A socket that is not bound yet.
fn open(family: Family, options: Options) -> Result<OwnedFd, BindError> {
    let domain = match family {
        Family::V4 => AddressFamily::INET,
        Family::V6 => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC;
    let fd = match socket_with(domain, SocketType::DGRAM, flags, Some(ipproto::UDP)) {
        Err(Errno::AFNOSUPPORT) => return Err(BindError::FamilyUnsupported(family)),
        fd => fd.map_err(failed("socket"))?,
    };
    set_up(&fd, family).map_err(failed("setting up a UDP socket"))?;
    if let Some(size) = options.buffers {
        grow_buffers(&fd, size);
    }
    if options.mark != 0 {
        set_mark(fd.as_fd(), options.mark).map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::PERM) => BindError::Mark(options.mark),
            _ => failed("SO_MARK")(error),
        })?;
    }
    Ok(fd)
}

fn set_up(fd: &OwnedFd, family: Family) -> io::Result<()> {
    // Outer packets may be fragmented, as the kernel's WireGuard lets them be:
    // to refuse would lose packets on paths with a small MTU.
    match family {
        Family::V4 => {
            option::set(fd.as_fd(), IntOption::PacketInfoV4, 1)?;
            sockopt::set_ip_recvtos(fd, true)?;
            sockopt::set_ip_mtu_discover(fd, sockopt::Ipv4PathMtuDiscovery::DONT)?;
        }
        Family::V6 => {
            sockopt::set_ipv6_v6only(fd, true)?;
            option::set(fd.as_fd(), IntOption::PacketInfoV6, 1)?;
            sockopt::set_ipv6_recvtclass(fd, true)?;
            sockopt::set_ipv6_mtu_discover(fd, sockopt::Ipv6PathMtuDiscovery::DONT)?;
        }
    }
    Ok(())
}

/// Asks for large buffers; only `CAP_NET_ADMIN` gets more than the system's
/// limit, and less than asked for is no error.
fn grow_buffers(fd: &OwnedFd, size: usize) {
    if sockopt::set_socket_recv_buffer_size_force(fd, size).is_err() {
        let _ = sockopt::set_socket_recv_buffer_size(fd, size);
    }
    if sockopt::set_socket_send_buffer_size_force(fd, size).is_err() {
        let _ = sockopt::set_socket_send_buffer_size(fd, size);
    }
}

fn set_mark(fd: BorrowedFd<'_>, mark: u32) -> io::Result<()> {
    option::set(fd, IntOption::Mark, mark as c_int)
}

/// Whether a kernel of this release merges received datagrams only when it
/// should: since Linux 5.12.
fn merges_received_right(release: &[u8]) -> bool {
    let release = String::from_utf8_lossy(release);
    let mut numbers = release.split(|character: char| !character.is_ascii_digit());
    let mut number = || numbers.next().and_then(|digits| digits.parse::<u32>().ok());
    matches!((number(), number()), (Some(major), Some(minor)) if (major, minor) >= (5, 12))
}

/// Whether the error is what ICMP said about an earlier datagram, or no error
/// at all.
fn reports_an_earlier_send(error: &io::Error) -> bool {
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

/// Whether it is the system call that is not there or not allowed.
fn refuses_the_call(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NOSYS | Errno::PERM)
    )
}

/// Whether the next datagram may fare better.
fn concerns_one_datagram(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::PERM | Errno::MSGSIZE)
    )
}

fn failed<E: Into<io::Error>>(what: &'static str) -> impl Fn(E) -> BindError {
    move |error| BindError::Io {
        what,
        source: error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_by_number() {
        for release in [
            "5.12.0",
            "5.12-rc1",
            "5.100.1-arch",
            "6.1.0-18-amd64",
            "10.0",
        ] {
            assert!(merges_received_right(release.as_bytes()), "{release}");
        }
        for release in ["5.11.22", "4.19.0", "5", "", "x.y", "5.x"] {
            assert!(!merges_received_right(release.as_bytes()), "{release}");
        }
    }

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
