use super::*;
use proptest::prelude::*;

fn target(text: &str) -> Target {
    Target::new(text, None).unwrap()
}

#[test]
fn greetings() {
    let none = |bytes: &[u8]| parse_greeting(bytes, Method::None);
    assert_eq!(none(&[5, 1, 0]), Ok(Some((Method::None, 3))));
    assert_eq!(none(&[5, 3, 1, 2, 0, 9]), Ok(Some((Method::None, 5))));
    for length in 0..3 {
        assert_eq!(none(&[5, 1, 0][..length]), Ok(None), "{length}");
    }
    assert_eq!(none(&[5, 1, 2]), Err(SocksError::NoAcceptableMethod));
    assert_eq!(none(&[5, 0]), Err(SocksError::NoAcceptableMethod));
    // SOCKS 4, HTTP and TLS.
    for first in [4, b'G', 0x16] {
        assert_eq!(none(&[first]), Err(SocksError::NotSocks));
    }
    let password = |bytes: &[u8]| parse_greeting(bytes, Method::Password);
    assert_eq!(password(&[5, 2, 0, 2]), Ok(Some((Method::Password, 4))));
    assert_eq!(password(&[5, 1, 0]), Err(SocksError::NoAcceptableMethod));
}

#[test]
fn logins() {
    assert_eq!(
        parse_login(b"\x01\x01a\x02bcX"),
        Ok(Some(((&b"a"[..], &b"bc"[..]), 6)))
    );
    for length in 0..6 {
        assert_eq!(
            parse_login(&b"\x01\x01a\x02bc"[..length]),
            Ok(None),
            "{length}"
        );
    }
    assert_eq!(parse_login(&[5]), Err(SocksError::AuthFailed));
    let mut longest = vec![1, 255];
    longest.resize(257, b'x');
    longest.push(255);
    longest.resize(MAX_MESSAGE_LEN, b'x');
    assert!(matches!(
        parse_login(&longest),
        Ok(Some((_, MAX_MESSAGE_LEN)))
    ));
}

#[test]
fn requests() {
    let v4 = [5, 1, 0, 1, 192, 0, 2, 1, 0, 80];
    let expected = SocksRequest::Connect(target("192.0.2.1:80"));
    assert_eq!(parse_request(&v4), Ok(Some((expected, 10))));
    for length in 0..v4.len() {
        assert_eq!(parse_request(&v4[..length]), Ok(None), "{length}");
    }
    let mut v6 = vec![5, 1, 0, 4];
    v6.extend("2001:db8::1".parse::<Ipv6Addr>().unwrap().octets());
    v6.extend([1, 187, 0xff]);
    let expected = SocksRequest::Connect(target("[2001:db8::1]:443"));
    assert_eq!(parse_request(&v6), Ok(Some((expected, 22))));
    let name = b"\x05\x01\x00\x03\x0bexample.org\x01\xbb";
    let expected = SocksRequest::Connect(target("example.org:443"));
    assert_eq!(parse_request(name), Ok(Some((expected, name.len()))));
    let literal = b"\x05\x01\x00\x03\x09192.0.2.1\x00\x50";
    let expected = SocksRequest::Connect(target("192.0.2.1:80"));
    assert_eq!(parse_request(literal), Ok(Some((expected, literal.len()))));

    let associate = [5, 3, 0, 1, 0, 0, 0, 0, 0, 0];
    let expected = SocksRequest::Associate(None, None);
    assert_eq!(parse_request(&associate), Ok(Some((expected, 10))));
    let associate = [5, 3, 0, 1, 127, 0, 0, 1, 4, 0];
    let expected = SocksRequest::Associate(Some(Ipv4Addr::LOCALHOST.into()), Some(1024));
    assert_eq!(parse_request(&associate), Ok(Some((expected, 10))));
}

#[test]
fn every_invalid_socks_request_has_its_error() {
    for (bytes, expected) in [
        (&b"\x04\x01\x00"[..], Reply::GeneralFailure),
        (
            b"\x05\x02\x00\x01\x01\x02\x03\x04\x00\x50",
            Reply::CommandNotSupported,
        ),
        (
            b"\x05\x00\x00\x01\x01\x02\x03\x04\x00\x50",
            Reply::CommandNotSupported,
        ),
        (b"\x05\x01\x00\x02", Reply::AddressTypeNotSupported),
        (
            b"\x05\x01\x00\x03\x00\x00\x50",
            Reply::AddressTypeNotSupported,
        ),
        (
            b"\x05\x01\x00\x03\x03a b\x00\x50",
            Reply::AddressTypeNotSupported,
        ),
        (
            b"\x05\x01\x00\x03\x02\xff\xfe\x00\x50",
            Reply::AddressTypeNotSupported,
        ),
        (
            b"\x05\x03\x00\x03\x01a\x00\x50",
            Reply::AddressTypeNotSupported,
        ),
        (
            b"\x05\x01\x00\x01\x01\x02\x03\x04\x00\x00",
            Reply::ConnectionRefused,
        ),
    ] {
        assert_eq!(
            parse_request(bytes),
            Err(SocksError::Reply(expected)),
            "{bytes:?}"
        );
    }
}

#[test]
fn every_failure_has_its_reply() {
    use ConnectFailure::*;
    for (failure, code) in [
        (Busy, 1),
        (Network, 3),
        (Tunnel, 3),
        (NoSuchName, 4),
        (NoAddress, 4),
        (NameServers, 4),
        (NoNameServers, 4),
        (Host, 4),
        (Silence, 4),
        (Refused, 5),
        (HopLimit, 6),
    ] {
        assert_eq!(
            request_reply(failure.into(), None)[..2],
            [5, code],
            "{failure:?}"
        );
    }
}

#[test]
fn answers() {
    assert_eq!(method_reply(Some(Method::None)), [5, 0]);
    assert_eq!(method_reply(Some(Method::Password)), [5, 2]);
    assert_eq!(method_reply(None), [5, 0xff]);
    assert_eq!((auth_reply(true), auth_reply(false)), ([1, 0], [1, 1]));
    let bound = "192.0.2.1:258".parse().unwrap();
    let expected = [5, 0, 0, 1, 192, 0, 2, 1, 1, 2];
    assert_eq!(request_reply(Reply::Succeeded, Some(bound)), expected);
    assert_eq!(
        request_reply(Reply::TtlExpired, None),
        [5, 6, 0, 1, 0, 0, 0, 0, 0, 0]
    );
}

#[test]
fn datagrams() {
    let complete = b"\x00\x00\x00\x01\xc0\x00\x02\x01\x00\x35hello";
    let expected = (target("192.0.2.1:53"), &b"hello"[..]);
    assert_eq!(parse_datagram(complete), Some(expected));
    let named = b"\x00\x00\x00\x03\x01a\x00\x35";
    assert_eq!(parse_datagram(named), Some((target("a:53"), &b""[..])));
    for bad in [
        &b"\x00\x00\x01\x01\xc0\x00\x02\x01\x00\x35hello"[..],
        b"\x00\x00\x80\x01\xc0\x00\x02\x01\x00\x35hello",
        b"\x00\x00\x00\x01\xc0\x00\x02\x01\x00\x00hello",
        b"\x00\x00\x00\x01\xc0\x00\x02\x01\x00",
        b"\x00\x00\x00\x05\xc0\x00\x02\x01\x00\x35",
        b"\x00\x00\x00",
        b"",
    ] {
        assert_eq!(parse_datagram(bad), None, "{bad:?}");
    }
    let mut message = Vec::new();
    write_datagram("192.0.2.1:53".parse().unwrap(), b"hello", &mut message);
    assert_eq!(message, complete);
    write_datagram("[2001:db8::1]:53".parse().unwrap(), b"", &mut message);
    let expected = (target("[2001:db8::1]:53"), &b""[..]);
    assert_eq!(parse_datagram(&message), Some(expected));
}

proptest! {
    #[test]
    fn no_input_panics_and_no_message_is_longer_than_what_came(
        bytes in prop::collection::vec(any::<u8>(), 0..600)
    ) {
        crate::fuzzing::socks(&bytes);
    }
}
