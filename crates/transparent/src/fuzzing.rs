//! Entry point for fuzzers: what a kernel and its eBPF programs write, as any bytes.
//!
//! The daemon reads no ring buffer. It reads the output of the iterators (records of `bpf/records.h`),
//! the entries of maps, and the kernel's type information. Every value of the mapped state is valid
//! (see `state.rs`), so that only its words with a meaning of their own are read here.

use std::collections::{BTreeSet, HashSet};

use taupe_config::application::{AppRules, Rule};

use crate::maps::fuzzing::{aliases, flows};
use crate::pins;
use crate::programs::{ProcessVerdicts, kernel_types};
use crate::records::{self, ANY_COOKIE, NamespaceRecord, ProcessRecord, SocketRecord};
use crate::reset::{self, SocketKinds};
use crate::rules::rule_number;
use crate::state::{ALLOW, DISALLOW, DnsHandling, Lock, RULE_NUMBER_SHIFT};

/// Key of the numbers of rules.
const KEY: (u64, u64) = (1, 2);

/// Reads `data` as the output that its first byte selects.
///
/// # Panics
///
/// If a parser has a defect.
pub fn bpf(data: &[u8]) {
    let Some((kind, bytes)) = data.split_first() else {
        return;
    };
    match kind % 6 {
        0 => processes(bytes),
        1 => sockets(bytes),
        2 => namespaces(bytes),
        3 => flows(bytes),
        4 => kernel_types::fuzz(bytes),
        _ => {
            aliases(bytes);
            words(bytes);
        }
    }
}

fn rules() -> AppRules {
    let rule = |name: &str| Rule::new(name.parse().expect("an application"), 1);
    AppRules {
        allowed: vec![rule("mole"), rule("/usr/bin/bird")],
        disallowed: vec![rule("mole"), rule("fox*")],
        ..AppRules::default()
    }
}

fn processes(bytes: &[u8]) {
    let rules = rules();
    let verdicts = ProcessVerdicts::read(bytes, KEY);
    let of_number = |value: u64, bits| {
        let number = |rule: &Rule| u64::from(rule_number(&rule.application, bits, KEY));
        let list = match bits {
            ALLOW => &rules.allowed,
            _ => &rules.disallowed,
        };
        list.iter()
            .any(|rule| number(rule) == value >> RULE_NUMBER_SHIFT)
    };
    let mut seen = BTreeSet::new();
    // The last record of a process counts.
    let records: Vec<ProcessRecord> = records::parse(bytes).collect();
    for record in records.iter().rev().filter(|it| seen.insert(it.id)) {
        let verdict = verdicts.verdict(record.id, &rules).expect("a verdict");
        assert!(
            verdict.rule.is_none()
                || [record.own, record.inherited]
                    .iter()
                    .any(|value| { of_number(*value, ALLOW) || of_number(*value, DISALLOW) })
        );
        let child = verdicts.child_verdict(record.id, &rules);
        let has_rule = record.handed_on & u64::from(ALLOW | DISALLOW) != 0;
        assert_eq!(child.is_some(), has_rule);
    }
    let unknown = (0..).find(|id| !seen.contains(id));
    assert!(unknown.is_none_or(|id| verdicts.verdict(id, &rules).is_none()));
}

fn sockets(bytes: &[u8]) {
    let listed = reset::read(bytes);
    assert!(listed.len() <= records::parse::<SocketRecord>(bytes).count());
    let once = reset::without_repetitions(listed.clone());
    let mut cookies = HashSet::new();
    for socket in &once {
        let cookie = socket.connection.cookie;
        assert!(
            cookie == ANY_COOKIE || cookies.insert(cookie),
            "listed twice"
        );
        let is = |which| socket.is_of_kind(which);
        assert!(!is(SocketKinds::Connections) || is(SocketKinds::ConnectionsAndUdp));
    }
    for socket in &listed {
        assert!(socket.is(socket) && once.iter().any(|it| it.is(socket)));
    }
}

fn namespaces(bytes: &[u8]) {
    let records: Vec<NamespaceRecord> = records::parse(bytes).collect();
    let listed = pins::namespaces(bytes);
    // Pins of namespaces that are not listed are removed, so that a list without an end is none.
    assert_eq!(
        listed.is_some(),
        records.last().is_some_and(|it| it.is_end == 1)
    );
    if let (Some(listed), Some((_, rest))) = (listed, records.split_last()) {
        assert!(rest.iter().all(|it| listed.contains(&it.cookie)));
    }
}

fn words(bytes: &[u8]) {
    for word in bytes.as_chunks::<4>().0 {
        let word = u32::from_le_bytes(*word);
        assert_eq!(DnsHandling::of(word).bits(), word & 7);
        // An unknown word must not switch the kill switch off.
        assert_eq!(Lock::of(word) == Lock::Off, word == Lock::Off as u32);
    }
}

/// Returns outputs of each kind.
#[must_use]
pub fn bpf_seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    let mut add = |kind: u8, parts: &[&[u8]]| seeds.push([&[kind][..], &parts.concat()].concat());
    let rules = rules();
    let value = |rule: &Rule, bits: u32| {
        let number = u64::from(rule_number(&rule.application, bits, KEY));
        number << RULE_NUMBER_SHIFT | u64::from(bits)
    };
    let allowed = value(&rules.allowed[0], ALLOW);
    let disallowed = value(&rules.disallowed[1], DISALLOW);
    let process = |id: u32, bits: u32, verdict: u32, values: [u64; 3]| {
        let words = [id, bits, verdict, 0].map(u32::to_ne_bytes).concat();
        [words, values.map(u64::to_ne_bytes).concat()].concat()
    };
    let first = process(1, ALLOW, 1, [allowed, 0, allowed]);
    let second = process(2, DISALLOW | 1 << 7, 0, [0, disallowed, disallowed]);
    let third = process(2, 0, 2, [7 << RULE_NUMBER_SHIFT, 0, 0]);
    add(0, &[&first]);
    add(0, &[&first, &second]);
    add(0, &[&first, &second, &third, &first[..9]]);

    let socket = |cookie: u64, family: u16, protocol: u16, state: u16| {
        let mut bytes = cookie.to_ne_bytes().to_vec();
        bytes.extend([192, 0, 2, 1].iter().chain(&[0; 12]));
        bytes.extend([198, 51, 100, 1].iter().chain(&[0; 12]));
        bytes.extend(3_u32.to_ne_bytes());
        for half in [1234, 80_u16.to_be(), family, protocol, state, 0] {
            bytes.extend(half.to_ne_bytes());
        }
        bytes
    };
    let (v4, v6) = (libc::AF_INET as u16, libc::AF_INET6 as u16);
    let list = [
        socket(7, v4, 6, 1),
        socket(7, v4, 6, 4),
        socket(8, v6, 17, 7),
        socket(ANY_COOKIE, v6, 6, 10),
        socket(ANY_COOKIE, v6, 136, 1),
        socket(9, 1, 6, 1),
        socket(10, v4, 262, 1),
    ];
    add(1, &[&list[0]]);
    add(1, &[&list.concat()]);

    let namespace = |is_end: u64, cookie: u64| [is_end, cookie].map(u64::to_ne_bytes).concat();
    add(2, &[&namespace(0, 4), &namespace(0, 5), &namespace(1, 0)]);
    add(2, &[&namespace(0, 4), &namespace(0, 5)]);

    let flow = |number: u8, inode: u64, is_answered: u32, last_seen: u64| {
        let mapped = [&[0; 10][..], &[0xff, 0xff, 10, 0, 0, number]].concat();
        let mut bytes = [&mapped[..], &mapped, &[0x30, 0x39, 0, 80]].concat();
        bytes.extend(6_u32.to_ne_bytes());
        bytes.extend(last_seen.to_ne_bytes());
        for word in [2, is_answered, 0, 0] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(inode.to_ne_bytes());
        bytes.extend([1_u32.to_ne_bytes(), [0; 4]].concat());
        bytes
    };
    let now = 1_000_000_000_000_u64;
    let full: Vec<u8> = (0..12)
        .flat_map(|number| flow(number, 1, u32::from(number & 1), now >> (number & 3)))
        .collect();
    let shared: Vec<u8> = (0..12)
        .flat_map(|number| flow(number, u64::from(number) & 1, 0, 0))
        .collect();
    add(3, &[&now.to_le_bytes(), &flow(1, 1, 0, now)]);
    add(3, &[&now.to_le_bytes(), &full]);
    add(3, &[&now.to_le_bytes(), &shared, &full]);
    // None of them may be evicted yet.
    let busy: Vec<u8> = (0..14).flat_map(|number| flow(number, 1, 0, now)).collect();
    add(3, &[&now.to_le_bytes(), &busy]);

    for types in kernel_types::seeds() {
        add(4, &[&types]);
    }
    let loopback = [&[0; 10][..], &[0xff, 0xff, 240, 0, 0, 53]].concat();
    let alias = [&[0; 10][..], &[0xff, 0xff, 241, 0, 0, 9]].concat();
    let alias_v6 = [&[1, 0][..], &[0; 9], &[1, 0, 0, 0, 7]].concat();
    let loopback_v6 = [&[1, 0][..], &[0; 13], &[1]].concat();
    add(5, &[&loopback, &alias, &alias_v6, &loopback_v6]);
    add(5, &[&[1, 0, 0, 0], &[2, 0, 0, 0], &[7, 0, 0, 1]]);
    for at in [1, 3, 5] {
        let cut = seeds[at][..seeds[at].len() - 3].to_vec();
        seeds.push(cut);
    }
    seeds
}

#[cfg(test)]
mod tests {
    use super::{bpf, bpf_seeds};

    #[test]
    fn seeds_find_no_defect() {
        bpf_seeds().iter().for_each(|seed| bpf(seed));
    }
}
