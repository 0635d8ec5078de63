//! Notifications of changed interfaces, addresses and routes.

mod routing;
mod settings;

pub use self::{
    routing::{LinkWatch, RouteWatch},
    settings::SettingsWatch,
};

/// State of the TUN's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkState {
    /// Administratively up.
    pub up: bool,
    /// Maximum transmission unit in bytes.
    pub mtu: u32,
    /// True if the interface was deleted; the other fields are then meaningless.
    pub deleted: bool,
}
