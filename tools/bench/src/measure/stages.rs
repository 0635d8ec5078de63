//! What each step on the way of a packet takes.
//!
//! The product reads no clock on the way of a packet, so its steps are timed apart: what
//! it does in user space with a full batch of its own, made and taken apart again by the
//! product's own crates; what the kernel does for a send and a receive with such a batch
//! on the cable outside the tunnel. What its two threads take in all is the kernel's
//! account of them while one TCP stream goes through the tunnel; so what is left of that,
//! reading and writing the TUN among it, is known as a difference.
//!
//! Everything is processor time of threads, not time that has passed: what else the
//! machine does is not in it, but for what it takes of caches and clock rates.

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
use taupe_packet::checksum::Sum;
use taupe_packet::merge::{Coalesce, Merger};
use taupe_packet::split::Split;
use taupe_packet::virtio::{self, VirtioHeader};

/// TCP payload of a packet of 1,420 bytes, in bytes: the rest are the headers, with time
/// stamps.
pub const PAYLOAD: usize = 1420 - HEADERS;

/// Packets of a full batch: as many as one send takes, an IPv4 packet with all of them.
pub const BATCH: usize = (65_535 - 20 - 8) / MESSAGE;

/// Of IPv4 and of TCP with time stamps.
const HEADERS: usize = 20 + 32;

/// Before the packet in a transport message (whitepaper section 5.4.6).
const MESSAGE_HEADER: usize = 16;

/// A transport message with such a packet.
const MESSAGE: usize = MESSAGE_HEADER + HEADERS + PAYLOAD + TAG_LEN;

/// How many batches are timed.
const TIMES: usize = 500;

/// How many are sent from memory of their own.
const BUFFERS: usize = 64;

/// After this long without one, a batch is lost.
const PATIENCE: Duration = Duration::from_secs(2);

/// Seconds of a thread's processor time for each packet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stages {
    /// Cutting a super-packet into messages.
    pub split: f64,
    /// Encrypting them.
    pub seal: f64,
    /// Sending them, with what the kernel does at once at the other end.
    pub send: f64,
    /// Receiving them as merged by the kernel.
    pub receive: f64,
    /// Decrypting them.
    pub open: f64,
    /// Making a super-packet of them.
    pub merge: f64,
    /// All that the client's sending thread takes.
    pub out: Thread,
    /// All that the server's receiving thread takes.
    pub into: Thread,
    /// Bits/s of TCP's payload meanwhile.
    pub rate: f64,
}

/// Seconds of a thread's processor time for each packet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Thread {
    /// In the program.
    pub user: f64,
    /// In the kernel for it, with interrupts that came meanwhile.
    pub system: f64,
}

/// Measures the steps, with one TCP stream up for so many seconds; `None` for a tunnel
/// whose threads are not those of Taupe.
///
/// # Errors
///
/// Whatever fails.
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

/// What an end's threads of such names have taken; `None` where it has none.
fn ticks(end: &End, prefix: &str) -> Result<Option<Ticks>> {
    let mut found: Option<Ticks> = None;
    for process in &end.processes {
        for (id, name) in proc::threads(process.id())? {
            if name.starts_with(prefix) {
                let (user, system) = proc::thread_ticks(process.id(), id)?;
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

/// Times the steps again and again; the medians, for each packet.
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

/// Processor time of this thread.
fn now() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// Splits, seals, opens and merges.
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
            "what was sealed is not authentic"
        );
        let whole = Coalesce {
            tcp: true,
            udp: true,
        };
        let writes = merger.merge(&mut buffer, &inner, whole).len();
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

/// The messages in a buffer, as what is encrypted of them.
fn packets(buffer: &mut [u8], first: u64) -> Vec<Packet<'_>> {
    let messages = buffer.chunks_exact_mut(MESSAGE);
    let packets = messages.zip(first..).map(|(message, counter)| Packet {
        counter,
        data: message.get_mut(MESSAGE_HEADER..).unwrap_or_default(),
    });
    packets.collect()
}

/// A full super-packet of TCP as the kernel hands it over: its checksum is that of the
/// pseudo header (virtio 1.2 section 5.1.6.2).
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
        // IPv4, of that length, not to be fragmented, TCP.
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
        // Ports, numbers, 8 words of header, ACK, window.
        0x12, 0x34, 0x14, 0x51, 0, 0, 0, 1, 0, 0, 0, 1, 0x80, 0x10, 0xff, 0xff,
        sum_high, sum_low, 0, 0,
        // Two of nothing, time stamps (RFC 7323).
        1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 1,
    ];
    let mut packet = [&ip[..], &tcp].concat();
    // Nothing of it depends on what the payload is.
    packet.resize(length, 0xa5);
    (header, packet)
}

/// Sends and receives on the cable, batch by batch. What is sent comes out of more memory than is
/// near a core, as it does in a tunnel; what is received is near it. One thread does both, for
/// under load no receiver sleeps, and to wake one can take longer than all the rest. The medians
/// for each packet.
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
    // There is at least one.
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
