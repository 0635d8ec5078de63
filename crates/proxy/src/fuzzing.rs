//! Entry points for fuzzers. Each checks invariants of a parser.

use crate::{http, socks};

/// Parses bytes as every message of a SOCKS client.
pub fn socks(bytes: &[u8]) {
    let within = |length: usize| assert!(length <= bytes.len() && length <= socks::MAX_MESSAGE_LEN);
    for method in [socks::Method::None, socks::Method::Password] {
        if let Ok(Some((_, length))) = socks::parse_greeting(bytes, method) {
            within(length);
        }
    }
    if let Ok(Some(((name, password), length))) = socks::parse_login(bytes) {
        within(length);
        assert_eq!(length, 3 + name.len() + password.len());
    }
    match socks::parse_request(bytes) {
        Ok(Some((_, length))) => {
            within(length);
            // The same bytes cut to the message's length parse equally; one byte less is
            // incomplete.
            assert!(
                matches!(socks::parse_request(&bytes[..length]), Ok(Some((_, same))) if same == length)
            );
            assert!(matches!(
                socks::parse_request(&bytes[..length - 1]),
                Ok(None)
            ));
        }
        // An incomplete message must still fit within the longest length.
        Ok(None) => assert!(bytes.len() < socks::MAX_MESSAGE_LEN),
        Err(_) => {}
    }
    if let Some((_, payload)) = socks::parse_datagram(bytes) {
        assert!(bytes.ends_with(payload));
    }
}

/// Parses bytes as an HTTP request. A forwarded head must itself be a request with exactly one
/// `Host` and `Connection: close`.
pub fn http(bytes: &[u8]) {
    match http::parse_request(bytes, None) {
        Ok(Some((request, length))) => {
            assert!(length <= bytes.len() && length <= http::MAX_HEAD_LEN);
            if let http::HttpRequest::Forward { head, .. } = request {
                let mut headers = [httparse::EMPTY_HEADER; 256];
                let mut request = httparse::Request::new(&mut headers);
                let parsed = request.parse(&head);
                assert_eq!(parsed, Ok(httparse::Status::Complete(head.len())));
                let named = |name: &str| {
                    let headers = request.headers.iter();
                    headers
                        .filter(|header| header.name.eq_ignore_ascii_case(name))
                        .count()
                };
                assert_eq!((named("host"), named("connection")), (1, 1));
                assert!(named("content-length") <= 1 && named("transfer-encoding") == 0);
            }
        }
        Ok(None) => assert!(bytes.len() < http::MAX_HEAD_LEN),
        Err(error) => assert!(http::error_response(error).starts_with(b"HTTP/1.1 ")),
    }
}
