//! Tests that need the kernel, root, and private items of this crate.

use std::thread;

use rustix::thread::{UnshareFlags, unshare_unsafe};

use taupe_packet::{fuzzing::lay_out, merge::Merger, testing::Spec};

use super::{Offloads, Tun, WriteError};

/// Runs `body` in a network namespace of its own.
fn isolated(body: impl FnOnce() + Send + 'static) {
    let inside = || {
        // SAFETY: this thread alone moves to a new network namespace; it has
        // no descriptors that depend on the old one.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
            .expect("this test needs root: it makes a network namespace");
        body();
    };
    thread::spawn(inside).join().unwrap();
}

fn segments(spec: &Spec) -> Vec<Vec<u8>> {
    spec.segments(100).iter().map(Spec::bytes).collect()
}

#[test]
fn segments_of_a_refused_super_packet_are_written_singly() {
    isolated(|| {
        let offloads = Offloads {
            tso: false,
            uso: false,
            ..Offloads::default()
        };
        let tun = Tun::create("tun7", offloads).unwrap();
        tun.set_up(true).unwrap();
        for (tcp, v6) in [(true, false), (false, true)] {
            let packets = segments(&Spec {
                tcp,
                v6,
                payload: vec![7; 550],
                ..Spec::default()
            });
            let before = tun.coalesce();
            assert_eq!((before.tcp, before.udp), (tcp, true));
            let (mut buffer, ranges) = lay_out(&packets);
            let mut merger = Merger::new();
            let mut writes = merger.merge(&mut buffer, &ranges, before);
            let mut write = writes.next().unwrap();
            assert_eq!(write.count(), 6);
            let sent = received(&tun);
            // The kernel refuses headers longer than the packet.
            write.set_header_len(u16::MAX);
            tun.set_up(false).unwrap();
            assert!(matches!(tun.write(&write), Err(WriteError::Down)));
            assert_eq!(tun.coalesce(), before, "being down is no refusal");
            tun.set_up(true).unwrap();
            tun.write(&write).unwrap();
            assert_eq!(received(&tun), sent + 6);
            let after = tun.coalesce();
            assert_eq!((after.tcp, after.udp), (false, tcp));
            // A super-packet that was merged before the refusal is still written as one packet.
            write.set_header_len(40);
            tun.write(&write).unwrap();
            assert_eq!(received(&tun), sent + 7);
        }
    });
}

/// Returns the number of packets that the interface received.
fn received(tun: &Tun) -> u64 {
    let table = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let name = format!("{}:", tun.name().unwrap());
    let line = table
        .lines()
        .find(|line| line.trim_start().starts_with(&name));
    line.unwrap()
        .split_whitespace()
        .nth(2)
        .unwrap()
        .parse()
        .unwrap()
}
