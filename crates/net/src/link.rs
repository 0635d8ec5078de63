//! Notices of changed interfaces, addresses and routes.

pub use crate::imp::link::{LinkWatch, RouteWatch};
pub use crate::imp::watch::SettingsWatch;

/// The state of the TUN's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkState {
    /// Administratively up.
    pub up: bool,
    /// Maximum transmission unit in bytes.
    pub mtu: u32,
    /// Gone for good; the other fields mean nothing.
    pub deleted: bool,
}
