//! Requests in a stream: boundaries and limits.

use proptest::prelude::*;

use super::super::{Errno, MAX_LINE, write_set};
use super::*;
use crate::fuzzing;

#[test]
fn one_after_the_other() {
    let text = "get=1\n\nset=1\nlisten_port=1\n\nset=1\n\nget=1\n\n";
    let requests = read(text.as_bytes());
    let kinds: Vec<_> = requests
        .iter()
        .map(|request| match request {
            Ok(Request::Get) => "get".to_owned(),
            Ok(Request::Set(set)) => format!("set {:?}", set.listen_port),
            Err(error) => error.to_string(),
        })
        .collect();
    assert_eq!(kinds, ["get", "set Some(1)", "set None", "get"]);
}

#[test]
fn nothing_before_the_blank_line() {
    for text in [
        "",
        "\n",
        "\n\n",
        "get=1",
        "get=1\n",
        "set=1\nlisten_port=1\n",
        "nonsense\n",
    ] {
        assert!(read(text.as_bytes()).is_empty(), "{text:?}");
    }
}

#[test]
fn blank_lines_between_requests_are_ignored() {
    let requests = read(b"\n\r\n\nget=1\n\n\n\nget=2\n\n");
    assert!(matches!(requests[0], Ok(Request::Get)));
    assert_eq!(requests[1].as_ref().err().map(|error| error.line), Some(1));
    assert_eq!(requests.len(), 2);
}

#[test]
fn carriage_returns_are_dropped() {
    assert_eq!(set("set=1\r\nlisten_port=7\r\n\r\n").listen_port, Some(7));
    // Only one carriage return is dropped.
    assert_eq!(
        refused("set=1\nlisten_port=7\r\r\n\n").problem,
        RequestProblem::Number { max: 65535 }
    );
}

#[test]
fn unknown_operations() {
    for line in [
        "get",
        "get=",
        "get=2",
        "get=1 ",
        "set=0",
        "GET=1",
        "listen_port=1",
        "=",
        "\u{e9}",
    ] {
        let error = refused(format!("{line}\n\n"));
        assert_eq!(error.operation, None, "{line:?}");
        assert_eq!(
            (error.line, error.problem),
            (1, RequestProblem::UnknownOperation)
        );
        assert_eq!(error.status(), Operation::Set.failed(Errno::Protocol));
    }
}

#[test]
fn get_takes_no_further_lines() {
    let error = refused("get=1\nlisten_port=1\n\n");
    assert_eq!(
        (error.line, error.problem),
        (2, RequestProblem::LineAfterGet)
    );
    // After `get`, `wg` takes a negative number for a malformed line.
    assert_eq!(error.status().to_string(), "errno=22\n\n");
}

#[test]
fn after_an_error_the_next_request_is_read() {
    let text =
        "set=1\nlisten_port=x\nset=1\nlisten_port=1\nnonsense\n\nget=1\n\nset=1\nfwmark=2\n\n";
    let requests = read(text.as_bytes());
    let error = requests[0].as_ref().err().unwrap();
    assert_eq!((error.line, error.key.as_str()), (2, "listen_port"));
    assert!(matches!(requests[1], Ok(Request::Get)));
    assert!(matches!(&requests[2], Ok(Request::Set(set)) if set.fwmark == Some(2)));
    assert_eq!(requests.len(), 3);
}

#[test]
fn one_wrong_line_refuses_the_request() {
    let text = format!(
        "set=1\nlisten_port=1\npublic_key={}\nremove=true\nremove=false\n\n",
        hex(1)
    );
    let error = refused(text);
    assert_eq!((error.line, error.key.as_str()), (5, "remove"));
}

#[test]
fn longest_line() {
    // A number may have any number of leading zeros.
    let fits = format!("set=1\nlisten_port={}7\n\n", "0".repeat(MAX_LINE - 13));
    let exceeds = format!(
        "set=1\nlisten_port={}7\nnonsense\n\n",
        "0".repeat(MAX_LINE - 12)
    );
    for piece in [1, 6, MAX_LINE, exceeds.len()] {
        let read = |text: &str| {
            let mut reader = RequestReader::new();
            let mut results = Vec::new();
            for mut piece in text.as_bytes().chunks(piece) {
                results.extend(core::iter::from_fn(|| reader.push(&mut piece)));
            }
            assert_eq!(results.len(), 1);
            results.pop()
        };
        assert!(matches!(read(&fits), Some(Ok(Request::Set(set))) if set.listen_port == Some(7)));
        let error = read(&exceeds).and_then(Result::err).unwrap();
        assert_eq!(
            (error.line, error.problem),
            (2, RequestProblem::LineTooLong)
        );
        assert_eq!(error.status(), Operation::Set.failed(Errno::Protocol));
    }
}

#[test]
fn only_the_first_error_is_reported() {
    let error = refused(format!(
        "set=1\nfwmark=x\n{}\nremove=true\n\n",
        "a".repeat(MAX_LINE + 1)
    ));
    assert_eq!((error.line, error.problem), (2, RequestProblem::Fwmark));
}

#[test]
fn an_endless_line_is_not_stored() {
    let mut reader = RequestReader::new();
    for _ in 0..1000 {
        assert!(reader.push(&mut [b'a'; 1000].as_slice()).is_none());
    }
    let error = reader.push(&mut b"\n\n".as_slice()).unwrap().err().unwrap();
    assert_eq!(
        (error.line, error.problem),
        (1, RequestProblem::LineTooLong)
    );
    assert!(matches!(
        reader.push(&mut b"get=1\n\n".as_slice()),
        Some(Ok(Request::Get))
    ));
}

#[test]
fn unread_input_remains_for_the_next_call() {
    let mut reader = RequestReader::new();
    let mut input = b"get=1\n\nset=1\n".as_slice();
    assert!(matches!(reader.push(&mut input), Some(Ok(Request::Get))));
    assert_eq!(input, b"set=1\n");
    assert!(reader.push(&mut input).is_none());
    assert!(input.is_empty());
}

/// As many as WireGuard's own test of a large configuration has
/// (tools/testing/selftests/wireguard/netns.sh).
#[test]
fn many_allowed_ips() {
    let mut text = format!("set=1\npublic_key={}\n", hex(1));
    for (a, b, c) in
        (0..2).flat_map(|a| (0..255).flat_map(move |b| (0..256).map(move |c| (a, b, c))))
    {
        text += &format!("allowed_ip={a}.{b}.{c}.0/24\n");
    }
    text += "\n";
    let request = set(&text);
    assert_eq!(request.device.peers[0].allowed_ips.len(), 130_560);
    let mut again = String::new();
    write_set(&mut again, &request).unwrap();
    assert_eq!(again, text);
}

/// boringtun's stack overflowed at 24,000 peers.
#[test]
fn many_peers_have_their_own_values() {
    let mut text = "set=1\n".to_owned();
    for i in 0..100_000_u32 {
        let prefix = core::net::Ipv4Addr::from(i);
        text += &format!("public_key={i:064x}\npreshared_key={:064x}\n", !i);
        text += &format!("allowed_ip={prefix}/32\n");
    }
    text += "\n";
    let request = set(&text);
    assert_eq!(request.device.peers.len(), 100_000);
    let mut again = String::new();
    write_set(&mut again, &request).unwrap();
    assert!(again == text);
}

/// A valid or nearly valid line of a request.
fn line() -> impl Strategy<Value = String> {
    let key = prop::sample::select(vec![
        "private_key",
        "listen_port",
        "fwmark",
        "replace_peers",
        "public_key",
        "update_only",
        "remove",
        "preshared_key",
        "endpoint",
        "persistent_keepalive_interval",
        "replace_allowed_ips",
        "allowed_ip",
        "protocol_version",
        "get",
        "set",
        "nonsense",
    ]);
    let value = prop_oneof![
        Just("true".to_owned()),
        Just("1".to_owned()),
        "[0-9a-f]{64}",
        "[+-]?(0x)?[0-9]{1,11}",
        any::<core::net::SocketAddr>().prop_map(|address| address.to_string()),
        (
            prop::sample::select(vec!["", "+", "-"]),
            any::<core::net::IpAddr>(),
            0..130_u8
        )
            .prop_map(|(sign, address, length)| format!("{sign}{address}/{length}")),
        "\\PC{0,8}",
    ];
    prop_oneof![
        8 => (key, value).prop_map(|(key, value)| format!("{key}={value}")),
        2 => Just(String::new()),
        2 => Just("set=1".to_owned()),
        1 => Just("get=1".to_owned()),
        1 => "\\PC{0,8}\r?",
    ]
}

proptest! {
    #[test]
    fn invariants_on_lines(lines in prop::collection::vec(line(), 0..24)) {
        fuzzing::uapi(lines.join("\n").as_bytes());
    }

    #[test]
    fn invariants_on_bytes(bytes: Vec<u8>) {
        fuzzing::uapi(&bytes);
    }
}
