//! What this machine forwards for others: whether it goes to the tunnel, and the second
//! layer for it, which no program at a socket sees.
//!
//! That is a program of netfilter, pinned while there is something for it to do.

use std::io;
use std::os::fd::AsFd as _;
use std::sync::atomic::Ordering;

use taupe_config::file::Forwarded;
use tracing::debug;

use super::{Gap, Programs, raw_load};
use crate::fault::Fault;
use crate::pins;
use crate::syscall::{self, Target, attach_type, program_type};

const PROGRAM: &str = "taupe_forward";

/// Its links, and the families (`NFPROTO_*`) that they are for.
const LINKS: [(&str, u32); 2] = [("forward4", 2), ("forward6", 10)];

impl Programs {
    /// Where packets go that this machine forwards for others.
    #[must_use]
    pub fn forwarded(&self) -> Forwarded {
        match self.maps.state.forwarded.load(Ordering::Relaxed) {
            0 => Forwarded::Direct,
            _ => Forwarded::Tunnel,
        }
    }

    /// Checks that the programs of netfilter are attached.
    pub(super) fn guards_forwarding(&self) -> bool {
        LINKS.iter().all(|(name, _)| self.pins.link(name).exists())
    }

    /// Chooses where packets go that this machine forwards for others; returns what does
    /// not hold then. To be called in the tunnel's namespace.
    ///
    /// # Errors
    ///
    /// [`Fault::Call`]: a link cannot be pinned or removed.
    pub fn set_forwarded(&self, forwarded: Forwarded) -> Result<Option<Gap>, Fault> {
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
                let link = syscall::attach(program.as_fd(), Target::Forward(family))?;
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
            Err(error) => {
                debug!(%error, "attaching {PROGRAM}");
                Ok(Some(Gap::Forwarding))
            }
        }
    }
}
