//! The eBPF programs of a tunnel: loads, attaches, pins, replaces and removes them.
//!
//! ```text
//! load ── attach ── replace ── guard (each uplink) ── set_up ── … ── remove
//! ```
//!
//! After `attach` everything works without this process. A later process makes the same calls:
//! `load` takes over the pinned maps, `attach` gives the pinned links the new programs. At every
//! moment some program is attached.

use std::fs::File;
use std::io::ErrorKind;
use std::ops::Deref;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::atomic::Ordering;

use aya::maps::Map;
use aya::{Ebpf, EbpfLoader};
use taupe_os_linux::memory::without_memlock_limit;
use taupe_os_linux::netlink::Address;

use crate::cgroup;
use crate::error::TransparentError;
use crate::maps::{self, Maps};
use crate::pins::{self, Pins};
use crate::reset::{self, Socket};
use crate::state::{Lock, PacketProcesses, Pass, SCHEMA};
use crate::syscall::{self, AttachTarget};

mod attach_points;
mod attached;
mod dns;
mod flows;
mod forwarding;
mod guards;
mod hooks;
mod iterators;
pub(crate) mod kernel_types;
mod loading;
mod missing_features;
mod mode;
mod pinned_sockets;
mod probe;
mod processes;
mod raw_load;
mod removal;
mod replacing;
mod serving;
mod succession;
mod switch;
#[cfg(all(test, target_arch = "x86_64"))]
mod switch_model;
mod tunnel_maps;

/// The atomics of the module that `switch_model` compiles with loom's.
mod sync {
    pub(super) use std::sync::atomic::{AtomicU32, Ordering};
}

use self::attach_points::{AttachPoint, ProgramSpec};
pub(crate) use self::attached::Attached;
pub use self::guards::Guard;
use self::iterators::Iterators;
use self::loading::load_object;
pub use self::missing_features::MissingFeature;
pub use self::mode::{CaptureMode, objects_hash};
pub use self::probe::{Trial, foreign_filters, try_all, try_forwarding, try_pinning, try_services};
pub use self::processes::ProcessVerdicts;
pub(crate) use self::succession::is_abandoned;
pub use self::tunnel_maps::TunnelMaps;

/// As [`syscall::wait_for_programs`].
fn wait_for_programs() -> Result<(), TransparentError> {
    syscall::wait_for_programs().map_err(TransparentError::call("waiting for programs"))
}

/// Iterators of [`Programs::selected_sockets`]: one over the map of sockets, and two for kernels that
/// refuse it.
const SOCKET_LISTS: [&str; 3] = ["taupe_selected", "taupe_open", "taupe_tcp"];

/// The eBPF programs of one tunnel.
#[derive(Debug)]
pub struct Programs {
    tunnel: TunnelMaps,
    /// `None` if another process has attached the programs.
    object: Option<Ebpf>,
    iterators: Iterators,
    /// Filters are attached by `clsact`, as before Linux 6.6.
    without_tcx: bool,
    /// Nothing was attached before, so a failure removes everything.
    is_new: bool,
    /// Locks the directory of pins until everything is attached. Other processes cannot inspect,
    /// begin or remove the tunnel meanwhile.
    setup_lock: Option<File>,
    /// Generation of the rules that this process has written last.
    written_generation: Option<u32>,
    /// PID of this process in the initial PID namespace, since it became the daemon.
    own_id: Option<u32>,
}

impl Deref for Programs {
    type Target = TunnelMaps;

    fn deref(&self) -> &TunnelMaps {
        &self.tunnel
    }
}

impl Programs {
    /// Loads the programs of a mode for the tunnel `interface` in the calling thread's network
    /// namespace, with the pinned maps if there are any. Attaches nothing.
    ///
    /// # Errors
    ///
    /// [`TransparentError::Program`] names the missing kernel feature;
    /// [`TransparentError::OtherMode`], [`TransparentError::Schema`], [`TransparentError::Object`],
    /// [`TransparentError::Call`]. On failure nothing new is left behind.
    pub fn load(interface: &str, mode: CaptureMode) -> Result<Self, TransparentError> {
        let mut pins = Pins::here(interface)?;
        let mut setup_lock = pins.create_and_lock()?;
        if mode == CaptureMode::TrafficControl && is_abandoned(&pins) {
            pins = pins.set_aside()?;
            setup_lock = pins.create_and_lock()?;
        }
        let attached = CaptureMode::of(&pins);
        if attached.is_some_and(|other| other != mode) {
            return Err(TransparentError::OtherMode(interface.to_owned()));
        }
        let is_new = attached.is_none();
        let loaded = match is_new {
            // Pins without an attached link may be half made, or belong to the other mode, which
            // identifies the network namespace by another number.
            true => pins.clear(),
            false => Maps::pinned_state(&pins).map(drop),
        };
        let loaded = loaded.and_then(|()| Self::load_into(&pins, is_new, mode));
        let loaded = loaded.and_then(|it| it.initialise_state().map(|()| it));
        match loaded {
            Ok(mut programs) => {
                programs.setup_lock = Some(setup_lock);
                Ok(programs)
            }
            Err(error) => {
                if is_new {
                    // The first error matters, not one of the clean-up.
                    let _ = pins.remove();
                }
                Err(error)
            }
        }
    }

    /// Opens the programs that another process has attached for the tunnel `interface` in the
    /// calling thread's network namespace, to list sockets and processes or to
    /// [`replace`](Self::replace) the rules; [`TunnelMaps::open`] suffices for the rest. The other
    /// process stays the daemon, which like its packet processes is never selected. Returns `None` if
    /// nothing is attached. Loads no program and creates no pins. Waits while another process brings
    /// the tunnel up or takes it down.
    ///
    /// # Errors
    ///
    /// As [`TunnelMaps::open`].
    pub fn open(interface: &str) -> Result<Option<Self>, TransparentError> {
        // The lock keeps another process from removing the pins meanwhile.
        let Some(attached) = Attached::lock(interface)? else {
            return Ok(None);
        };
        let iterators = Iterators::open(&attached.pins, attached.mode)?;
        let tunnel = TunnelMaps::of(&attached)?;
        Ok(Some(Self::new(tunnel, None, iterators, false)))
    }

    fn new(tunnel: TunnelMaps, object: Option<Ebpf>, iterators: Iterators, is_new: bool) -> Self {
        Self {
            tunnel,
            object,
            iterators,
            without_tcx: guards::is_without_tcx(),
            is_new,
            setup_lock: None,
            written_generation: None,
            own_id: None,
        }
    }

    /// Checks that the kernel accepts the programs of [`CaptureMode::TrafficControl`] that need the
    /// newest kernel. Loads them for this check only.
    ///
    /// # Errors
    ///
    /// [`TransparentError::Program`] names the missing kernel feature;
    /// [`TransparentError::Object`].
    pub fn probe() -> Result<(), TransparentError> {
        let is_newest = |spec: &ProgramSpec| matches!(spec.name, "taupe_socket" | "taupe_connect4");
        let load = || load_object(CaptureMode::TrafficControl, |_| {}, is_newest);
        without_memlock_limit(load).map(drop)
    }

    fn load_into(pins: &Pins, is_new: bool, mode: CaptureMode) -> Result<Self, TransparentError> {
        let pinned = |loader: &mut EbpfLoader<'_>| {
            for name in maps::NAMES {
                loader.map_pin_path(name, pins.map(name));
            }
            loader.map_max_entries(processes::MAP, processes::max_processes());
        };
        let load = || load_object(mode, pinned, |_| true);
        let mut object = without_memlock_limit(load)?;
        let tunnel = TunnelMaps {
            mode,
            pins: pins.clone(),
            maps: Maps::of_object(&mut object)?,
        };
        let mut programs = Self::new(tunnel, Some(object), Iterators::default(), is_new);
        programs.attach_iterators()?;
        Ok(programs)
    }

    /// Fills in the state if its map is new.
    fn initialise_state(&self) -> Result<(), TransparentError> {
        let state = &self.maps.state;
        if state.schema.load(Ordering::Acquire) != 0 {
            return Ok(());
        }
        let mut random = [0; 20];
        taupe_runtime::random::fill(&mut random);
        let [key @ .., s0, s1, s2, s3] = random;
        let (first, second) = key.split_at(8);
        for (word, bytes) in state.key.iter().zip([first, second]) {
            let bytes = <[u8; 8]>::try_from(bytes).unwrap_or_default();
            word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
        }
        // Neither half may be 0, the value in unmarked packets.
        let mark = u32::from_ne_bytes([s0, s1, s2, s3]) | 0x8000_8000;
        state.mark.store(mark, Ordering::Relaxed);
        let namespace = match self.mode {
            CaptureMode::TrafficControl => pins::network_cookie()?,
            CaptureMode::Fwmark => taupe_os_linux::namespace::network_inode().map_err(
                TransparentError::call("asking for the network namespace's inode"),
            )?,
        };
        state.netns.store(namespace, Ordering::Relaxed);
        state.schema.store(SCHEMA, Ordering::Release);
        Ok(())
    }

    /// Sets the mark for sockets that are selected from now on, with [`CaptureMode::Fwmark`].
    pub fn set_mark(&self, mark: u32) {
        self.maps.state.mark.store(mark, Ordering::Relaxed);
    }

    /// Attaches the hooks of sockets and processes, and makes this process the daemon, which like its
    /// packet processes is never selected. Hooks that are already attached get the new programs.
    ///
    /// # Errors
    ///
    /// [`TransparentError::Call`], [`TransparentError::NoPacketProcess`]. If nothing was attached
    /// before, nothing stays attached.
    pub fn attach(&mut self, packet_processes: PacketProcesses) -> Result<(), TransparentError> {
        let attached = self
            .attach_hooks()
            .and_then(|()| self.become_daemon(packet_processes))
            .and_then(|()| match self.mode {
                CaptureMode::TrafficControl => self.classify_existing_sockets(),
                CaptureMode::Fwmark => Ok(()),
            });
        if attached.is_err() && self.is_new {
            let _ = self.pins.remove();
        }
        self.setup_lock = None;
        attached
    }

    /// Locks out other processes that would change the rules. Returns `None` if this process
    /// already holds the lock.
    fn lock_for_changes(&self) -> Result<Option<File>, TransparentError> {
        match self.setup_lock {
            Some(_) => Ok(None),
            None => self.pins.lock_exclusive().map(Some),
        }
    }

    /// Classifies the sockets that exist. Sockets of processes outside this PID namespace cannot be
    /// listed, so a process that begins a tunnel counts these processes. A later process that sees
    /// all processes classifies the sockets left out and clears the count.
    fn classify_existing_sockets(&self) -> Result<(), TransparentError> {
        let outside = self.iterators.read("taupe_outside")?;
        let outside = outside.first_chunk().copied().map_or(0, u32::from_ne_bytes);
        if self.is_new || outside == 0 {
            self.maps
                .state
                .unlisted_processes
                .store(outside, Ordering::Relaxed);
        }
        self.run_pass(Pass::Select).map(drop)
    }

    /// Checks if other programs decide on packets by NFQUEUE. With NFQUEUE the running task is not
    /// necessarily the sender of a packet that leaves (`bpf/senders.h`).
    ///
    /// # Errors
    ///
    /// [`TransparentError::Call`].
    pub fn detect_nfqueue(&self) -> Result<(), TransparentError> {
        const QUEUES: &str = "/proc/thread-self/net/netfilter/nfnetlink_queue";
        let queues = match std::fs::read(QUEUES) {
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            queues => queues.map_err(TransparentError::call(format!("reading {QUEUES}")))?,
        };
        let is_queued = u32::from(!queues.is_empty());
        self.maps
            .state
            .nfqueue_active
            .store(is_queued, Ordering::Relaxed);
        Ok(())
    }

    fn attach_hooks(&self) -> Result<(), TransparentError> {
        let cgroup = cgroup::root().map_err(TransparentError::call(
            "opening the root of cgroup2, which from a cgroup namespace takes CAP_DAC_READ_SEARCH \
             on the machine itself",
        ))?;
        let mut programs = self.mode.programs().iter();
        programs.try_for_each(|program| self.attach_hook(program, cgroup.as_fd()))
    }

    fn attach_hook(
        &self,
        program: &ProgramSpec,
        cgroup: BorrowedFd<'_>,
    ) -> Result<(), TransparentError> {
        let name = program.name;
        match program.attach_point {
            AttachPoint::Cgroup(link, kind) => self.link(
                name,
                AttachTarget::Cgroup(cgroup, kind),
                &self.pins.link(link),
            ),
            // The kernel cannot replace the program of such a link.
            AttachPoint::Tracepoint(_) => self
                .link_new(name, AttachTarget::Tracepoint, &self.pins.link(name))
                .map(drop),
            // A failure is reported as a [`MissingFeature`], unless the kernel may have the feature.
            AttachPoint::Entry(function) => {
                let attached = self.link_new(name, AttachTarget::Tracepoint, &self.pins.link(name));
                let attached = match attached {
                    Err(error) if error.is_exhaustion() => return Err(error),
                    attached => attached,
                };
                if function == attach_points::SENDING {
                    let senders_traced = &self.maps.state.senders_traced;
                    senders_traced.store(attached.is_ok().into(), Ordering::Relaxed);
                }
                Ok(())
            }
            AttachPoint::Security(_) => self.link_lsm(name),
            AttachPoint::Iterator(_) | AttachPoint::MapIterator(_) => {
                self.iterators.pin(name, &self.pins.link(name))
            }
            AttachPoint::Filter => Ok(()),
        }
    }

    /// Attaches the iterators, without pinning them.
    fn attach_iterators(&mut self) -> Result<(), TransparentError> {
        for program in self
            .mode
            .programs()
            .iter()
            .filter(|spec| spec.is_iterator())
        {
            let name = program.name;
            let storage = match (program.attach_point, &self.object) {
                (AttachPoint::MapIterator(_), Some(object)) => object.map("sockets"),
                _ => None,
            };
            let target = match storage {
                // If the kernel has refused this program, [`Self::selected_sockets`] uses another method.
                Some(_) if self.program(name).is_err() => continue,
                Some(Map::SkStorage(sockets)) => AttachTarget::SocketStorage(sockets.fd().as_fd()),
                Some(_) => return Err(TransparentError::Missing("sockets")),
                None => AttachTarget::Iterator,
            };
            let link = self.attach_new(name, target)?;
            self.iterators.add(name, link);
        }
        Ok(())
    }

    /// Attaches a program of BPF LSM and checks that the kernel calls it. The kernel does so only
    /// if BPF LSM was enabled at boot.
    fn link_lsm(&self, name: &'static str) -> Result<(), TransparentError> {
        let lsm_active = &self.maps.state.lsm_active;
        lsm_active.store(0, Ordering::Relaxed);
        let attached = self.link_new(name, AttachTarget::Tracepoint, &self.pins.link(name));
        // Creating any socket in this namespace triggers the hook, even if it fails.
        drop(UnixDatagram::unbound());
        match attached {
            Err(error) if error.is_exhaustion() => Err(error),
            Ok(()) if lsm_active.load(Ordering::Relaxed) != 0 => Ok(()),
            _ => pins::remove(&self.pins.link(name)),
        }
    }

    fn program(&self, name: &'static str) -> Result<BorrowedFd<'_>, TransparentError> {
        let object = self
            .object
            .as_ref()
            .ok_or(TransparentError::Missing(name))?;
        let program = object.program(name);
        let fd = program.and_then(|program| program.fd().ok());
        Ok(fd.ok_or(TransparentError::Missing(name))?.as_fd())
    }

    /// Replaces the program of the pinned link, or attaches the program by a new link.
    fn link(
        &self,
        name: &'static str,
        target: AttachTarget<'_>,
        pin: &Path,
    ) -> Result<(), TransparentError> {
        let program = self.program(name)?;
        let old = syscall::open(pin);
        if old.is_ok_and(|old| syscall::update(old.as_fd(), program).is_ok()) {
            return Ok(());
        }
        self.link_new(name, target, pin)
    }

    /// Attaches a program by a new link. A link pinned before ends only after that.
    fn link_new(
        &self,
        name: &'static str,
        target: AttachTarget<'_>,
        pin: &Path,
    ) -> Result<(), TransparentError> {
        let link = self.attach_new(name, target)?;
        pins::replace(link.as_fd(), pin)
    }

    fn attach_new(
        &self,
        name: &'static str,
        target: AttachTarget<'_>,
    ) -> Result<OwnedFd, TransparentError> {
        let attached = syscall::attach(self.program(name)?, target);
        attached.map_err(TransparentError::call(format!("attaching {name}")))
    }

    /// Sets the kill switch, also for sockets that exist. No program acts by the previous setting
    /// when this returns.
    ///
    /// # Errors
    ///
    /// [`TransparentError::Call`], [`TransparentError::UnmarkedSockets`]: the setting is in force,
    /// but not for all existing sockets.
    pub fn set_lock(&mut self, lock: Lock) -> Result<(), TransparentError> {
        let _lock = self.lock_for_changes()?;
        if self.lock() != lock {
            return self.change_lock(lock);
        }
        // The process that has set it may have been killed before it had waited.
        wait_for_programs()
    }

    /// As [`Self::set_lock`], while other processes are locked out.
    fn change_lock(&mut self, lock: Lock) -> Result<(), TransparentError> {
        let waited = switch::set(&self.maps.state.lock, lock as u32, wait_for_programs);
        // Also after a failed wait: when the caller tries again, the lock does not change.
        self.reclassify()?;
        waited
    }

    /// Returns the sockets of selected applications. With [`CaptureMode::Fwmark`] sockets cannot be
    /// listed and the result is empty.
    pub(crate) fn selected_sockets(&self) -> Result<Vec<Socket>, TransparentError> {
        if self.mode == CaptureMode::Fwmark {
            return Ok(Vec::new());
        }
        let [selected, open, tcp] = SOCKET_LISTS;
        if self.iterators.has(selected) {
            return Ok(reset::read(&self.iterators.read(selected)?));
        }
        let mut listed = self.iterators.read(open)?;
        listed.extend(self.iterators.read(tcp)?);
        Ok(reset::without_repetitions(reset::read(&listed)))
    }

    /// Removes the pins of network namespaces that no longer exist. Returns the number of tunnels
    /// removed. Removes nothing if the namespaces cannot be listed.
    ///
    /// # Errors
    ///
    /// [`TransparentError::Call`] names the pin that cannot be removed.
    pub fn remove_orphans(&self) -> Result<usize, TransparentError> {
        // List pins before namespaces: a namespace may be created in between.
        let others: Vec<Pins> = Pins::all().filter(|pins| *pins != self.pins).collect();
        if others.is_empty() {
            return Ok(0);
        }
        let listed = self.iterators.read("taupe_namespaces")?;
        let Some(namespaces) = pins::namespaces(&listed) else {
            return Ok(0);
        };
        let is_gone = |pins: &&Pins| {
            pins.cookie()
                .is_some_and(|cookie| !namespaces.contains(&cookie))
        };
        let mut removed = 0;
        for pins in others.iter().filter(is_gone) {
            pins.remove()?;
            removed += 1;
        }
        Ok(removed)
    }

    /// Sets the addresses of this machine and the interface of each. They have three uses: a packet
    /// from the tunnel that belongs to no flow is delivered only to these addresses, packets
    /// forwarded to their networks stay local, and DNS queries to a resolver at one of them, or at
    /// one of `on_loopback`, are answered by another resolver.
    ///
    /// # Errors
    ///
    /// [`TransparentError::Map`].
    pub fn set_addresses(
        &mut self,
        addresses: &[Address],
        on_loopback: &[Address],
    ) -> Result<(), TransparentError> {
        self.tunnel.maps.set_locals(addresses)?;
        let own = addresses.iter().chain(on_loopback);
        self.tunnel
            .maps
            .set_resolver_aliases(own.map(|address| address.network.addr()))?;
        self.tunnel.maps.set_networks(addresses)
    }
}
