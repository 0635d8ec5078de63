//! Answers with one sentence.

use crate::page;
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse as _, Response};

/// Returns a page with one sentence.
pub(crate) fn message(status: StatusCode, text: &str) -> Response {
    (status, Html(page::message(text).into_string())).into_response()
}
