use super::*;
use proptest::prelude::*;

fn parse(text: &str) -> Result<Option<(HttpRequest, usize)>, HttpError> {
    parse_request(text.as_bytes(), None)
}

fn target(text: &str) -> Target {
    Target::new(text, None).unwrap()
}

#[test]
fn connect() {
    let text = "CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\nrest";
    let expected = HttpRequest::Tunnel(target("example.org:443"));
    assert_eq!(parse(text), Ok(Some((expected, text.len() - 4))));
    for whole in 0..text.len() - 4 {
        assert_eq!(parse(&text[..whole]), Ok(None), "{whole}");
    }
    let v6 = "CONNECT [2001:db8::1]:443 HTTP/1.0\r\n\r\n";
    let expected = HttpRequest::Tunnel(target("[2001:db8::1]:443"));
    assert_eq!(parse(v6), Ok(Some((expected, v6.len()))));
}

#[test]
fn a_proxied_request_is_rewritten_for_its_server() {
    let text = "POST HTTP://Example.org:8080/a?b HTTP/1.1\r\nHost: other\r\nAccept: */*\r\n\
                Proxy-Connection: keep-alive\r\nConnection: close, X-Mine\r\nx-mine: 1\r\n\
                Proxy-Authorization: Basic eDp5\r\nContent-Length: 3\r\n\r\nabc";
    let head = "POST /a?b HTTP/1.1\r\nHost: Example.org:8080\r\nAccept: */*\r\n\
                Content-Length: 3\r\nConnection: close\r\n\r\n";
    let expected = HttpRequest::Forward {
        target: target("example.org:8080"),
        head: head.into(),
        body: 3,
    };
    assert_eq!(parse(text), Ok(Some((expected, text.len() - 3))));
    for (line, path) in [
        ("GET http://a", "GET / HTTP"),
        ("GET http://a?b", "GET /?b HTTP"),
        ("OPTIONS http://a", "OPTIONS * HTTP"),
        ("GET http://a/http://b/", "GET /http://b/ HTTP"),
    ] {
        let Ok(Some((HttpRequest::Forward { target, head, .. }, _))) =
            parse(&format!("{line} HTTP/1.1\r\nHost: a\r\n\r\n"))
        else {
            panic!("{line}");
        };
        assert_eq!(target.to_string(), "a:80");
        assert!(head.starts_with(path.as_bytes()), "{line}");
    }
}

#[test]
fn every_http_refusal_has_its_response() {
    let many = format!(
        "GET http://a/ HTTP/1.1\r\nHost: a\r\n{}\r\n",
        "A: b\r\n".repeat(128)
    );
    let long = format!(
        "GET http://a/ HTTP/1.1\r\nHost: a\r\nA: {}\r\n\r\n",
        "b".repeat(MAX_HEAD_LEN)
    );
    for (text, code) in [
        ("\x16\x03\x01\x02\x00\x01\x00", 400),
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET https://a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET http:/// HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET http://user@a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET http://a/#b HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET http://a/ HTTP/1.1\r\n\r\n", 400),
        ("GET http://a/ HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        ("GET http://a/ HTTP/1.1\nHost: a\n\n", 400),
        ("GET http://a/ HTTP/1.1\r\nHost: a\r\nA: b\n\r\n", 400),
        (
            "GET http://a/ HTTP/1.1\r\nHost: a\r\nA: b\r\n c\r\n\r\n",
            400,
        ),
        ("GET http://a/ HTTP/1.1\r\nHost: a\r\nA : b\r\n\r\n", 400),
        ("CONNECT a HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (
            "CONNECT a:443 HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n",
            400,
        ),
        (
            "POST http://a/ HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\n",
            400,
        ),
        (
            "POST http://a/ HTTP/1.1\r\nHost: a\r\nContent-Length: \r\n\r\n",
            400,
        ),
        (
            "POST http://a/ HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
            400,
        ),
        (
            "POST http://a/ HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\
             Connection: Content-Length\r\n\r\n",
            400,
        ),
        (
            "POST http://a/ HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\
             Transfer-Encoding: chunked\r\n\r\n",
            400,
        ),
        (
            "POST http://a/ HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
            411,
        ),
        (&many, 431),
        (&long, 431),
        ("GET http://a/ HTTP/2.0\r\nHost: a\r\n\r\n", 505),
    ] {
        let error = parse(text).unwrap_err();
        let response = String::from_utf8(error_response(error)).unwrap();
        let start = format!("HTTP/1.1 {code} ");
        assert!(response.starts_with(&start), "{text:?}: {response:?}");
        assert!(
            response.contains("\r\nConnection: close\r\n"),
            "{response:?}"
        );
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        let length = format!("\r\nContent-Length: {}\r\n", body.len());
        assert!(head.contains(&length), "{response:?}");
    }
    let endless = "G".repeat(MAX_HEAD_LEN);
    assert_eq!(parse(&endless), Err(HttpError::HeadTooLarge));
    assert_eq!(parse(&endless[1..]), Ok(None));
}

#[test]
fn every_failure_has_its_status() {
    use ConnectFailure::*;
    for (failure, code) in [
        (Network, "502"),
        (NoSuchName, "502"),
        (NoAddress, "502"),
        (NoNameServers, "502"),
        (Host, "502"),
        (Refused, "502"),
        (HopLimit, "502"),
        (Busy, "503"),
        (NameServers, "504"),
        (Silence, "504"),
        (Tunnel, "504"),
    ] {
        let response = error_response(HttpError::ConnectFailed(failure));
        assert_eq!(&response[9..12], code.as_bytes(), "{failure:?}");
    }
}

#[test]
fn http_clients_need_valid_credentials() {
    let file = std::env::temp_dir().join(format!("taupe-proxy-auth-{}", std::process::id()));
    std::fs::write(&file, "alice:se:cret\n").unwrap();
    let credentials = Credentials::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let ask = |lines: &str| {
        let text = format!("CONNECT a:1 HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
        parse_request(text.as_bytes(), Some(&credentials))
    };
    let good = format!(
        "Proxy-Authorization: basic {}\r\n",
        Base64::encode_string(b"alice:se:cret")
    );
    assert!(matches!(ask(&good), Ok(Some(_))));
    for bad in [
        "",
        "Proxy-Authorization: Basic YWxpY2U6eA==\r\n",
        "Proxy-Authorization: Basic !\r\n",
        "Proxy-Authorization: Bearer YWxpY2U6c2U6Y3JldA==\r\n",
        "Proxy-Authorization: Basic\r\n",
        "Authorization: Basic YWxpY2U6c2U6Y3JldA==\r\n",
        &format!("{good}{good}"),
    ] {
        assert_eq!(ask(bad), Err(HttpError::AuthRequired), "{bad:?}");
    }
    let response = String::from_utf8(error_response(HttpError::AuthRequired)).unwrap();
    assert!(response.starts_with("HTTP/1.1 407 "));
    assert!(response.contains("\r\nProxy-Authenticate: Basic realm="));
}

proptest! {
    #[test]
    fn no_input_panics(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        crate::fuzzing::http(&bytes);
    }

    #[test]
    fn damaged_http_requests_do_not_panic(
        (start, middle, end) in (
            prop::sample::select(vec!["GET http://", "CONNECT ", "POST http://a/"]),
            "[ -~\r\n]{0,80}",
            prop::sample::select(vec![" HTTP/1.1\r\nHost: a\r\n\r\n", "\r\n\r\n", ""]),
        )
    ) {
        crate::fuzzing::http(format!("{start}{middle}{end}").as_bytes());
    }
}
