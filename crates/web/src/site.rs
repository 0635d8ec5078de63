//! Answers to requests.

use crate::connections::Admission;
use crate::events::{self, Events};
use crate::form::{self, Form, is_own_page};
use crate::guard::{Switching, guard};
use crate::live::Live;
use crate::page::{self, answer};
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{Html, IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Extension, Router, middleware};
use std::io;
use std::sync::Arc;
use taupe_web_link::Secret;
use tokio::sync::Semaphore;

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");
/// Name of the path to which forms are sent.
const SWITCH: &str = "switch";

const ICON: &str = include_str!("icon.svg");

/// Parts that all answers share.
pub(crate) struct Site {
    pub(crate) live: Arc<Live>,
    streams: Arc<Semaphore>,
    /// Path of the page. Browsers send the cookie to all ports of an address, but only with paths below
    /// this one, which programs at other ports do not know.
    path: String,
    /// Name of the cookie. Several servers may have the same address.
    cookie: String,
}

impl Site {
    pub(crate) fn new(live: Live, path: &Secret) -> io::Result<Self> {
        Ok(Self {
            live: Arc::new(live),
            streams: events::places(),
            path: format!("/{}/", path.reveal()),
            cookie: format!("taupe-web-{}", Secret::random()?.reveal()),
        })
    }

    /// Returns the session whose cookie a request has.
    fn session(&self, headers: &HeaderMap) -> Option<Secret> {
        let lines = headers.get_all(header::COOKIE).into_iter();
        let lines = lines.filter_map(|line| line.to_str().ok());
        let pairs = lines.flat_map(|line| line.split(';'));
        let mut values = pairs.filter_map(|pair| {
            let (name, value) = pair.trim().split_once('=')?;
            Secret::parse(value).filter(|_| name == self.cookie)
        });
        let sessions = self.live.sessions();
        values.find(|value| sessions.admits(value))
    }

    /// Returns the token in an address.
    fn token<'a>(&self, uri: &'a Uri) -> Option<&'a str> {
        let query = uri.query().filter(|_| uri.path() == self.path)?;
        query
            .split('&')
            .find_map(|pair| pair.strip_prefix("token="))
    }

    /// Returns the answer that gives a browser the cookie, and takes the token from its address.
    fn admitted(&self, session: &Secret) -> Response {
        let cookie = format!(
            "{}={}; HttpOnly; SameSite=Strict; Path={}",
            self.cookie,
            session.reveal(),
            self.path
        );
        ([(header::SET_COOKIE, cookie)], self.to_page()).into_response()
    }

    fn to_page(&self) -> Response {
        (StatusCode::SEE_OTHER, [(header::LOCATION, &*self.path)]).into_response()
    }
}

/// Returns the answers by paths.
pub(crate) fn routes(site: Arc<Site>) -> Router {
    let file = |media_type: &'static str, text: &'static str| {
        get(async move || ([(header::CONTENT_TYPE, media_type)], text))
    };
    let below = |name: &str| format!("{}{name}", site.path);
    let style = file("text/css; charset=utf-8", STYLE);
    let icon = file("image/svg+xml", ICON);
    let script = file("text/javascript; charset=utf-8", SCRIPT);
    let switching = Switching {
        path: site.live.has_switches().then(|| below(SWITCH).into()),
    };
    let mut pages = Router::new();
    if site.live.has_switches() {
        let limit = DefaultBodyLimit::max(form::MAX_FORM);
        pages = pages.route(&below(SWITCH), post(switch).layer(limit));
    }
    pages
        .route(&site.path, get(show_page))
        .route(&below("events"), get(stream))
        .route(&below("script.js"), script)
        .fallback(async || answer(StatusCode::NOT_FOUND, "There is no such page."))
        .layer(middleware::from_fn_with_state(
            Arc::clone(&site),
            require_session,
        ))
        // Pages without a session have these.
        .route(&below("style.css"), style.clone())
        .route(&below("icon.svg"), icon.clone())
        .route("/style.css", style)
        .route("/icon.svg", icon)
        .layer(middleware::from_fn_with_state(switching, guard))
        .with_state(site)
}

async fn require_session(
    State(site): State<Arc<Site>>,
    Extension(admission): Extension<Admission>,
    mut request: Request,
    next: Next,
) -> Response {
    let token = site.token(request.uri());
    if let Some(session) = site.session(request.headers()) {
        admission.set();
        if token.is_some() {
            return site.to_page();
        }
        request.extensions_mut().insert(session);
        return next.run(request).await;
    }
    let Some(token) = token.filter(|_| is_navigation(&request)) else {
        return answer(StatusCode::FORBIDDEN, page::NO_SESSION);
    };
    match site.live.admit(token) {
        Some(session) => site.admitted(&session),
        None => answer(StatusCode::FORBIDDEN, page::NO_TOKEN),
    }
}

/// Returns true if the user opens an address. A program that loads it beforehand must not use up the
/// token.
fn is_navigation(request: &Request) -> bool {
    let mut purposes = ["sec-purpose", "purpose", "x-moz"]
        .iter()
        .filter_map(|name| request.headers().get(*name));
    let is_prefetch = |value: &HeaderValue| {
        let text = value.to_str().unwrap_or_default();
        text.contains("prefetch") || text.contains("preview")
    };
    *request.method() == Method::GET && !purposes.any(is_prefetch)
}

async fn show_page(State(site): State<Arc<Site>>) -> Response {
    match site.live.fresh().await {
        Some(view) => {
            let live = &site.live;
            let page = page::full(&view.content, &live.run(), live.has_switches());
            Html(page.into_string()).into_response()
        }
        None => {
            let text = "`taupe web` does not answer. Its output may say why.";
            answer(StatusCode::SERVICE_UNAVAILABLE, text)
        }
    }
}

async fn stream(
    State(site): State<Arc<Site>>,
    Extension(session): Extension<Secret>,
    method: Method,
) -> Response {
    let kind = HeaderValue::from_static("text/event-stream");
    let kind = [(header::CONTENT_TYPE, kind)];
    if method == Method::HEAD {
        return (kind, "").into_response();
    }
    let Some(events) = Events::begin(&site.live, &site.streams, session) else {
        let text = "Too many windows show this page. Close one.";
        return answer(StatusCode::SERVICE_UNAVAILABLE, text);
    };
    (kind, Body::new(events)).into_response()
}

/// Handles a form of the page.
async fn switch(State(site): State<Arc<Site>>, headers: HeaderMap, body: Bytes) -> Response {
    let refuse = |text| answer(StatusCode::FORBIDDEN, text);
    if !is_own_page(&headers) {
        return refuse("This form was not sent by the page itself.");
    }
    let Some(form) = Form::parse(&headers, &body) else {
        return answer(StatusCode::BAD_REQUEST, "This is no form of the page.");
    };
    if !has_form_value(&site.live, &form.value) {
        return refuse("This form belongs to another session. Load the page again.");
    }
    if !site.live.switches().request(form.switch).await {
        let text = "Another change is not finished. Go back and try again.";
        return answer(StatusCode::CONFLICT, text);
    }
    site.to_page()
}

fn has_form_value(live: &Live, value: &str) -> bool {
    let sessions = live.sessions();
    let pair = sessions.form().zip(Secret::parse(value));
    pair.is_some_and(|(form, value)| form.is_equal(&value))
}

#[cfg(test)]
mod switch_tests;
#[cfg(test)]
mod tests;
