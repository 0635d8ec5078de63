//! Filters on kernels without tcx (before Linux 6.6): `clsact` and `cls_bpf`.
//!
//! Such a filter is not pinned: it stays until it is removed or its interface disappears. It is
//! recognised by its priority, and by the tunnel's mark in its handle. The kernel runs these
//! filters after all tcx programs.

use std::io;

use aya::programs::tc::{self, NlOptions, SchedClassifierLink, TcAttachOptions, TcError, TcHandle};
use aya::programs::{ProgramError, SchedClassifier, TcAttachType};
use taupe_os_linux::netlink::{Hook, Netlink, NetlinkError};

/// The first priority (`CLSACT_PRIORITY`). A filter before Taupe's could redirect a packet.
pub(crate) const PRIORITY: u16 = 1;

/// Prefix of the names of all Taupe programs, including those of other tunnels and versions
/// (`NAME_TAUPE`). They pass on packets of other tunnels, so their order among themselves does not
/// matter.
pub(crate) const NAME_PREFIX: &str = "taupe_";

/// A filter of one tunnel in an interface's `clsact` queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClsactFilter<'a> {
    pub(crate) interface: &'a str,
    pub(crate) direction: TcAttachType,
    pub(crate) mark: u32,
}

impl ClsactFilter<'_> {
    /// Attaches a program, in place of an earlier one of this tunnel.
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
        // The filter must outlive this process.
        std::mem::forget(program.take_link(link)?);
        Ok(())
    }

    /// Returns true if this tunnel's program is attached, and only programs of other Taupe tunnels
    /// precede it in the queue.
    pub(crate) fn is_first(self, index: u32) -> Result<bool, NetlinkError> {
        let hook = match self.direction {
            TcAttachType::Egress => Hook::Egress,
            _ => Hook::Ingress,
        };
        let filters = Netlink::open()?.filters(index, hook)?;
        let mut known = filters.iter().take_while(|filter| {
            // A priority has an entry of its own, with handle 0.
            filter.priority == PRIORITY
                && (filter.handle == 0 || filter.name.starts_with(NAME_PREFIX))
        });
        Ok(known.any(|filter| filter.handle == u32::from(self.handle())))
    }

    /// Removes this tunnel's program, if there is one.
    pub(crate) fn detach(self) {
        use aya::programs::links::Link as _;
        // A failure means that the interface has gone, and its filters with it.
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
        TcHandle::from(self.mark)
    }
}
