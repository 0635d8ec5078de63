//! The environment of a device whose process keeps its rights.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use taupe_os_linux::tun::Tun;
use taupe_os_linux::udp::{self, BindError};
use taupe_os_linux::watch::{LinkState, LinkWatch};
use taupe_runtime::resolver::Resolver;
use taupe_runtime::saved_state::StateFiles;

use crate::flood_filter::Program;
use crate::options::{OuterMark, Underlay};
use crate::sockets::{BindRequest, BoundSockets};
use crate::system::{Environment, LoadedFilter, MarkError, System};

impl Environment {
    /// Returns the environment of a device whose process keeps its rights. `state_dir` is the folder
    /// of its saved state; `None` is `/var/lib/taupe`.
    #[must_use]
    pub fn of_this_process(
        underlay: Underlay,
        outer_mark: Option<OuterMark>,
        resolver: Arc<dyn Resolver>,
        state_dir: Option<&Path>,
    ) -> Self {
        Self {
            system: Box::new(ThisProcess {
                underlay,
                outer_mark,
            }),
            resolver,
            saved: Box::new(StateFiles::new(state_dir)),
        }
    }
}

/// The rights of this process.
struct ThisProcess {
    underlay: Underlay,
    outer_mark: Option<OuterMark>,
}

impl System for ThisProcess {
    fn bind(&mut self, request: &BindRequest) -> Result<BoundSockets, BindError> {
        let bound = self.underlay.within(|| request.bind());
        bound.map_err(|source| BindError::Io {
            what: "entering the outer tunnel's network".into(),
            source,
        })?
    }

    fn set_mark(&mut self, sockets: &[BorrowedFd<'_>], mark: u32) -> Result<(), MarkError> {
        for socket in sockets {
            udp::set_mark(*socket, mark)?;
        }
        match &self.outer_mark {
            Some(pass_on) => pass_on(mark).map_err(MarkError::Outer),
            None => Ok(()),
        }
    }

    fn link_state(&mut self, tun: &Tun, watch: &mut LinkWatch) -> io::Result<Option<LinkState>> {
        watch.drain(tun)
    }

    fn load_flood_filter(&mut self) -> Result<Box<dyn LoadedFilter>, String> {
        Program::load()
    }
}
