//! A report for people: on the terminal, as a web page, as a page of the documentation.
//!
//! All three are made of a [`Report`] alone, whatever it holds: of a run that was
//! stopped, of contestants and metrics that this program does not know. A
//! `view` puts it in order, `figure` writes numbers, and each kind of page has a
//! module of its own.

use crate::results::Report;

/// Tables for a terminal, of at most 100 columns.
pub fn text(report: &Report) -> String {
    text::page(report)
}

/// A web page in one file, that fetches nothing and runs nothing.
pub fn html(report: &Report) -> String {
    html::page(report)
}

/// `docs/benchmarks.md`.
pub fn markdown(report: &Report) -> String {
    markdown::page(report)
}

pub(crate) mod figure;
mod html;
mod markdown;
mod text;
mod view;
