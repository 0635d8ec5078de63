//! The filters of interfaces: attaches them before all other filters, and checks them later.
//!
//! An uplink is *guarded* while its entry in `uplinks` names this tunnel's filter, and no filters
//! but those of other Taupe tunnels run before it. The programs at sockets check this for each
//! packet and drop packets that would leave by an unguarded interface. If a filter is
//! lost, packets of selected applications are therefore dropped, and this module restores the
//! filter.

use std::io;
use std::os::fd::AsFd as _;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use aya::programs::{SchedClassifier, TcAttachType};
use rustix::io::Errno;
use taupe_os_linux::netlink::{Netlink, NetlinkError};

use super::{CaptureMode, Programs, wait_for_programs};
use crate::clsact::{ClsactFilter, NAME_PREFIX};
use crate::error::TransparentError;
use crate::pins;
use crate::state::UplinkValue;
use crate::syscall::{self, AttachTarget, attach_type};
use crate::uplinks::{LinkHeader, Uplink};

/// A filter: its program and its attach type.
type Filter = (&'static str, u32);

const OUT: Filter = ("taupe_out", attach_type::TCX_EGRESS);
const IN: Filter = ("taupe_in", attach_type::TCX_INGRESS);

const TUN: [Filter; 2] = [
    ("taupe_tun", attach_type::TCX_INGRESS),
    ("taupe_into", attach_type::TCX_EGRESS),
];

/// State of an uplink's filters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Guard {
    /// The uplink is guarded, or needs no guard.
    Intact,
    /// The uplink's entry is absent, or does not have its present properties.
    Outdated,
    /// Another program has removed a filter, or put one before it.
    Broken,
}

/// Time within which another process pins a filter that it has attached.
const PINNING: Duration = Duration::from_millis(20);

impl Programs {
    /// Guards an uplink: from here on no packet of a selected application leaves by it outside the
    /// tunnel. A repeated call updates the uplink's properties. An uplink with an unknown link
    /// header is not guarded, so selected applications cannot use it.
    ///
    /// # Errors
    ///
    /// [`TransparentError::Call`], [`TransparentError::Map`], [`TransparentError::FilterPreceded`]:
    /// selected applications cannot use the interface.
    pub fn guard(&mut self, uplink: &Uplink) -> Result<(), TransparentError> {
        let guarded = self.guard_with_filters(uplink);
        if guarded.is_err() {
            self.tunnel.maps.remove_uplink(uplink.index)?;
        }
        guarded
    }

    fn guard_with_filters(&mut self, uplink: &Uplink) -> Result<(), TransparentError> {
        if uplink.header == LinkHeader::Unknown {
            return match self.maps.uplink(uplink.index)? {
                Some(_) => self.unguard(uplink.index),
                None => Ok(()),
            };
        }
        self.attach_filter(IN, uplink.index)?;
        let link = self.attach_filter(OUT, uplink.index)?;
        self.tunnel
            .maps
            .set_uplink(uplink.index, value(uplink, link))
    }

    /// Checks the filters of an uplink, with a few system calls.
    ///
    /// # Errors
    ///
    /// [`TransparentError::Call`], [`TransparentError::Map`].
    pub fn check_guard(&self, uplink: &Uplink) -> Result<Guard, TransparentError> {
        let Some(entry) = self.maps.uplink(uplink.index)? else {
            return Ok(match uplink.header {
                LinkHeader::Unknown => Guard::Intact,
                _ => Guard::Outdated,
            });
        };
        let (out, into) = (
            self.first_link_id(OUT, uplink.index)?,
            self.first_link_id(IN, uplink.index)?,
        );
        Ok(match (out, into) {
            (Some(link), Some(_)) if entry == value(uplink, link) => Guard::Intact,
            (Some(link), Some(_)) if entry.link_id == link => Guard::Outdated,
            _ => Guard::Broken,
        })
    }

    /// Attaches a filter to an interface, before all others. Returns the ID of the filter's BPF
    /// link, or 0 if it is attached by clsact, which has no links.
    fn attach_filter(&mut self, filter: Filter, index: u32) -> Result<u32, TransparentError> {
        let (name, kind) = filter;
        if self.without_tcx {
            self.attach_by_clsact(filter, index)?;
        } else {
            let pin = self.pins.link(&format!("{index}-{name}"));
            let target = AttachTarget::Interface(index, kind);
            match self.link(name, target, &pin) {
                Err(error) if error.is_exhaustion() => return Err(error),
                Ok(()) => {
                    if let Some(link) = self.first_link_id(filter, index)? {
                        return Ok(link);
                    }
                }
                Err(_) => {}
            }
            // The filter is behind another one, its BPF link belongs to an earlier interface with
            // this index, or its pin has just been removed. The program is loaded again, since a
            // program can be attached to an interface only once.
            self.reload(name)?;
            self.link_new(name, target, &pin)?;
        }
        self.first_link_id(filter, index)?
            .ok_or_else(|| TransparentError::FilterPreceded {
                interface: taupe_os_linux::interface::name(index)
                    .unwrap_or_else(|| index.to_string()),
            })
    }

    fn attach_by_clsact(
        &mut self,
        (name, kind): Filter,
        index: u32,
    ) -> Result<(), TransparentError> {
        let failed = || format!("attaching {name} by clsact");
        let interface = taupe_os_linux::interface::name(index)
            .ok_or_else(|| TransparentError::call(failed())(Errno::NODEV))?;
        let filter = self.clsact_filter(&interface, kind);
        let program = self.classifier(name)?;
        filter
            .attach(program)
            .map_err(|error| TransparentError::call(failed())(std::io::Error::other(error)))
    }

    /// Returns the ID of the BPF link of this tunnel's filter (0 without tcx), if only filters of other
    /// Taupe tunnels precede it.
    fn first_link_id(
        &self,
        (name, kind): Filter,
        index: u32,
    ) -> Result<Option<u32>, TransparentError> {
        let failed = || TransparentError::call(format!("listing the filters of interface {index}"));
        let attached = match syscall::tcx_programs(index, kind) {
            // An interface that no longer exists has no filters.
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(None),
            Err(error) if self.without_tcx && error.raw_os_error() == Some(libc::EINVAL) => {
                Vec::new()
            }
            attached => attached.map_err(failed())?,
        };
        if !self.without_tcx {
            let pin = self.pins.link(&format!("{index}-{name}"));
            let link = match syscall::open(&pin) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                link => link.map_err(failed())?,
            };
            let link = syscall::id(link.as_fd()).map_err(failed())?;
            for program in attached {
                if program.link == link {
                    return Ok(Some(link));
                }
                let is_taupe = match program.has_name_prefix(NAME_PREFIX) {
                    // Without CAP_SYS_ADMIN the kernel opens no program by its ID.
                    Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                        is_pinned(program.link, index)
                    }
                    named => named.map_err(failed())?,
                };
                if !is_taupe {
                    break;
                }
            }
            return Ok(None);
        }
        // Filters of tcx run before those of clsact.
        if !attached.is_empty() {
            return Ok(None);
        }
        let Some(interface) = taupe_os_linux::interface::name(index) else {
            return Ok(None);
        };
        let is_first = self.clsact_filter(&interface, kind).is_first(index);
        let is_first = is_first.map_err(std::io::Error::other).map_err(failed())?;
        Ok(is_first.then_some(0))
    }

    fn clsact_filter<'a>(&self, interface: &'a str, kind: u32) -> ClsactFilter<'a> {
        ClsactFilter {
            interface,
            direction: direction(kind),
            mark: self.maps.state.mark.load(Ordering::Relaxed),
        }
    }

    fn classifier(&mut self, name: &'static str) -> Result<&mut SchedClassifier, TransparentError> {
        let program = self
            .object
            .as_mut()
            .and_then(|object| object.program_mut(name))
            .ok_or(TransparentError::Missing(name))?;
        program
            .try_into()
            .map_err(|_| TransparentError::Missing(name))
    }

    /// Loads another program from the same code. The previous one stays attached.
    fn reload(&mut self, name: &'static str) -> Result<(), TransparentError> {
        let program = self.classifier(name)?;
        // This fails if an earlier attempt has unloaded it and could not load it again.
        let _ = program.unload();
        program.load().map_err(|source| {
            TransparentError::program(name, super::attach_points::PACKETS, source)
        })
    }

    /// Attaches filters by clsact from here on, as before Linux 6.6. Without this call the kernel's
    /// version decides.
    pub fn disable_tcx(&mut self) {
        self.without_tcx = true;
    }

    /// Removes the guard of an interface, which may no longer exist. From then on selected
    /// applications cannot use it.
    ///
    /// # Errors
    ///
    /// [`TransparentError::Map`], [`TransparentError::Call`].
    pub fn unguard(&mut self, index: u32) -> Result<(), TransparentError> {
        self.tunnel.maps.remove_uplink(index)?;
        // Programs that are running may have looked up the interface already.
        wait_for_programs()?;
        let dropped = drop_unresolved_packets(&[index]);
        if self.without_tcx {
            self.maps.detach_filters(index);
        }
        for (name, _) in [OUT, IN] {
            pins::remove(&self.pins.link(&format!("{index}-{name}")))?;
        }
        dropped
    }

    /// Begins to direct packets of selected applications to the TUN, by the filters of uplinks or by
    /// routes. Call it when the TUN exists and a process reads it. Like
    /// [`guard`](Self::guard), it must be called in the tunnel's network namespace.
    ///
    /// # Errors
    ///
    /// [`TransparentError::Call`], [`TransparentError::FilterPreceded`]: nothing has changed.
    /// [`TransparentError::NoPacketProcess`]: the tunnel is down.
    pub fn set_up(&mut self, tun: u32) -> Result<(), TransparentError> {
        let before = self.maps.state.tun.load(Ordering::Relaxed);
        let filters: &[Filter] = match self.mode {
            CaptureMode::TrafficControl => &TUN,
            CaptureMode::Fwmark => &[],
        };
        for &filter in filters {
            self.attach_filter(filter, tun)?;
        }
        if before != tun {
            for (name, _) in TUN {
                pins::remove(&self.pins.link(&format!("{before}-{name}")))?;
            }
        }
        self.maps.state.tun.store(tun, Ordering::Relaxed);
        self.set_served()
    }

    /// Returns true if the filters see all packets to and from the TUN.
    ///
    /// # Errors
    ///
    /// [`TransparentError::Call`].
    pub fn is_tun_filtered(&self) -> Result<bool, TransparentError> {
        let tun = self.maps.state.tun.load(Ordering::Relaxed);
        for filter in TUN {
            if self.first_link_id(filter, tun)?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Returns true if a link is the filter of a tunnel. Another process pins its filter just after it has
/// attached it, so a filter that is not pinned is looked up again.
fn is_pinned(link: u32, interface: u32) -> bool {
    let is_pinned = || pins::Pins::any_has_filter(link, interface);
    is_pinned() || {
        thread::sleep(PINNING);
        is_pinned()
    }
}

/// Returns true if the kernel has no tcx (before Linux 6.6).
pub(super) fn is_without_tcx() -> bool {
    const LOOPBACK: u32 = 1;
    let programs = syscall::tcx_programs(LOOPBACK, attach_type::TCX_EGRESS);
    // Kernels return EINVAL for an attach type that they do not know.
    programs.is_err_and(|error| error.raw_os_error() == Some(libc::EINVAL))
}

const fn direction(kind: u32) -> TcAttachType {
    match kind {
        attach_type::TCX_EGRESS => TcAttachType::Egress,
        _ => TcAttachType::Ingress,
    }
}

/// Time that neighbours have to answer.
const NEIGHBOUR_TIMEOUT: Duration = Duration::from_millis(200);

/// Ensures that no packet waits for a neighbour's address on these interfaces. Such a packet has
/// passed the programs at the sockets, but the filters have still to see it. Most neighbours answer
/// at once. The others are removed together with all packets that wait for them, whoever sent
/// these. The kernel would do the same some seconds later.
pub(super) fn drop_unresolved_packets(interfaces: &[u32]) -> Result<(), TransparentError> {
    if interfaces.is_empty() {
        return Ok(());
    }
    let drop = || -> Result<(), NetlinkError> {
        let mut system = Netlink::open()?;
        let mut unresolved = || {
            let mut all = system.incomplete_neighbours()?;
            all.retain(|(index, _)| interfaces.contains(index));
            Ok(all)
        };
        let end = Instant::now() + NEIGHBOUR_TIMEOUT;
        let mut pending = unresolved()?;
        while !pending.is_empty() && Instant::now() < end {
            thread::sleep(NEIGHBOUR_TIMEOUT / 20);
            pending = unresolved()?;
        }
        for (index, neighbour) in pending {
            match system.delete_neighbour(index, neighbour) {
                Err(error) if !is_gone(&error) => return Err(error),
                // The neighbour is gone, or it has answered meanwhile.
                _ => {}
            }
        }
        Ok(())
    };
    drop()
        .map_err(io::Error::other)
        .map_err(TransparentError::call(
            "dropping the packets that wait for a neighbour",
        ))?;
    // After an answer the kernel sends the waiting packets one by one. Wait for that too.
    wait_for_programs()
}

fn is_gone(error: &NetlinkError) -> bool {
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
        has_default_route: u8::from(uplink.has_default_route),
        link_id: link,
    }
}
