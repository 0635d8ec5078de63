//! Packets that this machine forwards for others, and the second layer for them. Programs at
//! sockets do not see forwarded packets, so this layer is a netfilter program. It is attached only
//! while forwarded packets go into the tunnel.

use std::io;
use std::os::fd::AsFd as _;
use std::sync::atomic::Ordering;

use taupe_config::file::Forwarded;
use tracing::debug;

use super::{MissingFeature, Programs, TunnelMaps, raw_load};
use crate::error::{TransparentError, is_exhaustion};
use crate::pins::{self, Pins};
use crate::syscall::{self, AttachTarget, attach_type, program_type};

const PROGRAM: &str = "taupe_forward";

/// Names of the program's links, and the families (`NFPROTO_*`) of these links.
const LINKS: [(&str, u32); 2] = [("forward4", 2), ("forward6", 10)];

impl TunnelMaps {
    /// Returns where forwarded packets go.
    #[must_use]
    pub fn forwarded(&self) -> Forwarded {
        self.maps.state.forwarded()
    }
}

impl Programs {
    /// Checks that the netfilter programs are attached.
    pub(super) fn guards_forwarding(pins: &Pins) -> bool {
        LINKS.iter().all(|(name, _)| pins.link(name).exists())
    }

    /// Sets where forwarded packets go. Returns the feature that this lacks, if any. Call it in the
    /// tunnel's network namespace.
    ///
    /// # Errors
    ///
    /// [`TransparentError::Call`]: a link cannot be pinned or removed, or no descriptors or memory are
    /// left.
    pub fn set_forwarded(
        &self,
        forwarded: Forwarded,
    ) -> Result<Option<MissingFeature>, TransparentError> {
        let word = &self.maps.state.forwarded;
        if forwarded == Forwarded::Direct {
            word.store(0, Ordering::Relaxed);
            for (name, _) in LINKS {
                pins::remove(&self.pins.link(name))?;
            }
            return Ok(None);
        }
        word.store(1, Ordering::Relaxed);
        let (kind, place) = (program_type::NETFILTER, attach_type::NETFILTER);
        let links = raw_load::load(&self.pins, PROGRAM, kind, place).and_then(|program| {
            let link = |(name, family)| {
                let link = syscall::attach(program.as_fd(), AttachTarget::Netfilter(family))?;
                Ok((name, link))
            };
            LINKS.into_iter().map(link).collect::<io::Result<Vec<_>>>()
        });
        match links {
            Ok(links) => {
                for (name, link) in links {
                    pins::replace(link.as_fd(), &self.pins.link(name))?;
                }
                Ok(None)
            }
            Err(error) if is_exhaustion(&error) => Err(TransparentError::call(format!(
                "attaching {PROGRAM}"
            ))(error)),
            Err(error) => {
                debug!(%error, "attaching {PROGRAM}");
                Ok(Some(MissingFeature::Forwarding))
            }
        }
    }
}
