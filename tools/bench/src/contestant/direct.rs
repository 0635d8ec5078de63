//! No tunnel: the throughput of the link itself.

use super::{Contestant, End};
use crate::pair::Pair;
use crate::side::{PORT, Side};
use taupe_lab::error::Result;

/// The bare link, the reference for all others.
#[derive(Debug)]
pub(super) struct Direct;

impl Contestant for Direct {
    fn id(&self) -> &str {
        "direct"
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
}
