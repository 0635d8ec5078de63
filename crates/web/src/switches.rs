//! Changes of the applications in tunnels, which the parent makes (`taupe web --switches`).

use crate::live::Live;
use crate::page::{self, answer};
use crate::site::Site;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use taupe_web_link::{Outcome, Place, Secret, Switch};
use tokio::sync::{Notify, watch};

/// Bytes of a form, at most.
pub(crate) const MAX_FORM: usize = 8 << 10;

/// Time for which an answer waits for the change. The page shows the result later too.
const PATIENCE: Duration = Duration::from_secs(8);

/// Time for which the page shows the result of a change.
const SHOWN_TIME: Duration = Duration::from_secs(120);

const FORM_TYPE: &str = "application/x-www-form-urlencoded";

/// The change that is made, and the result of the latest one.
pub(crate) struct Switches {
    changes: Mutex<Changes>,
    requested: Notify,
    /// Number of changes that were made.
    done: watch::Sender<u64>,
}

#[derive(Default)]
struct Changes {
    /// The change that the parent shall make.
    next: Option<Switch>,
    /// The change until its result.
    current: Option<Switch>,
    latest: Option<Latest>,
}

/// A change with its result.
#[derive(Clone)]
pub(crate) struct Latest {
    pub(crate) switch: Switch,
    pub(crate) outcome: Outcome,
    at: Instant,
}

impl Switches {
    pub(crate) fn new() -> Self {
        Self {
            changes: Mutex::default(),
            requested: Notify::new(),
            done: watch::Sender::new(0),
        }
    }

    fn changes(&self) -> MutexGuard<'_, Changes> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the result of the latest change, for a while.
    pub(crate) fn latest(&self) -> Option<Latest> {
        let latest = self.changes().latest.clone();
        latest.filter(|it| it.at.elapsed() < SHOWN_TIME)
    }

    /// Waits for the next change that the parent shall make.
    pub(crate) async fn next(&self) -> Switch {
        loop {
            if let Some(switch) = self.changes().next.take() {
                return switch;
            }
            self.requested.notified().await;
        }
    }

    /// Notes the result of the change.
    pub(crate) fn finish(&self, outcome: Outcome) {
        let mut changes = self.changes();
        if let Some(switch) = changes.current.take() {
            let at = Instant::now();
            changes.latest = Some(Latest {
                switch,
                outcome,
                at,
            });
        }
        drop(changes);
        self.done.send_modify(|it| *it = it.wrapping_add(1));
    }

    /// Requests a change. Returns false if another one is not finished.
    async fn request(&self, switch: Switch) -> bool {
        let mut done = self.done.subscribe();
        {
            let mut changes = self.changes();
            if changes.current.is_some() {
                return false;
            }
            changes.current = Some(switch.clone());
            changes.next = Some(switch);
        }
        self.requested.notify_one();
        let _ = tokio::time::timeout(PATIENCE, done.changed()).await;
        true
    }
}

/// Handles a form of the page.
pub(crate) async fn handle(
    State(site): State<Arc<Site>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let refuse = |text| answer(StatusCode::FORBIDDEN, text);
    if !is_own_page(&headers) {
        return refuse("This form was not sent by the page itself.");
    }
    let kind = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    let Some(form) = Form::parse(&body).filter(|_| kind == Some(FORM_TYPE.as_bytes())) else {
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

/// Returns true if the page of this server has sent a form. Browsers send `Origin` with each form, and new
/// ones `Sec-Fetch-Site`.
fn is_own_page(headers: &HeaderMap) -> bool {
    let only = |name| {
        let mut values = headers.get_all(name).iter().map(HeaderValue::as_bytes);
        (values.next(), values.next().is_none())
    };
    let (site, is_single_site) = only(header::HeaderName::from_static("sec-fetch-site"));
    let (origin, is_single_origin) = only(header::ORIGIN);
    let host = headers.get(header::HOST).map(HeaderValue::as_bytes);
    let is_own = |origin: &[u8]| origin.strip_prefix(b"http://") == host;
    is_single_site
        && is_single_origin
        && site.is_none_or(|it| it == b"same-origin")
        && origin.is_none_or(is_own)
        && (site.is_some() || origin.is_some())
}

/// A form of the page.
struct Form {
    /// Value of the session for forms.
    value: String,
    switch: Switch,
}

impl Form {
    fn parse(body: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(body).ok()?;
        let pairs: Vec<_> = text.split('&').map(pair).collect::<Option<_>>()?;
        let field = |name: &str| {
            let mut values = pairs.iter().filter(|(field, _)| field == name);
            let value = values.next().map(|(_, value)| value.trim().to_owned());
            value.filter(|it| !it.is_empty() && values.next().is_none())
        };
        let place = match &*field("place")? {
            page::ALLOWED => Place::Allowed,
            page::DISALLOWED => Place::Disallowed,
            page::NOWHERE => Place::Nowhere,
            _ => return None,
        };
        Some(Self {
            value: field("form")?,
            switch: Switch {
                tunnel: field("tunnel")?,
                application: field("application")?,
                place,
            },
        })
    }
}

fn pair(text: &str) -> Option<(String, String)> {
    let (name, value) = text.split_once('=')?;
    Some((decoded(name)?, decoded(value)?))
}

/// Decodes a part of a form (URL standard, `application/x-www-form-urlencoded`).
fn decoded(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::new();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                let (high, low) = (digit()?, digit()?);
                u8::try_from(high << 4 | low).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(decoded).ok()
}

#[cfg(test)]
mod tests;
