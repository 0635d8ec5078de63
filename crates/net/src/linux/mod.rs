//! Linux. System calls that `rustix` does not wrap are in `ioctl`,
//! `message` and `option`, and nothing else here is unsafe.

mod control;
mod ioctl;
pub(crate) mod link;
mod message;
mod netlink;
mod option;
mod port;
pub(crate) mod system;
#[cfg(test)]
mod tests;
pub(crate) mod tun;
pub(crate) mod udp;
pub(crate) mod watch;
