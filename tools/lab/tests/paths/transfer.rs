//! Traffic from near to the machine beyond, and checks of its arrival.

use crate::datagrams::{Datagrams, pattern};
use crate::relay::Impairments;
use crate::scene::{Family, Scene};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use taupe_lab::traffic::{serve_echo, tcp_echo};
use taupe_lab::{Result, ensure};

/// Port of the echo servers.
const ECHO: u16 = 7;

/// The test fails after this time without a single datagram.
const STALL: Duration = Duration::from_secs(20);

/// Time to wait for an answer before more is sent.
const PATIENCE: Duration = Duration::from_millis(50);

/// Bytes of a stream in each direction.
const STREAM: usize = 1_200_003;

pub(crate) fn serve(scene: &Scene) -> Result<()> {
    Family::BOTH
        .iter()
        .try_for_each(|inner| serve_echo(&scene.beyond, (inner.beyond(), ECHO).into()))
}

/// Sends a stream and compares every echoed byte.
pub(crate) fn stream(scene: &Scene, inner: Family) -> Result<()> {
    let to = SocketAddr::new(inner.beyond(), ECHO);
    tcp_echo(&scene.near, to, STREAM).map(drop)
}

/// Sends super-packets of numbered datagrams. Each arrives at most once and unchanged; on a link
/// without losses or reordering, all arrive in order.
pub(crate) fn datagrams(scene: &Scene, inner: Family, road: &Impairments) -> Result<()> {
    const ROUNDS: u32 = 8;
    const EACH: u32 = 12;
    const SIZE: usize = 1100;
    let sender = Datagrams::bind(&scene.near, inner.near())?;
    let receiver = Datagrams::bind(&scene.beyond, inner.beyond())?;
    let target = receiver.address()?;
    // The last datagram of a super-packet is shorter.
    let datagram = |number: u32| {
        let length = if (number + 1).is_multiple_of(EACH) {
            77
        } else {
            SIZE
        };
        let mut bytes = pattern(length, u64::from(number) + 1);
        bytes[..4].copy_from_slice(&number.to_be_bytes());
        bytes
    };
    let mut numbers = Vec::new();
    for round in 0..ROUNDS {
        let first = round * EACH;
        let contents: Vec<u8> = (first..first + EACH).flat_map(datagram).collect();
        sender.send(target, None, &contents, SIZE)?;
        // The end of a round is sent last, but may be lost too.
        let end = [u32::MAX.to_be_bytes(), round.to_be_bytes()].concat();
        let begin = Instant::now();
        let (mut ended, mut quiet) = (false, true);
        while !ended {
            ensure!(begin.elapsed() < STALL, "nothing arrives any more");
            if quiet {
                sender.send(target, None, &end, end.len())?;
            }
            let arrived = receiver.receive(PATIENCE)?;
            quiet = arrived.is_empty();
            for one in arrived {
                let number = one.bytes.first_chunk();
                let number = number.map_or(u32::MAX, |first| u32::from_be_bytes(*first));
                if one.bytes.starts_with(&[0xff; 4]) {
                    ended |= one.bytes == end;
                    continue;
                }
                ensure!(
                    number < ROUNDS * EACH && one.bytes == datagram(number),
                    "a datagram of {} bytes that was not sent",
                    one.bytes.len()
                );
                numbers.push(number);
            }
        }
    }
    let mut distinct = numbers.clone();
    distinct.sort_unstable();
    distinct.dedup();
    ensure!(
        distinct.len() == numbers.len(),
        "datagrams arrived twice: {numbers:?}"
    );
    let all = (ROUNDS * EACH) as usize;
    let least = if road.is_complete() { all } else { all / 2 };
    ensure!(
        numbers.len() >= least,
        "{} of {all} datagrams arrived",
        numbers.len()
    );
    ensure!(
        !road.keeps_order() || numbers.is_sorted(),
        "datagrams arrived in the order {numbers:?}"
    );
    Ok(())
}
