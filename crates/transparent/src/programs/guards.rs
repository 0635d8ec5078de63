//! The filters of interfaces: put before all others, and looked after.
//!
//! An uplink is guarded while its entry in `uplinks` names the filter that stands
//! first on it, other tunnels' aside; a program at the sockets asks the device itself, at
//! every packet, and drops what would leave by one that is not. So whatever happens to a
//! filter while nobody looks, nothing leaves in clear; what is here brings it back.

use std::io;
use std::os::fd::AsFd as _;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use aya::programs::{SchedClassifier, TcAttachType};
use rustix::io::Errno;
use taupe_os_linux::netlink::{System, SystemError};

use super::{Programs, Way};
use crate::fault::Fault;
use crate::filters::{OURS, Place};
use crate::pins;
use crate::state::UplinkValue;
use crate::syscall::{self, Target, attach_type};
use crate::uplinks::{LinkHeader, Uplink};

/// A filter: its program, and which of an interface's packets it sees.
type Filter = (&'static str, u32);

const OUT: Filter = ("taupe_out", attach_type::TCX_EGRESS);
const IN: Filter = ("taupe_in", attach_type::TCX_INGRESS);

/// Those of the TUN.
const TUN: [Filter; 2] = [
    ("taupe_tun", attach_type::TCX_INGRESS),
    ("taupe_into", attach_type::TCX_EGRESS),
];

/// How an uplink is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Guard {
    /// As it should be, or not to be guarded at all.
    Whole,
    /// It has not been guarded, or it has changed.
    Missing,
    /// Somebody has removed a filter, or put another one before it.
    Broken,
}

impl Programs {
    /// Guards an uplink: from here on no packet of a chosen application leaves by
    /// it in the clear. Called again for one that is guarded it takes over what has
    /// changed. One whose header is unknown is not guarded: chosen applications
    /// cannot use it at all, as any that nobody has guarded.
    ///
    /// # Errors
    ///
    /// [`Fault::Call`], [`Fault::Map`], [`Fault::Behind`]: chosen applications cannot
    /// use the interface.
    pub fn guard(&mut self, uplink: &Uplink) -> Result<(), Fault> {
        let guarded = self.guard_with_filters(uplink);
        if guarded.is_err() {
            self.maps.remove_uplink(uplink.index)?;
        }
        guarded
    }

    fn guard_with_filters(&mut self, uplink: &Uplink) -> Result<(), Fault> {
        if uplink.header == LinkHeader::Unknown {
            return match self.maps.uplink(uplink.index)? {
                Some(_) => self.unguard(uplink.index),
                None => Ok(()),
            };
        }
        self.filter(IN, uplink.index)?;
        let link = self.filter(OUT, uplink.index)?;
        self.maps.set_uplink(uplink.index, value(uplink, link))
    }

    /// How an uplink is found. Costs a few system calls.
    ///
    /// # Errors
    ///
    /// [`Fault::Call`], [`Fault::Map`].
    pub fn look_at(&self, uplink: &Uplink) -> Result<Guard, Fault> {
        let Some(entry) = self.maps.uplink(uplink.index)? else {
            return Ok(match uplink.header {
                LinkHeader::Unknown => Guard::Whole,
                _ => Guard::Missing,
            });
        };
        let (out, into) = (
            self.standing(OUT, uplink.index)?,
            self.standing(IN, uplink.index)?,
        );
        Ok(match (out, into) {
            (Some(link), Some(_)) if entry == value(uplink, link) => Guard::Whole,
            (Some(link), Some(_)) if entry.link == link => Guard::Missing,
            _ => Guard::Broken,
        })
    }

    /// Puts a filter on an interface, before all others; the number of its link, 0 if
    /// it has none.
    fn filter(&mut self, filter: Filter, index: u32) -> Result<u32, Fault> {
        let (name, kind) = filter;
        if self.without_tcx {
            self.filter_by_clsact(filter, index)?;
        } else {
            let pin = self.pins.link(&format!("{index}-{name}"));
            let target = Target::Interface(index, kind);
            if self.link(name, target, &pin).is_ok()
                && let Some(link) = self.standing(filter, index)?
            {
                return Ok(link);
            }
            // It is behind another one, or still on an interface that had this number,
            // or somebody has just removed its pin. A program can stand on an
            // interface only once.
            self.load_again(name)?;
            self.link_anew(name, target, &pin)?;
        }
        self.standing(filter, index)?.ok_or_else(|| Fault::Behind {
            interface: taupe_os_linux::interface::name(index).unwrap_or_else(|| index.to_string()),
        })
    }

    fn filter_by_clsact(&mut self, (name, kind): Filter, index: u32) -> Result<(), Fault> {
        let failed = || format!("attaching {name} by clsact");
        let interface = taupe_os_linux::interface::name(index)
            .ok_or_else(|| Fault::call(failed())(Errno::NODEV))?;
        let place = self.place(&interface, kind);
        let program = self.classifier(name)?;
        place
            .attach(program)
            .map_err(|error| Fault::call(failed())(std::io::Error::other(error)))
    }

    /// The number of the link of this tunnel's filter, if nothing but other tunnels'
    /// filters sees an interface's packets before it.
    fn standing(&self, (name, kind): Filter, index: u32) -> Result<Option<u32>, Fault> {
        let failed = || Fault::call(format!("looking at the filters of interface {index}"));
        let attached = match syscall::attached(index, kind) {
            // An interface that is gone has none.
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(None),
            Err(error) if self.without_tcx && error.raw_os_error() == Some(libc::EINVAL) => {
                Vec::new()
            }
            attached => attached.map_err(failed())?,
        };
        if !self.without_tcx {
            let pin = self.pins.link(&format!("{index}-{name}"));
            let Ok(link) = syscall::open(&pin) else {
                return Ok(None);
            };
            let link = syscall::id(link.as_fd()).map_err(failed())?;
            for program in attached {
                if program.link == link {
                    return Ok(Some(link));
                }
                if !program.is_called(OURS).map_err(failed())? {
                    break;
                }
            }
            return Ok(None);
        }
        // Those of tcx come before.
        if !attached.is_empty() {
            return Ok(None);
        }
        let Some(interface) = taupe_os_linux::interface::name(index) else {
            return Ok(None);
        };
        let is_first = self.place(&interface, kind).is_first(index);
        let is_first = is_first.map_err(std::io::Error::other).map_err(failed())?;
        Ok(is_first.then_some(0))
    }

    fn place<'a>(&self, interface: &'a str, kind: u32) -> Place<'a> {
        Place {
            interface,
            direction: direction(kind),
            stamp: self.maps.state.stamp.load(Ordering::Relaxed),
        }
    }

    fn classifier(&mut self, name: &'static str) -> Result<&mut SchedClassifier, Fault> {
        let program = self.object.program_mut(name).ok_or(Fault::Missing(name))?;
        program.try_into().map_err(|_| Fault::Missing(name))
    }

    /// Makes another program of the same code. The one before stays where it is.
    fn load_again(&mut self, name: &'static str) -> Result<(), Fault> {
        let program = self.classifier(name)?;
        let loaded = program.unload().and_then(|()| program.load());
        loaded.map_err(|source| Fault::program(name, super::places::PACKETS, source))
    }

    /// Attaches filters as before Linux 6.6 from here on, whether or not the kernel
    /// is that old; it finds out by itself.
    pub fn forgo_tcx(&mut self) {
        self.without_tcx = true;
    }

    /// Ends guarding an interface, which may be gone. Chosen applications cannot use
    /// it from then on.
    ///
    /// # Errors
    ///
    /// [`Fault::Map`], [`Fault::Call`].
    pub fn unguard(&mut self, index: u32) -> Result<(), Fault> {
        self.maps.remove_uplink(index)?;
        // Those that run have looked up the interface already.
        syscall::wait_for_programs().map_err(Fault::call("waiting for programs"))?;
        let dropped = drop_what_waits(&[index]);
        if self.without_tcx {
            self.maps.detach_filters(index);
        }
        for (name, _) in [OUT, IN] {
            pins::remove(&self.pins.link(&format!("{index}-{name}")))?;
        }
        dropped
    }

    /// The interfaces that are guarded, also those that this process's predecessor
    /// has guarded and that are gone.
    ///
    /// # Errors
    ///
    /// [`Fault::Map`].
    pub fn guarded(&self) -> Result<Vec<u32>, Fault> {
        self.maps.uplinks()
    }

    /// The TUN is there and somebody reads it: chosen applications' packets go there, by
    /// its filters or by routes.
    /// As [`guard`](Self::guard), this is to be called in the tunnel's namespace.
    ///
    /// # Errors
    ///
    /// [`Fault::Call`], [`Fault::Behind`]: nothing has changed.
    pub fn set_up(&mut self, tun: u32) -> Result<(), Fault> {
        let before = self.maps.state.tun.load(Ordering::Relaxed);
        let filters: &[Filter] = match self.way {
            Way::Filters => &TUN,
            Way::Marks => &[],
        };
        for &filter in filters {
            self.filter(filter, tun)?;
        }
        if before != tun {
            for (name, _) in TUN {
                pins::remove(&self.pins.link(&format!("{before}-{name}")))?;
            }
        }
        self.maps.state.tun.store(tun, Ordering::Relaxed);
        self.maps.state.up.store(1, Ordering::Release);
        Ok(())
    }

    /// Whether nothing gets to the TUN or from it but what the filters let pass.
    ///
    /// # Errors
    ///
    /// [`Fault::Call`].
    pub fn is_tun_filtered(&self) -> Result<bool, Fault> {
        let tun = self.maps.state.tun.load(Ordering::Relaxed);
        for filter in TUN {
            if self.standing(filter, tun)?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Whether the kernel has no tcx (before Linux 6.6).
pub(super) fn is_without_tcx() -> bool {
    const LOOPBACK: u32 = 1;
    let asked = syscall::attached(LOOPBACK, attach_type::TCX_EGRESS);
    // What kernels say to what they have never heard of.
    asked.is_err_and(|error| error.raw_os_error() == Some(libc::EINVAL))
}

const fn direction(kind: u32) -> TcAttachType {
    match kind {
        attach_type::TCX_EGRESS => TcAttachType::Egress,
        _ => TcAttachType::Ingress,
    }
}

/// How long neighbours may take to tell their addresses.
const ANSWER: Duration = Duration::from_millis(200);

/// Sees to it that no packet waits for a neighbour's address on these interfaces: it has
/// passed the programs at the sockets, so that filters must see it yet. Most neighbours
/// answer at once; the others are forgotten, as they are by the kernel some seconds later,
/// and with them the packets that wait, whoever has sent them.
pub(super) fn drop_what_waits(interfaces: &[u32]) -> Result<(), Fault> {
    if interfaces.is_empty() {
        return Ok(());
    }
    let drop = || -> Result<(), SystemError> {
        let mut system = System::open()?;
        let mut asked_for = || {
            let mut all = system.neighbours_asked_for()?;
            all.retain(|(index, _)| interfaces.contains(index));
            Ok(all)
        };
        let end = Instant::now() + ANSWER;
        let mut waited_for = asked_for()?;
        while !waited_for.is_empty() && Instant::now() < end {
            thread::sleep(ANSWER / 20);
            waited_for = asked_for()?;
        }
        for (index, neighbour) in waited_for {
            match system.forget_neighbour(index, neighbour) {
                Err(error) if !is_gone(&error) => return Err(error),
                // Or it has answered in the meantime.
                _ => {}
            }
        }
        Ok(())
    };
    drop().map_err(io::Error::other).map_err(Fault::call(
        "dropping the packets that wait for a neighbour",
    ))?;
    // For one that has answered they are sent one by one, without its being asked for.
    syscall::wait_for_programs().map_err(Fault::call("waiting for programs"))
}

fn is_gone(error: &SystemError) -> bool {
    let gone = [Errno::NOENT, Errno::NODEV, Errno::NXIO];
    error
        .errno()
        .is_some_and(|errno| gone.contains(&Errno::from_raw_os_error(errno)))
}

fn value(uplink: &Uplink, link: u32) -> UplinkValue {
    let mac = match uplink.header {
        LinkHeader::Ethernet(mac) => Some(mac),
        LinkHeader::None | LinkHeader::Unknown => None,
    };
    UplinkValue {
        mac: mac.unwrap_or_default(),
        has_ethernet: u8::from(mac.is_some()),
        leads_out: u8::from(uplink.leads_out),
        link,
    }
}
