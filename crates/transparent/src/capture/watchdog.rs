//! The watchdog of a capture: a thread that guards links as they appear and disappear, and restores
//! what other programs remove.
//!
//! tcx, cgroup hooks and sysctls send no notifications, so it also checks everything every 10 s.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use taupe_nat::flows::ExpiringFlows;
use taupe_nat::translate::TranslatorControl;
use tracing::{info, warn};

use crate::error::TransparentError;
use crate::programs::{Guard, Programs};
use crate::uplinks::{Survey, Uplink, UplinkWatch};

/// Maximum idle time of a flow. It must cover packets that the kernel sends for a connection after
/// its socket has gone.
const FLOW_IDLE_MAX: Duration = Duration::from_secs(300);

/// Interval between removals of old flows.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(30);

/// Interval between checks of filters, since tcx has no notifications. Until the next check a
/// changed filter blocks selected applications.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Interval between checks for refused flows. Until the next check an application with too many
/// flows can open no more.
const REFUSAL_CHECK_INTERVAL: Timespec = Timespec {
    tv_sec: 2,
    tv_nsec: 0,
};

pub(super) struct Watchdog {
    pub(super) programs: Programs,
    pub(super) watch: UplinkWatch,
    translator: Box<dyn TranslatorControl>,
    pub(super) stop: OwnedFd,
    tun: u32,
    /// Set while the TUN's filters cannot be restored.
    is_tun_unfiltered: bool,
    pub(super) survey: Survey,
    /// Reasons why links are not guarded, by index, so that each is logged once.
    refused: BTreeMap<u32, String>,
    /// The hooks of sockets and processes that were attached at the beginning.
    hooks: BTreeSet<&'static str>,
    /// Why hooks could not be restored, so that each reason is logged once.
    hooks_error: Option<String>,
    /// Why hooks and the TUN's filters could not be checked.
    check_error: Option<String>,
    /// Why IPv6 could not be switched off again.
    ipv6_error: Option<String>,
}

impl Watchdog {
    pub(super) fn new(
        programs: Programs,
        tun: u32,
        translator: Box<dyn TranslatorControl>,
    ) -> Result<Self, TransparentError> {
        Ok(Self {
            programs,
            watch: UplinkWatch::open(tun).map_err(TransparentError::call("watching links"))?,
            translator,
            stop: eventfd(0, EventfdFlags::CLOEXEC).map_err(TransparentError::call("eventfd"))?,
            tun,
            is_tun_unfiltered: false,
            survey: Survey::default(),
            refused: BTreeMap::new(),
            hooks: BTreeSet::new(),
            hooks_error: None,
            check_error: None,
            ipv6_error: None,
        })
    }

    /// Records the hooks that are attached now as those to restore.
    pub(super) fn record_hooks(&mut self) -> Result<(), TransparentError> {
        self.hooks = self.programs.attached_hooks()?;
        Ok(())
    }

    pub(super) fn run(mut self) {
        let (mut expired, mut checked) = (Instant::now(), Instant::now());
        let mut is_stale = false;
        loop {
            let mut fds = [
                PollFd::from_borrowed_fd(self.watch.fd(), PollFlags::IN),
                PollFd::new(&self.stop, PollFlags::IN),
            ];
            match poll(&mut fds, Some(&REFUSAL_CHECK_INTERVAL)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return warn!(%error, "waiting for changes of links"),
            }
            let [changed, stopped] = fds.map(|fd| !fd.revents().is_empty());
            if stopped {
                return;
            }
            self.make_room();
            // The notification has been read and will not be repeated.
            is_stale |= changed;
            if !is_stale && checked.elapsed() < CHECK_INTERVAL {
                continue;
            }
            checked = Instant::now();
            if let Err(error) = self.programs.detect_nfqueue() {
                warn!(%error, "looking for programs that use NFQUEUE");
            }
            if is_stale {
                match self.watch.survey() {
                    Ok(survey) => (self.survey, is_stale) = (survey, false),
                    Err(error) => warn!(%error, "listing links"),
                }
            }
            if let Err(error) = self.guard_links(restore_guard) {
                warn!(%error, "guarding the links");
            }
            let (hooks, filters) = (self.restore_hooks(), self.restore_tun_filters());
            self.log_failed_check(hooks.and(filters));
            self.restore_ipv6_setting();
            if expired.elapsed() >= EXPIRY_INTERVAL {
                expired = Instant::now();
                if let Err(error) = self.programs.expire_flows(FLOW_IDLE_MAX) {
                    warn!(%error, "removing flows that have ended");
                }
            }
        }
    }

    /// Makes room for an application that has been refused a flow.
    fn make_room(&mut self) {
        let translator = &self.translator;
        let forget = |flows: &ExpiringFlows| translator.forget(flows);
        let handled_refusal = self.programs.make_room_for_flows(forget);
        if let Err(error) = handled_refusal {
            warn!(%error, "making room for flows");
        }
    }

    /// Guards the current links with `guard`, and stops guarding links that have gone. Continues
    /// after a failure and returns the first error.
    pub(super) fn guard_links(
        &mut self,
        guard: impl Fn(&mut Programs, &Uplink) -> Result<(), TransparentError>,
    ) -> Result<(), TransparentError> {
        let is_there = |index| self.survey.guarded.iter().any(|link| link.index == index);
        let guarded = self.programs.guarded();
        let mut done = Ok(());
        for index in guarded.iter().flatten().copied() {
            if !is_there(index) {
                done = done.and(self.programs.unguard(index));
            }
        }
        self.refused.retain(|index, _| is_there(*index));
        for uplink in &self.survey.guarded {
            let error = guard(&mut self.programs, uplink).err();
            let why = error.map(|error| error.to_string());
            if self.refused.get(&uplink.index) == why.as_ref() {
                continue;
            }
            match why {
                Some(why) => {
                    let guarded = self.programs.guarded();
                    // A failed check leaves the guard in place.
                    let consequence = match guarded.is_ok_and(|all| all.contains(&uplink.index)) {
                        true => "the filters of this link cannot be checked",
                        false => "selected applications cannot use this link",
                    };
                    warn!(link = uplink.name, %why, "{consequence}");
                    self.refused.insert(uplink.index, why);
                }
                None => {
                    info!(
                        link = uplink.name,
                        "selected applications can use this link again"
                    );
                    self.refused.remove(&uplink.index);
                }
            }
        }
        let Survey {
            addresses,
            on_loopback,
            ..
        } = &self.survey;
        done = done.and(self.programs.set_addresses(addresses, on_loopback));
        let main_v4 = self.survey.main_v4.map(|main| main.address);
        let main_v6 = self.survey.main_v6.map(|main| main.address);
        self.translator.set_main_uplink(main_v4, main_v6);
        guarded.and(done)
    }

    /// Restores the filters of the TUN. While it cannot, selected applications are blocked. Fails
    /// if the filters cannot be checked.
    fn restore_tun_filters(&mut self) -> Result<(), TransparentError> {
        let restored = match self.programs.is_tun_filtered() {
            Ok(true) if !self.is_tun_unfiltered => return Ok(()),
            // It says nothing about the filters, which have been there so far.
            Err(error) if error.is_exhaustion() && !self.is_tun_unfiltered => return Err(error),
            Ok(_) => self.programs.set_up(self.tun),
            Err(error) => Err(error),
        };
        self.is_tun_unfiltered = restored.is_err();
        match restored {
            Ok(()) => warn!(
                "another program removed the filters of the tunnel's interface; they are attached again"
            ),
            // The interface has gone, as at each normal end of a tunnel. `drop` logs the kill
            // switch.
            Err(_) if taupe_os_linux::interface::name(self.tun).is_none() => {
                self.programs.set_down()
            }
            Err(error) => {
                self.programs.set_down();
                warn!(%error, "the tunnel is down: {}", self.programs.lock());
            }
        }
        Ok(())
    }
}

impl Watchdog {
    /// Restores hooks that have been detached. Fails if they cannot be checked.
    fn restore_hooks(&mut self) -> Result<(), TransparentError> {
        let missing = self.missing_hooks()?;
        if missing.is_empty() {
            return Ok(());
        }
        let restored = self.programs.reattach(&missing);
        let left = restored.and_then(|()| self.missing_hooks());
        let why = match left {
            Err(error) => Some(error.to_string()),
            Ok(left) if !left.is_empty() => Some(format!("{left:?} cannot be attached")),
            Ok(_) => {
                warn!(
                    ?missing,
                    "another program detached eBPF programs of Taupe; they are attached again, but \
                     traffic of the selected applications may have bypassed the tunnel meanwhile"
                );
                None
            }
        };
        log_once(
            &mut self.hooks_error,
            self.tun,
            why,
            "eBPF programs that another program detached cannot be attached again",
        );
        Ok(())
    }

    fn missing_hooks(&self) -> Result<BTreeSet<&'static str>, TransparentError> {
        let attached = self.programs.attached_hooks()?;
        Ok(self.hooks.difference(&attached).copied().collect())
    }

    /// Logs why the programs could not be checked, each reason once. Without descriptors, the TUN's
    /// existence is not known either.
    fn log_failed_check(&mut self, checked: Result<(), TransparentError>) {
        let why = checked.err().map(|error| error.to_string());
        if let Some(why) = why.as_ref().filter(|_| self.check_error != why) {
            warn!(%why, "Taupe's eBPF programs cannot be checked; they stay in effect");
        }
        self.check_error = why;
    }

    /// Switches IPv6 off again on the TUN if another program has switched it on.
    fn restore_ipv6_setting(&mut self) {
        let restored = self.switch_ipv6_off();
        if matches!(restored, Ok(true)) {
            warn!("another program switched IPv6 on on the tunnel's interface; it is off again");
        }
        let why = restored.err().map(|error| error.to_string());
        log_once(
            &mut self.ipv6_error,
            self.tun,
            why,
            "IPv6 cannot be switched off on the tunnel's interface",
        );
    }

    /// Switches IPv6 off on the TUN, so that the kernel gives it no address and sends nothing there
    /// by itself. Returns true if IPv6 was on.
    pub(super) fn switch_ipv6_off(&self) -> Result<bool, TransparentError> {
        let Some(interface) = taupe_os_linux::interface::name(self.tun) else {
            return Ok(false);
        };
        let setting = format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6");
        let switched = match fs::read_to_string(&setting) {
            Ok(value) if value.trim() == "1" => Ok(false),
            // The kernel has no IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            _ => fs::write(&setting, "1").map(|()| true),
        };
        switched.map_err(TransparentError::call(format!("writing 1 to {setting}")))
    }
}

/// Logs a reason unless it was logged before, or the TUN has gone, as at each normal end.
fn log_once(before: &mut Option<String>, tun: u32, why: Option<String>, what: &str) {
    if let Some(why) = &why
        && *before != Some(why.clone())
        && taupe_os_linux::interface::name(tun).is_some()
    {
        warn!(%why, "{what}");
    }
    *before = why;
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.programs.end_service();
        info!("the tunnel is down: {}", self.programs.lock());
    }
}

/// Restores the guard of a link if necessary.
fn restore_guard(programs: &mut Programs, uplink: &Uplink) -> Result<(), TransparentError> {
    match programs.check_guard(uplink)? {
        Guard::Intact => return Ok(()),
        Guard::Outdated => {}
        Guard::Broken => warn!(
            link = uplink.name,
            "another program removed Taupe's filters of this link, or put others before them"
        ),
    }
    programs.guard(uplink)
}
