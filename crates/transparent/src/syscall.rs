//! Commands of `bpf(2)` on links, which outlive the process when pinned.
//!
//! Programs and maps are aya's. Links are made here, all kinds alike, so that any
//! of them can be pinned, found again and given another program.

use std::ffi::{CString, c_int, c_long};
use std::fs::File;
use std::io;
use std::mem::size_of_val;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// What a program is attached to.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Target<'a> {
    /// A cgroup and everything below it; one of [`attach_type`].
    Cgroup(BorrowedFd<'a>, u32),
    /// An interface's packets, in front of all programs that are there.
    Interface(u32, u32),
    /// The tracepoint that the program was loaded for.
    Tracepoint,
    /// The iterator that the program was loaded for.
    Iterator,
}

/// `enum bpf_attach_type`.
pub(crate) mod attach_type {
    pub(crate) const CGROUP_INGRESS: u32 = 0;
    pub(crate) const CGROUP_EGRESS: u32 = 1;
    pub(crate) const SOCK_CREATE: u32 = 2;
    pub(crate) const CONNECT4: u32 = 10;
    pub(crate) const CONNECT6: u32 = 11;
    pub(crate) const SENDMSG4: u32 = 14;
    pub(crate) const SENDMSG6: u32 = 15;
    pub(crate) const ITERATOR: u32 = 28;
    pub(crate) const TCX_INGRESS: u32 = 46;
    pub(crate) const TCX_EGRESS: u32 = 47;
}

const OBJ_PIN: c_int = 6;
const OBJ_GET: c_int = 7;
const RAW_TRACEPOINT_OPEN: c_int = 17;
const LINK_CREATE: c_int = 28;
const LINK_UPDATE: c_int = 29;
const ITER_CREATE: c_int = 33;
const LINK_DETACH: c_int = 34;

/// `BPF_F_BEFORE` without a relative: before all others.
const BEFORE: u32 = 1 << 3;

/// Attaches a program; the link holds as long as its descriptor or a pin does.
pub(crate) fn attach(program: BorrowedFd<'_>, target: Target<'_>) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct LinkCreate {
        program: c_int,
        target: u32,
        kind: u32,
        flags: u32,
    }
    #[repr(C)]
    struct Open {
        name: u64,
        program: c_int,
        padding: u32,
    }
    let program = program.as_raw_fd();
    let link = |target, kind, flags| LinkCreate {
        program,
        target,
        kind,
        flags,
    };
    match target {
        Target::Cgroup(cgroup, kind) => {
            bpf_fd(LINK_CREATE, &link(cgroup.as_raw_fd() as u32, kind, 0))
        }
        Target::Interface(index, kind) => bpf_fd(LINK_CREATE, &link(index, kind, BEFORE)),
        Target::Iterator => bpf_fd(LINK_CREATE, &link(0, attach_type::ITERATOR, 0)),
        Target::Tracepoint => bpf_fd(
            RAW_TRACEPOINT_OPEN,
            &Open {
                name: 0,
                program,
                padding: 0,
            },
        ),
    }
}

/// Gives a link another program, without a moment in between. Links of
/// tracepoints cannot do that.
pub(crate) fn update(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    #[repr(C)]
    struct LinkUpdate {
        link: c_int,
        program: c_int,
        flags: u32,
        old: c_int,
    }
    let attributes = LinkUpdate {
        link: link.as_raw_fd(),
        program: program.as_raw_fd(),
        flags: 0,
        old: 0,
    };
    bpf(LINK_UPDATE, &attributes).map(drop)
}

/// Detaches a link's program now, and not when the last reference has gone some
/// time later. Links of tracepoints cannot do that.
pub(crate) fn detach(link: BorrowedFd<'_>) -> io::Result<()> {
    #[repr(C)]
    struct LinkDetach {
        link: c_int,
    }
    let attributes = LinkDetach {
        link: link.as_raw_fd(),
    };
    bpf(LINK_DETACH, &attributes).map(drop)
}

/// What an iterator's program does happens while this is read.
pub(crate) fn iterator(link: BorrowedFd<'_>) -> io::Result<File> {
    #[repr(C)]
    struct IterCreate {
        link: c_int,
        flags: u32,
    }
    let attributes = IterCreate {
        link: link.as_raw_fd(),
        flags: 0,
    };
    bpf_fd(ITER_CREATE, &attributes).map(File::from)
}

#[repr(C)]
struct Object {
    path: u64,
    fd: c_int,
    flags: u32,
}

/// Gives an object a name on a BPF file system.
pub(crate) fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let attributes = Object {
        path: path.as_ptr().addr() as u64,
        fd: object.as_raw_fd(),
        flags: 0,
    };
    bpf(OBJ_PIN, &attributes).map(drop)
}

/// Opens an object by its name on a BPF file system.
pub(crate) fn open(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let attributes = Object {
        path: path.as_ptr().addr() as u64,
        fd: 0,
        flags: 0,
    };
    bpf_fd(OBJ_GET, &attributes)
}

fn bpf_fd<T>(command: c_int, attributes: &T) -> io::Result<OwnedFd> {
    let fd = bpf(command, attributes)?;
    let fd = c_int::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: these commands return a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn bpf<T>(command: c_int, attributes: &T) -> io::Result<c_long> {
    // SAFETY: `attributes` is one of the structures above, each the beginning of
    // `union bpf_attr` for its command; the kernel reads as many bytes as are
    // there, takes the rest for zero and writes nothing. An address in them is that
    // of a string that the caller keeps until this returns.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_ref(attributes),
            size_of_val(attributes),
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

/// The root of the hierarchy of cgroup2, wherever it is mounted, or nowhere.
pub(crate) fn root_cgroup() -> io::Result<OwnedFd> {
    use rustix::mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen,
    };
    let context = fsopen("cgroup2", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(context.as_fd())?;
    let mount = fsmount(
        context.as_fd(),
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::empty(),
    )?;
    Ok(mount)
}
