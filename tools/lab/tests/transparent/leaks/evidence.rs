//! The capture's packets of the selected application, and the times at which it was free.

use std::time::Duration;

use taupe_lab::capture::Packet;
use taupe_lab::host::Host;
use taupe_lab::sandbox::figure;
use taupe_lab::{Error, Result, ensure};

use super::{Scene, Transition, UPLINKS, WEIGHTS, addresses};
use crate::chatter::{Chatterer, OTHER, SELECTED};
use crate::wire::{self, Flow};
use crate::world::{BEYOND, ENDPOINT_PORT, SERVER};

/// Time that an application may take on a busy machine from making a record to sending it.
const SLACK: Duration = Duration::from_millis(250);

/// Time after its freedom in which a packet without a record may leave: the kernel keeps packets
/// for a neighbour whose address it is still resolving.
const LATE: Duration = Duration::from_secs(5);

/// The times in which no rule selected the application: beginnings and ends.
#[derive(Debug, Default)]
pub(super) struct UnselectedPeriods(Vec<(Duration, Duration)>);

impl UnselectedPeriods {
    pub(super) fn begin(&mut self, now: Duration) {
        self.0.push((now, Duration::MAX));
    }

    pub(super) fn end(&mut self, now: Duration) {
        if let Some((_, end)) = self.0.last_mut() {
            *end = now;
        }
    }

    fn includes(&self, time: Duration) -> bool {
        self.0
            .iter()
            .any(|(from, to)| (*from..=*to).contains(&time))
    }

    /// Checks whether all records of a packet were made while the application was free.
    fn was_sent_by_application(&self, packet: &Packet) -> bool {
        let times = SELECTED.times(&packet.ip);
        let is_free = |time: &Duration| {
            let mut free = self.0.iter();
            free.any(|(from, to)| *from <= *time + SLACK && time <= to)
        };
        match times.is_empty() {
            true => !contains(&packet.ip, SELECTED.mark),
            false => times.iter().all(is_free),
        }
    }

    /// Checks whether a packet is left from a time of freedom. The kernel may have kept a packet
    /// without a record for a while.
    fn made_free(&self, packet: &Packet) -> bool {
        let mut ends = self.0.iter().rev().map(|(_, end)| *end);
        let Some(last) = ends.find(|end| *end < packet.time) else {
            return false;
        };
        match contains(&packet.ip, SELECTED.mark) {
            true => self.was_sent_by_application(packet),
            false => packet.time < last + LATE,
        }
    }
}

impl Scene {
    /// Checks all captured packets.
    pub(super) fn judge(self) -> Result<()> {
        let Self {
            capture,
            free,
            talking,
            happened,
            ..
        } = self;
        drop(talking);
        let (packets, lost) = capture.stop_with_drops()?;
        let holds = |packet: &&Packet, voice: &Chatterer| contains(&packet.ip, voice.mark);
        let others = packets
            .iter()
            .filter(|packet| holds(packet, &OTHER))
            .count();
        figure("packets of the other application in the clear", others);
        for (kind, _) in WEIGHTS {
            let count = happened.iter().filter(|(_, what)| *what == kind).count();
            figure(&format!("{kind:?}"), count);
        }
        let of_selected = packets.iter().filter(|packet| is_of_selected(packet));
        let (freely, clear): (Vec<&Packet>, Vec<&Packet>) = of_selected
            .partition(|packet| free.includes(packet.time) && free.was_sent_by_application(packet));
        figure(
            "packets of the selected application while it was free",
            freely.len(),
        );
        figure("and at other times, to be explained", clear.len());
        let flows = freely
            .iter()
            .filter_map(|packet| Some(wire::read(&packet.ip)?.flow));
        let known: Vec<Flow> = flows.collect();
        let leaked: Vec<&Packet> = clear
            .into_iter()
            .filter(|packet| !free.made_free(packet) && !is_of_the_kernel(packet, &known))
            .collect();
        if let Some(first) = leaked.first() {
            return Err(leaks(first, &leaked, &happened));
        }
        ensure!(lost == 0, "the capture lost {lost} packets");
        // A capture without packets would prove nothing.
        ensure!(
            others >= happened.len(),
            "{others} packets of the other application"
        );
        let frees = [Transition::DownAndUp, Transition::FreeByRules];
        let was_free = happened.iter().any(|(_, what)| frees.contains(what));
        ensure!(
            !was_free || !freely.is_empty(),
            "nothing was seen of the free application"
        );
        Ok(())
    }
}

/// Describes the packets that leaked and the transitions before them.
fn leaks(first: &Packet, all: &[&Packet], happened: &[(Duration, Transition)]) -> Error {
    let before = happened
        .iter()
        .rev()
        .filter(|(when, _)| *when <= first.time);
    let before: Vec<_> = before.take(8).collect();
    let shown = all.iter().take(5).map(|packet| {
        let start = packet.ip.get(..80).unwrap_or(&packet.ip);
        format!(
            "{:?} {:?} {start:02x?}",
            packet.time,
            wire::read(&packet.ip)
        )
    });
    let shown: Vec<String> = shown.collect();
    Error::unmet(format!(
        "{} packets of the selected application in the clear:\n{}\nbefore the first: {before:?}",
        all.len(),
        shown.join("\n")
    ))
}

/// Returns the filter for packets on any cable that are not messages of the protocol.
pub(super) fn in_the_clear(far: &Host) -> Result<String> {
    let show = [
        "cat",
        "/sys/class/net/wgfar/ifindex",
        "/sys/class/net/lo/ifindex",
    ];
    let shown = far.run(&show)?.stdout;
    let inner: Vec<String> = shown
        .lines()
        .map(|index| format!("not ifindex {index}"))
        .collect();
    let port = format!("udp port {ENDPOINT_PORT} and udp[9:2] = 0 and udp[11] = 0 and udp[8] <= 4");
    Ok(format!("{} and not ({port})", inner.join(" and ")))
}

/// Checks whether a packet is the selected application's, and not an answer of `far`.
fn is_of_selected(packet: &Packet) -> bool {
    let Some(wire::ParsedPacket { flow, .. }) = wire::read(&packet.ip) else {
        return false;
    };
    let source = flow.source.to_string();
    let mut fars = UPLINKS
        .iter()
        .flat_map(|(network, _)| addresses(*network, 2));
    let is_fars = BEYOND.contains(&flow.source)
        || SERVER.contains(&&*source)
        || fars.any(|far| far.split('/').next() == Some(&source));
    !is_fars && (flow.has_port(SELECTED.port) || contains(&packet.ip, SELECTED.mark))
}

/// Checks whether the kernel has made a packet by itself: to end a connection from a time of
/// freedom, or to tell a visitor that the server does not run. These packets have no record.
fn is_of_the_kernel(packet: &Packet, known: &[Flow]) -> bool {
    if contains(&packet.ip, SELECTED.mark) {
        return false;
    }
    wire::read(&packet.ip).is_some_and(|seen| match seen.about {
        Some(about) => known.contains(&about.reversed()),
        None => {
            known.contains(&seen.flow) || (seen.is_reset && seen.flow.ports[0] == SELECTED.port)
        }
    })
}

fn contains(packet: &[u8], mark: &[u8]) -> bool {
    packet.windows(mark.len()).any(|window| window == mark)
}
