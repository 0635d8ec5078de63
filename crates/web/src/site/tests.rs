use super::*;
use crate::events::MAX_STREAMS;
use crate::facts::Facts;
use crate::sessions::Sessions;
use axum::body::{Body, HttpBody as _};
use axum::http::Request;
use std::future::poll_fn;
use std::pin::pin;
use std::time::{Duration, Instant};
use taupe_web_link::Token;
use tower_service::Service as _;

pub(super) fn secret() -> Secret {
    Secret::random().expect("randomness")
}

fn numbered(number: u32, secret: &Secret) -> Token {
    let secret = secret.clone();
    Token { number, secret }
}

/// Returns a site, its answers and its token.
fn site() -> (Arc<Site>, Router, String) {
    with_switches(false)
}

pub(super) fn with_switches(has_switches: bool) -> (Arc<Site>, Router, String) {
    let token = secret();
    let mut sessions = Sessions::default();
    sessions.offer(numbered(1, &token), Instant::now());
    let site =
        Site::new(Live::new(sessions, secret(), has_switches), &secret()).expect("randomness");
    let site = Arc::new(site);
    let answers = routes(Arc::clone(&site)).layer(Extension(Admission::default()));
    (site, answers, token.reveal())
}

/// Returns the answer to a request below the path of the site.
pub(super) async fn below(
    site: &Site,
    answers: &Router,
    method: &str,
    name: &str,
    headers: &[(&str, &str)],
) -> Response {
    ask(answers, method, &format!("{}{name}", site.path), headers).await
}

async fn ask(answers: &Router, method: &str, target: &str, headers: &[(&str, &str)]) -> Response {
    ask_with(answers, method, target, headers, String::new()).await
}

pub(super) async fn ask_with(
    answers: &Router,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    body: String,
) -> Response {
    let mut request = Request::builder().method(method).uri(target);
    if !headers.iter().any(|(name, _)| *name == "host") {
        request = request.header("host", "127.0.0.1:9587");
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::from(body)).expect("a request");
    answers.clone().call(request).await.expect("an answer")
}

pub(super) async fn text(response: Response) -> String {
    let body = axum::body::to_bytes(response.into_body(), 1 << 20).await;
    String::from_utf8(body.expect("a body").into()).expect("UTF-8")
}

pub(super) fn header<'a>(response: &'a Response, name: &str) -> &'a str {
    let value = response.headers().get(name);
    value
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
}

/// Exchanges the token for the header with the cookie.
pub(super) async fn admitted(site: &Site, answers: &Router, token: &str) -> String {
    let response = below(site, answers, "GET", &format!("?token={token}"), &[]).await;
    let cookie = header(&response, "set-cookie").split(';').next();
    cookie.unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_token_is_exchanged_once_for_a_cookie_and_leaves_the_address() {
    let (site, answers, token) = site();
    let target = format!("?token={token}");
    for (method, headers) in [
        ("HEAD", &[][..]),
        ("GET", &[("sec-purpose", "prefetch;prerender")]),
        ("GET", &[("purpose", "prefetch")]),
    ] {
        let loaded = below(&site, &answers, method, &target, headers).await;
        assert_eq!(loaded.status(), 403, "{method} {headers:?}");
    }
    // At another path there is no token.
    let elsewhere = ask(&answers, "GET", &format!("/{target}"), &[]).await;
    assert_eq!(elsewhere.status(), 403);
    let first = below(&site, &answers, "GET", &target, &[]).await;
    assert_eq!(
        (first.status().as_u16(), header(&first, "location")),
        (303, &*site.path)
    );
    // The user hears of it.
    assert_eq!(*site.live.admissions().borrow(), 1);
    let cookie = header(&first, "set-cookie").to_owned();
    let attributes: Vec<_> = cookie.split("; ").skip(1).collect();
    let path = format!("Path={}", site.path);
    assert_eq!(attributes, ["HttpOnly", "SameSite=Strict", &*path]);
    assert_eq!(site.path.len(), 34);
    assert!(!cookie.contains(&token));
    let cookie = cookie.split(';').next().unwrap_or_default();
    let again = below(&site, &answers, "GET", &target, &[]).await;
    assert_eq!(again.status(), 403);
    assert_eq!(header(&again, "set-cookie"), "");
    assert!(text(again).await.contains("has been used"));
    // The same address in the browser that is admitted leads to the page.
    let again = below(&site, &answers, "GET", &target, &[("cookie", cookie)]).await;
    assert_eq!(again.status(), 303);
    site.live.publish(&Facts::default());
    let page = below(&site, &answers, "GET", "", &[("cookie", cookie)]).await;
    assert_eq!(page.status(), 200);
    assert!(text(page).await.contains("Taupe has no tunnel up here"));
}

#[tokio::test]
async fn without_a_session_there_is_nothing() {
    let (site, answers, token) = site();
    let right = admitted(&site, &answers, &token).await;
    let (name, value) = right.split_once('=').expect("a cookie");
    let changed = format!("{name}={}", "0".repeat(32));
    let other_name = format!("taupe-web-9587={value}");
    let cut = right.get(..right.len() - 1).unwrap_or_default();
    for cookie in [
        "",
        &format!("{name}="),
        &changed,
        &other_name,
        cut,
        &format!("{name}={token}"),
    ] {
        for target in [
            "",
            "events",
            "script.js",
            "elsewhere",
            "?token=",
            "events?token=x",
        ] {
            for target in [format!("{}{target}", site.path), format!("/{target}")] {
                let response = ask(&answers, "GET", &target, &[("cookie", cookie)]).await;
                assert_eq!(response.status(), 403, "{cookie} {target}");
            }
        }
    }
    let several = [("cookie", &*format!("a=b; {right}; c=d"))];
    let script = below(&site, &answers, "GET", "script.js", &several).await;
    assert_eq!(script.status(), 200);
    for target in [&*format!("{}elsewhere", site.path), "/", "/events"] {
        let missing = ask(&answers, "GET", target, &[("cookie", &right)]).await;
        assert_eq!(missing.status(), 404, "{target}");
    }
}

#[tokio::test]
async fn requests_of_other_sites_and_methods_that_change_state_are_refused() {
    let (site, answers, token) = site();
    let cookie = admitted(&site, &answers, &token).await;
    for method in [
        "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW",
    ] {
        for target in ["", "events", "style.css", "elsewhere"] {
            let response = below(&site, &answers, method, target, &[("cookie", &cookie)]).await;
            assert_eq!(response.status(), 405, "{method} {target}");
            assert_eq!(header(&response, "allow"), "GET, HEAD");
        }
    }
    for (host, status) in [
        ("evil.example", 421),
        ("127.0.0.1.evil.example:9587", 421),
        ("", 421),
        ("localhost:9587", 200),
        ("[::1]:9587", 200),
    ] {
        let headers = [("cookie", &*cookie), ("host", host)];
        let response = below(&site, &answers, "GET", "script.js", &headers).await;
        assert_eq!(response.status(), status, "{host}");
    }
    let twice = [("host", "localhost"), ("host", "evil.example")];
    assert_eq!(
        below(&site, &answers, "GET", "style.css", &twice)
            .await
            .status(),
        400
    );
    for (origin, status) in [
        ("cross-site", 403),
        ("same-site", 403),
        ("same-origin", 200),
        ("none", 200),
    ] {
        let headers = [("cookie", &*cookie), ("sec-fetch-site", origin)];
        let response = below(&site, &answers, "GET", "script.js", &headers).await;
        assert_eq!(response.status(), status, "{origin}");
    }
}

#[tokio::test]
async fn all_answers_have_the_headers_of_a_page_that_loads_nothing_else() {
    let (site, answers, token) = site();
    let cookie = admitted(&site, &answers, &token).await;
    site.live.publish(&Facts::default());
    for (method, target, host) in [
        ("GET", "", "localhost"),
        ("GET", "?token=0", "localhost"),
        ("GET", "events", "localhost"),
        ("GET", "style.css", "localhost"),
        ("POST", "", "localhost"),
        ("GET", "", "evil.example"),
    ] {
        let response = below(
            &site,
            &answers,
            method,
            target,
            &[("cookie", &cookie), ("host", host)],
        )
        .await;
        let policy = header(&response, "content-security-policy");
        for part in [
            "default-src 'none'",
            "frame-ancestors 'none'",
            "form-action 'none'",
            "script-src 'self'",
        ] {
            assert!(
                policy.split("; ").any(|it| it == part),
                "{target}: {policy}"
            );
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cache-control", "no-store"),
            ("cross-origin-resource-policy", "same-origin"),
        ] {
            assert_eq!(header(&response, name), value, "{target}");
        }
        assert_eq!(header(&response, "access-control-allow-origin"), "");
    }
    // The policy forbids scripts and styles in the page.
    let page = page::full("", "0123", false).into_string();
    assert!(
        !page.contains("style=") && !page.contains("onclick"),
        "{page}"
    );
    assert_eq!(page.matches("<script").count(), 1);
    assert!(
        page.contains("<script src=\"script.js\" data-run=\"0123\" defer></script>"),
        "{page}"
    );
}

#[tokio::test(start_paused = true)]
async fn events_deliver_each_state_and_are_limited() {
    let (site, answers, token) = site();
    let cookie = admitted(&site, &answers, &token).await;
    let headers = [("cookie", &*cookie)];
    let mut streams = Vec::new();
    for _ in 0..MAX_STREAMS {
        let stream = below(&site, &answers, "GET", "events", &headers).await;
        assert_eq!(header(&stream, "content-type"), "text/event-stream");
        streams.push(stream);
    }
    assert_eq!(
        below(&site, &answers, "GET", "events", &headers)
            .await
            .status(),
        503
    );
    let mut body = pin!(streams.pop().expect("a stream").into_body());
    for _ in 0..2 {
        // The stream asks for the state.
        site.live.wanted().await;
        site.live.publish(&Facts::default());
        let frame = poll_fn(|context| body.as_mut().poll_frame(context)).await;
        let data = frame.expect("no end").expect("no error").into_data();
        let event = String::from_utf8(data.expect("data").into()).expect("UTF-8");
        let begin = format!("event: state\ndata: {}\ndata: <section", site.live.run());
        assert!(event.starts_with(&begin), "{event}");
        assert!(
            event.ends_with("\n\n") && event.matches('\n').count() == 4,
            "{event}"
        );
    }
    drop(streams);
    // Another token ends the session, and its stream before the next event.
    site.live
        .sessions()
        .offer(numbered(2, &secret()), Instant::now());
    site.live.wanted().await;
    site.live.publish(&Facts::default());
    let frame = poll_fn(|context| body.as_mut().poll_frame(context)).await;
    assert!(frame.is_none());
    let next = secret();
    site.live
        .sessions()
        .offer(numbered(3, &next), Instant::now());
    let cookie = admitted(&site, &answers, &next.reveal()).await;
    let headers = [("cookie", &*cookie)];
    let again = below(&site, &answers, "GET", "events", &headers).await;
    assert_eq!(again.status(), 200);
}

#[tokio::test(start_paused = true)]
async fn browsers_share_a_state_and_wait_for_a_newer_one() {
    let (site, answers, token) = site();
    let cookie = admitted(&site, &answers, &token).await;
    let headers = [("cookie", &*cookie)];
    // Nobody answers.
    let begun = tokio::time::Instant::now();
    let page = below(&site, &answers, "GET", "", &headers).await;
    assert_eq!(page.status(), 503);
    assert!(begun.elapsed() >= Duration::from_secs(1));
    site.live.wanted().await;
    site.live
        .publish_error(&crate::text::Text::of("the kernel <lacks> it"));
    for _ in 0..3 {
        let page = below(&site, &answers, "GET", "", &headers).await;
        assert!(text(page).await.contains("the kernel &lt;lacks&gt; it"));
    }
    // Three requests have asked for nothing.
    let wanted = tokio::time::timeout(Duration::from_secs(1), site.live.wanted()).await;
    assert!(wanted.is_err());
}
