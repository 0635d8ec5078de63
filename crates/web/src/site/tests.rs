use super::*;
use crate::events::MAX_STREAMS;
use crate::facts::Facts;
use crate::sessions::Sessions;
use axum::body::{Body, HttpBody as _};
use axum::http::Request;
use std::future::poll_fn;
use std::pin::pin;
use std::time::Duration;
use tower_service::Service as _;

/// Returns a site, its answers and its token.
fn site() -> (Arc<Site>, Router, String) {
    let token = Secret::random().expect("randomness");
    let mut sessions = Sessions::default();
    sessions.offer(token.clone(), Instant::now());
    let site = Arc::new(Site::new(Live::new(sessions), Some(9587)));
    let answers = routes(Arc::clone(&site)).layer(Extension(IsStream::default()));
    (site, answers, token.reveal())
}

async fn ask(answers: &Router, method: &str, target: &str, headers: &[(&str, &str)]) -> Response {
    let mut request = Request::builder().method(method).uri(target);
    if !headers.iter().any(|(name, _)| *name == "host") {
        request = request.header("host", "127.0.0.1:9587");
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::empty()).expect("a request");
    answers.clone().call(request).await.expect("an answer")
}

async fn text(response: Response) -> String {
    let body = axum::body::to_bytes(response.into_body(), 1 << 20).await;
    String::from_utf8(body.expect("a body").into()).expect("UTF-8")
}

fn header<'a>(response: &'a Response, name: &str) -> &'a str {
    let value = response.headers().get(name);
    value
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
}

/// Exchanges the token for the header with the cookie.
async fn admitted(answers: &Router, token: &str) -> String {
    let response = ask(answers, "GET", &format!("/?token={token}"), &[]).await;
    let cookie = header(&response, "set-cookie").split(';').next();
    cookie.unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_token_is_exchanged_once_for_a_cookie_and_leaves_the_address() {
    let (site, answers, token) = site();
    let target = format!("/?token={token}");
    // Previews of links do not use it up.
    let preview = ask(&answers, "HEAD", &target, &[]).await;
    assert_eq!(preview.status(), 403);
    let first = ask(&answers, "GET", &target, &[]).await;
    assert_eq!(
        (first.status().as_u16(), header(&first, "location")),
        (303, "/")
    );
    let cookie = header(&first, "set-cookie").to_owned();
    let attributes: Vec<_> = cookie.split("; ").skip(1).collect();
    assert_eq!(attributes, ["HttpOnly", "SameSite=Strict", "Path=/"]);
    assert!(!cookie.contains(&token));
    let cookie = cookie.split(';').next().unwrap_or_default();
    assert_eq!(cookie.len(), "taupe-web-9587=".len() + 64);
    let again = ask(&answers, "GET", &target, &[]).await;
    assert_eq!(again.status(), 403);
    assert_eq!(header(&again, "set-cookie"), "");
    assert!(text(again).await.contains("has been used"));
    // The same address in the browser that is admitted leads to the page.
    let again = ask(&answers, "GET", &target, &[("cookie", cookie)]).await;
    assert_eq!(again.status(), 303);
    site.live.publish(&Facts::default());
    let page = ask(&answers, "GET", "/", &[("cookie", cookie)]).await;
    assert_eq!(page.status(), 200);
    assert!(text(page).await.contains("No tunnel is up"));
}

#[tokio::test]
async fn without_a_session_there_is_nothing() {
    let (_, answers, token) = site();
    let right = admitted(&answers, &token).await;
    let name = "taupe-web-9587=";
    let changed = format!("{name}{}", "0".repeat(64));
    let other_name = right.replace("9587", "9588");
    let cut = right.get(..right.len() - 1).unwrap_or_default();
    for cookie in [
        "",
        name,
        &changed,
        &other_name,
        cut,
        &format!("{name}{token}"),
    ] {
        for target in [
            "/",
            "/events",
            "/script.js",
            "/elsewhere",
            "/?token=",
            "/events?token=x",
        ] {
            let response = ask(&answers, "GET", target, &[("cookie", cookie)]).await;
            assert_eq!(response.status(), 403, "{cookie} {target}");
        }
    }
    let several = format!("a=b; {right}; c=d");
    let script = ask(&answers, "GET", "/script.js", &[("cookie", &several)]).await;
    assert_eq!(script.status(), 200);
    let missing = ask(&answers, "GET", "/elsewhere", &[("cookie", &right)]).await;
    assert_eq!(missing.status(), 404);
}

#[tokio::test]
async fn requests_of_other_sites_and_methods_that_change_state_are_refused() {
    let (_, answers, token) = site();
    let cookie = admitted(&answers, &token).await;
    for method in [
        "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW",
    ] {
        for target in ["/", "/events", "/style.css", "/elsewhere"] {
            let response = ask(&answers, method, target, &[("cookie", &cookie)]).await;
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
        let response = ask(&answers, "GET", "/script.js", &headers).await;
        assert_eq!(response.status(), status, "{host}");
    }
    let twice = [("host", "localhost"), ("host", "evil.example")];
    assert_eq!(
        ask(&answers, "GET", "/style.css", &twice).await.status(),
        400
    );
    for (site, status) in [
        ("cross-site", 403),
        ("same-site", 403),
        ("same-origin", 200),
        ("none", 200),
    ] {
        let headers = [("cookie", &*cookie), ("sec-fetch-site", site)];
        let response = ask(&answers, "GET", "/script.js", &headers).await;
        assert_eq!(response.status(), status, "{site}");
    }
}

#[tokio::test]
async fn all_answers_have_the_headers_of_a_page_that_loads_nothing_else() {
    let (site, answers, token) = site();
    let cookie = admitted(&answers, &token).await;
    site.live.publish(&Facts::default());
    for (method, target, host) in [
        ("GET", "/", "localhost"),
        ("GET", "/?token=0", "localhost"),
        ("GET", "/events", "localhost"),
        ("GET", "/style.css", "localhost"),
        ("POST", "/", "localhost"),
        ("GET", "/", "evil.example"),
    ] {
        let response = ask(
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
    let page = page::whole("").into_string();
    assert!(
        !page.contains("style=") && !page.contains("onclick"),
        "{page}"
    );
    assert_eq!(page.matches("<script").count(), 1);
    assert!(
        page.contains("<script src=\"/script.js\" defer></script>"),
        "{page}"
    );
}

#[tokio::test(start_paused = true)]
async fn events_deliver_each_state_and_are_limited() {
    let (site, answers, token) = site();
    let cookie = admitted(&answers, &token).await;
    let headers = [("cookie", &*cookie)];
    let mut streams = Vec::new();
    for _ in 0..MAX_STREAMS {
        let stream = ask(&answers, "GET", "/events", &headers).await;
        assert_eq!(header(&stream, "content-type"), "text/event-stream");
        streams.push(stream);
    }
    assert_eq!(
        ask(&answers, "GET", "/events", &headers).await.status(),
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
        assert!(event.starts_with("event: state\ndata: <section"), "{event}");
        assert!(
            event.ends_with("\n\n") && event.matches('\n').count() == 3,
            "{event}"
        );
    }
    drop(streams);
    let again = ask(&answers, "GET", "/events", &headers).await;
    assert_eq!(again.status(), 200);
}

#[tokio::test(start_paused = true)]
async fn browsers_share_a_state_and_wait_for_a_newer_one() {
    let (site, answers, token) = site();
    let cookie = admitted(&answers, &token).await;
    let headers = [("cookie", &*cookie)];
    // Nobody answers.
    let begun = tokio::time::Instant::now();
    let page = ask(&answers, "GET", "/", &headers).await;
    assert_eq!(page.status(), 503);
    assert!(begun.elapsed() >= Duration::from_secs(1));
    site.live.wanted().await;
    site.live
        .publish_error(&crate::text::Text::of("the kernel <lacks> it"));
    for _ in 0..3 {
        let page = ask(&answers, "GET", "/", &headers).await;
        assert!(text(page).await.contains("the kernel &lt;lacks&gt; it"));
    }
    // Three requests have asked for nothing.
    let wanted = tokio::time::timeout(Duration::from_secs(1), site.live.wanted()).await;
    assert!(wanted.is_err());
}
