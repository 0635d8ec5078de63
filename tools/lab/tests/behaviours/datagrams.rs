//! UDP as a QUIC program uses it: batches of datagrams with ECN marks.

use quinn_udp::{EcnCodepoint, RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use std::io::{ErrorKind, IoSliceMut};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;
use taupe_lab::host::Host;
use taupe_lab::{Error, Result, ensure};

/// A socket that sends with `UDP_SEGMENT` and receives with `UDP_GRO`.
pub(crate) struct Datagrams {
    socket: UdpSocket,
    state: UdpSocketState,
}

/// A received datagram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Arrived {
    pub(crate) from: SocketAddr,
    pub(crate) ecn: Option<EcnCodepoint>,
    pub(crate) bytes: Vec<u8>,
}

impl Datagrams {
    /// Binds to a free port of a machine's address.
    pub(crate) fn bind(host: &Host, address: IpAddr) -> Result<Self> {
        let what = format!("UDP socket at {address}");
        let socket = host.enter(|| UdpSocket::bind((address, 0)).map_err(Error::io(&*what)))?;
        let state = UdpSocketState::new(UdpSockRef::from(&socket)).map_err(Error::io(&*what))?;
        socket.set_nonblocking(false).map_err(Error::io(what))?;
        Ok(Self { socket, state })
    }

    pub(crate) fn address(&self) -> Result<SocketAddr> {
        self.socket.local_addr().map_err(Error::io("getsockname"))
    }

    /// Sends datagrams of `segment` bytes, the last possibly shorter, with one system call.
    pub(crate) fn send(
        &self,
        to: SocketAddr,
        ecn: Option<EcnCodepoint>,
        contents: &[u8],
        segment: usize,
    ) -> Result<()> {
        let transmit = Transmit {
            destination: to,
            ecn,
            contents,
            segment_size: Some(segment),
            src_ip: None,
        };
        self.state
            .try_send(UdpSockRef::from(&self.socket), &transmit)
            .map_err(Error::io(format!("sending to {to}")))
    }

    /// Waits for the next datagrams; empty after `limit`.
    pub(crate) fn receive(&self, limit: Duration) -> Result<Vec<Arrived>> {
        let what = "receiving UDP";
        self.socket
            .set_read_timeout(Some(limit))
            .map_err(Error::io(what))?;
        let mut buffer = vec![0; 65_536];
        let mut meta = [RecvMeta::default()];
        let received = self.state.recv(
            UdpSockRef::from(&self.socket),
            &mut [IoSliceMut::new(&mut buffer)],
            &mut meta,
        );
        match received {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Vec::new()),
            Err(error) => return Err(Error::io(what)(error)),
        }
        let [meta] = meta;
        let batch = buffer.get(..meta.len).unwrap_or_default();
        let arrived = |bytes: &[u8]| Arrived {
            from: meta.addr,
            ecn: meta.ecn,
            bytes: bytes.to_vec(),
        };
        if batch.is_empty() {
            return Ok(vec![arrived(batch)]);
        }
        Ok(batch.chunks(meta.stride.max(1)).map(arrived).collect())
    }

    /// Waits for `count` datagrams.
    pub(crate) fn receive_many(&self, count: usize, limit: Duration) -> Result<Vec<Arrived>> {
        let mut all = Vec::new();
        while all.len() < count {
            let some = self.receive(limit)?;
            ensure!(!some.is_empty(), "{} of {count} datagrams came", all.len());
            all.extend(some);
        }
        Ok(all)
    }
}

/// Returns bytes that depend on their position and on `seed`.
pub(crate) fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = vec![0; length];
    for byte in &mut bytes {
        // Marsaglia's xorshift64.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *byte = state.to_le_bytes()[3];
    }
    bytes
}

/// Sends super-packets of several shapes from one machine to the other; each datagram must arrive
/// once, in order and unchanged.
pub(crate) fn super_packets(from: (&Host, IpAddr), to: (&Host, IpAddr)) -> Result<()> {
    // With an MTU of 1,420 bytes, IPv6 and UDP leave 1,372.
    const SHAPES: [(usize, usize); 7] = [
        (1372, 47 * 1372),
        (1200, 10 * 1200),
        (1200, 10 * 1200 + 1),
        (1199, 3 * 1199 + 7),
        (100, 64 * 100),
        (1, 64),
        (1372, 500),
    ];
    let sender = Datagrams::bind(from.0, from.1)?;
    let receiver = Datagrams::bind(to.0, to.1)?;
    let target = receiver.address()?;
    for (seed, (segment, length)) in (1..).zip(SHAPES) {
        let contents = pattern(length, seed);
        sender.send(target, None, &contents, segment)?;
        let expected: Vec<_> = contents.chunks(segment).collect();
        let arrived = receiver.receive_many(expected.len(), Duration::from_secs(10))?;
        let bytes: Vec<_> = arrived.iter().map(|one| &*one.bytes).collect();
        ensure!(
            bytes == expected,
            "{length} bytes in segments of {segment} came as segments of {:?}",
            bytes.iter().map(|one| one.len()).collect::<Vec<_>>()
        );
        ensure!(
            arrived.iter().all(|one| one.from.ip() == from.1),
            "from {:?}",
            arrived.first()
        );
    }
    let more = receiver.receive(Duration::from_millis(100))?;
    ensure!(more.is_empty(), "{} datagrams too many", more.len());
    Ok(())
}
