//! Answers to requests.

use crate::answer::message;
use crate::connections::IsStream;
use crate::events::{self, Events};
use crate::guard::guard;
use crate::live::Live;
use crate::page;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{Html, IntoResponse as _, Response};
use axum::routing::get;
use axum::{Extension, Router, middleware};
use std::sync::Arc;
use std::time::Instant;
use taupe_web_link::Secret;
use tokio::sync::Semaphore;

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");
const ICON: &str = include_str!("icon.svg");

/// Parts that all answers share.
pub(crate) struct Site {
    pub(crate) live: Arc<Live>,
    streams: Arc<Semaphore>,
    /// Name of the cookie. Cookies of one address are shared by all its ports, so it contains the port.
    cookie: String,
}

impl Site {
    pub(crate) fn new(live: Live, port: Option<u16>) -> Self {
        Self {
            live: Arc::new(live),
            streams: events::places(),
            cookie: format!("taupe-web-{}", port.unwrap_or_default()),
        }
    }

    /// Returns true if a request has the cookie of a session.
    fn admits(&self, headers: &HeaderMap) -> bool {
        let lines = headers.get_all(header::COOKIE).into_iter();
        let lines = lines.filter_map(|line| line.to_str().ok());
        let pairs = lines.flat_map(|line| line.split(';'));
        let mut values = pairs.filter_map(|pair| {
            let (name, value) = pair.trim().split_once('=')?;
            (name == self.cookie).then_some(value)
        });
        let sessions = self.live.sessions();
        values.any(|value| sessions.admits(value))
    }

    /// Returns the answer that gives a browser the cookie, and takes the token from its address.
    fn admitted(&self, session: &Secret) -> Response {
        let session = session.reveal();
        let cookie = format!(
            "{}={session}; HttpOnly; SameSite=Strict; Path=/",
            self.cookie
        );
        let headers = [
            (header::SET_COOKIE, cookie),
            (header::LOCATION, "/".to_owned()),
        ];
        (StatusCode::SEE_OTHER, headers).into_response()
    }
}

/// Returns the answers by paths.
pub(crate) fn routes(site: Arc<Site>) -> Router {
    let file = |media_type: &'static str, text: &'static str| {
        get(async move || ([(header::CONTENT_TYPE, media_type)], text))
    };
    Router::new()
        .route("/", get(show_page))
        .route("/events", get(stream))
        .route("/script.js", file("text/javascript; charset=utf-8", SCRIPT))
        .fallback(async || message(StatusCode::NOT_FOUND, "There is no such page."))
        .layer(middleware::from_fn_with_state(
            Arc::clone(&site),
            require_session,
        ))
        // The page without a session has these two.
        .route("/style.css", file("text/css; charset=utf-8", STYLE))
        .route("/icon.svg", file("image/svg+xml", ICON))
        .layer(middleware::from_fn(guard))
        .with_state(site)
}

async fn require_session(
    State(site): State<Arc<Site>>,
    request: axum::extract::Request,
    next: middleware::Next,
) -> Response {
    let token = token(request.uri());
    if site.admits(request.headers()) {
        return match token {
            Some(_) => (StatusCode::SEE_OTHER, [(header::LOCATION, "/")]).into_response(),
            None => next.run(request).await,
        };
    }
    let Some(token) = token else {
        return message(StatusCode::FORBIDDEN, page::NO_SESSION);
    };
    // Previews of links send HEAD.
    if *request.method() != Method::GET {
        return message(StatusCode::FORBIDDEN, page::NO_SESSION);
    }
    let session = site.live.sessions().exchange(token, Instant::now());
    match session {
        Some(session) => site.admitted(&session),
        None => message(StatusCode::FORBIDDEN, page::NO_TOKEN),
    }
}

/// Returns the token in an address.
fn token(uri: &Uri) -> Option<&str> {
    let query = uri.query().filter(|_| uri.path() == "/")?;
    query
        .split('&')
        .find_map(|pair| pair.strip_prefix("token="))
}

async fn show_page(State(site): State<Arc<Site>>) -> Response {
    match site.live.fresh().await {
        Some(view) => Html(page::whole(&view.content).into_string()).into_response(),
        None => {
            let text = "`taupe web` does not answer. Its output may say why.";
            message(StatusCode::SERVICE_UNAVAILABLE, text)
        }
    }
}

async fn stream(
    State(site): State<Arc<Site>>,
    Extension(is_stream): Extension<IsStream>,
    method: Method,
) -> Response {
    let kind = HeaderValue::from_static("text/event-stream");
    let kind = [(header::CONTENT_TYPE, kind)];
    if method == Method::HEAD {
        return (kind, "").into_response();
    }
    let Some(events) = Events::begin(&site.live, &site.streams) else {
        let text = "Too many windows show this page. Close one.";
        return message(StatusCode::SERVICE_UNAVAILABLE, text);
    };
    is_stream.set();
    (kind, Body::new(events)).into_response()
}

#[cfg(test)]
mod tests;
