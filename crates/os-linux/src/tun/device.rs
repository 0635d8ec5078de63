//! `/dev/net/tun` with virtio headers.

use std::{
    ffi::c_int,
    io::{self, IoSlice, IoSliceMut},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use arrayvec::ArrayVec;
use rustix::{
    fs::{Mode, OFlags},
    io::{Errno, ReadWriteFlags},
    net::{AddressFamily, SocketFlags, SocketType, socket_with},
};
use taupe_packet::{
    merge::{Coalesce, MAX_COUNT, TunWrite},
    split::Segmentation,
    virtio::{self, VirtioHeader},
};
use zerocopy::IntoBytes;

use super::{Offloads, OpenError, Queues, Read, WriteError, steering::SteeringProgram};
use crate::{
    ioctl::{self, Ifreq, InterfaceRequest},
    netlink::{TunLink, TunLookup},
};

/// A TUN interface or one of its queues, open for reading by one thread and writing by any.
#[derive(Debug)]
pub struct Tun {
    fd: OwnedFd,
    /// True if a virtio header precedes each packet.
    has_header: bool,
    offloads: Offloads,
    coalesce_tcp: AtomicBool,
    coalesce_udp: AtomicBool,
    /// Shared by the queues of an interface.
    stopped: Arc<AtomicBool>,
    /// Set once a non-blocking read turned out to be unsupported.
    lacks_nowait: AtomicBool,
    /// True if this program created the interface, or took over a persistent one that no process
    /// had open.
    created: bool,
}

impl Tun {
    /// Creates the interface `name`, or attaches to it if it is a persistent TUN that no process
    /// has open. The interface is initially down.
    ///
    /// # Errors
    ///
    /// See [`OpenError`].
    pub fn create(name: &str, offloads: Offloads) -> Result<Self, OpenError> {
        let fd = open(name, 0)?;
        Self::set_up_offloads(fd, true, offloads, true)
    }

    /// Creates the interface `name` with `count` queues (`IFF_MULTI_QUEUE`, Linux 3.8). The
    /// interface is initially down. For one queue or none, this is the same as
    /// [`Tun::create`].
    ///
    /// The system chooses the queue of a packet by a hash of its flow, which is the same for both
    /// directions (`TUNSETSTEERINGEBPF`, Linux 4.16). Packets can be written to any queue, which
    /// changes no flow's queue. The interface's `txqueuelen` limits the packets in each queue. MTU,
    /// offloads and state belong to the interface, whichever queue sets them.
    ///
    /// Falls back to one queue, and says why in [`Queues::refused`], if
    ///
    /// - loading the program is not permitted (it takes `CAP_BPF`), or the kernel cannot attach it;
    /// - the interface already exists: a persistent interface cannot get more queues than it was
    ///   made for;
    /// - the system refuses another queue, for example because the process has too many descriptors.
    ///
    /// # Errors
    ///
    /// Those of [`Tun::create`].
    pub fn create_queues(
        name: &str,
        offloads: Offloads,
        count: usize,
    ) -> Result<Queues, OpenError> {
        let mut refused = None;
        if count > 1 {
            match Self::create_several(name, offloads, count) {
                Ok(queues) => return Ok(queues),
                Err(error) => refused = Some(error),
            }
        }
        Ok(Queues {
            refused,
            ..Self::create(name, offloads)?.into()
        })
    }

    fn create_several(name: &str, offloads: Offloads, count: usize) -> Result<Queues, OpenError> {
        let failed = |what| move |source| OpenError::Io { what, source };
        // The program is loaded first, because loading fails most often. No interface has to be
        // deleted then.
        let steering = SteeringProgram::load().map_err(failed("loading the steering program"))?;
        // The interface must be new: the kernel lets several programs own queues of one interface.
        let fd = open(name, libc::IFF_MULTI_QUEUE | libc::IFF_TUN_EXCL);
        let fd = fd.map_err(|error| match error {
            OpenError::Busy(name) => OpenError::Exists(name),
            error => error,
        })?;
        let first = Self::set_up_offloads(fd, true, offloads, true)?;
        steering
            .attach(first.as_fd())
            .map_err(failed("TUNSETSTEERINGEBPF"))?;
        let mut queues = Queues::from(first);
        for _ in 1..count {
            let fd = open(name, libc::IFF_MULTI_QUEUE)?;
            // If the interface was renamed, this call has created another one.
            if ioctl::tun_name(fd.as_fd()).ok() != queues.first.name().ok() {
                return Err(failed("adding a queue")(Errno::NODEV.into()));
            }
            // Header length and offloads belong to the interface.
            let Self {
                offloads, stopped, ..
            } = &queues.first;
            let next = Self::new(fd, true, *offloads, true, stopped);
            queues.others.push(next);
        }
        Ok(queues)
    }

    /// Takes over a TUN that another program opened and passed on, as with `WG_TUN_FD`. The mode of
    /// the descriptor stays: without `IFF_VNET_HDR` there are no offloads. The descriptor becomes
    /// blocking.
    ///
    /// # Errors
    ///
    /// [`OpenError::NotTun`], [`OpenError::Mode`] or [`OpenError::Io`].
    pub fn from_fd(fd: OwnedFd, offloads: Offloads) -> Result<Self, OpenError> {
        let mut request = Ifreq::default();
        ioctl::interface(fd.as_fd(), InterfaceRequest::TunGet, &mut request)
            .map_err(OpenError::NotTun)?;
        let mode = request.flags();
        if mode & libc::IFF_TUN == 0 {
            return Err(OpenError::Mode);
        }
        rustix::io::ioctl_fionbio(&fd, false).map_err(|error| OpenError::Io {
            what: "making the TUN descriptor blocking",
            source: error.into(),
        })?;
        let has_header = mode & libc::IFF_VNET_HDR != 0;
        let tun = Self::set_up_offloads(fd, has_header, offloads, false)?;
        // The flags cannot tell: the bit of `IFF_NO_PI` is also that of `IFF_NOFILTER`, which every
        // TUN has.
        match tun.link() {
            Ok(link) if link.has_packet_info => Err(OpenError::Mode),
            _ => Ok(tun),
        }
    }

    fn set_up_offloads(
        fd: OwnedFd,
        has_header: bool,
        wanted: Offloads,
        created: bool,
    ) -> Result<Self, OpenError> {
        let mut offloads = Offloads::NONE;
        if has_header {
            ioctl::set_header_len(fd.as_fd(), VirtioHeader::LEN as c_int).map_err(|source| {
                OpenError::Io {
                    what: "TUNSETVNETHDRSZ",
                    source,
                }
            })?;
            let tcp = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
            let udp = libc::TUN_F_CSUM | libc::TUN_F_USO4 | libc::TUN_F_USO6;
            let set = |features| ioctl::set_offload(fd.as_fd(), features).is_ok();
            // The only test for UDP super-packets is to request them.
            let knows_udp = (wanted.uso || wanted.gro_udp) && set(udp);
            offloads.uso = knows_udp && wanted.uso;
            offloads.gro_udp = knows_udp && wanted.gro_udp;
            offloads.gro_tcp = wanted.gro_tcp;
            let udp = if offloads.uso { udp } else { 0 };
            offloads.tso = wanted.tso && set(udp | tcp);
            if !offloads.tso {
                set(udp);
            }
        }
        Ok(Self::new(
            fd,
            has_header,
            offloads,
            created,
            &Arc::default(),
        ))
    }

    fn new(
        fd: OwnedFd,
        has_header: bool,
        offloads: Offloads,
        created: bool,
        stopped: &Arc<AtomicBool>,
    ) -> Self {
        Self {
            fd,
            has_header,
            offloads,
            coalesce_tcp: AtomicBool::new(offloads.gro_tcp),
            coalesce_udp: AtomicBool::new(offloads.gro_udp),
            stopped: Arc::clone(stopped),
            lacks_nowait: AtomicBool::new(false),
            created,
        }
    }

    /// Returns the interface's current name.
    ///
    /// # Errors
    ///
    /// `EBADFD` when the interface was deleted.
    pub fn name(&self) -> io::Result<String> {
        ioctl::tun_name(self.fd.as_fd())
    }

    /// Returns the interface's index in the network namespace that it is in now.
    ///
    /// # Errors
    ///
    /// `EBADFD` when the interface was deleted.
    pub fn index(&self) -> io::Result<u32> {
        Ok(self.link()?.index)
    }

    /// Returns the interface's MTU in bytes, in whatever network namespace it is now.
    ///
    /// # Errors
    ///
    /// `EBADFD` when the interface was deleted.
    pub fn mtu(&self) -> io::Result<u32> {
        Ok(self.link()?.mtu)
    }

    fn link(&self) -> io::Result<TunLink> {
        let link = TunLookup::open()?.find(self.fd.as_fd())?;
        link.ok_or_else(|| Errno::BADFD.into())
    }

    /// Sets the MTU of an interface in the caller's network namespace.
    ///
    /// # Errors
    ///
    /// The kernel's: `EINVAL` for a size it does not take, `EPERM`.
    pub fn set_mtu(&self, mtu: u32) -> io::Result<()> {
        let mut request = self.request()?;
        request.set_mtu(c_int::try_from(mtu).map_err(|_| Errno::INVAL)?);
        ioctl::interface(
            any_socket()?.as_fd(),
            InterfaceRequest::SetMtu,
            &mut request,
        )
    }

    /// Brings an interface in the caller's network namespace up or down.
    ///
    /// # Errors
    ///
    /// The kernel's, mostly `EPERM`.
    pub fn set_up(&self, up: bool) -> io::Result<()> {
        let socket = any_socket()?;
        let mut request = self.request()?;
        ioctl::interface(socket.as_fd(), InterfaceRequest::Flags, &mut request)?;
        let others = request.flags() & !libc::IFF_UP;
        request.set_flags(if up { others | libc::IFF_UP } else { others });
        ioctl::interface(socket.as_fd(), InterfaceRequest::SetFlags, &mut request)
    }

    fn request(&self) -> io::Result<Ifreq> {
        Ifreq::new(&self.name()?).ok_or_else(|| Errno::INVAL.into())
    }

    /// Returns the offloads that the kernel granted.
    pub fn offloads(&self) -> Offloads {
        self.offloads
    }

    /// Returns the protocols that [`taupe_packet::merge::Merger::merge`] may merge for this TUN. A
    /// protocol is removed permanently when the kernel refuses a super-packet of it.
    pub fn coalesce(&self) -> Coalesce {
        Coalesce {
            tcp: self.coalesce_tcp.load(Ordering::Relaxed),
            udp: self.coalesce_udp.load(Ordering::Relaxed),
        }
    }

    /// Waits for the next packet or super-packet. `buffer` should have
    /// [`crate::tun::READ_BUFFER_LEN`] bytes; a longer packet is truncated.
    ///
    /// # Errors
    ///
    /// Unexpected errors of the kernel. Deletion and shutdown are not errors.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<Read> {
        self.read_with(buffer, |slices| rustix::io::readv(&self.fd, slices))
    }

    /// Reads a packet that is already queued. Returns `None` if there is none, or if the system
    /// cannot read without waiting (Linux before 5.11, or a sandbox that forbids the call); the
    /// latter is tried only once. A permanent error is returned by the next [`Tun::read`].
    pub fn read_queued(&self, buffer: &mut [u8]) -> Option<Read> {
        self.read_now(buffer).ok()
    }

    /// Returns false once the system has refused to read without waiting ([`Tun::read_queued`]).
    pub fn can_read_queued(&self) -> bool {
        !self.lacks_nowait.load(Ordering::Relaxed)
    }

    /// Like [`Tun::read`] but does not wait, for a caller to which `poll(2)` reported the TUN as
    /// readable. Returns `None` if there is nothing to read.
    ///
    /// # Errors
    ///
    /// Those of [`Tun::read`].
    pub fn read_ready(&self, buffer: &mut [u8]) -> io::Result<Option<Read>> {
        match self.read_now(buffer) {
            Ok(read) => Ok(Some(read)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            // If the system cannot read without waiting, use the blocking read: after `poll(2)` it
            // hardly ever waits.
            Err(_) => self.read(buffer).map(Some),
        }
    }

    fn read_now(&self, buffer: &mut [u8]) -> io::Result<Read> {
        if self.lacks_nowait.load(Ordering::Relaxed) {
            return Err(Errno::OPNOTSUPP.into());
        }
        let read = self.read_with(buffer, |slices| {
            rustix::io::preadv2(&self.fd, slices, u64::MAX, ReadWriteFlags::NOWAIT)
        });
        let refusal = read.as_ref().err().and_then(Errno::from_io_error);
        if matches!(refusal, Some(Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM)) {
            self.lacks_nowait.store(true, Ordering::Relaxed);
        }
        read
    }

    fn read_with(
        &self,
        buffer: &mut [u8],
        read: impl Fn(&mut [IoSliceMut<'_>]) -> Result<usize, Errno>,
    ) -> io::Result<Read> {
        while !self.stopped.load(Ordering::Relaxed) {
            let mut header = VirtioHeader::default();
            let result = if self.has_header {
                let slices = &mut [
                    IoSliceMut::new(header.as_mut_bytes()),
                    IoSliceMut::new(buffer),
                ];
                read(slices).map(|length| length.saturating_sub(VirtioHeader::LEN))
            } else {
                read(&mut [IoSliceMut::new(buffer)])
            };
            match result {
                Ok(length) => {
                    let range = 0..length;
                    return Ok(Read::Packet { header, range });
                }
                Err(Errno::INTR) => {}
                // A read that waits while the interface is deleted fails with `EFAULT`
                // (`tun_ring_recv`), a later one with `EBADFD`.
                Err(Errno::BADFD | Errno::FAULT) if self.stopped.load(Ordering::Relaxed) => break,
                Err(Errno::BADFD | Errno::FAULT) => return Ok(Read::Deleted),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Read::Stopped)
    }

    /// Writes one packet or super-packet with one system call.
    ///
    /// If the kernel refuses a super-packet, this writes its segments one by one, and does not
    /// merge that protocol any more: see [`Tun::coalesce`].
    ///
    /// # Errors
    ///
    /// See [`WriteError`]; only [`WriteError::Deleted`] is permanent.
    pub fn write(&self, write: &TunWrite<'_>) -> Result<(), WriteError> {
        let header = write.header();
        match self.write_slices(&header, write.slices()) {
            Ok(()) => Ok(()),
            Err(Errno::INVAL | Errno::IO) if header.gso_type != virtio::GSO_NONE => {
                self.write_segments(write)
            }
            Err(error) => Err(write_error(error)),
        }
    }

    /// Writes the segments of a refused super-packet one by one.
    fn write_segments(&self, write: &TunWrite<'_>) -> Result<(), WriteError> {
        let header = write.header();
        let mut payloads = write.slices();
        let head = payloads.next().unwrap_or_default();
        let segmentation = Segmentation::new(header, head, write.len())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let (_, first) = head.split_at(segmentation.header_len);
        let mut room = [0; MAX_HEADERS];
        let headers = room
            .get_mut(..segmentation.header_len)
            .ok_or(io::ErrorKind::InvalidInput)
            .map_err(io::Error::from)?;
        for (i, payload) in std::iter::once(first).chain(payloads).enumerate() {
            segmentation.write_header(i, head, payload, headers);
            // If the interface is down, this write fails too, so the refusal had nothing to do with
            // super-packets.
            self.write_slices(&VirtioHeader::default(), [&*headers, payload].into_iter())
                .map_err(write_error)?;
        }
        let refused = match header.gso_type {
            virtio::GSO_UDP_L4 => &self.coalesce_udp,
            _ => &self.coalesce_tcp,
        };
        refused.store(false, Ordering::Relaxed);
        Ok(())
    }

    fn write_slices<'a>(
        &self,
        header: &'a VirtioHeader,
        slices: impl Iterator<Item = &'a [u8]>,
    ) -> Result<(), Errno> {
        let mut list = ArrayVec::<_, { MAX_COUNT + 1 }>::new();
        if self.has_header {
            list.push(IoSlice::new(header.as_bytes()));
        }
        list.extend(slices.map(IoSlice::new));
        loop {
            match rustix::io::writev(&self.fd, &list) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Makes a waiting [`Tun::read`] and every later one return [`Read::Stopped`], on all queues of
    /// the interface.
    ///
    /// A read waits in the kernel, so that a packet costs one system call instead of two. Only the
    /// end of the interface wakes such a read without a packet, so this deletes the interface, as
    /// closing its last descriptor would. A persistent interface (`TUNSETPERSIST`) and one whose
    /// descriptor was passed in ([`Tun::from_fd`]) are not deleted, because others use them too; a
    /// read that waits there ends with its next packet or with the process.
    ///
    /// # Errors
    ///
    /// The kernel's if the interface cannot be deleted, mostly `EPERM`. A waiting read then ends
    /// with its next packet.
    pub fn shutdown(&self) -> io::Result<()> {
        self.stopped.store(true, Ordering::Relaxed);
        let mut request = Ifreq::default();
        match ioctl::interface(self.fd.as_fd(), InterfaceRequest::TunGet, &mut request) {
            Ok(()) if !self.created || request.flags() & libc::IFF_PERSIST != 0 => Ok(()),
            Ok(()) => TunLookup::open()?.delete(self.fd.as_fd()),
            // It was deleted already.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::BADFD) => Ok(()),
            Err(error) => Err(error),
        }
    }

    pub(super) fn leave_deletion_to_exit(&mut self) {
        self.created = false;
    }

    /// Returns the network namespace that the interface is in now (`TUNGETDEVNETNS`, Linux 5.2).
    ///
    /// # Errors
    ///
    /// `EBADFD` when the interface was deleted, `EPERM` without
    /// `CAP_NET_ADMIN`.
    pub fn namespace(&self) -> io::Result<OwnedFd> {
        ioctl::tun_namespace(self.fd.as_fd())
    }
}

/// Opens a queue of the interface `name`, which is created if it does not exist. `mode` is added to
/// the flags of every TUN in this crate.
fn open(name: &str, mode: c_int) -> Result<OwnedFd, OpenError> {
    let refused = |character: char| "/:%".contains(character) || character.is_whitespace();
    let mut request = match Ifreq::new(name) {
        Some(request) if !name.is_empty() && !name.contains(refused) => request,
        _ => return Err(OpenError::Name(name.to_owned())),
    };
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let fd = rustix::fs::open("/dev/net/tun", flags, Mode::empty())
        .map_err(|error| OpenError::Device(error.into()))?;
    request.set_flags(libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR | mode);
    ioctl::interface(fd.as_fd(), InterfaceRequest::TunSet, &mut request).map_err(|error| {
        match Errno::from_io_error(&error) {
            Some(Errno::PERM) => OpenError::Permission(name.to_owned()),
            // `EINVAL`: an interface of another kind has the name.
            Some(Errno::BUSY | Errno::INVAL) => OpenError::Busy(name.to_owned()),
            _ => OpenError::Io {
                what: "TUNSETIFF",
                source: error,
            },
        }
    })?;
    Ok(fd)
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Longest headers of a merged packet: IPv6, and TCP with all options.
const MAX_HEADERS: usize = 40 + 60;

fn write_error(error: Errno) -> WriteError {
    match error {
        Errno::IO => WriteError::Down,
        Errno::BADFD => WriteError::Deleted,
        error => WriteError::Io(error.into()),
    }
}

/// Opens a socket for interface requests.
fn any_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    Ok(socket_with(
        AddressFamily::UNIX,
        SocketType::DGRAM,
        flags,
        None,
    )?)
}
