//! The kernel's part: loaded, attached, pinned, replaced and removed.
//!
//! ```text
//! load ── attach ── replace ── guard (each uplink) ── set_up ── … ── remove
//! ```
//!
//! From `attach` on everything holds without this process. One that comes later
//! finds it again by the same calls: `load` takes the pinned maps over, `attach`
//! gives the pinned links the new programs, without a moment in which nothing is
//! attached.

use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::atomic::Ordering;

use aya::programs::{Program, ProgramError};
use aya::{Btf, Ebpf, EbpfLoader, include_bytes_aligned};
use taupe_os_linux::memory::with_locked_memory;
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

/// What `scripts/bpf` made of `bpf/taupe.c` and `bpf/marks.c`.
static FILTERS_OBJECT: &[u8] = include_bytes_aligned!("bpf/taupe.o");
static MARKS_OBJECT: &[u8] = include_bytes_aligned!("bpf/marks.o");

/// How the packets of chosen applications get into the tunnel: each way has programs of
/// its own, and all maps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// By filters, from the uplink that they use anyway: transparent mode.
    Filters,
    /// By routes for a mark that their sockets get: adapter mode, on any kernel from Linux
    /// 5.10 on.
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

    /// The one that is attached for a tunnel.
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

/// The kernel's part of one tunnel.
#[derive(Debug)]
pub struct Programs {
    way: Way,
    pins: Pins,
    maps: Maps,
    object: Ebpf,
    /// Filters are attached as they were before Linux 6.6.
    without_tcx: bool,
    /// Nothing was attached before: what fails is undone as a whole.
    fresh: bool,
    /// Until everything is attached, nobody else looks at it, or begins or removes it.
    beginning: Option<File>,
    /// The generation of the rules that this has put in the place of others.
    put: Option<u32>,
}

impl Programs {
    /// Loads the programs of a way for the tunnel `interface` in the calling thread's
    /// network namespace, with its pinned maps if there are any. Nothing is attached.
    ///
    /// # Errors
    ///
    /// [`Fault::Program`] names what the kernel lacks; [`Fault::OtherWay`],
    /// [`Fault::Schema`], [`Fault::Object`], [`Fault::Call`]. Nothing is left that was not
    /// there before.
    pub fn load(interface: &str, way: Way) -> Result<Self, Fault> {
        let pins = Pins::of(interface, network_number()?);
        let beginning = pins.take()?;
        let attached = Way::of(&pins);
        if attached.is_some_and(|other| other != way) {
            return Err(Fault::OtherWay(interface.to_owned()));
        }
        let fresh = attached.is_none();
        let loaded = match fresh {
            // What is attached nowhere may be of the other way, which knows the network
            // namespace by another number, or half made.
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
                    // What went wrong first is more interesting than what does now.
                    let _ = pins.remove();
                }
                Err(fault)
            }
        }
    }

    /// Opens what another process has attached for the tunnel `interface` in the
    /// calling thread's network namespace, to look at it and to
    /// [`replace`](Self::replace) its rules. That process stays the one that is never
    /// chosen. `None` where nothing is attached. Nothing is made that is not there, and who
    /// brings the tunnel up or takes it down meanwhile is waited for.
    ///
    /// # Errors
    ///
    /// As [`Self::load`].
    pub fn open(interface: &str) -> Result<Option<Self>, Fault> {
        let pins = Pins::of(interface, network_number()?);
        // Or maps that somebody removes were made anew.
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

    /// Whether the kernel takes those of the programs of [`Way::Filters`] that need the
    /// newest; they are loaded for that and nothing else.
    ///
    /// # Errors
    ///
    /// [`Fault::Program`] names what it lacks; [`Fault::Object`].
    pub fn probe() -> Result<(), Fault> {
        let is_newest = |place| matches!(place, Place::Cgroup("socket" | "connect4", _));
        let load = || Self::load_object(&mut EbpfLoader::new(), Way::Filters, is_newest);
        with_locked_memory(load).map(drop)
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
        let mut object = with_locked_memory(|| Self::load_object(&mut loader, way, is_wanted))?;
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

    /// Fills in the state of maps that are new.
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
        // Neither half is 0, which is what packets have by themselves.
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
                // The kernel may lack it, which attaching finds out.
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

    /// How packets get into the tunnel.
    #[must_use]
    pub fn way(&self) -> Way {
        self.way
    }

    /// Chooses the mark of chosen sockets to come, with [`Way::Marks`].
    pub fn set_mark(&self, mark: u32) {
        self.maps.state.stamp.store(mark, Ordering::Relaxed);
    }

    /// Attaches the hooks of sockets and of this process's end, and makes this
    /// process the one that is never chosen. Hooks that are attached already get the
    /// new programs.
    ///
    /// # Errors
    ///
    /// [`Fault::Call`]. Where nothing was attached before, nothing is.
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

    /// Makes this process the one that is never chosen, instead of any other.
    ///
    /// # Errors
    ///
    /// [`Fault::Call`].
    pub fn adopt(&self) -> Result<(), Fault> {
        self.list("taupe_adopt", Target::Iterator).map(drop)
    }

    /// The process that is never chosen, as it is numbered in the first PID namespace;
    /// `None` when it has ended.
    #[must_use]
    pub fn daemon(&self) -> Option<u32> {
        let daemon = self.maps.state.daemon.load(Ordering::Relaxed);
        (daemon != 0).then_some(daemon)
    }

    /// Keeps other processes from changing the rules, until it is dropped.
    fn alone(&self) -> Result<Option<File>, Fault> {
        match self.beginning {
            Some(_) => Ok(None),
            None => self.pins.lock().map(Some),
        }
    }

    /// Looks at the sockets that exist. Those of processes outside this PID namespace cannot
    /// be looked at: a process that begins a tunnel counts these processes. One that takes it
    /// over and sees all processes looks at what was left out.
    fn begin_looking(&self) -> Result<(), Fault> {
        let outside = self.list("taupe_outside", Target::Iterator)?;
        let outside = outside.first_chunk().copied().map_or(0, u32::from_ne_bytes);
        if self.fresh || outside == 0 {
            self.maps.state.unseen.store(outside, Ordering::Relaxed);
        }
        self.look_through("taupe_classify").map(drop)
    }

    /// Looks whether other programs decide on packets by NFQUEUE. Then the running task is not
    /// the sender of the packets that leave (`bpf/senders.h`).
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
            // Such a link cannot get another program.
            Place::Tracepoint(_) => self.link_anew(name, Target::Tracepoint, &self.pins.link(name)),
            // A failure is a gap.
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

    /// Attaches a program of BPF LSM, if it is called then: it is not unless the kernel
    /// was started with that.
    fn link_security(&self, name: &'static str) -> Result<(), Fault> {
        let secured = &self.maps.state.secured;
        secured.store(0, Ordering::Relaxed);
        let attached = self.link_anew(name, Target::Tracepoint, &self.pins.link(name));
        // Any socket in this namespace will do, made or not.
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

    /// Attaches a program by a pinned link, or gives the one that is there to it.
    fn link(&self, name: &'static str, target: Target<'_>, pin: &Path) -> Result<(), Fault> {
        let program = self.program(name)?;
        let old = syscall::open(pin);
        if old.is_ok_and(|old| syscall::update(old.as_fd(), program).is_ok()) {
            return Ok(());
        }
        self.link_anew(name, target, pin)
    }

    /// Attaches a program by a new link, and only then ends one that is pinned there.
    fn link_anew(&self, name: &'static str, target: Target<'_>, pin: &Path) -> Result<(), Fault> {
        let link = syscall::attach(self.program(name)?, target)
            .map_err(Fault::call(format!("attaching {name}")))?;
        pins::replace(link.as_fd(), pin)
    }

    /// Chooses what is held back while the tunnel is down, also of the sockets that
    /// exist.
    ///
    /// # Errors
    ///
    /// [`Fault::Call`], [`Fault::Unmarked`]: the choice holds, but not for all sockets
    /// that there were.
    pub fn set_lock(&mut self, lock: Lock) -> Result<(), Fault> {
        let word = &self.maps.state.lock;
        if word.swap(lock as u32, Ordering::Relaxed) == lock as u32 {
            return Ok(());
        }
        let _lock = self.alone()?;
        self.reclassify()
    }

    /// What is held back while the tunnel is down.
    #[must_use]
    pub fn lock(&self) -> Lock {
        Lock::of(self.maps.state.lock.load(Ordering::Relaxed))
    }

    /// What an iterator has to say.
    fn list(&self, name: &'static str, over: Target<'_>) -> Result<Vec<u8>, Fault> {
        let program = self.program(name)?;
        let failed = || Fault::call(format!("reading {name}"));
        let link = syscall::attach(program, over).map_err(failed())?;
        let mut iterator = syscall::iterator(link.as_fd()).map_err(failed())?;
        // The kernel writes as much at once as there is room for (32 KiB): where it has to
        // go on later, it may leave out what is behind something that has gone meanwhile.
        let mut said = Vec::with_capacity(1 << 20);
        iterator.read_to_end(&mut said).map_err(failed())?;
        Ok(said)
    }

    /// The sockets of chosen applications; with [`Way::Marks`] they cannot be listed, and
    /// it is none.
    pub(crate) fn chosen_sockets(&self) -> Result<Vec<Socket>, Fault> {
        if self.way == Way::Marks {
            return Ok(Vec::new());
        }
        let sockets = syscall::open(&self.pins.map("sockets"));
        let sockets = sockets.map_err(Fault::call("opening the map of sockets"))?;
        let listed = self.list("taupe_chosen", Target::Stored(sockets.as_fd()))?;
        Ok(reset::read(&listed))
    }

    /// Removes what is pinned for network namespaces that are gone, and returns for how
    /// many tunnels. Where namespaces cannot be listed, all of them are there.
    ///
    /// # Errors
    ///
    /// [`Fault::Call`] naming what cannot be removed.
    pub fn remove_orphans(&self) -> Result<usize, Fault> {
        // Before the namespaces are listed: one may be made meanwhile.
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

    /// Tells which addresses this machine has, and on which interface each: packets
    /// from the tunnel that belong to no flow are for these alone, what is forwarded to
    /// their networks stays inside, and who asks a resolver there is answered by another.
    /// The last is so for those on loopback, too.
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

    /// Chosen applications' packets go nowhere, and they are told.
    pub fn set_down(&self) {
        self.maps.state.up.store(0, Ordering::Release);
    }

    /// Whether somebody reads the TUN.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.maps.state.up.load(Ordering::Acquire) != 0
    }

    /// How often each thing has happened since the tunnel was made.
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

/// As [`Pins`] are named.
fn network_number() -> Result<u64, Fault> {
    let number = taupe_os_linux::namespace::network_number();
    number.map_err(Fault::call("asking for the network namespace"))
}
