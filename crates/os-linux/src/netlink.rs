//! Network configuration: links, addresses, routes, rules, route lookup, and the firewall table for
//! a default route through a tunnel.
//!
//! Replaces the `ip` and `nft` commands. [`System`] makes blocking calls. The other types are plain
//! data, which can be compared and written to a journal.

mod address;
mod client;
mod connection;
mod error;
mod filter;
mod firewall;
mod generic;
mod link;
mod neighbour;
mod route;
mod rule;
mod socket;
#[cfg(test)]
mod tests;

pub use self::{
    address::Address,
    client::System,
    connection::{Connection, Connections, Listed},
    error::SystemError,
    filter::{Filter, Hook},
    firewall::{Firewall, FirewallState, InterfaceMatch},
    generic::Generic,
    link::{Link, Medium},
    route::{Route, RouteKind, RouteTo},
    rule::{Mark, Rule},
};
