//! Comparison of a tunnel's changes with the present state of the system.

mod observed;

use crate::bypass::Bypass;
use crate::change::Change;
use crate::dns;

pub(crate) use observed::Observed;

/// A difference between a change and the system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Deviation {
    /// The object of the change, or a part of it, does not exist any more.
    Removed,
    /// The object exists, but its contents differ.
    Altered,
    /// This other route to the same network has precedence.
    Overtaken(Bypass),
    /// The interface has this MTU in bytes.
    Mtu(u32),
    /// The interface is down.
    Down,
    /// The device's datagrams have this mark; 0 means none.
    Mark(u32),
    /// The kernel's setting has this value.
    Setting(u32),
    /// Other name servers are in use.
    NameServers(dns::NameServerDeviation),
}

/// Result of comparing the changes of a tunnel with the system.
#[derive(Default, Debug)]
pub struct Comparison {
    /// The deviation of each change, in the same order.
    pub deviations: Vec<Option<Deviation>>,
    /// The foreign routes that bypass the tunnel.
    pub bypasses: Vec<Bypass>,
}

/// A change whose object differs from how it was made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Drift {
    /// The step's number in the journal.
    pub(crate) number: usize,
    pub(crate) change: Change,
    pub(crate) deviation: Deviation,
}
