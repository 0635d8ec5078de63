//! Linux.

pub(crate) mod link;
pub(crate) mod tun;
pub(crate) mod udp;
