//! Reports: on a terminal, as a page, compared with another, and files that are no reports.

mod comparing;
mod fixture;
mod pages;
mod reading;
