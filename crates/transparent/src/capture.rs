//! The capture of a tunnel: everything that sends selected applications through it.
//!
//! ```text
//! applications ─ uplink ─┐ filters (programs)            ┌─ uplink ─ applications
//!                        └─► TUN ─► translation ─► tunnel ┘
//! ```
//!
//! [`Capture::begin`] does everything that must be in place before the first packet. Then a thread
//! guards links as they appear and disappear, and removes flows that have ended
//! (`capture/watchdog.rs`).

mod watchdog;

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use taupe_config::application::AppRules;
use taupe_config::destinations::Class;
use taupe_config::file::Forwarded;
use taupe_nat::translate::TranslatorControl;
use tracing::{debug, info, warn};

use crate::error::TransparentError;
use crate::maps::Maps;
use crate::pins::{self, Pins};
use crate::programs::{Attached, CaptureMode, MissingFeature, Programs, is_abandoned};
use crate::reset::{self, Reset, SocketKinds};
use crate::state::{DnsHandling, Lock, PacketProcesses};
use crate::uplinks::UplinkWatch;
use watchdog::Watchdog;

/// Settings of a capture.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CaptureSettings {
    /// Rules that select applications.
    pub rules: AppRules,
    /// Classes of destinations.
    pub destinations: Vec<(IpNet, Class)>,
    /// Kill switch.
    pub lock: Lock,
    /// The destination of forwarded packets.
    pub forwarded: Forwarded,
    /// Handling of DNS queries.
    pub dns: DnsHandling,
}

/// A capture in effect. Dropping it leaves the eBPF programs in place and the kill switch on:
/// selected applications reach nothing until another process takes over.
#[derive(Debug)]
pub struct Capture {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Capture {
    /// Begins to capture for the tunnel `interface`, whose TUN has the index `tun`, in the calling
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
        settings: &CaptureSettings,
        translator: Box<dyn TranslatorControl>,
    ) -> Result<Self, TransparentError> {
        or_clean_up(|created| {
            let programs = Programs::load(interface, CaptureMode::TrafficControl)?;
            *created = programs.created_pins();
            Self::begin_with_programs(programs, tun, packet_processes, settings, translator)
        })
    }

    /// On every exit the watchdog's `drop` sets the tunnel down.
    fn begin_with_programs(
        programs: Programs,
        tun: u32,
        packet_processes: PacketProcesses,
        settings: &CaptureSettings,
        translator: Box<dyn TranslatorControl>,
    ) -> Result<Self, TransparentError> {
        let mut watchdog = Watchdog::new(programs, tun, translator)?;
        let stop = watchdog
            .stop
            .try_clone()
            .map_err(TransparentError::call("dup"))?;
        attach(&mut watchdog.programs, packet_processes, settings)?;
        let survey = watchdog.watch.survey().map_err(io::Error::other);
        watchdog.survey = survey.map_err(TransparentError::call("listing links"))?;
        watchdog.guard_links(Programs::guard)?;
        watchdog.switch_ipv6_off()?;
        watchdog.programs.set_up(tun)?;
        watchdog.programs.remove_earlier()?;
        watchdog.record_hooks()?;
        match watchdog.programs.remove_orphans() {
            Ok(0) => {}
            Ok(count) => info!(
                count,
                "removed eBPF programs of tunnels whose network namespaces are gone"
            ),
            Err(error) => {
                warn!(%error, "removing eBPF programs of tunnels whose network namespaces are gone")
            }
        }
        let thread = std::thread::Builder::new()
            .name("uplinks".into())
            .spawn(move || watchdog.run())
            .map_err(TransparentError::call("starting a thread"))?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

/// Attaches the programs and writes rules and settings, before any link is guarded.
fn attach(
    programs: &mut Programs,
    packet_processes: PacketProcesses,
    settings: &CaptureSettings,
) -> Result<(), TransparentError> {
    programs.attach(packet_processes)?;
    programs.detect_nfqueue()?;
    // After the call that may refuse the settings.
    programs.replace_with_lock(&settings.rules, &settings.destinations, Some(settings.lock))?;
    programs.set_forwarded(settings.forwarded)?;
    programs.set_dns(settings.dns)?;
    // The command shows missing features, so they are only for debugging here.
    for feature in programs.missing_features() {
        debug!("{feature}");
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
/// See [`TransparentError`]. On failure nothing new is left behind.
pub fn close(interface: &str, settings: &CaptureSettings) -> Result<bool, TransparentError> {
    if is_served(interface)? {
        return Ok(false);
    }
    or_clean_up(|created| {
        let mut programs = Programs::load(interface, CaptureMode::TrafficControl)?;
        *created = programs.created_pins();
        if programs.daemon().is_some() {
            // Its daemon has started meanwhile.
            return Ok(false);
        }
        attach(&mut programs, [None, None], settings)?;
        let watch = UplinkWatch::open(NO_INTERFACE);
        let survey = watch.and_then(|mut watch| watch.survey().map_err(io::Error::other));
        let survey = survey.map_err(TransparentError::call("listing links"))?;
        for uplink in &survey.guarded {
            if let Err(error) = programs.guard(uplink) {
                warn!(link = uplink.name, %error, "selected applications cannot use this link");
            }
        }
        programs.set_addresses(&survey.addresses, &survey.on_loopback)?;
        programs.remove_earlier()?;
        Ok(true)
    })
}

/// Returns true if a process serves the tunnel, or is about to.
pub(crate) fn is_served(interface: &str) -> Result<bool, TransparentError> {
    let attached = match Attached::lock(interface) {
        Err(TransparentError::Schema { .. }) if is_abandoned(&Pins::here(interface)?) => None,
        attached => attached?,
    };
    Ok(attached.is_some_and(|it| it.state.daemon.load(Ordering::Relaxed) != 0))
}

/// The index of no link.
const NO_INTERFACE: u32 = 0;

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
/// [`TransparentError::Call`] names the pin that cannot be removed.
pub fn release(interface: &str) -> Result<Option<Released>, TransparentError> {
    let pins = Pins::here(interface)?;
    if !pins.exist() {
        return Ok(None);
    }
    let mut ended = match end_conversations(interface) {
        Err(TransparentError::Schema { .. })
            if CaptureMode::of(&pins) == Some(CaptureMode::TrafficControl) =>
        {
            Programs::end_conversations(&pins)
        }
        ended => ended,
    };
    // A process that has ended too early has left these. They block, and have sockets that the programs
    // above do not know.
    for earlier in pins.earlier() {
        let others = Programs::end_conversations(&earlier);
        ended = ended.and_then(|ended| Ok(ended.and(others?)));
    }
    let drain_error = Programs::remove_pinned(&pins)?;
    Ok(Some(Released { ended, drain_error }))
}

/// Result of [`release`]: the conversations that were in the tunnel.
#[derive(Debug)]
pub struct Released {
    /// The connections that were ended, or the reason why they continue.
    pub ended: Result<Reset, TransparentError>,
    /// The reason why packets on their way to a filter may have left outside the tunnel.
    pub drain_error: Option<TransparentError>,
}

fn end_conversations(interface: &str) -> Result<Reset, TransparentError> {
    let Some(mut programs) = Programs::open(interface)? else {
        return Ok(Reset::default());
    };
    // Block everything first, even with the kill switch off, so that no conversation begins or
    // continues outside the tunnel. Another process may have set the kill switch just now, and this
    // waits for the programs that still run with it off.
    let lock = match programs.lock() {
        Lock::Off => Lock::Selected,
        lock => lock,
    };
    programs.set_lock(lock)?;
    programs.set_down();
    reset::end(
        || programs.selected_sockets(),
        SocketKinds::ConnectionsAndUdp,
    )
}

/// Ends the TCP connections of the applications selected for the tunnel `interface` of the calling
/// thread's network namespace. It serves mainly connections from before the tunnel, whose remote
/// ends know them by another address.
///
/// # Errors
/// [`TransparentError::Call`], [`TransparentError::Program`]. A connection that cannot be ended is
/// no error.
pub fn reset(interface: &str) -> Result<Reset, TransparentError> {
    match Programs::open(interface)? {
        Some(programs) => reset::end(|| programs.selected_sockets(), SocketKinds::Connections),
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
/// As [`Programs::replace`]: nothing has changed. [`TransparentError::Schema`] if another version
/// of Taupe serves the tunnel.
pub fn replace(
    interface: &str,
    settings: &CaptureSettings,
) -> Result<Option<Replaced>, TransparentError> {
    let Some(mut programs) = Programs::open(interface)? else {
        return Ok(None);
    };
    let before = (programs.lock(), programs.forwarded(), programs.dns());
    let (lock, forwarded, dns) = before;
    programs.replace_with_lock(&settings.rules, &settings.destinations, Some(settings.lock))?;
    // After the call that may refuse the rules.
    let rest = programs
        .set_forwarded(settings.forwarded)
        .map(drop)
        .and_then(|()| programs.set_dns(settings.dns).map(drop));
    let replaced = Replaced {
        programs,
        lock,
        forwarded,
        dns,
    };
    if let Err(error) = rest {
        // The first error matters, not one of the clean-up.
        let _ = replaced.restore();
        return Err(error);
    }
    Ok(Some(replaced))
}

/// The previous rules and settings, after a replacement.
#[derive(Debug)]
pub struct Replaced {
    programs: Programs,
    lock: Lock,
    forwarded: Forwarded,
    dns: DnsHandling,
}

impl Replaced {
    /// Restores them, unless they have been replaced again since.
    ///
    /// # Errors
    /// As [`Programs::restore`].
    pub fn restore(mut self) -> Result<(), TransparentError> {
        let locked = self.programs.set_lock(self.lock);
        let forwarded = self.programs.set_forwarded(self.forwarded).map(drop);
        let dns = self.programs.set_dns(self.dns).map(drop);
        self.programs.restore().and(locked).and(forwarded).and(dns)
    }
}

/// Returns the names of the interfaces of the tunnels in the calling thread's network namespace for
/// which applications are selected, sorted.
///
/// # Errors
/// [`TransparentError::Call`]: the network namespace has no readable cookie.
pub fn in_effect() -> Result<Vec<String>, TransparentError> {
    let cookie = pins::network_cookie()?;
    let here = Pins::all().filter(|pins| pins.cookie() == Some(cookie));
    let names: BTreeSet<String> = here.filter_map(|pins| pins.interface()).collect();
    Ok(names.into_iter().collect())
}

/// Returns the kill switch of the tunnel `interface` in the calling thread's network namespace, or
/// `None` if no applications are selected for it.
///
/// # Errors
/// [`TransparentError::Call`], [`TransparentError::Map`], [`TransparentError::Schema`].
pub fn lock(interface: &str) -> Result<Option<Lock>, TransparentError> {
    let state = Maps::pinned_state(&Pins::here(interface)?)?;
    Ok(state.map(|state| Lock::of(state.lock.load(Ordering::Relaxed))))
}

/// Returns the only user whose applications are selected for the tunnel `interface` of the calling
/// thread's network namespace, if its rules are about one user.
///
/// # Errors
/// [`TransparentError::Call`], [`TransparentError::Map`], [`TransparentError::Schema`].
pub fn only_user(interface: &str) -> Result<Option<u32>, TransparentError> {
    let state = Maps::pinned_state(&Pins::here(interface)?)?;
    Ok(state.and_then(|state| state.only_user()))
}

/// Returns the feature that the handling of DNS queries lacks, for the tunnel `interface` of the
/// calling thread's network namespace, if there is one.
///
/// # Errors
/// [`TransparentError::Call`], [`TransparentError::Map`], [`TransparentError::Schema`].
pub fn missing_dns_feature(interface: &str) -> Result<Option<MissingFeature>, TransparentError> {
    let pins = Pins::here(interface)?;
    let state = Maps::pinned_state(&pins)?;
    let dns = state.map(|state| state.dns());
    let has_servers = dns.is_some_and(DnsHandling::has_servers);
    Ok((has_servers && !Programs::refuses_services(&pins)).then_some(MissingFeature::NameServices))
}

/// Returns the missing features of the tunnel `interface` in the calling thread's network
/// namespace, on this kernel and from where the tunnel's process was started. The list is empty if
/// no applications are selected for it.
///
/// # Errors
/// [`TransparentError::Call`], [`TransparentError::Map`], [`TransparentError::Schema`].
pub fn missing_features(interface: &str) -> Result<Vec<MissingFeature>, TransparentError> {
    let attached = Attached::lock(interface)?;
    Ok(attached.map_or_else(Vec::new, |it| it.missing_features()))
}

/// Returns true if applications are selected for the tunnel `interface` of the calling thread's
/// network namespace.
///
/// # Errors
/// [`TransparentError::Call`]: the network namespace has no readable cookie.
pub fn is_in_effect(interface: &str) -> Result<bool, TransparentError> {
    Ok(Pins::here(interface)?.exist())
}

/// Runs `begin`, which stores the pins that it creates. If it fails, removes these. Pins of an earlier
/// process stay, also if its version is another one.
pub(crate) fn or_clean_up<T>(
    begin: impl FnOnce(&mut Option<Pins>) -> Result<T, TransparentError>,
) -> Result<T, TransparentError> {
    let mut created = None;
    let begun = begin(&mut created);
    if begun.is_err()
        && let Some(pins) = created
    {
        // The first error matters, not one of the clean-up.
        let _ = Programs::remove_created(&pins);
    }
    begun
}
