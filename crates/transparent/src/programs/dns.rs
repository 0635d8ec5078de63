//! DNS queries of selected applications: the servers that answer them, and the local services that
//! these applications must not use for names.

use std::net::IpAddr;
use std::os::fd::AsFd as _;
use std::sync::atomic::Ordering;

use tracing::debug;

use super::{CaptureMode, MissingFeature, Programs, TunnelMaps, raw_load};
use crate::cgroup;
use crate::error::{TransparentError, is_exhaustion};
use crate::pins::{self, Pins};
use crate::state::DnsHandling;
use crate::syscall::{self, AttachTarget, attach_type, program_type};

const PROGRAM: &str = "taupe_unix";

const LINK: &str = "unix";

impl TunnelMaps {
    /// Returns the address families and services for which queries are redirected.
    #[must_use]
    pub fn dns(&self) -> DnsHandling {
        self.maps.state.dns()
    }

    /// Returns the local resolver that a selected application has queried, if `address` is the
    /// resolver alias that its socket is connected to. Returns `None` for any other address.
    ///
    /// # Errors
    ///
    /// [`TransparentError::Map`].
    pub fn resolver_of_alias(&self, address: IpAddr) -> Result<Option<IpAddr>, TransparentError> {
        match self.mode {
            CaptureMode::TrafficControl => self.maps.resolver_of_alias(address),
            CaptureMode::Fwmark => Ok(None),
        }
    }
}

impl Programs {
    /// Returns true if connections to services that resolve names are refused.
    pub(crate) fn refuses_services(pins: &Pins) -> bool {
        pins.link(LINK).exists()
    }

    /// Sets the handling of DNS queries of selected applications. Returns the feature
    /// that this lacks, if any. With [`CaptureMode::Fwmark`] nothing changes.
    ///
    /// # Errors
    ///
    /// [`TransparentError::Map`]; [`TransparentError::Call`]: a link cannot be pinned or removed, or
    /// no descriptors or memory are left.
    pub fn set_dns(
        &mut self,
        dns: DnsHandling,
    ) -> Result<Option<MissingFeature>, TransparentError> {
        if self.mode == CaptureMode::Fwmark {
            return Ok(None);
        }
        self.tunnel.maps.set_services()?;
        self.tunnel
            .maps
            .state
            .dns
            .store(dns.bits(), Ordering::Relaxed);
        let pin = self.pins.link(LINK);
        if !dns.has_servers() {
            pins::remove(&pin)?;
            return Ok(None);
        }
        let (kind, point) = (program_type::CGROUP_SOCK_ADDR, attach_type::UNIX_CONNECT);
        let link = raw_load::load(&self.pins, PROGRAM, kind, point).and_then(|program| {
            let cgroup = cgroup::root()?;
            syscall::attach(program.as_fd(), AttachTarget::Cgroup(cgroup.as_fd(), point))
        });
        match link {
            Ok(link) => {
                pins::replace(link.as_fd(), &pin)?;
                Ok(None)
            }
            Err(error) if is_exhaustion(&error) => Err(TransparentError::call(format!(
                "attaching {PROGRAM}"
            ))(error)),
            Err(error) => {
                debug!(%error, "attaching {PROGRAM}");
                Ok(Some(MissingFeature::NameServices))
            }
        }
    }
}
