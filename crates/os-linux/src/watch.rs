//! Notices of changed interfaces, addresses and routes.

mod routing;
mod settings;

pub use self::{
    routing::{LinkWatch, RouteWatch},
    settings::SettingsWatch,
};

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
