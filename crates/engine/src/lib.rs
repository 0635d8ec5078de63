#![forbid(unsafe_code)]
//! .
