//! What a report tells: on a terminal, as a page, compared with another; and what
//! becomes of files that are none.

mod comparing;
mod fixture;
mod pages;
mod reading;
