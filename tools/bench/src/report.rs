//! Renders a report: on the terminal, as a web page, as a page of the documentation.
//!
//! All are made from a [`Report`] alone, and accept any report: of an interrupted run, or
//! with contestants and metrics unknown to this program. `view` sorts the contents, `workers` makes a
//! table with rows of its own, `figure` formats numbers, and each output format has a module of its
//! own.

use crate::results::Report;

/// Renders tables for a terminal, at most 100 columns wide.
pub fn text(report: &Report) -> String {
    text::page(report)
}

/// Renders a web page in one file, without scripts or external resources.
pub fn html(report: &Report) -> String {
    html::page(report)
}

/// Renders `docs/benchmarks.md`.
pub fn markdown(report: &Report) -> String {
    markdown::page(report)
}

pub(crate) mod figure;
mod html;
mod markdown;
mod text;
mod view;
mod workers;
