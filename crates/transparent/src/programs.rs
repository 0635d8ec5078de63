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
use std::io::{ErrorKind, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::atomic::Ordering;

use aya::programs::{Program, ProgramError};
use aya::{Btf, Ebpf, EbpfLoader, include_bytes_aligned};
use taupe_os_linux::memory::without_memlock_limit;
use taupe_os_linux::netlink::Address;

use crate::cgroup;
use crate::fault::Fault;
use crate::maps::{self, Maps};
use crate::pins::{self, Pins};
use crate::reset::{self, Socket};
use crate::state::{Lock, Reason, SCHEMA};
use crate::syscall::{self, Target};

mod flows;
mod forwarding;
mod gap;
mod guards;
mod hooks;
mod names;
mod places;
mod probe;
mod processes;
mod raw_load;
mod removal;
mod replacing;

pub use self::gap::Gap;
pub use self::guards::Guard;
use self::places::Place;
pub use self::probe::{Trial, foreign_filters, try_all, try_forwarding, try_pinning, try_services};
pub use self::processes::Judged;

/// Objects that `scripts/bpf` builds from `bpf/taupe.c` and `bpf/marks.c`.
static FILTERS_OBJECT: &[u8] = include_bytes_aligned!("bpf/taupe.o");
static MARKS_OBJECT: &[u8] = include_bytes_aligned!("bpf/marks.o");

/// Method that brings the packets of selected applications into the tunnel. Each way has its own
/// programs and uses all maps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Transparent mode: filters on the uplinks redirect them.
    Filters,
    /// Adapter mode: sockets get a mark, and routes for the mark lead into the tunnel. Works from
    /// Linux 5.10 on.
    Marks,
}

impl Way {
    const fn object(self) -> &'static [u8] {
        match self {
            Self::Filters => FILTERS_OBJECT,
            Self::Marks => MARKS_OBJECT,
        }
    }

    const fn programs(self) -> &'static [(&'static str, Place, &'static str)] {
        match self {
            Self::Filters => &places::FILTERS,
            Self::Marks => &places::MARKS,
        }
    }

    /// Returns the way that is attached for a tunnel.
    pub(crate) fn of(pins: &Pins) -> Option<Self> {
        [Self::Filters, Self::Marks].into_iter().find(|way| {
            let mut links = way.programs().iter();
            links.any(|(_, place, _)| match place {
                Place::Cgroup(link, _) => pins.link(link).exists(),
                _ => false,
            })
        })
    }
}

/// The eBPF programs of one tunnel.
#[derive(Debug)]
pub struct Programs {
    way: Way,
    pins: Pins,
    maps: Maps,
    object: Ebpf,
    /// Filters are attached by `clsact`, as before Linux 6.6.
    without_tcx: bool,
    /// Nothing was attached before, so a failure removes everything.
    fresh: bool,
    /// Locks the directory of pins until everything is attached. Other processes cannot inspect,
    /// begin or remove the tunnel meanwhile.
    beginning: Option<File>,
    /// Generation of the rules that this process has written last.
    put: Option<u32>,
}

impl Programs {
    /// Loads the programs of a way for the tunnel `interface` in the calling thread's network
    /// namespace, with the pinned maps if there are any. Attaches nothing.
    ///
    /// # Errors
    ///
    /// [`Fault::Program`] names the missing kernel feature; [`Fault::OtherWay`], [`Fault::Schema`],
    /// [`Fault::Object`], [`Fault::Call`]. On failure nothing new is left behind.
    pub fn load(interface: &str, way: Way) -> Result<Self, Fault> {
        let pins = Pins::of(interface, network_number()?);
        let beginning = pins.take()?;
        let attached = Way::of(&pins);
        if attached.is_some_and(|other| other != way) {
            return Err(Fault::OtherWay(interface.to_owned()));
        }
        let fresh = attached.is_none();
        let loaded = match fresh {
            // Pins without an attached link may be half made, or belong to the other way, which
            // identifies the network namespace by another number.
            true => pins.clear(),
            false => Maps::pinned_state(&pins).map(drop),
        };
        let loaded = loaded.and_then(|()| Self::load_into(&pins, fresh, way, |_| true));
        match loaded {
            Ok(mut programs) => {
                programs.set_out()?;
                programs.beginning = Some(beginning);
                Ok(programs)
            }
            Err(fault) => {
                if fresh {
                    // The first error matters, not one of the clean-up.
                    let _ = pins.remove();
                }
                Err(fault)
            }
        }
    }

    /// Opens the programs that another process has attached for the tunnel `interface` in the
    /// calling thread's network namespace, to inspect them or to [`replace`](Self::replace) the
    /// rules. The other process stays the daemon, the one process that is never selected. Returns
    /// `None` if nothing is attached. Creates no pins. Waits while another process brings the
    /// tunnel up or takes it down.
    ///
    /// # Errors
    ///
    /// As [`Self::load`].
    pub fn open(interface: &str) -> Result<Option<Self>, Fault> {
        let pins = Pins::of(interface, network_number()?);
        // The lock keeps the loader from creating maps anew that another process has just removed.
        let Some(_kept) = pins.keep()? else {
            return Ok(None);
        };
        let Some(way) = Way::of(&pins) else {
            return Ok(None);
        };
        let state = Maps::pinned_state(&pins)?;
        let is_set_up = state.is_some_and(|state| state.schema.load(Ordering::Acquire) != 0);
        if !is_set_up || maps::NAMES.iter().any(|name| !pins.map(name).exists()) {
            return Ok(None);
        }
        let is_iterator = |place| matches!(place, Place::Iterator(_));
        Self::load_into(&pins, false, way, is_iterator).map(Some)
    }

    /// Checks that the kernel accepts the programs of [`Way::Filters`] that need the newest kernel.
    /// Loads them for this check only.
    ///
    /// # Errors
    ///
    /// [`Fault::Program`] names the missing kernel feature; [`Fault::Object`].
    pub fn probe() -> Result<(), Fault> {
        let is_newest = |place| matches!(place, Place::Cgroup("socket" | "connect4", _));
        let load = || Self::load_object(&mut EbpfLoader::new(), Way::Filters, is_newest);
        without_memlock_limit(load).map(drop)
    }

    fn load_into(
        pins: &Pins,
        fresh: bool,
        way: Way,
        is_wanted: fn(Place) -> bool,
    ) -> Result<Self, Fault> {
        let mut loader = EbpfLoader::new();
        for name in maps::NAMES {
            loader.map_pin_path(name, pins.map(name));
        }
        loader.map_max_entries(processes::MAP, processes::most());
        let mut object = without_memlock_limit(|| Self::load_object(&mut loader, way, is_wanted))?;
        Ok(Self {
            way,
            pins: pins.clone(),
            maps: Maps::take(&mut object)?,
            object,
            without_tcx: guards::is_without_tcx(),
            fresh,
            beginning: None,
            put: None,
        })
    }

    /// Fills in the state if its map is new.
    fn set_out(&self) -> Result<(), Fault> {
        let state = &self.maps.state;
        if state.schema.load(Ordering::Relaxed) != 0 {
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
        let stamp = u32::from_ne_bytes([s0, s1, s2, s3]) | 0x8000_8000;
        state.stamp.store(stamp, Ordering::Relaxed);
        let namespace = match self.way {
            Way::Filters => network_number()?,
            Way::Marks => taupe_os_linux::namespace::network_inode()
                .map_err(Fault::call("asking for the network namespace's inode"))?,
        };
        state.netns.store(namespace, Ordering::Relaxed);
        state.schema.store(SCHEMA, Ordering::Release);
        Ok(())
    }

    fn load_object(
        loader: &mut EbpfLoader<'_>,
        way: Way,
        is_wanted: fn(Place) -> bool,
    ) -> Result<Ebpf, Fault> {
        let mut object = loader.load(way.object()).map_err(Fault::object)?;
        let btf = Btf::from_sys_fs().map_err(|error| Fault::object(error.into()))?;
        for &(name, place, needs) in way.programs() {
            if !is_wanted(place) {
                continue;
            }
            let loaded = Self::load_program(&mut object, name, place, &btf)?;
            match place {
                // Optional: the kernel may lack the hook. [`Programs::gaps`] reports it.
                Place::Entry(_) | Place::Security(_) => {}
                _ => loaded.map_err(|source| Fault::program(name, needs, source))?,
            }
        }
        Ok(object)
    }

    fn load_program(
        object: &mut Ebpf,
        name: &'static str,
        place: Place,
        btf: &Btf,
    ) -> Result<Result<(), ProgramError>, Fault> {
        let program = object.program_mut(name).ok_or(Fault::Missing(name))?;
        Ok(match (program, place) {
            (Program::CgroupSock(program), _) => program.load(),
            (Program::CgroupSockAddr(program), _) => program.load(),
            (Program::CgroupSkb(program), _) => program.load(),
            (Program::SchedClassifier(program), _) => program.load(),
            (Program::BtfTracePoint(program), Place::Tracepoint(on)) => program.load(on, btf),
            (Program::Iter(program), Place::Iterator(over)) => program.load(over, btf),
            (Program::FEntry(program), Place::Entry(function)) => program.load(function, btf),
            (Program::Lsm(program), Place::Security(hook)) => program.load(hook, btf),
            _ => return Err(Fault::Missing(name)),
        })
    }

    /// Returns how packets get into the tunnel.
    #[must_use]
    pub fn way(&self) -> Way {
        self.way
    }

    /// Sets the mark for sockets that are selected from now on, with [`Way::Marks`].
    pub fn set_mark(&self, mark: u32) {
        self.maps.state.stamp.store(mark, Ordering::Relaxed);
    }

    /// Attaches the hooks of sockets and processes, and makes this process the daemon, which is
    /// never selected. Hooks that are already attached get the new programs.
    ///
    /// # Errors
    ///
    /// [`Fault::Call`]. If nothing was attached before, nothing stays attached.
    pub fn attach(&mut self) -> Result<(), Fault> {
        let attached = self
            .attach_hooks()
            .and_then(|()| self.adopt())
            .and_then(|()| match self.way {
                Way::Filters => self.begin_looking(),
                Way::Marks => Ok(()),
            });
        if attached.is_err() && self.fresh {
            let _ = self.pins.remove();
        }
        self.beginning = None;
        attached
    }

    /// Makes this process the daemon, which is never selected, in place of the previous one.
    ///
    /// # Errors
    ///
    /// [`Fault::Call`].
    pub fn adopt(&self) -> Result<(), Fault> {
        self.list("taupe_adopt", Target::Iterator).map(drop)
    }

    /// Returns the PID of the daemon in the initial PID namespace, or `None` if it has ended.
    #[must_use]
    pub fn daemon(&self) -> Option<u32> {
        let daemon = self.maps.state.daemon.load(Ordering::Relaxed);
        (daemon != 0).then_some(daemon)
    }

    /// Locks out other processes that would change the rules. Returns `None` if this process
    /// already holds the lock.
    fn alone(&self) -> Result<Option<File>, Fault> {
        match self.beginning {
            Some(_) => Ok(None),
            None => self.pins.lock().map(Some),
        }
    }

    /// Classifies the sockets that exist. Sockets of processes outside this PID namespace cannot be
    /// listed, so a process that begins a tunnel counts these processes. A later process that sees
    /// all processes classifies the sockets left out and clears the count.
    fn begin_looking(&self) -> Result<(), Fault> {
        let outside = self.list("taupe_outside", Target::Iterator)?;
        let outside = outside.first_chunk().copied().map_or(0, u32::from_ne_bytes);
        if self.fresh || outside == 0 {
            self.maps.state.unseen.store(outside, Ordering::Relaxed);
        }
        self.look_through("taupe_classify").map(drop)
    }

    /// Checks if other programs decide on packets by NFQUEUE. With NFQUEUE the running task is not
    /// necessarily the sender of a packet that leaves (`bpf/senders.h`).
    ///
    /// # Errors
    ///
    /// [`Fault::Call`].
    pub fn look_for_queues(&self) -> Result<(), Fault> {
        const QUEUES: &str = "/proc/thread-self/net/netfilter/nfnetlink_queue";
        let queues = match std::fs::read(QUEUES) {
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            queues => queues.map_err(Fault::call(format!("reading {QUEUES}")))?,
        };
        let is_queued = u32::from(!queues.is_empty());
        self.maps.state.queued.store(is_queued, Ordering::Relaxed);
        Ok(())
    }

    fn attach_hooks(&self) -> Result<(), Fault> {
        let cgroup = cgroup::root().map_err(Fault::call(
            "opening the root of cgroup2, which from a cgroup namespace takes CAP_DAC_READ_SEARCH \
             on the machine itself",
        ))?;
        let mut programs = self.way.programs().iter();
        programs.try_for_each(|(name, place, _)| self.attach_hook(name, *place, cgroup.as_fd()))
    }

    fn attach_hook(
        &self,
        name: &'static str,
        place: Place,
        cgroup: BorrowedFd<'_>,
    ) -> Result<(), Fault> {
        match place {
            Place::Cgroup(link, kind) => {
                self.link(name, Target::Cgroup(cgroup, kind), &self.pins.link(link))
            }
            // The kernel cannot replace the program of such a link.
            Place::Tracepoint(_) => self.link_anew(name, Target::Tracepoint, &self.pins.link(name)),
            // A failure is reported as a [`Gap`].
            Place::Entry(function) => {
                let attached = self.link_anew(name, Target::Tracepoint, &self.pins.link(name));
                if function == places::SENDING {
                    let traced = &self.maps.state.traced;
                    traced.store(attached.is_ok().into(), Ordering::Relaxed);
                }
                Ok(())
            }
            Place::Security(_) => self.link_security(name),
            Place::Iterator(_) | Place::Filter => Ok(()),
        }
    }

    /// Attaches a program of BPF LSM and checks that the kernel calls it. The kernel does so only
    /// if BPF LSM was enabled at boot.
    fn link_security(&self, name: &'static str) -> Result<(), Fault> {
        let secured = &self.maps.state.secured;
        secured.store(0, Ordering::Relaxed);
        let attached = self.link_anew(name, Target::Tracepoint, &self.pins.link(name));
        // Creating any socket in this namespace triggers the hook, even if it fails.
        drop(UnixDatagram::unbound());
        if attached.is_ok() && secured.load(Ordering::Relaxed) != 0 {
            return Ok(());
        }
        pins::remove(&self.pins.link(name))
    }

    fn program(&self, name: &'static str) -> Result<BorrowedFd<'_>, Fault> {
        let program = self.object.program(name);
        let fd = program.and_then(|program| program.fd().ok());
        Ok(fd.ok_or(Fault::Missing(name))?.as_fd())
    }

    /// Replaces the program of the pinned link, or attaches the program by a new link.
    fn link(&self, name: &'static str, target: Target<'_>, pin: &Path) -> Result<(), Fault> {
        let program = self.program(name)?;
        let old = syscall::open(pin);
        if old.is_ok_and(|old| syscall::update(old.as_fd(), program).is_ok()) {
            return Ok(());
        }
        self.link_anew(name, target, pin)
    }

    /// Attaches a program by a new link. A link pinned before ends only after that.
    fn link_anew(&self, name: &'static str, target: Target<'_>, pin: &Path) -> Result<(), Fault> {
        let link = syscall::attach(self.program(name)?, target)
            .map_err(Fault::call(format!("attaching {name}")))?;
        pins::replace(link.as_fd(), pin)
    }

    /// Sets the kill switch, also for sockets that exist.
    ///
    /// # Errors
    ///
    /// [`Fault::Call`], [`Fault::Unmarked`]: the setting is in force, but not for all existing
    /// sockets.
    pub fn set_lock(&mut self, lock: Lock) -> Result<(), Fault> {
        let word = &self.maps.state.lock;
        if word.swap(lock as u32, Ordering::Relaxed) == lock as u32 {
            return Ok(());
        }
        let _lock = self.alone()?;
        self.reclassify()
    }

    /// Returns the kill switch.
    #[must_use]
    pub fn lock(&self) -> Lock {
        Lock::of(self.maps.state.lock.load(Ordering::Relaxed))
    }

    /// Reads all output of an iterator program.
    fn list(&self, name: &'static str, over: Target<'_>) -> Result<Vec<u8>, Fault> {
        let program = self.program(name)?;
        let failed = || Fault::call(format!("reading {name}"));
        let link = syscall::attach(program, over).map_err(failed())?;
        let mut iterator = syscall::iterator(link.as_fd()).map_err(failed())?;
        // The kernel lists up to 32 KiB per read. When it resumes in a later read, it may skip
        // entries behind one that has been removed meanwhile. The capacity keeps reads large.
        let mut said = Vec::with_capacity(1 << 20);
        iterator.read_to_end(&mut said).map_err(failed())?;
        Ok(said)
    }

    /// Returns the sockets of selected applications. With [`Way::Marks`] sockets cannot be listed
    /// and the result is empty.
    pub(crate) fn chosen_sockets(&self) -> Result<Vec<Socket>, Fault> {
        if self.way == Way::Marks {
            return Ok(Vec::new());
        }
        let sockets = syscall::open(&self.pins.map("sockets"));
        let sockets = sockets.map_err(Fault::call("opening the map of sockets"))?;
        let listed = self.list("taupe_chosen", Target::Stored(sockets.as_fd()))?;
        Ok(reset::read(&listed))
    }

    /// Removes the pins of network namespaces that no longer exist. Returns the number of tunnels
    /// removed. Removes nothing if the namespaces cannot be listed.
    ///
    /// # Errors
    ///
    /// [`Fault::Call`] names the pin that cannot be removed.
    pub fn remove_orphans(&self) -> Result<usize, Fault> {
        // List pins before namespaces: a namespace may be created in between.
        let others: Vec<Pins> = Pins::all().filter(|pins| *pins != self.pins).collect();
        if others.is_empty() {
            return Ok(0);
        }
        let listed = self.list("taupe_namespaces", Target::Iterator)?;
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
    /// [`Fault::Map`].
    pub fn set_addresses(
        &mut self,
        addresses: &[Address],
        on_loopback: &[Address],
    ) -> Result<(), Fault> {
        self.maps.set_locals(addresses)?;
        let own = addresses.iter().chain(on_loopback);
        self.maps
            .set_stand_ins(own.map(|address| address.network.addr()))?;
        self.maps.set_networks(addresses)
    }

    /// Blocks the packets of selected applications. The applications get an error.
    pub fn set_down(&self) {
        self.maps.state.up.store(0, Ordering::Release);
    }

    /// Returns true if a process reads the TUN.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.maps.state.up.load(Ordering::Acquire) != 0
    }

    /// Returns all counters since the tunnel was created.
    ///
    /// # Errors
    ///
    /// [`Fault::Map`].
    pub fn counts(&self) -> Result<Vec<(Reason, u64)>, Fault> {
        let counts = Reason::ALL.iter().map(|reason| {
            let count = self.maps.count(*reason)?;
            Ok((*reason, count))
        });
        counts.collect()
    }
}

/// Returns the cookie of the network namespace, by which [`Pins`] are named.
fn network_number() -> Result<u64, Fault> {
    let number = taupe_os_linux::namespace::network_id();
    number.map_err(Fault::call("asking for the network namespace"))
}
