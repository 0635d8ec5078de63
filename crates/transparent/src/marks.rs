//! Selected applications in adapter mode, for kernels that lack the features of transparent mode.
//!
//! ```text
//! socket() ─ mark ─ rule ─ table of the tunnel ─┬─ TUN ─ tunnel
//!                                               └─ prohibit, when that is gone
//! ```
//!
//! Sockets of selected applications get a mark when they are created. By the mark the routing of
//! the system leads their packets to the TUN, with the addresses, rules and routes of adapter mode.
//! A second program blocks marked packets that would leave elsewhere. Both programs are pinned and
//! outlive the process.

use crate::capture::{CaptureSettings, is_served, or_clean_up};
use crate::error::TransparentError;
use crate::maps::Maps;
use crate::pins::Pins;
use crate::programs::{CaptureMode, Programs};
use crate::state::PacketProcesses;

/// The marking in effect. Dropping it leaves the eBPF programs in place and the kill switch on.
#[derive(Debug)]
pub struct Marking {
    programs: Programs,
}

impl Marking {
    /// Begins to mark sockets for the tunnel `interface`, whose TUN has the index `tun`, in the calling
    /// thread's network namespace. The TUN is read by the first of `packet_processes`, or by this
    /// process if there is none. Takes over the programs of an earlier process of the tunnel without a
    /// gap.
    ///
    /// # Errors
    ///
    /// See [`TransparentError`]. On failure nothing new is left behind.
    pub fn begin(
        interface: &str,
        tun: u32,
        packet_processes: PacketProcesses,
        mark: u32,
        settings: &CaptureSettings,
    ) -> Result<Self, TransparentError> {
        or_clean_up(|created| {
            let programs = Programs::load(interface, CaptureMode::Fwmark)?;
            *created = programs.created_pins();
            let mut programs = attach(programs, packet_processes, mark, settings)?;
            programs.set_up(tun)?;
            Ok(Self { programs })
        })
    }
}

/// Blocks the selected applications of the tunnel `interface` before the tunnel exists, as
/// [`capture::close`](crate::capture::close) does in transparent mode.
///
/// # Errors
///
/// See [`TransparentError`]. On failure nothing new is left behind.
pub fn close(
    interface: &str,
    mark: u32,
    settings: &CaptureSettings,
) -> Result<bool, TransparentError> {
    if is_served(interface)? {
        return Ok(false);
    }
    or_clean_up(|created| {
        let programs = Programs::load(interface, CaptureMode::Fwmark)?;
        *created = programs.created_pins();
        if programs.daemon().is_some() {
            // Its daemon has started meanwhile.
            return Ok(false);
        }
        attach(programs, [None, None], mark, settings)?;
        Ok(true)
    })
}

fn attach(
    mut programs: Programs,
    packet_processes: PacketProcesses,
    mark: u32,
    settings: &CaptureSettings,
) -> Result<Programs, TransparentError> {
    programs.set_mark(mark);
    programs.set_lock(settings.lock)?;
    // Attach before writing rules: then no process that starts a program meanwhile is missed.
    programs.attach(packet_processes)?;
    programs.replace(&settings.rules, &settings.destinations)?;
    Ok(programs)
}

impl Drop for Marking {
    fn drop(&mut self) {
        self.programs.end_service();
    }
}

/// Returns the mark of the sockets selected for the tunnel `interface` of the calling thread's
/// network namespace, or `None` if the tunnel does not use marks.
///
/// # Errors
///
/// [`TransparentError::Call`], [`TransparentError::Map`].
pub fn mark_of(interface: &str) -> Result<Option<u32>, TransparentError> {
    let pins = Pins::here(interface)?;
    match CaptureMode::of(&pins) {
        Some(CaptureMode::Fwmark) => Maps::mark(&pins),
        _ => Ok(None),
    }
}
