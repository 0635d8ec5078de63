//! No tunnel: the throughput of the link itself.

use super::{Contestant, End, GatewayEnds};
use crate::gateway::GatewayMachines;
use crate::pair::Pair;
use crate::side::{PORT, Side};
use taupe_lab::error::Result;

/// The bare link, the reference for all others.
#[derive(Debug)]
pub(super) struct Direct;

impl Contestant for Direct {
    fn id(&self) -> &str {
        super::REFERENCE
    }

    fn title(&self) -> &str {
        "no tunnel"
    }

    fn version(&self) -> Result<Option<String>> {
        Ok(None)
    }

    fn prepare(&self, _: &Pair) -> Result<()> {
        Ok(())
    }

    fn start(&self, _: &Pair, side: Side) -> Result<End> {
        Ok(End {
            address: side.outer().into(),
            interface: Some(PORT.to_owned()),
            processes: Vec::new(),
        })
    }

    fn start_gateway(&self, machines: &GatewayMachines) -> Option<Result<GatewayEnds>> {
        let clients = 0..machines.clients.len();
        let end = |side| {
            move |client| End {
                address: GatewayMachines::outer(client, side).into(),
                interface: None,
                processes: Vec::new(),
            }
        };
        Some(Ok(GatewayEnds {
            targets: clients
                .clone()
                .map(|client| GatewayMachines::outer(client, Side::Server).into())
                .collect(),
            server: end(Side::Server)(0),
            clients: clients.map(end(Side::Client)).collect(),
        }))
    }
}
