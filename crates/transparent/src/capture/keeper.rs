//! The keeper of a capture: a thread that follows links as they appear and disappear, and restores
//! what other programs remove.
//!
//! tcx, cgroup hooks and sysctls send no notifications, so it also checks everything every 10 s.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use taupe_nat::translate::Translator;
use tracing::{info, warn};

use crate::fault::Fault;
use crate::programs::{Guard, Programs};
use crate::uplinks::{Survey, Uplink, UplinkWatch};

/// Maximum idle time of a flow. It must cover packets that the kernel sends for a connection after
/// its socket has gone.
const FLOW_LIFE: Duration = Duration::from_secs(300);

/// Interval between removals of old flows.
const EXPIRY: Duration = Duration::from_secs(30);

/// Interval between checks of filters, since tcx has no notifications. Until the next check a
/// changed filter blocks selected applications.
const LOOK: Duration = Duration::from_secs(10);

/// Interval between checks for refused flows. Until the next check an application with too many
/// flows can open no more.
const RELIEF: Timespec = Timespec {
    tv_sec: 2,
    tv_nsec: 0,
};

pub(super) struct Keeper {
    pub(super) programs: Programs,
    pub(super) watch: UplinkWatch,
    translator: Translator,
    pub(super) stop: OwnedFd,
    tun: u32,
    /// Set while the TUN's filters cannot be restored.
    is_cut_off: bool,
    pub(super) survey: Survey,
    /// Reasons why links are not guarded, by index, so that each is logged once.
    refused: BTreeMap<u32, String>,
    /// The hooks of sockets and processes that were attached at the beginning.
    hooks: BTreeSet<&'static str>,
    /// Why hooks and IPv6 could not be restored, so that each reason is logged once.
    complaints: [Option<String>; 2],
}

impl Keeper {
    pub(super) fn new(programs: Programs, tun: u32, translator: Translator) -> Result<Self, Fault> {
        Ok(Self {
            programs,
            watch: UplinkWatch::open(tun).map_err(Fault::call("watching links"))?,
            translator,
            stop: eventfd(0, EventfdFlags::CLOEXEC).map_err(Fault::call("eventfd"))?,
            tun,
            is_cut_off: false,
            survey: Survey::default(),
            refused: BTreeMap::new(),
            hooks: BTreeSet::new(),
            complaints: [None, None],
        })
    }

    /// Records the hooks that are attached now as those to restore.
    pub(super) fn note_hooks(&mut self) {
        self.hooks = self.programs.attached_hooks();
    }

    pub(super) fn run(mut self) {
        let (mut expired, mut looked) = (Instant::now(), Instant::now());
        let mut is_stale = false;
        loop {
            let mut fds = [
                PollFd::from_borrowed_fd(self.watch.fd(), PollFlags::IN),
                PollFd::new(&self.stop, PollFlags::IN),
            ];
            match poll(&mut fds, Some(&RELIEF)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return warn!(%error, "waiting for changes of links"),
            }
            let [changed, stopped] = fds.map(|fd| !fd.revents().is_empty());
            if stopped {
                return;
            }
            self.relieve();
            // The notification has been read and will not be repeated.
            is_stale |= changed;
            if !is_stale && looked.elapsed() < LOOK {
                continue;
            }
            looked = Instant::now();
            if let Err(fault) = self.programs.look_for_queues() {
                warn!(%fault, "looking for programs that decide on packets");
            }
            if is_stale {
                match self.watch.survey() {
                    Ok(survey) => (self.survey, is_stale) = (survey, false),
                    Err(error) => warn!(%error, "listing links"),
                }
            }
            if let Err(fault) = self.follow(mend) {
                warn!(%fault, "following the links");
            }
            self.mend_hooks();
            self.mend_tun();
            self.mend_ipv6();
            if expired.elapsed() >= EXPIRY {
                expired = Instant::now();
                if let Err(fault) = self.programs.expire_flows(FLOW_LIFE) {
                    warn!(%fault, "forgetting flows");
                }
            }
        }
    }

    /// Makes room for an application that has been refused a flow.
    fn relieve(&mut self) {
        let translator = &self.translator;
        let relieved = self
            .programs
            .relieve_flows(|flows| translator.forget(flows));
        if let Err(fault) = relieved {
            warn!(%fault, "making room for flows");
        }
    }

    /// Guards the current links with `guard`, and stops guarding links that have gone. Continues
    /// after a failure and returns the first error.
    pub(super) fn follow(
        &mut self,
        guard: impl Fn(&mut Programs, &Uplink) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
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
            let fault = guard(&mut self.programs, uplink).err();
            let why = fault.map(|fault| fault.to_string());
            if self.refused.get(&uplink.index) == why.as_ref() {
                continue;
            }
            match why {
                Some(why) => {
                    warn!(link = uplink.name, %why, "chosen applications cannot use this link");
                    self.refused.insert(uplink.index, why);
                }
                None => {
                    info!(
                        link = uplink.name,
                        "chosen applications can use this link again"
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

    /// Restores the filters of the TUN. While it cannot, selected applications are blocked.
    fn mend_tun(&mut self) {
        let mended = match self.programs.is_tun_filtered() {
            Ok(true) if !self.is_cut_off => return,
            Ok(_) => self.programs.set_up(self.tun),
            Err(fault) => Err(fault),
        };
        self.is_cut_off = mended.is_err();
        match mended {
            Ok(()) => warn!("the filters of the tunnel's interface were removed, and are back"),
            // The interface has gone, as at each normal end of a tunnel. `drop` logs the kill
            // switch.
            Err(_) if taupe_os_linux::interface::name(self.tun).is_none() => {
                self.programs.set_down()
            }
            Err(fault) => {
                self.programs.set_down();
                warn!(%fault, "the tunnel is down: {}", self.programs.lock());
            }
        }
    }
}

impl Keeper {
    /// Restores hooks that have been detached.
    fn mend_hooks(&mut self) {
        let missing = self.missing_hooks();
        if missing.is_empty() {
            return;
        }
        let mended = self.programs.attach_again(&missing);
        let left = self.missing_hooks();
        let why = match mended {
            Err(fault) => Some(fault.to_string()),
            Ok(()) if !left.is_empty() => Some(format!("{left:?} cannot be attached")),
            Ok(()) => {
                warn!(
                    ?missing,
                    "somebody has detached programs of Taupe, which are attached again; what \
                     chosen applications sent meanwhile may have bypassed the tunnel"
                );
                None
            }
        };
        let [complaint, _] = &mut self.complaints;
        complain(
            complaint,
            self.tun,
            why,
            "programs that somebody has detached stay away",
        );
    }

    fn missing_hooks(&self) -> BTreeSet<&'static str> {
        let attached = self.programs.attached_hooks();
        self.hooks.difference(&attached).copied().collect()
    }

    /// Switches IPv6 off again on the TUN if somebody has switched it on.
    fn mend_ipv6(&mut self) {
        let mended = self.switch_ipv6_off();
        if matches!(mended, Ok(true)) {
            warn!("somebody has switched IPv6 on on the tunnel's interface; it is off again");
        }
        let why = mended.err().map(|fault| fault.to_string());
        let [_, complaint] = &mut self.complaints;
        complain(
            complaint,
            self.tun,
            why,
            "IPv6 stays on on the tunnel's interface",
        );
    }

    /// Switches IPv6 off on the TUN, so that the kernel gives it no address and sends nothing there
    /// by itself. Returns true if IPv6 was on.
    pub(super) fn switch_ipv6_off(&self) -> Result<bool, Fault> {
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
        switched.map_err(Fault::call(format!("writing 1 to {setting}")))
    }
}

/// Logs a reason unless it was logged before, or the TUN has gone, as at each normal end.
fn complain(before: &mut Option<String>, tun: u32, why: Option<String>, what: &str) {
    if let Some(why) = &why
        && *before != Some(why.clone())
        && taupe_os_linux::interface::name(tun).is_some()
    {
        warn!(%why, "{what}");
    }
    *before = why;
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.programs.set_down();
        info!("the tunnel is down: {}", self.programs.lock());
    }
}

/// Restores the guard of a link if necessary.
fn mend(programs: &mut Programs, uplink: &Uplink) -> Result<(), Fault> {
    match programs.look_at(uplink)? {
        Guard::Whole => return Ok(()),
        Guard::Missing => {}
        Guard::Broken => warn!(
            link = uplink.name,
            "somebody has removed Taupe's filters of this link, or put others before them"
        ),
    }
    programs.guard(uplink)
}
