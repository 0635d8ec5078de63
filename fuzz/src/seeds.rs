//! Inputs to begin with, made and not written by hand, so that they can be made
//! again when a format changes.

use taupe_config::fuzzing::malformed;
use taupe_uapi::key::Encoding;
use taupe_protocol::crypto::{Secret, default_provider};
use taupe_protocol::hybrid::{Half, Part, Side, Suite};
use taupe_protocol::key::PqPrivateKey;

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
        "translate" => translate(),
        "proxy" => proxy(),
        "parts" => crate::parts::seeds(),
        "c_surface" => c_surface(),
        "frames" => crate::frames::seeds(),
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
    for suite in Suite::ALL {
        for side in [Side::Initiation, Side::Response] {
            for half in [Half::A, Half::B] {
                let part = Part { suite, side, half };
                let mut seed = (part.len() as u16).to_le_bytes().to_vec();
                seed.extend(part.header());
                seed.resize(2 + part.len(), 0);
                seeds.push(seed);
            }
        }
    }
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
    let pq_key = {
        let seed = PqPrivateKey::new(Secret::new([7; PqPrivateKey::LEN])).expect("not zero");
        let key = seed.public(default_provider(), Suite::Hybrid512);
        Encoding::Hex.encode_pq_public_key(&key)
    };
    for line in [
        format!("pq_private_key={key}{key}"),
        format!("pq_private_key={}", "0".repeat(128)),
        format!("{peer}pq_public_key={pq_key}\npost_quantum=prefer"),
        format!("{peer}pq_public_key=\npost_quantum=default"),
        format!("{peer}pq_public_key={key}{key}"),
    ] {
        seeds.push(format!("set=1\n{line}\n\n").into_bytes());
    }
    seeds
}

fn files() -> Vec<Vec<u8>> {
    let written = malformed::hand_written().into_iter().step_by(4);
    let generated = (0..20).map(malformed::generated);
    let broken = written.chain(generated).map(|malformed| malformed.text);
    // Some with keys of hybrid handshakes, in the file and in another.
    let is_hybrid = |text: &Vec<u8>| text.windows(11).any(|part| part == b"PqPublicKey");
    let hybrid: Vec<_> = (5..)
        .map(malformed::valid)
        .filter(is_hybrid)
        .take(3)
        .collect();
    let elsewhere = hybrid.first().map(|text| {
        let text = String::from_utf8_lossy(text);
        let lines = text
            .lines()
            .map(|line| match line.starts_with("PqPublicKey") {
                true => "#@taupe:PqPublicKey = file:peer.pq\n".to_owned(),
                false => format!("{line}\n"),
            });
        lines.collect::<String>().into_bytes()
    });
    let valid = (0..5).map(malformed::valid);
    valid.chain(broken).chain(hybrid).chain(elsewhere).collect()
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

/// Packets on their way out and in, of one flow each, with what may follow.
fn translate() -> Vec<Vec<u8>> {
    /// Out; with a virtio header; lengths, checksums and destination mended;
    /// a second later.
    const OUT: u8 = 1;
    const HEADER: u8 = 2;
    const MEND: u8 = 4;
    const LATER: u8 = 0x20;
    let step = |control: u8, packet: &[u8]| [&[control, packet.len() as u8], packet].concat();
    let udp = [0x13, 0x88, 1, 0xbb, 0, 12, 0, 0, 1, 2, 3, 4];
    let dns = [0x13, 0x88, 0, 53, 0, 12, 0, 0, 1, 2, 3, 4];
    let tcp = |flags: u8| {
        let ends = [0x13, 0x88, 1, 0xbb, 0, 0, 0, 9, 0, 0, 0, 7];
        [&ends[..], &[0x60, flags, 2, 0, 0, 0, 0, 0, 2, 4, 5, 180]].concat()
    };
    let swapped = |transport: &[u8]| [&transport[2..4], &transport[..2], &transport[4..]].concat();
    let mut seeds = vec![vec![], vec![1], step(OUT, b"no packet")];
    for v6 in [false, true] {
        // From us, and from the other end; the fuzzer's driver puts the
        // destination right on the way in.
        let packet = |protocol: u8, out: bool, payload: &[u8]| {
            let (us, them) = (if out { 10 } else { 5 }, if out { 5 } else { 2 });
            if v6 {
                let address = |host| [0x2001, 0xdb8, 0, 0, 0, 0, 0, host].into();
                let mut packet = ipv6(address(us), address(them), payload);
                packet[0] |= 1;
                packet[6] = protocol;
                packet
            } else {
                let address = |host: u16| [192, 0, 2, host as u8].into();
                let mut packet = ipv4(address(us), address(them), payload);
                packet[0] &= 0xfe;
                packet[9] = protocol;
                packet
            }
        };
        let icmp = if v6 { 58 } else { 1 };
        let (question, answer, error) = if v6 { (128, 129, 1) } else { (8, 0, 3) };
        let echo = |kind: u8| [kind, 0, 0, 0, 0x13, 0x88, 0, 1, 9, 9];
        let opened = tcp(2);
        for (protocol, there, back) in [
            (17, udp.to_vec(), swapped(&udp)),
            (17, dns.to_vec(), swapped(&dns)),
            (6, opened.clone(), swapped(&tcp(0x12))),
            (6, tcp(0x10), swapped(&tcp(0x11))),
            (icmp, echo(question).to_vec(), echo(answer).to_vec()),
            (47, vec![0; 16], vec![0; 16]),
        ] {
            let out = step(OUT | MEND, &packet(protocol, true, &there));
            let back_in = step(MEND, &packet(protocol, false, &back));
            seeds.push([&out[..], &back_in].concat());
            seeds.push([&out[..], &out, &back_in, &back_in].concat());
            // From the other end first, and returned by the kernel.
            let returned = step(OUT | MEND, &packet(protocol, false, &back));
            seeds.push([&back_in[..], &returned, &back_in].concat());
            // An error about it, and much later once more.
            let quote = packet(protocol, true, &there);
            let body = [&[error, 0, 0, 0, 0, 0, 0, 0][..], &quote].concat();
            let error_in = step(MEND, &packet(icmp, false, &body));
            let late = step(OUT | MEND | LATER * 7, &packet(protocol, true, &there));
            seeds.push([&out[..], &error_in, &late].concat());
        }
        // Too big; with a checksum to be completed; in fragments.
        let long = [&udp[..], &[7; 180]].concat();
        seeds.push(step(OUT | MEND, &packet(17, true, &long)));
        let mut header = vec![1, 5, 0, 0, 100, 0, 20, 0, 6, 0];
        if v6 {
            header[6] = 40;
        }
        let super_packet = [&header[..], &packet(17, true, &long)].concat();
        seeds.push(step(OUT | HEADER | MEND, &super_packet));
        let mut first = packet(17, true, &udp);
        let mut second = packet(17, true, &[1; 9]);
        if v6 {
            first = packet(44, true, &[&[17, 0, 0, 1, 0, 0, 0, 5][..], &udp].concat());
            second = packet(44, true, &[17, 0, 0, 8, 0, 0, 0, 5, 1]);
        } else {
            first[6..8].copy_from_slice(&[0x20, 0]);
            second[6..8].copy_from_slice(&[0, 1]);
        }
        seeds.push([step(OUT | MEND, &first), step(OUT | MEND, &second)].concat());
    }
    seeds
}

/// What clients say, cut at every place where a message may end, and packets.
fn proxy() -> Vec<Vec<u8>> {
    let words: [&[u8]; 12] = [
        b"\x05\x01\x00",
        b"\x05\x02\x00\x02",
        b"\x01\x05alice\x06secret",
        b"\x05\x01\x00\x01\xc0\x00\x02\x01\x01\xbb",
        b"\x05\x01\x00\x03\x0bexample.org\x01\xbb",
        b"\x05\x03\x00\x04\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x35",
        b"\x00\x00\x00\x01\xc0\x00\x02\x01\x00\x35hello",
        b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org\r\n\r\n",
        b"GET http://example.org/a?b HTTP/1.1\r\nHost: example.org\r\nAccept: */*\r\n\r\n",
        b"POST http://[2001:db8::1]:8080/ HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc",
        b"GET http://a/ HTTP/1.1\r\nHost: a\r\nConnection: close, X-Mine\r\nX-Mine: 1\r\n\r\n",
        b"POST http://a/ HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
    ];
    let halves = words.iter().map(|word| &word[..word.len() / 2]);
    let mut seeds: Vec<Vec<u8>> = words.iter().copied().chain(halves).map(Vec::from).collect();
    seeds.extend(inner());
    seeds
}

/// Calls, two bytes each at least: a handshake, packets both ways, then each call there is.
fn c_surface() -> Vec<Vec<u8>> {
    // A forces, B reads, A reads, B reads; each with room.
    let handshake = [16, 0, 5, 0, 0, 4, 0, 0, 5, 0, 0];
    (0..32_u8)
        .map(|call| {
            let mut seed = handshake.to_vec();
            // A packet of 100 bytes each way, read by the other.
            seed.extend([0, 0, 100]);
            seed.extend([0x45; 64]);
            seed.extend([5, 0, 0, 1, 0, 120]);
            seed.extend([0x45; 64]);
            seed.extend([4, 0, 0]);
            for argument in [0, 3, 40, 0xff] {
                seed.extend([call, argument, 3, 100, 50, 60, argument, 7, 220, 4]);
            }
            seed.extend([24, 0, 1, 25, 0, 1, 14, 0, 15, 0, call | 0xe0, 0]);
            seed
        })
        .collect()
}
