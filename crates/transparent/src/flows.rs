//! The table of flows whose addresses are translated.

#![forbid(unsafe_code)]
