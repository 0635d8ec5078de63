//! Every key of a `set`, with boundary values.

use core::net::SocketAddr;

use taupe_protocol::key::{PresharedKey, PrivateKey, PublicKey};
use taupe_protocol::time::Tai64N;
use taupe_protocol::update::{AllowedIpChange, EndpointName, PeerUpdate, PostQuantum};

use super::super::{Errno, write_set};
use super::*;
use crate::fuzzing::same_set;
use crate::key::{Encoding, KeyError, PqKeyError};
use crate::prefix::{self, PrefixError};

const NUMBER: RequestProblem = RequestProblem::Number { max: 65535 };

/// Returns the request with one line for the device.
fn device(line: &str) -> SetRequest {
    set(&format!("set=1\n{line}\n\n"))
}

/// Returns the only peer of a request with `lines` after its `public_key`.
fn peer(lines: &str) -> PeerUpdate {
    let mut request = set(&format!("set=1\npublic_key={}\n{lines}\n\n", hex(1)));
    assert_eq!(request.device.peers.len(), 1);
    request.device.peers.remove(0)
}

/// Returns the error of a line for the device. Checks that the answer is -EINVAL.
fn device_cause(line: &str) -> RequestProblem {
    problem(&format!("set=1\n{line}\n\n"), line, 2)
}

/// Returns the error of a line for a peer. Checks that the answer is -EINVAL.
fn peer_cause(line: &str) -> RequestProblem {
    problem(
        &format!("set=1\npublic_key={}\n{line}\n\n", hex(1)),
        line,
        3,
    )
}

fn problem(text: &str, line: &str, number: usize) -> RequestProblem {
    let error = refused(text);
    assert_eq!(error.operation, Some(Operation::Set));
    assert_eq!(error.line, number, "{line:?}");
    assert_eq!(Some(error.key.as_str()), line.split('=').next());
    assert_eq!(error.status().to_string(), "errno=-22\n\n", "{line:?}");
    error.problem
}

fn add(text: &str) -> AllowedIpChange {
    AllowedIpChange::Add(prefix::parse(text).unwrap())
}

fn remove(text: &str) -> AllowedIpChange {
    AllowedIpChange::Remove(prefix::parse(text).unwrap())
}

#[test]
fn an_empty_set_changes_nothing() {
    assert!(same_set(&set("set=1\n\n"), &SetRequest::default()));
    let unchanged = PeerUpdate::new(PublicKey([1; 32]));
    let mut request = SetRequest::default();
    request.device.peers.push(unchanged);
    assert!(same_set(
        &set(&format!("set=1\npublic_key={}\n\n", hex(1))),
        &request
    ));
}

/// The request that `wg set` of wireguard-tools 1.0.20210914 sends.
#[test]
fn requests_of_wg() {
    let text = format!(
        "set=1\nprivate_key={}\nlisten_port=51820\nfwmark=51820\nreplace_peers=true\n\
         public_key={}\npreshared_key={}\nendpoint=192.0.2.1:51820\n\
         persistent_keepalive_interval=25\nreplace_allowed_ips=true\n\
         allowed_ip=10.0.0.0/24\nallowed_ip=fd00::/64\npublic_key={}\nremove=true\n\n",
        hex(0x40),
        hex(2),
        hex(3),
        hex(4),
    );
    let request = set(&text);
    assert_eq!(request.listen_port, Some(51820));
    assert_eq!(request.fwmark, Some(0xca6c));
    assert!(request.device.replace_peers);
    let private_key = request.device.private_key.as_ref().unwrap();
    assert!(private_key.key == PrivateKey::new([0x40; 32]));
    assert_eq!(private_key.timestamp_floor, Tai64N::ZERO);
    let [first, second] = request.device.peers.as_slice() else {
        panic!("not two peers");
    };
    assert_eq!(first.public_key, PublicKey([2; 32]));
    assert!(first.preshared_key == Some(PresharedKey::new([3; 32])));
    assert_eq!(
        first.endpoint,
        Some(SocketAddr::from(([192, 0, 2, 1], 51820)))
    );
    assert_eq!(first.persistent_keepalive, Some(25));
    assert!(first.replace_allowed_ips && !first.remove && !first.update_only);
    assert_eq!(first.allowed_ips, [add("10.0.0.0/24"), add("fd00::/64")]);
    assert_eq!(second.public_key, PublicKey([4; 32]));
    assert!(second.remove && second.preshared_key.is_none());
    let mut again = String::new();
    write_set(&mut again, &request).unwrap();
    assert_eq!(again, text);
}

#[test]
fn private_key() {
    let zeros = device(&format!("private_key={}", hex(0)));
    assert!(
        zeros
            .device
            .private_key
            .is_some_and(|update| update.key.is_none())
    );
    let set = device(&format!("private_key={}", hex(0xFF)));
    let key = set
        .device
        .private_key
        .and_then(|update| update.key)
        .unwrap();
    assert!(key == PrivateKey::new([0xff; 32]).unwrap());

    let length = |found| {
        RequestProblem::Key(KeyError::Length {
            expected: 64,
            found,
        })
    };
    assert_eq!(device_cause("private_key="), length(0));
    assert_eq!(
        device_cause(&format!("private_key={}0", hex(1))),
        length(65)
    );
    let bad = format!("private_key={}g", &hex(1)[1..]);
    assert_eq!(
        device_cause(&bad),
        RequestProblem::Key(KeyError::Character { position: 64 })
    );
}

#[test]
fn numbers_of_16_bits() {
    for (text, value) in [("0", 0), ("1", 1), ("65535", 65535), ("00080", 80)] {
        assert_eq!(
            device(&format!("listen_port={text}")).listen_port,
            Some(value)
        );
        let peer = peer(&format!("persistent_keepalive_interval={text}"));
        assert_eq!(peer.persistent_keepalive, Some(value));
    }
    for text in [
        "", "65536", "-1", "+1", "1 ", " 1", "0x10", "1e3", "1_0", "off", "\u{661}",
    ] {
        assert_eq!(device_cause(&format!("listen_port={text}")), NUMBER);
        assert_eq!(
            peer_cause(&format!("persistent_keepalive_interval={text}")),
            NUMBER
        );
    }
}

#[test]
fn fwmark() {
    for (text, value) in [
        ("0", 0),
        ("0x0", 0),
        ("51820", 0xca6c),
        ("0xca6c", 0xca6c),
        ("0XCA6C", 0xca6c),
        ("4294967295", u32::MAX),
        ("0xffffffff", u32::MAX),
    ] {
        assert_eq!(device(&format!("fwmark={text}")).fwmark, Some(value));
    }
    for text in [
        "",
        "0x",
        "4294967296",
        "0x100000000",
        "-1",
        "+1",
        "0x+1",
        "0x-1",
        "ca6c",
        "off",
    ] {
        assert_eq!(
            device_cause(&format!("fwmark={text}")),
            RequestProblem::Fwmark,
            "{text:?}"
        );
    }
}

#[test]
fn flags() {
    assert!(device("replace_peers=true").device.replace_peers);
    assert!(peer("update_only=true").update_only);
    assert!(peer("remove=true").remove);
    assert!(peer("replace_allowed_ips=true").replace_allowed_ips);
    for value in ["", "false", "1", "True", "true "] {
        assert_eq!(
            device_cause(&format!("replace_peers={value}")),
            RequestProblem::NotTrue
        );
        for key in ["update_only", "remove", "replace_allowed_ips"] {
            assert_eq!(
                peer_cause(&format!("{key}={value}")),
                RequestProblem::NotTrue
            );
        }
    }
}

#[test]
fn public_key() {
    let request = set(&format!(
        "set=1\npublic_key={}\n\n",
        hex(0xab).to_uppercase()
    ));
    assert_eq!(request.device.peers[0].public_key, PublicKey([0xab; 32]));
    let line = format!("public_key={}", &hex(1)[..62]);
    let length = RequestProblem::Key(KeyError::Length {
        expected: 64,
        found: 62,
    });
    assert_eq!(device_cause(&line), length);
    assert_eq!(peer_cause(&line), length);
}

#[test]
fn a_repeated_public_key_is_another_update() {
    let one = hex(1);
    let request = set(&format!(
        "set=1\npublic_key={one}\nremove=true\npublic_key={one}\nallowed_ip=10.0.0.1/32\n\n"
    ));
    let [first, second] = request.device.peers.as_slice() else {
        panic!("not two updates");
    };
    assert_eq!(first.public_key, second.public_key);
    assert!(first.remove && first.allowed_ips.is_empty());
    assert!(!second.remove && second.allowed_ips == [add("10.0.0.1/32")]);
}

#[test]
fn preshared_key() {
    assert!(peer("protocol_version=1").preshared_key.is_none());
    let cleared = peer(&format!("preshared_key={}", hex(0)));
    assert!(cleared.preshared_key == Some(PresharedKey::NONE));
    let bad = format!("preshared_key=0x{}", &hex(1)[2..]);
    assert_eq!(
        peer_cause(&bad),
        RequestProblem::Key(KeyError::Character { position: 2 })
    );
}

#[test]
fn post_quantum() {
    let zeros = device(&format!("pq_private_key={}", hex(0).repeat(2)));
    assert!(zeros.device.pq_private_key == Some(None));
    let seed = device(&format!(
        "pq_private_key={}",
        hex(0xab).repeat(2).to_uppercase()
    ));
    let expected = PqPrivateKey::new(Secret::new([0xab; 64]));
    assert!(seed.device.pq_private_key == Some(expected));

    let key = Encoding::Hex.encode_pq_public_key(&pq_key());
    let with = |lines: &str| peer(lines).pq_public_key;
    assert_eq!(with(&format!("pq_public_key={key}")), Some(Some(pq_key())));
    assert_eq!(with("pq_public_key="), Some(None));
    assert_eq!(with("remove=true"), None);
    for (word, expected) in [
        ("require", Some(PostQuantum::Require)),
        ("prefer", Some(PostQuantum::Prefer)),
        ("off", Some(PostQuantum::Off)),
        ("default", None),
    ] {
        let line = format!("post_quantum={word}");
        assert_eq!(peer(&line).post_quantum, Some(expected));
    }
    let published = ["repro:", "repro:k512+tk512", "repro:k+k"];
    for word in ["", "Require", "on", "true", "required"]
        .into_iter()
        .chain(published)
    {
        let line = format!("post_quantum={word}");
        assert_eq!(peer_cause(&line), RequestProblem::PostQuantum, "{word}");
    }
    for (text, problem) in [
        (hex(1), PqKeyError::Classic),
        (hex(1).repeat(2), PqKeyError::PrivateForPublic),
        (format!("ffff{}", &key[4..]), PqKeyError::Modulus),
        (
            format!("x{}", &key[1..]),
            PqKeyError::Character { position: 1 },
        ),
    ] {
        let line = format!("pq_public_key={text}");
        assert_eq!(peer_cause(&line), RequestProblem::PqKey(problem));
    }
    for (text, problem) in [
        (hex(1), PqKeyError::Classic),
        (key.clone(), PqKeyError::PublicForPrivate),
    ] {
        let line = format!("pq_private_key={text}");
        assert_eq!(device_cause(&line), RequestProblem::PqKey(problem));
    }
}

#[test]
fn endpoint() {
    for text in [
        "0.0.0.0:0",
        "255.255.255.255:65535",
        "[::]:0",
        "[2001:db8::1]:51820",
        "[fe80::1%4294967295]:1",
    ] {
        let endpoint = peer(&format!("endpoint={text}")).endpoint.unwrap();
        assert_eq!(endpoint.to_string(), text);
    }
    for text in [
        "",
        "192.0.2.1",
        "192.0.2.1:",
        "192.0.2.1:65536",
        "192.0.2.1:-1",
        "192.0.2.1:+1",
        "192.0.2.256:1",
        "192.0.2.1 :1",
        "2001:db8::1:51820",
        "[2001:db8::1]",
        "[192.0.2.1]:1",
        "example.org:51820",
        "localhost:51820",
        ":51820",
        "fe80::1%eth0",
        "[fe80::1%1]:65536",
    ] {
        assert_eq!(
            peer_cause(&format!("endpoint={text}")),
            RequestProblem::Endpoint,
            "{text:?}"
        );
    }
    for text in [
        "[fe80::1%eth0]:1",
        "[fe80::1%]:1",
        "[fe80::1%4294967296]:1",
        "[fe80::1%-1]:1",
    ] {
        assert_eq!(
            peer_cause(&format!("endpoint={text}")),
            RequestProblem::EndpointScope,
            "{text:?}"
        );
    }
}

#[test]
fn an_endpoint_s_scope_may_be_a_known_interface() {
    let text = format!(
        "set=1\npublic_key={}\nendpoint=[fe80::1%tun-0]:7\n\n",
        hex(1)
    );
    let mut reader = RequestReader::new().with_scopes(&|name| (name == "tun-0").then_some(12));
    let mut input = text.as_bytes();
    let Some(Ok(Request::Set(request))) = reader.push(&mut input) else {
        panic!("refused");
    };
    assert_eq!(
        request.device.peers[0].endpoint,
        Some("[fe80::1%12]:7".parse().unwrap())
    );
}

#[test]
fn endpoint_name() {
    assert_eq!(peer("endpoint=192.0.2.1:1").endpoint_name, None);
    assert_eq!(peer("endpoint_name=").endpoint_name, Some(None));
    let longest = "a".repeat(253);
    for (text, host, port) in [
        ("a:1".to_owned(), "a", 1),
        ("vpn.example.org:51820".to_owned(), "vpn.example.org", 51820),
        ("a.:00080".to_owned(), "a.", 80),
        (format!("{longest}:65535"), &longest, 65535),
    ] {
        let name = peer(&format!("endpoint_name={text}")).endpoint_name;
        assert_eq!(name, Some(EndpointName::new(host, port)), "{text}");
    }
    for text in [
        "a",
        "a:",
        ":1",
        ":",
        "a:0",
        "a:65536",
        "a:-1",
        "a:+1",
        "a:1 ",
        " a:1",
        "a b:1",
        "a\t:1",
        "a\0:1",
        "a\r:1",
        "a:b:1",
        "192.0.2.1:51820",
        "[2001:db8::1]:51820",
        "2001:db8::1:51820",
        "[a]:1",
        &format!("{}:1", "a".repeat(254)),
    ] {
        let problem = peer_cause(&format!("endpoint_name={text}"));
        assert_eq!(problem, RequestProblem::EndpointName, "{text:?}");
    }
    let last = peer("endpoint_name=a:1\nendpoint=192.0.2.1:1\nendpoint_name=b:2");
    assert_eq!(last.endpoint_name, Some(EndpointName::new("b", 2)));
    assert!(last.endpoint.is_some());
}

#[test]
fn allowed_ips() {
    let peer = peer(
        "allowed_ip=10.1.2.3/8\nallowed_ip=192.0.2.1/32\nallowed_ip=+::1/128\nallowed_ip=-192.168.0.1/32\n\
         allowed_ip=-10.0.0.1/32\nallowed_ip=0.0.0.0/0",
    );
    assert_eq!(
        peer.allowed_ips,
        [
            add("10.0.0.0/8"),
            add("192.0.2.1/32"),
            add("::1/128"),
            remove("192.168.0.1/32"),
            remove("10.0.0.1/32"),
            add("0.0.0.0/0"),
        ]
    );
    for text in ["", "-", "+", "(none)", "10.0.0.0", "+10.0.0.0", "::1"] {
        let problem = peer_cause(&format!("allowed_ip={text}"));
        assert_eq!(problem, RequestProblem::AllowedIpWithoutLength, "{text:?}");
    }
    for text in ["/", "--10.0.0.0/8", "+-10.0.0.0/8", "-+10.0.0.0/8", "a/8"] {
        let problem = peer_cause(&format!("allowed_ip={text}"));
        assert_eq!(
            problem,
            RequestProblem::AllowedIp(PrefixError::Address),
            "{text:?}"
        );
    }
    assert_eq!(
        peer_cause("allowed_ip=-10.0.0.0/33"),
        RequestProblem::AllowedIp(PrefixError::Length { max: 32 })
    );
}

#[test]
fn replace_allowed_ips_discards_earlier_changes() {
    let peer = peer("allowed_ip=10.0.0.1/32\nreplace_allowed_ips=true\nallowed_ip=10.0.0.2/32");
    assert!(peer.replace_allowed_ips);
    assert_eq!(peer.allowed_ips, [add("10.0.0.2")]);
}

#[test]
fn protocol_version() {
    peer("protocol_version=1");
    for version in ["", "0", "2", "01", "1 "] {
        let problem = peer_cause(&format!("protocol_version={version}"));
        assert_eq!(problem, RequestProblem::ProtocolVersion);
    }
}

#[test]
fn the_last_of_several_values_counts() {
    let request = set("set=1\nlisten_port=1\nfwmark=1\nlisten_port=2\nfwmark=2\n\n");
    assert_eq!((request.listen_port, request.fwmark), (Some(2), Some(2)));
    let peer = peer("endpoint=192.0.2.1:1\nendpoint=192.0.2.2:2");
    assert_eq!(peer.endpoint, Some(SocketAddr::from(([192, 0, 2, 2], 2))));
}

#[test]
fn keys_in_the_wrong_place() {
    for key in [
        "private_key",
        "pq_private_key",
        "listen_port",
        "fwmark",
        "replace_peers",
    ] {
        assert_eq!(
            peer_cause(&format!("{key}=true")),
            RequestProblem::DeviceKeyAfterPeer
        );
    }
    for key in [
        "update_only",
        "remove",
        "preshared_key",
        "endpoint",
        "endpoint_name",
        "pq_public_key",
        "post_quantum",
        "persistent_keepalive_interval",
        "replace_allowed_ips",
        "allowed_ip",
        "protocol_version",
    ] {
        assert_eq!(
            device_cause(&format!("{key}=true")),
            RequestProblem::PeerKeyBeforePeer
        );
    }
    for key in [
        "",
        "nonsense",
        "errno",
        "own_public_key",
        "rx_bytes",
        "pq_latched",
        "session",
        "set",
        "get",
    ] {
        assert_eq!(
            device_cause(&format!("{key}=1")),
            RequestProblem::UnknownDeviceKey
        );
        assert_eq!(
            peer_cause(&format!("{key}=1")),
            RequestProblem::UnknownPeerKey
        );
    }
}

#[test]
fn unparseable_lines() {
    for (line, problem) in [
        (b"listen_port".as_slice(), RequestProblem::NotKeyValue),
        (b" ", RequestProblem::NotKeyValue),
        (b"\0", RequestProblem::NotKeyValue),
        (b"listen_port=\xff", RequestProblem::NotUtf8),
        (b"\xc3", RequestProblem::NotUtf8),
    ] {
        let error = refused([b"set=1\n", line, b"\n\n"].concat());
        assert_eq!((error.line, error.problem), (2, problem));
        assert_eq!(error.status(), Operation::Set.failed(Errno::Protocol));
    }
}

#[test]
fn errors_name_line_key_and_expected_form() {
    for (text, message) in [
        (
            "set=1\nlisten_port=65536\n\n".to_owned(),
            "line 2, listen_port: not a decimal number from 0 to 65535",
        ),
        (
            format!("set=1\npublic_key={}\nallowed_ip=10.0.0.0/33\n\n", hex(1)),
            "line 3, allowed_ip: the prefix length is not a decimal number from 0 to 32",
        ),
        (
            "set=1\nprivate_key=abc\n\n".to_owned(),
            "line 2, private_key: the key has 3 characters; expected 64",
        ),
        (
            "nonsense\n\n".to_owned(),
            "line 1: not a request; expected get=1 or set=1",
        ),
    ] {
        assert_eq!(refused(text).to_string(), message);
    }
}

#[test]
fn errors_repeat_only_key_names_that_cannot_be_secrets() {
    let secret = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk";
    for line in [
        // A base64 key ends with `=`, which separates key and value.
        format!("{secret}="),
        format!("private_key {secret}="),
        format!("private_key:{secret}"),
        hex(0x5a),
        format!("{}=", hex(0x5a)),
    ] {
        let error = refused(format!("set=1\n{line}\n\n"));
        assert_eq!(error.key, "");
        let text = format!("{error} {error:?}");
        assert!(!text.contains("yAnz") && !text.contains("5a5a"), "{text}");
    }
}
