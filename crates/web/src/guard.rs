//! Requests that are refused before anything else, and headers of all answers.

use crate::page::answer;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use std::sync::Arc;
use taupe_web_link::host::is_local;

/// Everything that a page may load is from this server. With switches, its forms may be sent here.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const POLICY_WITH_SWITCHES: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; \
    connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

const HEADERS: [(&str, &str); 6] = [
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    (
        "permissions-policy",
        "camera=(), geolocation=(), microphone=()",
    ),
    ("cache-control", "no-store"),
];

/// Forms of pages that change something.
#[derive(Clone)]
pub(crate) struct Switching {
    /// Path to which they are sent. `None` if pages have no such forms.
    pub(crate) path: Option<Arc<str>>,
}

/// Refuses requests to other names, with other methods and from pages of other sites.
pub(crate) async fn guard(
    State(switching): State<Switching>,
    request: Request,
    next: Next,
) -> Response {
    let is_path = switching.path.as_deref() == Some(request.uri().path());
    let is_switch = is_path && *request.method() == Method::POST;
    let refused = refusal(
        request.method(),
        is_switch,
        request.version(),
        request.headers(),
    );
    let mut response = match refused {
        Some(refusal) => refusal,
        None => next.run(request).await,
    };
    let (policy, referrer) = match switching.path.is_some() {
        false => (POLICY, "no-referrer"),
        // With `no-referrer`, browsers send forms with `Origin: null`.
        true => (POLICY_WITH_SWITCHES, "same-origin"),
    };
    let others = [
        ("content-security-policy", policy),
        ("referrer-policy", referrer),
    ];
    for (name, value) in HEADERS.into_iter().chain(others) {
        let headers = response.headers_mut();
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

fn refusal(
    method: &Method,
    is_switch: bool,
    version: Version,
    headers: &HeaderMap,
) -> Option<Response> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = hosts.next();
    // RFC 9112, section 3.2.
    if hosts.next().is_some() || (host.is_none() && version != Version::HTTP_10) {
        return Some(answer(
            StatusCode::BAD_REQUEST,
            "The request has no single Host.",
        ));
    }
    let is_here = |host: &HeaderValue| host.to_str().is_ok_and(is_local);
    if !host.is_none_or(is_here) {
        let text = "This server has no such name. Use its address.";
        return Some(answer(StatusCode::MISDIRECTED_REQUEST, text));
    }
    if !is_switch && ![Method::GET, Method::HEAD].contains(method) {
        let text = "This server answers GET and HEAD only.";
        let refused = answer(StatusCode::METHOD_NOT_ALLOWED, text);
        return Some(([(header::ALLOW, "GET, HEAD")], refused).into_response());
    }
    // Browsers send this header to loopback addresses, which are potentially trustworthy (Fetch Metadata).
    // Others, such as Safari before 16.4, are stopped by the cookie alone.
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    if matches!(site, Some(b"cross-site" | b"same-site")) {
        let text = "A page of another site has sent this request. Open the address itself.";
        return Some(answer(StatusCode::FORBIDDEN, text));
    }
    None
}
