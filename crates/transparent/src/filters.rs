//! Filters on kernels without tcx (before Linux 6.6): `clsact` and `cls_bpf`.
//!
//! Nothing is pinned: a filter stays until it is removed or its interface goes. It is
//! known by its priority, and by the tunnel's stamp as its handle. The kernel runs
//! these after all of tcx.

use std::io;

use aya::programs::tc::{self, NlOptions, SchedClassifierLink, TcAttachOptions, TcError, TcHandle};
use aya::programs::{ProgramError, SchedClassifier, TcAttachType};
use taupe_os_linux::netlink::{Hook, System, SystemError};

/// The first there is (`CLSACT_PRIORITY`): who comes before could send a packet
/// elsewhere.
const PRIORITY: u16 = 1;

/// How all programs' names begin, those of other tunnels and versions too
/// (`NAME_TAUPE`). They pass on whatever is not their tunnel's, so that it does not
/// matter which of them come first.
pub(crate) const OURS: &str = "taupe_";

/// A filter's place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) interface: &'a str,
    pub(crate) direction: TcAttachType,
    /// The tunnel's stamp.
    pub(crate) stamp: u32,
}

impl Place<'_> {
    /// Puts a program there, in place of one that this tunnel has there already.
    pub(crate) fn attach(self, program: &mut SchedClassifier) -> Result<(), ProgramError> {
        match tc::qdisc_add_clsact(self.interface) {
            Err(TcError::NetlinkError(error)) if error.raw_os_error() == Some(libc::EEXIST) => {}
            other => other?,
        }
        let link = match program.attach_to_link(self.link()?) {
            Ok(link) => link,
            Err(_) => {
                let options = TcAttachOptions::Netlink(NlOptions {
                    priority: PRIORITY,
                    handle: self.handle(),
                    classid: None,
                });
                program.attach_with_options(self.interface, self.direction, options)?
            }
        };
        // It shall outlive this process.
        std::mem::forget(program.take_link(link)?);
        Ok(())
    }

    /// Whether this tunnel's program is there, before all others in the queue but other
    /// tunnels'.
    pub(crate) fn is_first(self, index: u32) -> Result<bool, SystemError> {
        let hook = match self.direction {
            TcAttachType::Egress => Hook::Egress,
            _ => Hook::Ingress,
        };
        let filters = System::open()?.filters(index, hook)?;
        let mut known = filters.iter().take_while(|filter| {
            // A priority is listed by itself, too.
            filter.priority == PRIORITY && (filter.handle == 0 || filter.name.starts_with(OURS))
        });
        Ok(known.any(|filter| filter.handle == u32::from(self.handle())))
    }

    /// Removes this tunnel's program, if it has one there.
    pub(crate) fn detach(self) {
        use aya::programs::links::Link as _;
        // What cannot be removed went with its interface.
        if let Ok(link) = self.link() {
            let _ = link.detach();
        }
    }

    fn link(self) -> io::Result<SchedClassifierLink> {
        SchedClassifierLink::attached(
            self.interface,
            self.direction,
            PRIORITY,
            self.handle(),
            None,
        )
    }

    fn handle(self) -> TcHandle {
        TcHandle::from(self.stamp)
    }
}
