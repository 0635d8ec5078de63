//! Differences between the changes of a tunnel and the system as it is now.

mod observed;

use crate::bypass::Bypass;
use crate::change::Change;
use crate::dns;

pub(crate) use observed::Observed;

/// A difference between a change and the system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Deviation {
    /// It is gone, or a part of it is.
    Removed,
    /// It is there, with other contents.
    Altered,
    /// Another route to the same network comes before it, this one.
    Overtaken(Bypass),
    /// The interface has this MTU in bytes.
    Mtu(u32),
    /// The interface is down.
    Down,
    /// The device's datagrams have this mark; 0 is none.
    Mark(u32),
    /// The kernel's setting has this value.
    Setting(u32),
    /// Other name servers are in force.
    NameServers(dns::NameServerDeviation),
}

/// A system compared with the changes of a tunnel.
#[derive(Default, Debug)]
pub struct Comparison {
    /// The deviation of each change.
    pub deviations: Vec<Option<Deviation>>,
    /// The routes of others that lead around the tunnel.
    pub bypasses: Vec<Bypass>,
}

/// A change that no longer is as it was made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Drift {
    /// The step's number in the journal.
    pub(crate) number: usize,
    pub(crate) change: Change,
    pub(crate) deviation: Deviation,
}
