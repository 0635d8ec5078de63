//! A tunnel's capture, kept true while the network changes.
//!
//! ```text
//! applications ─ uplink ─┐ filters (programs)            ┌─ uplink ─ applications
//!                        └─► TUN ─► translation ─► tunnel ┘
//! ```
//!
//! [`Capture::begin`] does everything that has to hold before the first packet; a
//! thread then guards links as they come and go, and forgets flows that have ended.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use taupe_config::application::AppRules;
use taupe_config::destinations::Class;
use taupe_config::prefix::Prefix;
use tracing::{info, warn};

use crate::fault::Fault;
use crate::pins::Pins;
use crate::programs::{Guard, Programs};
use crate::reset::{self, Reset, Which};
use crate::state::Lock;
use crate::translate::Translator;
use crate::uplinks::{Survey, Uplink, UplinkWatch};

/// What is captured.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Which applications.
    pub rules: AppRules,
    /// Which of their destinations.
    pub destinations: Vec<(Prefix, Class)>,
    /// What is held back while the tunnel is down.
    pub lock: Lock,
}

/// How long a flow is remembered after its last packet, so that what the kernel
/// sends for a connection whose socket has gone is still known.
const FLOW_LIFE: Duration = Duration::from_secs(300);

/// From one look at flows to the next.
const EXPIRY: Duration = Duration::from_secs(30);

/// From one look at filters to the next: tcx has no notices. Until then what somebody
/// has done to them holds chosen applications back.
const LOOK: Timespec = Timespec {
    tv_sec: 10,
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
        let begun = Self::begin_with(Programs::load(interface)?, tun, choice, translator);
        if begun.is_err()
            && !was_there
            && let Ok(Some(pins)) = pins(interface)
        {
            // What went wrong first is more interesting than what does now.
            let _ = Programs::remove_pinned(&pins);
        }
        begun
    }

    /// The keeper sets the tunnel down wherever this ends.
    fn begin_with(
        programs: Programs,
        tun: u32,
        choice: &Choice,
        translator: Translator,
    ) -> Result<Self, Fault> {
        let mut keeper = Keeper {
            programs,
            watch: UplinkWatch::open(tun).map_err(Fault::call("watching links"))?,
            translator,
            stop: eventfd(0, EventfdFlags::CLOEXEC).map_err(Fault::call("eventfd"))?,
            tun,
            survey: Survey::default(),
            refused: BTreeMap::new(),
        };
        let stop = keeper.stop.try_clone().map_err(Fault::call("dup"))?;
        keeper.programs.attach()?;
        for gap in keeper.programs.gaps() {
            warn!("{gap}");
        }
        keeper.programs.set_lock(choice.lock);
        keeper
            .programs
            .replace(&choice.rules, &choice.destinations)?;
        let survey = keeper.watch.survey().map_err(io::Error::other);
        keeper.survey = survey.map_err(Fault::call("listing links"))?;
        keeper.follow(Programs::guard)?;
        keeper.programs.set_up(tun)?;
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
/// Before that, their TCP connections are ended, and their sockets of UDP told so:
/// what was said in the tunnel is not gone on with in the clear.
///
/// # Errors
/// [`Fault::Call`] naming what cannot be removed.
pub fn release(interface: &str) -> Result<bool, Fault> {
    let Some(pins) = pins(interface)? else {
        return Ok(false);
    };
    if !pins.exist() {
        return Ok(false);
    }
    // Whoever wants it gone gets that, whatever is in the way.
    match end_conversations(interface) {
        Ok(Reset { left: 0, .. }) => {}
        Ok(Reset { left, .. }) => {
            warn!(
                left,
                "sockets that were in the tunnel could not be closed, and go past it now"
            );
        }
        Err(fault) => warn!(%fault, "connections that were in the tunnel go past it now"),
    }
    Programs::remove_pinned(&pins)?;
    Ok(true)
}

fn end_conversations(interface: &str) -> Result<Reset, Fault> {
    let Some(programs) = Programs::open(interface)? else {
        return Ok(Reset::default());
    };
    // No new ones.
    programs.set_down();
    reset::end(&programs.chosen_sockets()?, Which::Conversations)
}

/// Ends the TCP connections that the applications chosen for the tunnel `interface` of
/// the calling thread's network namespace have: those that were there before the
/// tunnel, above all, whose other ends know them by another address.
///
/// # Errors
/// [`Fault::Call`], [`Fault::Program`]. That some could not be ended is none.
pub fn reset(interface: &str) -> Result<Reset, Fault> {
    match Programs::open(interface)? {
        Some(programs) => reset::end(&programs.chosen_sockets()?, Which::Connections),
        None => Ok(Reset::default()),
    }
}

/// Chooses other applications, or other destinations of theirs, for the tunnel
/// `interface` of the calling thread's network namespace, which another process may
/// serve: it goes on with these. Whether there is such a tunnel.
///
/// Sockets that are open have the new verdict when this returns. A connection that is no
/// longer to be in the tunnel is ended at once, though not before the verdict: what
/// its program sends in that moment goes past the tunnel.
///
/// # Errors
/// As [`Programs::replace`]; [`Fault::Schema`] if another version of Taupe serves it.
pub fn replace(interface: &str, choice: &Choice) -> Result<bool, Fault> {
    let Some(mut programs) = Programs::open(interface)? else {
        return Ok(false);
    };
    let before = programs.chosen_sockets()?;
    programs.set_lock(choice.lock);
    programs.replace(&choice.rules, &choice.destinations)?;
    let after = programs.chosen_sockets()?;
    let left = before.iter();
    let left = left.filter(|socket| !after.iter().any(|other| socket.is(other)));
    reset::end(left, Which::Conversations)?;
    Ok(true)
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

/// What has the kernel's part and the translation follow the links.
struct Keeper {
    programs: Programs,
    watch: UplinkWatch,
    translator: Translator,
    stop: OwnedFd,
    tun: u32,
    survey: Survey,
    /// Why links are not guarded, by their indices: not to be said again and again.
    refused: BTreeMap<u32, String>,
}

impl Keeper {
    fn run(mut self) {
        let mut expired = Instant::now();
        loop {
            let mut fds = [
                PollFd::from_borrowed_fd(self.watch.fd(), PollFlags::IN),
                PollFd::new(&self.stop, PollFlags::IN),
            ];
            match poll(&mut fds, Some(&LOOK)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return warn!(%error, "waiting for changes of links"),
            }
            let [changed, stopped] = fds.map(|fd| !fd.revents().is_empty());
            if stopped {
                return;
            }
            if changed {
                match self.watch.survey() {
                    Ok(survey) => self.survey = survey,
                    Err(error) => warn!(%error, "listing links"),
                }
            }
            if let Err(fault) = self.follow(mend) {
                warn!(%fault, "following the links");
            }
            self.mend_tun();
            if expired.elapsed() >= EXPIRY {
                expired = Instant::now();
                if let Err(fault) = self.programs.expire_flows(FLOW_LIFE) {
                    warn!(%fault, "forgetting flows");
                }
            }
        }
    }

    /// Has `guard` guard the links that there are now.
    fn follow(
        &mut self,
        guard: impl Fn(&mut Programs, &Uplink) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let is_there = |index| self.survey.guarded.iter().any(|link| link.index == index);
        for index in self.programs.guarded()? {
            if !is_there(index) {
                self.programs.unguard(index)?;
            }
        }
        self.refused.retain(|index, _| is_there(*index));
        for uplink in &self.survey.guarded {
            // One that cannot be guarded must not leave others without a guard.
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
        self.programs.set_addresses(&self.survey.addresses)?;
        let main_v4 = self.survey.main_v4.map(|main| main.address);
        let main_v6 = self.survey.main_v6.map(|main| main.address);
        self.translator.set_main_uplink(main_v4, main_v6);
        Ok(())
    }

    /// Puts the TUN's filters back that somebody has removed.
    fn mend_tun(&mut self) {
        let mended = match self.programs.is_tun_filtered() {
            Ok(true) => return,
            Ok(false) => self.programs.set_up(self.tun),
            Err(fault) => Err(fault),
        };
        match mended {
            Ok(()) => warn!("the filters of the tunnel's interface were removed, and are back"),
            Err(fault) => {
                self.programs.set_down();
                warn!(%fault, "chosen applications are cut off");
            }
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.programs.set_down();
        info!("chosen applications are cut off");
    }
}

/// Guards a link whose guard is not as it should be.
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
