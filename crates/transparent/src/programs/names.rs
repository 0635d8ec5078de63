//! DNS queries of selected applications: the servers that answer them, and the local services that
//! these applications must not use for names.

use std::net::IpAddr;
use std::os::fd::AsFd as _;
use std::sync::atomic::Ordering;

use tracing::debug;

use super::{Gap, Programs, Way, raw_load};
use crate::cgroup;
use crate::fault::Fault;
use crate::pins::{self, Pins};
use crate::state::Names;
use crate::syscall::{self, Target, attach_type, program_type};

const PROGRAM: &str = "taupe_unix";

const LINK: &str = "unix";

impl Programs {
    /// Returns the address families and services for which queries are redirected.
    #[must_use]
    pub fn names(&self) -> Names {
        Names::of(self.maps.state.names.load(Ordering::Relaxed))
    }

    /// Returns the local resolver that a selected application has queried, if `address` is the
    /// resolver alias that its socket is connected to. Returns `None` for any other address.
    ///
    /// # Errors
    ///
    /// [`Fault::Map`].
    pub fn asked(&self, address: IpAddr) -> Result<Option<IpAddr>, Fault> {
        match self.way {
            Way::Filters => self.maps.asked(address),
            Way::Marks => Ok(None),
        }
    }

    /// Returns true if connections to services that resolve names are refused.
    pub(crate) fn refuses_services(pins: &Pins) -> bool {
        pins.link(LINK).exists()
    }

    /// Sets the handling of DNS queries of selected applications. Returns the gap that this leaves,
    /// if any. With [`Way::Marks`] nothing changes.
    ///
    /// # Errors
    ///
    /// [`Fault::Map`]; [`Fault::Call`]: a link cannot be pinned or removed.
    pub fn set_names(&mut self, names: Names) -> Result<Option<Gap>, Fault> {
        if self.way == Way::Marks {
            return Ok(None);
        }
        self.maps.set_services()?;
        self.maps.state.names.store(names.bits(), Ordering::Relaxed);
        let pin = self.pins.link(LINK);
        if !names.any() {
            pins::remove(&pin)?;
            return Ok(None);
        }
        let (kind, place) = (program_type::CGROUP_SOCK_ADDR, attach_type::UNIX_CONNECT);
        let link = raw_load::load(&self.pins, PROGRAM, kind, place).and_then(|program| {
            let cgroup = cgroup::root()?;
            syscall::attach(program.as_fd(), Target::Cgroup(cgroup.as_fd(), place))
        });
        match link {
            Ok(link) => {
                pins::replace(link.as_fd(), &pin)?;
                Ok(None)
            }
            Err(error) => {
                debug!(%error, "attaching {PROGRAM}");
                Ok(Some(Gap::Services))
            }
        }
    }
}
