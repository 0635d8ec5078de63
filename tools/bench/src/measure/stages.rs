//! Cost of each step of a packet's path.
//!
//! The product reads no clock per packet, so the steps are timed separately:
//!
//! - The steps in user space run on a full batch, by calls into the product's own crates.
//! - The kernel's part is a send and a receive of such a batch on the cable outside the tunnel.
//! - The total of the two threads comes from the kernel's accounting while one TCP stream flows
//!   through the tunnel. The rest of this total, which includes reading and writing the TUN
//!   interface, is the difference.
//!
//! All figures are processor time of threads, not elapsed time. Other load on the machine affects
//! them only through caches and clock rates.

use super::datagrams::Datagrams;
use super::iperf::{self, Direction, Flow};
use super::proc;
use super::servers::Servers;
use crate::contestant::End;
use crate::session::Session;
use crate::statistics::median;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::time::{ClockId, clock_gettime};
use std::ops::Range;
use std::time::Duration;
use taupe_crypto::{AWS_LC, Packet, Secret, TAG_LEN};
use taupe_lab::ensure;
use taupe_lab::error::{Error, Result};
use taupe_lab::process::Process;
use taupe_packet::checksum::Sum;
use taupe_packet::merge::{Coalesce, Merger};
use taupe_packet::split::Split;
use taupe_packet::virtio::{self, VirtioHeader};

/// TCP payload of a packet of 1,420 bytes, in bytes. The headers include time stamps.
pub const PAYLOAD: usize = 1420 - HEADERS;

/// Packets in a full batch: the limit of one send, and of an IPv4 packet that contains all of them.
pub const BATCH: usize = (65_535 - 20 - 8) / MESSAGE;

/// Bytes of the IPv4 header and of the TCP header with time stamps.
const HEADERS: usize = 20 + 32;

/// Bytes before the packet in a transport message (whitepaper section 5.4.6).
const MESSAGE_HEADER: usize = 16;

/// Bytes of a transport message with such a packet.
const MESSAGE: usize = MESSAGE_HEADER + HEADERS + PAYLOAD + TAG_LEN;

/// Number of timed batches.
const TIMES: usize = 500;

/// Number of send buffers.
const BUFFERS: usize = 64;

/// A batch counts as lost after this time.
const PATIENCE: Duration = Duration::from_secs(2);

/// Seconds of processor time per packet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stages {
    /// Splitting a super-packet into messages.
    pub split: f64,
    /// Encrypting the messages.
    pub seal: f64,
    /// Sending them, including the kernel's immediate work at the other end.
    pub send: f64,
    /// Receiving them as merged by the kernel.
    pub receive: f64,
    /// Decrypting them.
    pub open: f64,
    /// Merging them into a super-packet.
    pub merge: f64,
    /// Total of the client's sending thread.
    pub out: Thread,
    /// Total of the server's receiving thread.
    pub into: Thread,
    /// Bit/s of TCP payload meanwhile.
    pub rate: f64,
}

/// Seconds of processor time of a thread per packet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Thread {
    /// Time in the program.
    pub user: f64,
    /// Time in the kernel on its behalf, including interrupts meanwhile.
    pub system: f64,
}

/// Measures the steps, with one TCP stream up for `seconds`; `None` if the tunnel's threads are not
/// those of Taupe.
///
/// # Errors
///
/// Any error of a program or socket.
pub fn measure(session: &Session, servers: &mut Servers, seconds: u32) -> Result<Option<Stages>> {
    let used = || -> Result<_> {
        let out = ticks(&session.client, "out")?;
        Ok(out.zip(ticks(&session.server, "in")?))
    };
    let Some(before) = used()? else {
        return Ok(None);
    };
    let flow = Flow {
        direction: Direction::Up,
        streams: 1,
        seconds,
    };
    let moved = iperf::transfer(session, servers, flow)?;
    let after = used()?.ok_or_else(|| Error::unmet("a thread of the tunnel has ended"))?;
    let packets = moved.bytes() as f64 / PAYLOAD as f64;
    let per_second = rustix::param::clock_ticks_per_second().max(1) as f64;
    let each = |before: u64, after: u64| after.saturating_sub(before) as f64 / per_second / packets;
    let thread = |before: Ticks, after: Ticks| Thread {
        user: each(before.user, after.user),
        system: each(before.system, after.system),
    };
    let [split, seal, open, merge] = in_user_space()?;
    let [send, receive] = on_the_cable(session)?;
    Ok(Some(Stages {
        split,
        seal,
        send,
        receive,
        open,
        merge,
        out: thread(before.0, after.0),
        into: thread(before.1, after.1),
        rate: moved.rate(),
    }))
}

/// Ticks of processor time.
#[derive(Debug, Clone, Copy)]
struct Ticks {
    user: u64,
    system: u64,
}

/// Returns the ticks of an end's threads with a name prefix; `None` if it has no such threads.
fn ticks(end: &End, prefix: &str) -> Result<Option<Ticks>> {
    let mut found: Option<Ticks> = None;
    for process in end.processes.iter().flat_map(Process::all_ids) {
        for (id, name) in proc::threads(process)? {
            if name.starts_with(prefix) {
                let (user, system) = proc::thread_ticks(process, id)?;
                let so_far = found.unwrap_or(Ticks { user: 0, system: 0 });
                found = Some(Ticks {
                    user: user + so_far.user,
                    system: system + so_far.system,
                });
            }
        }
    }
    Ok(found)
}

/// Times the steps repeatedly; returns the median of each step per packet.
fn timed<const N: usize>(mut batch: impl FnMut() -> Result<[Duration; N]>) -> Result<[f64; N]> {
    let mut samples = [const { Vec::new() }; N];
    for _ in 0..TIMES {
        for (samples, took) in samples.iter_mut().zip(batch()?) {
            samples.push(took.as_secs_f64() / BATCH as f64);
        }
    }
    // There is at least one sample of each.
    Ok(samples.map(|samples| median(&samples).unwrap_or_default()))
}

/// Returns the processor time of this thread.
fn now() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// Times splitting, encrypting, decrypting and merging.
fn in_user_space() -> Result<[f64; 4]> {
    let (header, packet) = super_packet();
    let key = AWS_LC.aead.key(&Secret::new([0x42; 32]));
    let mut buffer = vec![0; BATCH * MESSAGE];
    let inner: Vec<Range<usize>> = (0..BATCH)
        .map(|at| at * MESSAGE + MESSAGE_HEADER..(at + 1) * MESSAGE - TAG_LEN)
        .collect();
    let mut merger = Merger::new();
    let mut counter = 0;
    timed(|| {
        let begin = now();
        let split = Split::new(header, &packet);
        let split = split.map_err(|error| Error::unmet(format!("a super-packet: {error}")))?;
        ensure!(split.count() == BATCH, "{} packets", split.count());
        for (at, message) in buffer.chunks_exact_mut(MESSAGE).enumerate() {
            split.write(at, message.get_mut(MESSAGE_HEADER..).unwrap_or_default());
        }
        let split = now();
        key.seal(&mut packets(&mut buffer, counter));
        let sealed = now();
        let mut authentic = [false; BATCH];
        key.open(&mut packets(&mut buffer, counter), &mut authentic);
        let opened = now();
        ensure!(
            authentic == [true; BATCH],
            "a sealed packet is not authentic"
        );
        let full = Coalesce {
            tcp: true,
            udp: true,
        };
        let writes = merger.merge(&mut buffer, &inner, full).len();
        let merged = now();
        ensure!(writes == 1, "the packets of a batch became {writes}");
        counter += BATCH as u64;
        Ok([
            split - begin,
            sealed - split,
            opened - sealed,
            merged - opened,
        ])
    })
}

/// Returns the messages in a buffer as packets for encryption.
fn packets(buffer: &mut [u8], first: u64) -> Vec<Packet<'_>> {
    let messages = buffer.chunks_exact_mut(MESSAGE);
    let packets = messages.zip(first..).map(|(message, counter)| Packet {
        counter,
        data: message.get_mut(MESSAGE_HEADER..).unwrap_or_default(),
    });
    packets.collect()
}

/// Returns a full TCP super-packet as the kernel delivers it: its checksum covers the pseudo header
/// (virtio 1.2 section 5.1.6.2).
fn super_packet() -> (VirtioHeader, Vec<u8>) {
    let length = HEADERS + BATCH * PAYLOAD;
    let header = VirtioHeader {
        flags: virtio::NEEDS_CSUM,
        gso_type: virtio::GSO_TCPV4,
        hdr_len: HEADERS as u16,
        gso_size: PAYLOAD as u16,
        csum_start: 20,
        csum_offset: 16,
    };
    let [high, low] = (length as u16).to_be_bytes();
    #[rustfmt::skip]
    let ip = [
        // IPv4, length, don't fragment, TCP.
        0x45, 0, high, low, 0, 0, 0x40, 0, 64, 6, 0, 0,
        10, 0, 0, 1, 10, 0, 0, 2,
    ];
    let (_, addresses) = ip.split_at(12);
    let pseudo = Sum::ZERO
        .pseudo_header(addresses, 6, (length - 20) as u16)
        .folded();
    let [sum_high, sum_low] = pseudo.to_be_bytes();
    #[rustfmt::skip]
    let tcp = [
        // Ports, sequence numbers, 8 words of header, ACK, window.
        0x12, 0x34, 0x14, 0x51, 0, 0, 0, 1, 0, 0, 0, 1, 0x80, 0x10, 0xff, 0xff,
        sum_high, sum_low, 0, 0,
        // Two no-operation options, time stamps (RFC 7323).
        1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 1,
    ];
    let mut packet = [&ip[..], &tcp].concat();
    // The cost does not depend on the payload.
    packet.resize(length, 0xa5);
    (header, packet)
}

/// Times sends and receives on the cable, batch by batch, and returns their medians per packet. The
/// send buffers exceed the core's caches, as in a tunnel; the receive buffer does not. One thread
/// does both, because a receiver under load does not sleep either, and waking one can take longer
/// than everything else.
fn on_the_cable(session: &Session) -> Result<[f64; 2]> {
    let cable = Datagrams::open_at(session, session.pair.outer())?;
    cable.merge()?;
    cable.segment(MESSAGE)?;
    let patience = cable.server.set_read_timeout(Some(PATIENCE));
    patience.map_err(Error::io("patience of the receiver"))?;
    let memory = vec![0x5a; BUFFERS * BATCH * MESSAGE];
    let mut buffer = vec![0; 1 << 16];
    let mut samples = [Vec::new(), Vec::new()];
    for batch in memory.chunks_exact(BATCH * MESSAGE).cycle().take(TIMES) {
        let begin = now();
        let sent = send(&cable.client, batch, SendFlags::empty());
        let middle = now();
        let mut left = sent.map_err(Error::io("sending a batch"))?;
        while left > 0 {
            let got = recv(&cable.server, &mut buffer[..], RecvFlags::empty());
            let (got, _) = got.map_err(Error::io("receiving a batch"))?;
            left = left.saturating_sub(got);
        }
        let took = [middle - begin, now() - middle];
        for (samples, took) in samples.iter_mut().zip(took) {
            samples.push(took.as_secs_f64() / BATCH as f64);
        }
    }
    // There is at least one sample of each.
    Ok(samples.map(|samples| median(&samples).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_batch_goes_through_all_steps() -> Result<()> {
        let took = in_user_space()?;
        assert!(took.iter().all(|took| *took > 0.0), "{took:?}");
        Ok(())
    }
}
