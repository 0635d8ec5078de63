use super::{AnswerError, Device, GetAnswer, SetAnswer};

use core::time::Duration;
use taupe_protocol::crypto::{Secret, default_provider};
use taupe_protocol::key::PqPrivateKey;
use taupe_protocol::update::{PostQuantum, Suite};

use crate::key::Encoding;

fn no_scopes(_: &str) -> Option<u32> {
    None
}

fn key(byte: u8) -> String {
    format!("{byte:02x}").repeat(32)
}

/// Parses an answer in pieces of `size` bytes.
fn get_in(text: &str, size: usize) -> Result<Device, AnswerError> {
    let mut answer = GetAnswer::new("wg0", &no_scopes);
    for piece in text.as_bytes().chunks(size) {
        if answer.push(piece)? {
            break;
        }
    }
    answer.finish()
}

fn get(text: &str) -> Result<Device, AnswerError> {
    get_in(text, text.len().max(1))
}

fn set(text: &str) -> Result<(), AnswerError> {
    let mut answer = SetAnswer::new();
    answer.push(text.as_bytes())?;
    answer.finish()
}

fn refused(errno: i32) -> AnswerError {
    AnswerError::Refused {
        errno,
        reason: None,
    }
}

#[test]
fn a_device_in_pieces_of_any_size() {
    let seed = PqPrivateKey::new(Secret::new([0x49; 64])).expect("not zero");
    let pq_key = seed.public(default_provider(), Suite::Hybrid512);
    let text = format!(
        "features=endpoint_name keepalive_now post_quantum\nprivate_key={}\npq_private_key={}\nlisten_port=51820\nfwmark=51966\ncounter=drop mac1 3\ncounter=drop mac1 4\n\
         counter=drop mac1\ncounter=drop mac1 -1\ncounter=drop a_b 1\ncounter=drop mac\u{1b} 1\n\
         public_key={}\npreshared_key={}\nprotocol_version=1\nendpoint=192.0.2.1:99\n\
         endpoint_name=vpn.example.org:99\npq_public_key={}\npost_quantum=require\n\
         pq_latched=true\nsession=hybrid-512 16000000002\nlast_handshake_time_sec=5\n\
         last_handshake_time_nsec=7\nunanswered=3 15000000001\ntx_bytes=1\nrx_bytes=18446744073709551615\n\
         persistent_keepalive_interval=25\nallowed_ip=10.0.0.0/24\nallowed_ip=fd00::/64\n\
         public_key={}\nendpoint=[2001:db8::1]:1\nsession=ordinary 7\nunknown=thing\nerrno=0\n\n",
        key(0x48),
        key(0x49).repeat(2),
        key(1),
        key(2),
        Encoding::Hex.encode_pq_public_key(&pq_key),
        key(3),
    );
    for size in [1, 7, text.len()] {
        let device = get_in(&text, size).expect("a device");
        assert_eq!(device.name, "wg0");
        assert!(
            device.supports_endpoint_names
                && device.supports_post_quantum
                && device.supports_keepalive_now
        );
        assert!(device.status.pq_private_key.as_ref() == Some(&seed));
        let private = device.status.private_key.as_ref().expect("a key");
        assert_eq!(private.expose(), &[0x48; 32]);
        assert_eq!((device.listen_port, device.fwmark), (51820, 51966));
        let [counter] = &device.counters[..] else {
            panic!("{:?}", device.counters);
        };
        assert_eq!(
            (&*counter.group, &*counter.name, counter.count),
            ("drop", "mac1", 3)
        );
        let [first, second] = &device.status.peers[..] else {
            panic!("{} peers", device.status.peers.len());
        };
        assert_eq!(first.public_key.0, [1; 32]);
        assert_eq!(first.preshared_key.expose(), &[2; 32]);
        assert_eq!(first.endpoint, "192.0.2.1:99".parse().ok());
        let name = first.endpoint_name.as_ref().map(ToString::to_string);
        assert_eq!(name.as_deref(), Some("vpn.example.org:99"));
        assert_eq!(first.latest_handshake, Some(Duration::new(5, 7)));
        let silence = first.unanswered.expect("initiations");
        assert_eq!((silence.initiations, silence.since.0), (3, 15_000_000_001));
        assert_eq!(first.pq_public_key.as_ref(), Some(&pq_key));
        assert_eq!(first.post_quantum, Some(PostQuantum::Require));
        let session = first.session.expect("a session");
        assert_eq!(
            (first.pq_pinned, session.suite, session.born.0),
            (true, Some(Suite::Hybrid512), 16_000_000_002)
        );
        assert_eq!(second.pq_public_key, None);
        let session = second.session.expect("a session");
        assert_eq!((second.post_quantum, session.suite), (None, None));
        assert_eq!(second.unanswered, None);
        assert_eq!((first.tx_bytes, first.rx_bytes), (1, u64::MAX));
        assert_eq!(first.persistent_keepalive, 25);
        assert_eq!(first.allowed_ips.len(), 2);
        assert!(!second.preshared_key.is_set());
        assert_eq!(second.latest_handshake, None);
        assert!(second.endpoint_name.is_none());
    }
}

/// Answers that Debian's `wg` 1.0.20210914 reports as protocol errors.
#[test]
fn malformed() {
    let peer = format!("public_key={}\n", key(1));
    let of_peer = [
        "endpoint=foo",
        "endpoint=192.0.2.1",
        "allowed_ip=192.0.2.1",
        "allowed_ip=192.0.2.1/33",
        "last_handshake_time_sec=-1",
        "last_handshake_time_sec=9223372036854775808",
        "unanswered=3",
        "unanswered=3 -1",
        "persistent_keepalive_interval=65536",
        "preshared_key=1",
        "pq_public_key=",
        "pq_public_key=00",
        "post_quantum=default",
        "session=hybrid-1024 1",
        "session=ordinary",
        "session=ordinary -1",
    ];
    let of_device = [
        "private_key=11",
        "pq_private_key=11",
        "listen_port=65536",
        "listen_port= 1",
        "listen_port=+1",
        "listen_port=",
        "fwmark=0x10",
        "fwmark=4294967296",
        "no equals sign",
        "errno=-1",
        "public_key=1",
    ];
    let lines = of_peer.iter().map(|line| format!("{peer}{line}\n"));
    let lines = lines.chain(of_device.iter().map(|line| format!("{line}\n")));
    for line in lines {
        let answer = get(&format!("{line}errno=0\n\n"));
        assert!(matches!(answer, Err(AnswerError::Malformed)), "{line}");
    }
    let long = format!("unknown={}\nerrno=0\n\n", "x".repeat(5000));
    for text in [
        "",
        "\n",
        "errno=0",
        "errno=0\n",
        "listen_port=1\n\n",
        long.as_str(),
    ] {
        let answer = get(text);
        assert!(matches!(answer, Err(AnswerError::Malformed)), "{text}");
    }
}

#[test]
fn keys_of_the_device_below_a_peer_are_ignored() {
    let text = format!(
        "public_key={}\nlisten_port=7\nfwmark=x\nerrno=0\n\n",
        key(1)
    );
    let device = get(&text).expect("a device");
    assert_eq!((device.listen_port, device.fwmark), (0, 0));
}

#[test]
fn errors_of_get_are_positive_and_of_set_negative() {
    assert_eq!(get("errno=1\n\n").err(), Some(refused(1)));
    assert_eq!(set("errno=0\n\n"), Ok(()));
    assert_eq!(set("errno=-22\n\n"), Err(refused(22)));
    // `wg` prints "Unknown error -22" for it.
    assert_eq!(set("errno=22\n\n"), Err(refused(-22)));
    assert_eq!(set("errno=-2147483648\n\n"), Err(refused(i32::MAX)));
    for text in ["", "\n", "errno=0\n", "errno=x\n\n", "errno=-1x\n\n"] {
        assert_eq!(set(text), Err(AnswerError::Malformed), "{text:?}");
    }
}

#[test]
fn the_reason_has_no_control_characters() {
    let answer = set("errno=-22\nerror=line 2: \u{1b}[31mbad\n\n");
    let reason = Some("line 2: [31mbad".to_owned());
    assert_eq!(answer, Err(AnswerError::Refused { errno: 22, reason }));
}

/// Enough peers for the list to grow several times.
#[test]
fn many_peers() {
    let mut text = String::new();
    for byte in 0..=255 {
        let (name, secret) = (key(byte), key(byte ^ 0xff));
        text += &format!(
            "public_key={name}\npreshared_key={secret}\nendpoint_name=h{byte}:1\n\
             allowed_ip=10.0.0.{byte}/32\n"
        );
    }
    text += "errno=0\n\n";
    let device = get(&text).expect("a device");
    for (byte, peer) in (0..=255).zip(&device.status.peers) {
        assert_eq!(peer.public_key.0, [byte; 32]);
        assert_eq!(peer.preshared_key.expose(), &[byte ^ 0xff; 32]);
        assert_eq!(peer.allowed_ips.len(), 1);
        let name = peer.endpoint_name.as_ref().map(|name| name.host());
        assert_eq!(name, Some(&*format!("h{byte}")));
    }
    assert_eq!(device.status.peers.len(), 256);
}
