//! The capture of a tunnel: everything that sends selected applications through it.
//!
//! ```text
//! applications ─ uplink ─┐ filters (programs)            ┌─ uplink ─ applications
//!                        └─► TUN ─► translation ─► tunnel ┘
//! ```
//!
//! [`Capture::begin`] does everything that must be in place before the first packet. Then a thread
//! guards links as they appear and disappear, and removes flows that have ended
//! (`capture/keeper.rs`).

mod keeper;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use taupe_config::application::AppRules;
use taupe_config::destinations::Class;
use taupe_config::file::Forwarded;
use taupe_nat::translate::Translator;
use tracing::{debug, info, warn};

use crate::fault::Fault;
use crate::maps::Maps;
use crate::pins::Pins;
use crate::programs::{Gap, Programs, Way};
use crate::reset::{self, Reset, Which};
use crate::state::{Lock, Names};
use crate::uplinks::UplinkWatch;
use keeper::Keeper;

/// Settings of a capture.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Choice {
    /// Rules that select applications.
    pub rules: AppRules,
    /// Classes of destinations.
    pub destinations: Vec<(IpNet, Class)>,
    /// Kill switch.
    pub lock: Lock,
    /// The destination of forwarded packets.
    pub forwarded: Forwarded,
    /// Handling of DNS queries.
    pub names: Names,
}

/// A capture in effect. Dropping it leaves the eBPF programs in place and the kill switch on:
/// selected applications reach nothing until another process takes over.
#[derive(Debug)]
pub struct Capture {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Capture {
    /// Begins to capture for the tunnel `interface`, whose TUN this process reads and has the index
    /// `tun`, in the calling thread's network namespace. Takes over the programs of an earlier
    /// process of the tunnel without a gap.
    ///
    /// # Errors
    ///
    /// See [`Fault`]. On failure nothing new is left behind.
    pub fn begin(
        interface: &str,
        tun: u32,
        choice: &Choice,
        translator: Translator,
    ) -> Result<Self, Fault> {
        or_nothing(interface, || {
            let programs = Programs::load(interface, Way::Filters)?;
            Self::begin_with(programs, tun, choice, translator)
        })
    }

    /// On every exit the keeper's `drop` sets the tunnel down.
    fn begin_with(
        programs: Programs,
        tun: u32,
        choice: &Choice,
        translator: Translator,
    ) -> Result<Self, Fault> {
        let mut keeper = Keeper::new(programs, tun, translator)?;
        let stop = keeper.stop.try_clone().map_err(Fault::call("dup"))?;
        take_hold(&mut keeper.programs, choice)?;
        let survey = keeper.watch.survey().map_err(io::Error::other);
        keeper.survey = survey.map_err(Fault::call("listing links"))?;
        keeper.follow(Programs::guard)?;
        keeper.switch_ipv6_off()?;
        keeper.programs.set_up(tun)?;
        keeper.note_hooks();
        match keeper.programs.remove_orphans() {
            Ok(0) => {}
            Ok(count) => info!(
                count,
                "removed what tunnels of network namespaces that are gone had left"
            ),
            Err(fault) => warn!(%fault, "removing what tunnels of other namespaces have left"),
        }
        let thread = std::thread::Builder::new()
            .name("uplinks".into())
            .spawn(move || keeper.run())
            .map_err(Fault::call("starting a thread"))?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

/// Attaches the programs and writes rules and settings, before any link is guarded.
fn take_hold(programs: &mut Programs, choice: &Choice) -> Result<(), Fault> {
    programs.attach()?;
    programs.look_for_queues()?;
    programs.replace(&choice.rules, &choice.destinations)?;
    // After the calls that may refuse the settings.
    programs.set_lock(choice.lock)?;
    programs.set_forwarded(choice.forwarded)?;
    programs.set_names(choice.names)?;
    // `up`, `lock` and `status` show the gaps.
    for gap in programs.gaps() {
        debug!("{gap}");
    }
    Ok(())
}

/// Blocks the selected applications of the tunnel `interface` before the tunnel exists, in the
/// calling thread's network namespace. The result is that of a process that has ended: it lasts
/// until [`Capture::begin`] or [`release`]. Returns false and changes nothing if a process serves
/// the tunnel, since that process leaves the kill switch on when it ends.
///
/// Guards the links that exist, so that traffic that bypasses the tunnel continues. On links that
/// appear later the second layer blocks.
///
/// # Errors
///
/// See [`Fault`]. On failure nothing new is left behind.
pub fn close(interface: &str, choice: &Choice) -> Result<bool, Fault> {
    if is_served(interface)? {
        return Ok(false);
    }
    or_nothing(interface, || {
        let mut programs = Programs::load(interface, Way::Filters)?;
        take_hold(&mut programs, choice)?;
        let watch = UplinkWatch::open(NO_TUN);
        let survey = watch.and_then(|mut watch| watch.survey().map_err(io::Error::other));
        let survey = survey.map_err(Fault::call("listing links"))?;
        for uplink in &survey.guarded {
            if let Err(fault) = programs.guard(uplink) {
                warn!(link = uplink.name, %fault, "chosen applications cannot use this link");
            }
        }
        programs.set_addresses(&survey.addresses, &survey.on_loopback)
    })?;
    Ok(true)
}

/// Returns true if a process serves the tunnel, or is about to.
pub(crate) fn is_served(interface: &str) -> Result<bool, Fault> {
    let programs = Programs::open(interface)?;
    Ok(programs.is_some_and(|programs| programs.daemon().is_some()))
}

/// The index of no link.
const NO_TUN: u32 = 0;

impl Drop for Capture {
    fn drop(&mut self) {
        // Writing to the eventfd fails only if its counter overflows.
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Removes the programs that block the packets of selected applications for the tunnel `interface`
/// of the calling thread's network namespace, whether or not a process still serves it. Returns
/// `None` if there are none.
///
/// Before that it ends the TCP connections of these applications and gives their UDP sockets an
/// error, so that conversations in the tunnel do not continue outside it. The returned value
/// reports how that went; a failure there does not stop the removal.
///
/// # Errors
/// [`Fault::Call`] names the pin that cannot be removed.
pub fn release(interface: &str) -> Result<Option<Released>, Fault> {
    let pins = pins(interface)?;
    if !pins.exist() {
        return Ok(None);
    }
    let ended = end_conversations(interface);
    let on_their_way = Programs::remove_pinned(&pins)?;
    Ok(Some(Released {
        ended,
        on_their_way,
    }))
}

/// Result of [`release`]: the conversations that were in the tunnel.
#[derive(Debug)]
pub struct Released {
    /// The connections that were ended, or the reason why they continue.
    pub ended: Result<Reset, Fault>,
    /// The reason why packets on their way to a filter may have left outside the tunnel.
    pub on_their_way: Option<Fault>,
}

fn end_conversations(interface: &str) -> Result<Reset, Fault> {
    let Some(mut programs) = Programs::open(interface)? else {
        return Ok(Reset::default());
    };
    // Block everything first, even with the kill switch off, so that no conversation begins or
    // continues outside the tunnel.
    if programs.lock() == Lock::Nobody {
        programs.set_lock(Lock::Chosen)?;
    }
    programs.set_down();
    reset::end(|| programs.chosen_sockets(), Which::Conversations)
}

/// Ends the TCP connections of the applications selected for the tunnel `interface` of the calling
/// thread's network namespace. It serves mainly connections from before the tunnel, whose remote
/// ends know them by another address.
///
/// # Errors
/// [`Fault::Call`], [`Fault::Program`]. A connection that cannot be ended is no error.
pub fn reset(interface: &str) -> Result<Reset, Fault> {
    match Programs::open(interface)? {
        Some(programs) => reset::end(|| programs.chosen_sockets(), Which::Connections),
        None => Ok(Reset::default()),
    }
}

/// Replaces rules and settings of the tunnel `interface` of the calling thread's network namespace.
/// Another process may serve it and continues with the new ones. Returns `None` if there is no such
/// tunnel.
///
/// Open sockets have the new verdict when this returns. The conversations of applications that are
/// no longer selected have been ended, see [`Programs::replace`].
///
/// # Errors
/// As [`Programs::replace`]: nothing has changed. [`Fault::Schema`] if another version of Taupe
/// serves the tunnel.
pub fn replace(interface: &str, choice: &Choice) -> Result<Option<Replaced>, Fault> {
    let Some(mut programs) = Programs::open(interface)? else {
        return Ok(None);
    };
    let before = (programs.lock(), programs.forwarded(), programs.names());
    let (lock, forwarded, names) = before;
    programs.replace(&choice.rules, &choice.destinations)?;
    // After the call that may refuse the rules.
    let rest = programs
        .set_lock(choice.lock)
        .and_then(|()| programs.set_forwarded(choice.forwarded).map(drop))
        .and_then(|()| programs.set_names(choice.names).map(drop));
    let replaced = Replaced {
        programs,
        lock,
        forwarded,
        names,
    };
    if let Err(fault) = rest {
        // The first error matters, not one of the way back.
        let _ = replaced.take_back();
        return Err(fault);
    }
    Ok(Some(replaced))
}

/// The previous rules and settings, after a replacement.
#[derive(Debug)]
pub struct Replaced {
    programs: Programs,
    lock: Lock,
    forwarded: Forwarded,
    names: Names,
}

impl Replaced {
    /// Restores them, unless they have been replaced again since.
    ///
    /// # Errors
    /// As [`Programs::take_back`].
    pub fn take_back(mut self) -> Result<(), Fault> {
        let locked = self.programs.set_lock(self.lock);
        let forwarded = self.programs.set_forwarded(self.forwarded).map(drop);
        let names = self.programs.set_names(self.names).map(drop);
        self.programs
            .take_back()
            .and(locked)
            .and(forwarded)
            .and(names)
    }
}

/// Returns the names of the interfaces of the tunnels in the calling thread's network namespace for
/// which applications are selected, sorted.
///
/// # Errors
/// [`Fault::Call`]: the network namespace has no readable cookie.
pub fn in_effect() -> Result<Vec<String>, Fault> {
    let number = number()?;
    let here = Pins::all().filter(|pins| pins.cookie() == Some(number));
    let mut names: Vec<String> = here.filter_map(|pins| pins.interface()).collect();
    names.sort();
    Ok(names)
}

/// Returns the kill switch of the tunnel `interface` in the calling thread's network namespace, or
/// `None` if no applications are selected for it.
///
/// # Errors
/// [`Fault::Call`], [`Fault::Map`], [`Fault::Schema`].
pub fn lock(interface: &str) -> Result<Option<Lock>, Fault> {
    let state = Maps::pinned_state(&pins(interface)?)?;
    Ok(state.map(|state| Lock::of(state.lock.load(Ordering::Relaxed))))
}

/// Returns the gap in the handling of DNS queries for the tunnel `interface` of the calling
/// thread's network namespace, if there is one.
///
/// # Errors
/// [`Fault::Call`], [`Fault::Map`], [`Fault::Schema`].
pub fn gap_of_names(interface: &str) -> Result<Option<Gap>, Fault> {
    let pins = pins(interface)?;
    let state = Maps::pinned_state(&pins)?;
    let names = state.map(|state| Names::of(state.names.load(Ordering::Relaxed)));
    let has_servers = names.is_some_and(Names::any);
    Ok((has_servers && !Programs::refuses_services(&pins)).then_some(Gap::Services))
}

/// Returns the gaps of the tunnel `interface` in the calling thread's network namespace, on this
/// kernel and from where the tunnel's process was started. The list is empty if no applications are
/// selected for it.
///
/// # Errors
/// As [`Programs::open`].
pub fn gaps(interface: &str) -> Result<Vec<Gap>, Fault> {
    let programs = Programs::open(interface)?;
    Ok(programs.map_or_else(Vec::new, |programs| programs.gaps()))
}

/// Returns true if applications are selected for the tunnel `interface` of the calling thread's
/// network namespace.
///
/// # Errors
/// [`Fault::Call`]: the network namespace has no readable cookie.
pub fn is_in_effect(interface: &str) -> Result<bool, Fault> {
    Ok(pins(interface)?.exist())
}

pub(crate) fn pins(interface: &str) -> Result<Pins, Fault> {
    Ok(Pins::of(interface, number()?))
}

/// Returns the cookie of the network namespace, by which pins are named.
fn number() -> Result<u64, Fault> {
    let number = taupe_os_linux::namespace::network_id();
    number.map_err(Fault::call("asking for the network namespace"))
}

/// Runs `begin`. If it fails and the tunnel had no pins before, removes the pins that it has
/// created.
pub(crate) fn or_nothing<T>(
    interface: &str,
    begin: impl FnOnce() -> Result<T, Fault>,
) -> Result<T, Fault> {
    let was_there = is_in_effect(interface)?;
    let begun = begin();
    if begun.is_err()
        && !was_there
        && let Ok(pins) = pins(interface)
    {
        // The first error matters, not one of the clean-up.
        let _ = Programs::remove_pinned(&pins);
    }
    begun
}
