//! A tunnel's capture, kept true while the network changes.
//!
//! ```text
//! applications ─ uplink ─┐ filters (programs)            ┌─ uplink ─ applications
//!                        └─► TUN ─► translation ─► tunnel ┘
//! ```
//!
//! [`Capture::begin`] does everything that has to hold before the first packet; a
//! thread then guards links as they come and go, and forgets flows that have ended.

use std::io;
use std::os::fd::OwnedFd;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use taupe_config::application::AppRules;
use taupe_config::destinations::Class;
use taupe_config::prefix::Prefix;
use tracing::{info, warn};

use crate::fault::Fault;
use crate::pins::Pins;
use crate::programs::Programs;
use crate::translate::Translator;
use crate::uplinks::{Survey, UplinkWatch};

/// What is captured.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Which applications.
    pub rules: AppRules,
    /// Which of their destinations.
    pub destinations: Vec<(Prefix, Class)>,
}

/// How long a flow is remembered after its last packet, so that what the kernel
/// sends for a connection whose socket has gone is still known.
const FLOW_LIFE: Duration = Duration::from_secs(300);

/// From one look at flows to the next.
const EXPIRY: Timespec = Timespec {
    tv_sec: 30,
    tv_nsec: 0,
};

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
        let was_there = is_in_effect(interface)?;
        let mut programs = Programs::load(interface)?;
        match Self::begin_with(&mut programs, tun, choice, &translator) {
            Ok((watch, stop)) => {
                let keeper = Keeper {
                    programs,
                    watch,
                    translator,
                    stop: stop.try_clone().map_err(Fault::call("dup"))?,
                };
                let thread = std::thread::Builder::new()
                    .name("uplinks".into())
                    .spawn(move || keeper.run())
                    .map_err(Fault::call("starting a thread"))?;
                Ok(Self {
                    stop,
                    thread: Some(thread),
                })
            }
            Err(fault) => {
                if was_there {
                    programs.set_down();
                } else {
                    // What went wrong first is more interesting than what does now.
                    let _ = programs.remove();
                }
                Err(fault)
            }
        }
    }

    fn begin_with(
        programs: &mut Programs,
        tun: u32,
        choice: &Choice,
        translator: &Translator,
    ) -> Result<(UplinkWatch, OwnedFd), Fault> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC).map_err(Fault::call("eventfd"))?;
        let mut watch = UplinkWatch::open(tun).map_err(Fault::call("watching links"))?;
        programs.attach()?;
        programs.replace(&choice.rules, &choice.destinations)?;
        let survey = watch.survey().map_err(io::Error::other);
        let survey = survey.map_err(Fault::call("listing links"))?;
        follow(programs, translator, &survey)?;
        programs.set_up(tun)?;
        Ok((watch, stop))
    }
}

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
/// serves it or not. Whether there was anything.
///
/// # Errors
/// [`Fault::Call`] naming what cannot be removed.
pub fn release(interface: &str) -> Result<bool, Fault> {
    let Some(pins) = pins(interface)? else {
        return Ok(false);
    };
    let there = pins.exist();
    Programs::remove_pinned(&pins)?;
    Ok(there)
}

/// Whether applications are chosen for the tunnel `interface` of the calling
/// thread's network namespace.
///
/// # Errors
/// [`Fault::Call`]: the network namespace cannot be told from others.
pub fn is_in_effect(interface: &str) -> Result<bool, Fault> {
    Ok(pins(interface)?.is_some_and(|pins| pins.exist()))
}

/// `None` on a kernel (before Linux 5.14) that is older than all that is needed: it
/// has none.
fn pins(interface: &str) -> Result<Option<Pins>, Fault> {
    match taupe_sys::namespace::network_cookie() {
        Ok(cookie) => Ok(Some(Pins::of(interface, cookie))),
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(None),
        Err(error) => Err(Fault::call("asking for the network namespace's cookie")(
            error,
        )),
    }
}

/// Has the kernel's part and the translation follow the links.
fn follow(programs: &mut Programs, translator: &Translator, survey: &Survey) -> Result<(), Fault> {
    for index in programs.guarded()? {
        if !survey.guarded.iter().any(|uplink| uplink.index == index) {
            programs.unguard(index)?;
        }
    }
    for uplink in &survey.guarded {
        // One that cannot be guarded must not leave others without a guard.
        if let Err(fault) = programs.guard(uplink) {
            warn!(link = uplink.name, %fault, "chosen applications cannot use this link");
        }
    }
    programs.set_addresses(&survey.addresses)?;
    let main_v4 = survey.main_v4.map(|main| main.address);
    let main_v6 = survey.main_v6.map(|main| main.address);
    translator.set_main_uplink(main_v4, main_v6);
    Ok(())
}

/// The thread.
struct Keeper {
    programs: Programs,
    watch: UplinkWatch,
    translator: Translator,
    stop: OwnedFd,
}

impl Keeper {
    fn run(mut self) {
        loop {
            let mut fds = [
                PollFd::from_borrowed_fd(self.watch.fd(), PollFlags::IN),
                PollFd::new(&self.stop, PollFlags::IN),
            ];
            match poll(&mut fds, Some(&EXPIRY)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    warn!(%error, "waiting for changes of links");
                    break;
                }
            }
            let [changed, stopped] = fds.map(|fd| !fd.revents().is_empty());
            if stopped {
                break;
            }
            if changed {
                self.look();
            }
            if let Err(fault) = self.programs.expire_flows(FLOW_LIFE) {
                warn!(%fault, "forgetting flows");
            }
        }
        self.programs.set_down();
        info!("chosen applications are cut off");
    }

    fn look(&mut self) {
        let survey = match self.watch.survey() {
            Ok(survey) => survey,
            Err(error) => return warn!(%error, "listing links"),
        };
        if let Err(fault) = follow(&mut self.programs, &self.translator, &survey) {
            warn!(%fault, "following the links");
        }
    }
}
