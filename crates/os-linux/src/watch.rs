//! Notifications of changed interfaces, addresses and routes.

mod routing;
mod settings;

pub use self::{
    routing::{LinkWatch, RouteWatch, link_state},
    settings::SettingsWatch,
};

/// State of a TUN's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkState {
    /// Administratively up.
    pub up: bool,
    /// Maximum transmission unit in bytes.
    pub mtu: u32,
}
