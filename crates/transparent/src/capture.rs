//! A tunnel's capture, kept true while the network changes.
//!
//! ```text
//! applications ─ uplink ─┐ filters (programs)            ┌─ uplink ─ applications
//!                        └─► TUN ─► translation ─► tunnel ┘
//! ```
//!
//! [`Capture::begin`] does everything that has to hold before the first packet; a
//! thread then guards links as they come and go, and forgets flows that have ended
//! (`capture/keeper.rs`).

mod keeper;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use taupe_config::application::AppRules;
use taupe_config::destinations::Class;
use taupe_config::file::Forwarded;
use taupe_nat::translate::Translator;
use taupe_uapi::prefix::Prefix;
use tracing::{debug, info, warn};

use crate::fault::Fault;
use crate::maps::Maps;
use crate::pins::Pins;
use crate::programs::{Gap, Programs, Way};
use crate::reset::{self, Reset, Which};
use crate::state::{Lock, Names};
use crate::uplinks::UplinkWatch;
use keeper::Keeper;

/// What is captured.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Which applications.
    pub rules: AppRules,
    /// Which of their destinations.
    pub destinations: Vec<(Prefix, Class)>,
    /// What is held back while the tunnel is down.
    pub lock: Lock,
    /// Where packets go that this machine forwards for others.
    pub forwarded: Forwarded,
    /// Who answers questions for names.
    pub names: Names,
}

/// A capture that is in effect. Dropping it leaves the kernel's part in place, and
/// closed: chosen applications reach nothing until somebody takes it up again.
#[derive(Debug)]
pub struct Capture {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Capture {
    /// Begins to capture for the tunnel `interface`, whose TUN this process reads
    /// and has the index `tun`, in the calling thread's network namespace. What an
    /// earlier process of the tunnel has left is taken over without a gap.
    ///
    /// # Errors
    ///
    /// See [`Fault`]. Nothing is left that was not there before.
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

    /// The keeper sets the tunnel down wherever this ends.
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

/// What has to hold before a link is guarded.
fn take_hold(programs: &mut Programs, choice: &Choice) -> Result<(), Fault> {
    programs.attach()?;
    programs.look_for_queues()?;
    programs.replace(&choice.rules, &choice.destinations)?;
    // After what may be refused.
    programs.set_lock(choice.lock)?;
    programs.set_forwarded(choice.forwarded)?;
    programs.set_names(choice.names)?;
    // `up`, `lock` and `status` tell them.
    for gap in programs.gaps() {
        debug!("{gap}");
    }
    Ok(())
}

/// Holds back what is chosen for the tunnel `interface` before there is one, in the calling
/// thread's network namespace, as a process that has ended leaves it: it lasts until
/// [`Capture::begin`] or [`release`]. `false`, and nothing is changed, where a process serves
/// the tunnel, which closes it by itself when it ends.
///
/// Links that are there already are guarded, so that what goes past the tunnel goes on;
/// the second layer stands before those that come.
///
/// # Errors
///
/// See [`Fault`]. Nothing is left that was not there before.
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

/// Whether a process serves a tunnel, or will in a moment.
pub(crate) fn is_served(interface: &str) -> Result<bool, Fault> {
    let programs = Programs::open(interface)?;
    Ok(programs.is_some_and(|programs| programs.daemon().is_some()))
}

/// The index of no link.
const NO_TUN: u32 = 0;

impl Drop for Capture {
    fn drop(&mut self) {
        // Fails only when it was asked 2^64 - 2 times.
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Ends what holds back the packets of the applications chosen for the tunnel
/// `interface` of the calling thread's network namespace, whether a process still
/// serves it or not; `None` where there is nothing.
///
/// Before that, their TCP connections are ended, and their sockets of UDP told so:
/// what was said in the tunnel is not gone on with in the clear. What has come of that is
/// what this returns: whoever wants it gone gets that, whatever is in the way.
///
/// # Errors
/// [`Fault::Call`] naming what cannot be removed.
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

/// What has come of what was said in a tunnel that holds nothing back any more.
#[derive(Debug)]
pub struct Released {
    /// The connections that were in it, or why they go on.
    pub ended: Result<Reset, Fault>,
    /// Why packets that were on their way to a filter may have left in the clear.
    pub on_their_way: Option<Fault>,
}

fn end_conversations(interface: &str) -> Result<Reset, Fault> {
    let Some(mut programs) = Programs::open(interface)? else {
        return Ok(Reset::default());
    };
    // No new ones, nor any of these past the tunnel, though nothing were held back.
    if programs.lock() == Lock::Nobody {
        programs.set_lock(Lock::Chosen)?;
    }
    programs.set_down();
    reset::end(|| programs.chosen_sockets(), Which::Conversations)
}

/// Ends the TCP connections that the applications chosen for the tunnel `interface` of
/// the calling thread's network namespace have: those that were there before the
/// tunnel, above all, whose other ends know them by another address.
///
/// # Errors
/// [`Fault::Call`], [`Fault::Program`]. That some could not be ended is none.
pub fn reset(interface: &str) -> Result<Reset, Fault> {
    match Programs::open(interface)? {
        Some(programs) => reset::end(|| programs.chosen_sockets(), Which::Connections),
        None => Ok(Reset::default()),
    }
}

/// Chooses other applications, or other destinations of theirs, for the tunnel
/// `interface` of the calling thread's network namespace, which another process may
/// serve: it goes on with these. `None` where there is no such tunnel.
///
/// Sockets that are open have the new verdict when this returns; what was said in the
/// tunnel has ended there, as [`Programs::replace`] says.
///
/// # Errors
/// As [`Programs::replace`]: all is as it was. [`Fault::Schema`] if another version of
/// Taupe serves it.
pub fn replace(interface: &str, choice: &Choice) -> Result<Option<Replaced>, Fault> {
    let Some(mut programs) = Programs::open(interface)? else {
        return Ok(None);
    };
    let before = (programs.lock(), programs.forwarded(), programs.names());
    let (lock, forwarded, names) = before;
    programs.replace(&choice.rules, &choice.destinations)?;
    // After what may be refused.
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
        // What went wrong first is more interesting than what does now.
        let _ = replaced.take_back();
        return Err(fault);
    }
    Ok(Some(replaced))
}

/// What was chosen before something else was.
#[derive(Debug)]
pub struct Replaced {
    programs: Programs,
    lock: Lock,
    forwarded: Forwarded,
    names: Names,
}

impl Replaced {
    /// Has it hold again, unless somebody has chosen again since.
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

/// The tunnels of the calling thread's network namespace for which applications are
/// chosen, by the names of their interfaces, sorted.
///
/// # Errors
/// [`Fault::Call`]: the network namespace cannot be told from others.
pub fn in_effect() -> Result<Vec<String>, Fault> {
    let number = number()?;
    let here = Pins::all().filter(|pins| pins.cookie() == Some(number));
    let mut names: Vec<String> = here.filter_map(|pins| pins.interface()).collect();
    names.sort();
    Ok(names)
}

/// What is held back while the tunnel `interface` of the calling thread's network
/// namespace is down; `None` where no applications are chosen for it.
///
/// # Errors
/// [`Fault::Call`], [`Fault::Map`], [`Fault::Schema`].
pub fn lock(interface: &str) -> Result<Option<Lock>, Fault> {
    let state = Maps::pinned_state(&pins(interface)?)?;
    Ok(state.map(|state| Lock::of(state.lock.load(Ordering::Relaxed))))
}

/// What does not hold of the names that applications chosen for the tunnel `interface` of
/// the calling thread's network namespace look up, if anything does not.
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

/// The promises that do not hold for the tunnel `interface` of the calling thread's network
/// namespace, on this kernel and from where its process was started; none where no
/// applications are selected for it.
///
/// # Errors
/// As [`Programs::open`].
pub fn gaps(interface: &str) -> Result<Vec<Gap>, Fault> {
    let programs = Programs::open(interface)?;
    Ok(programs.map_or_else(Vec::new, |programs| programs.gaps()))
}

/// Whether applications are chosen for the tunnel `interface` of the calling
/// thread's network namespace.
///
/// # Errors
/// [`Fault::Call`]: the network namespace cannot be told from others.
pub fn is_in_effect(interface: &str) -> Result<bool, Fault> {
    Ok(pins(interface)?.exist())
}

pub(crate) fn pins(interface: &str) -> Result<Pins, Fault> {
    Ok(Pins::of(interface, number()?))
}

/// The network namespace's, as pins are named.
fn number() -> Result<u64, Fault> {
    let number = taupe_os_linux::namespace::network_number();
    number.map_err(Fault::call("asking for the network namespace"))
}

/// Begins something for a tunnel, of which nothing is left when it fails that was not there
/// before.
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
        // What went wrong first is more interesting than what does now.
        let _ = Programs::remove_pinned(&pins);
    }
    begun
}
