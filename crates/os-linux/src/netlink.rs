//! The network's configuration: links, addresses, routes, rules, route lookup
//! and the firewall table of a default route by a tunnel.
//!
//! What `ip` and `nft` would do, without them. [`System`] makes blocking calls;
//! everything else here is plain data that can be written to a journal and
//! compared.

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
