//! Published post-quantum variants of WireGuard's handshake, reproduced **for
//! comparison only. Do not use them: they are insecure**, and nothing of Taupe
//! does.

#![forbid(unsafe_code)]

mod error;
pub mod pke;

pub use error::Error;
