//! Inputs to begin with, made and not written by hand, so that they can be made
//! again when a format changes.

use taupe_config::fuzzing::malformed;
use taupe_protocol::crypto::default_provider;

use crate::common::packets::{ipv4, ipv6, sized};
use crate::common::world::World;

/// The first inputs of a target by name; none for a target there is not.
pub fn seeds(target: &str) -> Vec<Vec<u8>> {
    match target {
        "message" => messages(),
        "handshake" => handshakes(),
        "transport" => transports(),
        "uapi" => uapi(),
        "inner" => inner(),
        "split_merge" => split_merge(),
        "file" => files(),
        _ => Vec::new(),
    }
}

fn messages() -> Vec<Vec<u8>> {
    let world = World::new(default_provider());
    let mut seeds = vec![vec![], vec![1, 0], vec![1, 0, 4], vec![0, 0, 0]];
    for message in world.messages() {
        let length = message.len() as u16;
        for segment in [length - 1, length, length + 1, 1500] {
            for copies in [1, 2] {
                let mut seed = segment.to_le_bytes().to_vec();
                seed.extend(message.repeat(copies));
                seeds.push(seed);
            }
        }
    }
    let mut all = 92_u16.to_le_bytes().to_vec();
    all.extend(world.messages().concat());
    seeds.push(all);
    seeds
}

/// Control bytes of a step: the kind of message, then what goes with it.
const ADVANCE: u8 = 0x08;
const LOAD: u8 = 0x10;
const STAMP: u8 = 0x20;
const STRANGER: u8 = 0x40;

fn handshakes() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for kind in 0..8 {
        // As it is; twice; under load; after some time; with a changed byte and
        // mac1 to fit; cut; extended; from elsewhere.
        let argument: &[u8] = match kind {
            4 => &[1; 148],
            5 => &[0],
            _ => &[],
        };
        let step = |control: u8, before: &[u8], change: &[u8]| {
            [&[kind | control][..], before, argument, change].concat()
        };
        seeds.push(step(0, &[], &[0]));
        seeds.push([step(0, &[], &[0]), step(ADVANCE, &[1], &[0])].concat());
        seeds.push(step(LOAD, &[], &[0]));
        seeds.push(step(ADVANCE, &[250], &[0]));
        seeds.push(step(STAMP, &[], &[1, 40, 0, 1]));
        seeds.push(step(0, &[], &[0x10, 91, 0]));
        seeds.push(step(0, &[], &[0x30, 1]));
        seeds.push(step(STRANGER, &[], &[2, 5, 0, 0x80, 9, 0, 1]));
    }
    // A cookie, a response, an initiation, its replay, and another later.
    seeds.push(vec![2, 0, 1, 0, 0, 0, 7, 0, ADVANCE, 10, 0]);
    // A cookie for a response, which the next response carries.
    seeds.push(vec![0, 0, 3, 0, ADVANCE, 10, 0]);
    seeds
}

fn transports() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    let packet = |length| sized([10, 0, 0, 9].into(), [10, 0, 0, 1].into(), length, 1);
    for choice in 5..8_u8 {
        for length in [0, 20, 64, 255] {
            // One message, then three; true ones, with a header of ours.
            seeds.push(vec![0, length, choice | 8, 0]);
            seeds.push([vec![2, length], [choice | 8, 3].repeat(3)].concat());
            // The same with a changed byte.
            seeds.push(vec![0, length, choice | 8 | 0x20, 0, 1, 9, 0, 4]);
        }
    }
    for choice in 0..5_u8 {
        // Counters of every kind, each twice.
        let one = [&[choice | 8][..], &[1; 8]].concat();
        seeds.push([&[0, 32][..], &one, &[0, 32], &one].concat());
    }
    for length in [20_u8, 21, 40, 100] {
        // A plaintext of the fuzzer's own, and one whose length lies.
        let plain = packet(length.into());
        seeds.push([&[0, length, 5, 0][..], &plain].concat());
        seeds.push([&[0, length, 5 | 0x10, 0][..], &plain, &[1, 3, 0, 1]].concat());
    }
    seeds
}

fn uapi() -> Vec<Vec<u8>> {
    let key = "00112233445566778899aabbccddeeff".repeat(2);
    let peer = format!("public_key={key}\n");
    let lines = [
        format!("private_key={key}\n"),
        format!("private_key={}\n", "0".repeat(64)),
        "listen_port=51820\n".into(),
        "listen_port=65536\n".into(),
        "fwmark=0x10\n".into(),
        "fwmark=\n".into(),
        "replace_peers=true\n".into(),
        "replace_peers=false\n".into(),
        format!("{peer}remove=true\n"),
        format!("{peer}update_only=true\n"),
        format!("{peer}preshared_key={key}\n"),
        format!("{peer}endpoint=192.0.2.1:51820\n"),
        format!("{peer}endpoint=[2001:db8::1]:1\n"),
        format!("{peer}endpoint=[fe80::1%2]:1\n"),
        format!("{peer}persistent_keepalive_interval=25\n"),
        format!("{peer}persistent_keepalive_interval=off\n"),
        format!("{peer}replace_allowed_ips=true\nallowed_ip=10.0.0.0/8\n"),
        format!("{peer}allowed_ip=-::/0\nallowed_ip=10.0.0.1\n"),
        format!("{peer}protocol_version=1\n"),
        format!("{peer}{peer}"),
        "unknown=1\n".into(),
        "novalue\n".into(),
        "=\n".into(),
        "\u{e9}=\u{e9}\n".into(),
    ];
    let mut seeds: Vec<Vec<u8>> = lines
        .iter()
        .map(|line| format!("set=1\n{line}\n").into_bytes())
        .collect();
    let all = lines[..19].concat();
    seeds.push(b"get=1\n\n".to_vec());
    seeds.push(b"get=1\n\nget=1\n\nset=1\n\n".to_vec());
    seeds.push(b"get=2\n\n".to_vec());
    seeds.push(b"\n\n\n".to_vec());
    seeds.push(format!("set=1\n{all}\nget=1\n\n").into_bytes());
    seeds.push(format!("set=1\n{all}").into_bytes());
    for name in ["vpn.example.org:51820", "", "[2001:db8::1]:1", "a:0"] {
        let text = format!("set=1\n{peer}endpoint=192.0.2.1:1\nendpoint_name={name}\n\n");
        seeds.push(text.into_bytes());
    }
    seeds
}

fn files() -> Vec<Vec<u8>> {
    let written = malformed::hand_written().into_iter().step_by(4);
    let generated = (0..20).map(malformed::generated);
    let broken = written.chain(generated).map(|malformed| malformed.text);
    (0..5).map(malformed::valid).chain(broken).collect()
}

fn inner() -> Vec<Vec<u8>> {
    let (a4, b4) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
    let (a6, b6) = (
        [0x2001, 0xdb8, 0, 0, 0, 0, 0, 1].into(),
        [0x2001, 0xdb8, 0, 0, 0, 0, 0, 2].into(),
    );
    let mut seeds = vec![vec![], vec![0x45], vec![0x60]];
    for protocol in [1, 6, 17, 58, 0, 43, 44, 60, 253] {
        let mut packet = ipv4(a4, b4, &[0; 40]);
        packet[9] = protocol;
        seeds.push(packet);
        let mut packet = ipv6(a6, b6, &[0; 40]);
        packet[6] = protocol;
        seeds.push(packet);
    }
    for (at, value) in [(0, 0x4f), (0, 0x44), (2, 0xff), (3, 19), (6, 0x20), (7, 1)] {
        let mut packet = ipv4(a4, b4, &[0; 48]);
        packet[at] = value;
        seeds.push(packet);
    }
    for (at, value) in [(4, 0xff), (5, 0xff), (5, 0), (0, 0x6f)] {
        let mut packet = ipv6(a6, b6, &[0; 24]);
        packet[at] = value;
        seeds.push(packet);
    }
    seeds
}

fn split_merge() -> Vec<Vec<u8>> {
    let mut seeds = vec![vec![], vec![0]];
    for flow in 0..4 {
        for length in [0, 1, 100, 255] {
            for count in [1, 2, 20] {
                seeds.push([flow, length].repeat(count));
            }
        }
        // A shorter last segment, and one that is out of line.
        seeds.push([[flow, 200].repeat(3), vec![flow, 50]].concat());
        for at in [0, 9, 13, 20, 32, 47] {
            let changed = vec![flow | 0xc0, 200, at, 1];
            seeds.push([[flow, 200].repeat(2), changed, vec![flow, 200]].concat());
        }
    }
    seeds.push((0..40).flat_map(|i| [i % 4, 60]).collect());
    seeds
}
