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

use crate::capture::{Choice, is_served, or_nothing, pins};
use crate::fault::Fault;
use crate::maps::Maps;
use crate::programs::{Programs, Way};

/// The marking in effect. Dropping it leaves the eBPF programs in place and the kill switch on.
#[derive(Debug)]
pub struct Marking {
    programs: Programs,
}

impl Marking {
    /// Begins to mark sockets for the tunnel `interface`, whose TUN this process reads and has the
    /// index `tun`, in the calling thread's network namespace. Takes over the programs of an
    /// earlier process of the tunnel without a gap.
    ///
    /// # Errors
    ///
    /// See [`Fault`]. On failure nothing new is left behind.
    pub fn begin(interface: &str, tun: u32, mark: u32, choice: &Choice) -> Result<Self, Fault> {
        or_nothing(interface, || {
            let mut programs = take_hold(interface, mark, choice)?;
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
/// See [`Fault`]. On failure nothing new is left behind.
pub fn close(interface: &str, mark: u32, choice: &Choice) -> Result<bool, Fault> {
    if is_served(interface)? {
        return Ok(false);
    }
    or_nothing(interface, || take_hold(interface, mark, choice))?;
    Ok(true)
}

fn take_hold(interface: &str, mark: u32, choice: &Choice) -> Result<Programs, Fault> {
    let mut programs = Programs::load(interface, Way::Marks)?;
    programs.set_mark(mark);
    programs.set_lock(choice.lock)?;
    // Attach before writing rules: then no process that starts a program meanwhile is missed.
    programs.attach()?;
    programs.replace(&choice.rules, &choice.destinations)?;
    Ok(programs)
}

impl Drop for Marking {
    fn drop(&mut self) {
        self.programs.set_down();
    }
}

/// Returns the mark of the sockets selected for the tunnel `interface` of the calling thread's
/// network namespace, or `None` if the tunnel does not use marks.
///
/// # Errors
///
/// [`Fault::Call`], [`Fault::Map`].
pub fn mark_of(interface: &str) -> Result<Option<u32>, Fault> {
    let pins = pins(interface)?;
    match Way::of(&pins) {
        Some(Way::Marks) => Maps::mark(&pins),
        _ => Ok(None),
    }
}
