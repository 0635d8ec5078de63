//! A transfer together with its load: busy cores, and order of packets.

use super::cost::{Meter, SystemCalls, Usage};
use super::iperf::{self, Flow, Transfer};
use super::order::OrderEvents;
use super::servers::Servers;
use crate::session::Session;
use taupe_lab::error::Result;

/// Load of one transfer, or of several at the same time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// Received TCP payload of all transfers together, in bit/s.
    pub rate: f64,
    /// Retransmitted segments; `None` if a system does not count them.
    pub retransmits: Option<u64>,
    /// Cost to the machine.
    pub usage: Usage,
    /// Events of TCP on all machines.
    pub order: OrderEvents,
}

impl Load {
    /// Combines simultaneous transfers.
    pub fn of(transfers: &[Transfer], usage: Usage, order: OrderEvents) -> Self {
        let retransmits = transfers.iter().try_fold(0_u64, |sum, transfer| {
            Some(sum.saturating_add(transfer.retransmits()?))
        });
        Self {
            rate: transfers.iter().map(Transfer::rate).sum(),
            retransmits,
            usage,
            order,
        }
    }
}

/// Sends data through a session, as [`iperf::transfer`] does.
///
/// # Errors
///
/// As [`iperf::transfer`], [`Meter::start`] and [`OrderEvents::read`].
pub fn transfer(session: &Session, servers: &mut Servers, flow: Flow) -> Result<(Transfer, Load)> {
    let before = OrderEvents::read(session)?;
    let meter = Meter::start(session, SystemCalls::Ignore)?;
    let found = iperf::transfer(session, servers, flow)?;
    let usage = meter.stop()?;
    let order = OrderEvents::read(session)?.since(&before);
    Ok((found, Load::of(&[found], usage, order)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::iperf::DirectionResult;

    #[test]
    fn simultaneous_transfers_add_up() {
        let transfer = |rate, retransmits| Transfer {
            up: Some(DirectionResult {
                rate,
                bytes: 1,
                seconds: 3.0,
                retransmits,
            }),
            down: None,
        };
        let usage = Usage {
            seconds: 4.0,
            user: 1.5,
            system: 4.5,
            idle: 2.0,
            switches: 0,
            programs: None,
            system_calls: None,
        };
        let both = [transfer(1e9, Some(2)), transfer(2e9, Some(3))];
        let load = Load::of(&both, usage, OrderEvents::default());
        assert_eq!((load.rate, load.retransmits), (3e9, Some(5)));
        let unknown = [both[0], transfer(1e9, None)];
        let load = Load::of(&unknown, usage, OrderEvents::default());
        assert_eq!(load.retransmits, None);
        let none = Load::of(&[], usage, OrderEvents::default());
        assert_eq!((none.rate, none.retransmits), (0.0, Some(0)));
    }
}
