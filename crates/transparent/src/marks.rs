//! Chosen applications on a kernel that lacks what transparent mode needs.
//!
//! ```text
//! socket() ─ mark ─ rule ─ table of the tunnel ─┬─ TUN ─ tunnel
//!                                               └─ prohibit, when that is gone
//! ```
//!
//! Their sockets get a mark when they are made, by which the system's routing leads them to
//! the TUN: addresses, rules and routes are those of adapter mode. Another program holds
//! back what would leave elsewhere all the same. Both are pinned, and outlive the process.

use crate::capture::{Choice, is_served, or_nothing, pins};
use crate::fault::Fault;
use crate::maps::Maps;
use crate::programs::{Programs, Way};

/// The mark in effect. Dropping it leaves the kernel's part in place, and closed.
#[derive(Debug)]
pub struct Marking {
    programs: Programs,
}

impl Marking {
    /// Begins to mark sockets for the tunnel `interface`, whose TUN this process reads and
    /// has the index `tun`, in the calling thread's network namespace. What an earlier
    /// process of the tunnel has left is taken over without a gap.
    ///
    /// # Errors
    ///
    /// See [`Fault`]. Nothing is left that was not there before.
    pub fn begin(interface: &str, tun: u32, mark: u32, choice: &Choice) -> Result<Self, Fault> {
        or_nothing(interface, || {
            let mut programs = take_hold(interface, mark, choice)?;
            programs.set_up(tun)?;
            Ok(Self { programs })
        })
    }
}

/// Holds back what is chosen for the tunnel `interface` before there is one, as
/// [`capture::close`](crate::capture::close) does in the other way.
///
/// # Errors
///
/// See [`Fault`]. Nothing is left that was not there before.
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
    // Before processes are gone through: from then on each is seen when it begins a program.
    programs.attach()?;
    programs.replace(&choice.rules, &choice.destinations)?;
    Ok(programs)
}

impl Drop for Marking {
    fn drop(&mut self) {
        self.programs.set_down();
    }
}

/// The mark of the sockets that are chosen for the tunnel `interface` of the calling
/// thread's network namespace; `None` where they are not chosen in this way.
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
