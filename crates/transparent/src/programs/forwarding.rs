//! What this machine forwards for others: whether it goes to the tunnel, and the second
//! layer for it, which no program at a socket sees.
//!
//! That is a program of netfilter, pinned while there is something for it to do. aya has
//! none of its kind, so that it is taken out of the object here.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::atomic::Ordering;

use aya::Btf;
use aya_obj::Object;
use taupe_config::file::Forwarded;
use tracing::debug;

use super::{FILTERS_OBJECT, Gap, Programs};
use crate::fault::Fault;
use crate::pins::{self, Pins};
use crate::syscall::{self, Target};

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
        let links = load(&self.pins).and_then(|program| {
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

/// Loads it, with the pinned maps.
fn load(pins: &Pins) -> io::Result<OwnedFd> {
    let mut object = Object::parse(FILTERS_OBJECT).map_err(io::Error::other)?;
    let kernel = Btf::from_sys_fs().map_err(io::Error::other)?;
    object.relocate_btf(&kernel).map_err(io::Error::other)?;
    let program = object.programs.get(PROGRAM);
    let key = program.ok_or(io::ErrorKind::NotFound)?.function_key();
    object.functions.retain(|other, _| *other == key);
    let opened = std::mem::take(&mut object.maps);
    let opened = opened.into_iter().filter_map(|(name, map)| {
        // What is not pinned is none of its.
        let fd = syscall::open(&pins.map(&name)).ok()?;
        Some((name, fd, map))
    });
    let opened: Vec<_> = opened.collect();
    let maps = opened
        .iter()
        .map(|(name, fd, map)| (name.as_str(), fd.as_raw_fd(), map));
    object
        .relocate_maps(maps, &HashSet::from([key.0]))
        .map_err(io::Error::other)?;
    let function = object.functions.get(&key).ok_or(io::ErrorKind::NotFound)?;
    syscall::load_netfilter(&function.instructions)
}
