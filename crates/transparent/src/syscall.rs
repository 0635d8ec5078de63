//! Commands of `bpf(2)` for links, and for programs that aya does not support.
//!
//! aya handles most programs and maps. All links are made here, so that any of them can be pinned,
//! opened again and given another program.

use std::ffi::{CString, c_int, c_long};
use std::fs::File;
use std::io;
use std::mem::size_of_val;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use aya_obj::generated::bpf_insn;
use taupe_os_linux::memory::without_memlock_limit;

/// Attach point of a program.
#[derive(Debug, Clone, Copy)]
pub(crate) enum AttachTarget<'a> {
    /// A cgroup and its descendants, with an [`attach_type`].
    Cgroup(BorrowedFd<'a>, u32),
    /// An interface by its index, with an [`attach_type`], before all programs already there.
    Interface(u32, u32),
    /// The packets of a family (`NFPROTO_*`) that the calling thread's network namespace forwards,
    /// after all other netfilter hooks.
    Netfilter(u32),
    /// The tracepoint for which the program was loaded.
    Tracepoint,
    /// The iterator for which the program was loaded.
    Iterator,
    /// The iterator for which the program was loaded, over the storage in a map.
    SocketStorage(BorrowedFd<'a>),
}

/// `enum bpf_attach_type`.
pub(crate) mod attach_type {
    pub(crate) const CGROUP_INGRESS: u32 = 0;
    pub(crate) const CGROUP_EGRESS: u32 = 1;
    pub(crate) const SOCK_CREATE: u32 = 2;
    pub(crate) const BIND4: u32 = 8;
    pub(crate) const BIND6: u32 = 9;
    pub(crate) const CONNECT4: u32 = 10;
    pub(crate) const CONNECT6: u32 = 11;
    pub(crate) const SENDMSG4: u32 = 14;
    pub(crate) const SENDMSG6: u32 = 15;
    pub(crate) const RECVMSG4: u32 = 19;
    pub(crate) const RECVMSG6: u32 = 20;
    pub(crate) const ITERATOR: u32 = 28;
    pub(crate) const PEERNAME4: u32 = 29;
    pub(crate) const PEERNAME6: u32 = 30;
    pub(crate) const NETFILTER: u32 = 45;
    pub(crate) const TCX_INGRESS: u32 = 46;
    pub(crate) const TCX_EGRESS: u32 = 47;
    pub(crate) const UNIX_CONNECT: u32 = 49;
}

const MAP_CREATE: c_int = 0;
const MAP_UPDATE_ELEM: c_int = 2;
const PROG_LOAD: c_int = 5;
const OBJ_PIN: c_int = 6;
const OBJ_GET: c_int = 7;
const PROG_GET_FD_BY_ID: c_int = 13;
const OBJ_GET_INFO_BY_FD: c_int = 15;
const PROG_QUERY: c_int = 16;
const RAW_TRACEPOINT_OPEN: c_int = 17;
const BTF_LOAD: c_int = 18;
const LINK_CREATE: c_int = 28;
const LINK_UPDATE: c_int = 29;
const ITER_CREATE: c_int = 33;
const LINK_DETACH: c_int = 34;

/// `BPF_F_BEFORE` without a relative program: before all others.
const BEFORE: u32 = 1 << 3;

/// Number of priorities at a netfilter hook that are tried.
const PRIORITIES: i32 = 64;

/// A program that aya cannot load.
#[derive(Debug)]
pub(crate) struct Code<'a> {
    /// Only the first 15 bytes are used.
    pub(crate) name: &'a str,
    /// One of [`program_type`].
    pub(crate) kind: u32,
    /// One of [`attach_type`].
    pub(crate) attach_type: u32,
    /// Instructions that refer to maps by file descriptors.
    pub(crate) instructions: &'a [bpf_insn],
    /// BTF of the object; empty for none.
    pub(crate) types: &'a [u8],
    /// The kernel's function information (`func_info`), and the size of one record.
    pub(crate) functions: (&'a [u8], usize),
}

/// `enum bpf_prog_type`.
pub(crate) mod program_type {
    pub(crate) const CGROUP_SOCK_ADDR: u32 = 18;
    pub(crate) const NETFILTER: u32 = 32;
}

pub(crate) fn load(code: &Code<'_>) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct LoadTypes {
        types: u64,
        log: u64,
        size: u32,
        log_size: u32,
        log_level: u32,
        padding: u32,
    }
    #[repr(C)]
    struct Load {
        kind: u32,
        count: u32,
        code: u64,
        license: u64,
        log_level: u32,
        log_size: u32,
        log: u64,
        kernel: u32,
        flags: u32,
        name: [u8; 16],
        interface: u32,
        attach_type: u32,
        types: c_int,
        function_size: u32,
        functions: u64,
        function_count: u32,
        padding: u32,
    }
    let types = LoadTypes {
        types: code.types.as_ptr().expose_provenance() as u64,
        log: 0,
        size: code.types.len() as u32,
        log_size: 0,
        log_level: 0,
        padding: 0,
    };
    let types = match code.types {
        [] => None,
        _ => Some(bpf_fd(BTF_LOAD, &types)?),
    };
    let (functions, function_size) = code.functions;
    let mut name = [0; 16];
    let shown = name.iter_mut().take(15);
    shown
        .zip(code.name.bytes())
        .for_each(|(to, from)| *to = from);
    let attributes = Load {
        kind: code.kind,
        count: code.instructions.len() as u32,
        code: code.instructions.as_ptr().expose_provenance() as u64,
        license: c"Dual MIT/GPL".as_ptr().expose_provenance() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
        kernel: 0,
        flags: 0,
        name,
        interface: 0,
        attach_type: code.attach_type,
        types: types.as_ref().map_or(0, AsRawFd::as_raw_fd),
        function_size: function_size as u32,
        functions: functions.as_ptr().expose_provenance() as u64,
        function_count: (functions.len() / function_size.max(1)) as u32,
        padding: 0,
    };
    bpf_fd(PROG_LOAD, &attributes)
}

/// Attaches a program. The link lasts as long as its descriptor or a pin.
pub(crate) fn attach(program: BorrowedFd<'_>, target: AttachTarget<'_>) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct LinkCreate {
        program: c_int,
        target: u32,
        kind: u32,
        flags: u32,
    }
    #[repr(C)]
    struct OverMap {
        link: LinkCreate,
        over: u64,
        size: u32,
        padding: u32,
    }
    #[repr(C)]
    struct AtHook {
        link: LinkCreate,
        family: u32,
        hook: u32,
        priority: i32,
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
        AttachTarget::Cgroup(cgroup, kind) => {
            bpf_fd(LINK_CREATE, &link(cgroup.as_raw_fd() as u32, kind, 0))
        }
        AttachTarget::Interface(index, kind) => bpf_fd(LINK_CREATE, &link(index, kind, BEFORE)),
        AttachTarget::Netfilter(family) => {
            /// `NF_INET_FORWARD`.
            const FORWARD: u32 = 2;
            // Priorities are unique, and the kernel refuses the very last one.
            let mut links = (i32::MAX - PRIORITIES..i32::MAX).rev().map(|priority| {
                let attributes = AtHook {
                    link: link(0, attach_type::NETFILTER, 0),
                    family,
                    hook: FORWARD,
                    priority,
                    flags: 0,
                };
                bpf_fd(LINK_CREATE, &attributes)
            });
            let is_taken = |tried: &io::Result<OwnedFd>| {
                tried
                    .as_ref()
                    .is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY))
            };
            let free = links.find(|tried| !is_taken(tried));
            free.unwrap_or_else(|| Err(io::Error::from_raw_os_error(libc::EBUSY)))
        }
        AttachTarget::Iterator => bpf_fd(LINK_CREATE, &link(0, attach_type::ITERATOR, 0)),
        AttachTarget::SocketStorage(map) => {
            // `union bpf_iter_link_info`.
            let over = map.as_raw_fd();
            let attributes = OverMap {
                link: link(0, attach_type::ITERATOR, 0),
                over: (&raw const over).expose_provenance() as u64,
                size: size_of_val(&over) as u32,
                padding: 0,
            };
            bpf_fd(LINK_CREATE, &attributes)
        }
        AttachTarget::Tracepoint => bpf_fd(
            RAW_TRACEPOINT_OPEN,
            &Open {
                name: 0,
                program,
                padding: 0,
            },
        ),
    }
}

/// Gives a link another program without a gap. Links of tracepoints do not support this.
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

/// Detaches a link's program at once, and not some time after the last reference has gone. Links of
/// tracepoints do not support this.
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

/// Opens an iterator. Its program runs while the file is read.
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

/// Returns the ID of a link. The kernel does not reuse IDs.
pub(crate) fn id(link: BorrowedFd<'_>) -> io::Result<u32> {
    /// The first fields of `struct bpf_link_info`.
    #[repr(C)]
    #[derive(Default)]
    struct LinkInfo {
        kind: u32,
        id: u32,
        program: u32,
        padding: u32,
    }
    let mut found = LinkInfo::default();
    info(link, &mut found)?;
    Ok(found.id)
}

/// Checks that a link of a cgroup is attached. A detached link has no cgroup.
pub(crate) fn has_cgroup(link: BorrowedFd<'_>) -> io::Result<bool> {
    /// The first fields of `struct bpf_link_info` for a link of a cgroup.
    #[repr(C)]
    #[derive(Default)]
    struct CgroupInfo {
        kind: u32,
        id: u32,
        program: u32,
        padding: u32,
        cgroup: u64,
    }
    let mut found = CgroupInfo::default();
    info(link, &mut found)?;
    Ok(found.cgroup != 0)
}

/// Returns the name of a program: up to 15 bytes, padded with zeros.
fn program_name(program: BorrowedFd<'_>) -> io::Result<[u8; 16]> {
    /// The first fields of `struct bpf_prog_info`.
    #[repr(C)]
    #[derive(Default)]
    struct ProgramInfo {
        before: [u64; 8],
        name: [u8; 16],
    }
    let mut found = ProgramInfo::default();
    info(program, &mut found)?;
    Ok(found.name)
}

/// Fills `info` with the kernel's information on an object.
fn info<T>(object: BorrowedFd<'_>, info: &mut T) -> io::Result<()> {
    #[repr(C)]
    struct GetInfo {
        fd: c_int,
        size: u32,
        info: u64,
    }
    let mut attributes = GetInfo {
        fd: object.as_raw_fd(),
        size: size_of_val(info) as u32,
        info: std::ptr::from_mut(info).expose_provenance() as u64,
    };
    // The address is that of `size` bytes that nobody else uses.
    bpf_writing(OBJ_GET_INFO_BY_FD, &mut attributes)
}

/// A program attached to an interface.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TcxProgram {
    program: u32,
    /// ID of its link; 0 if it has none.
    pub(crate) link: u32,
}

impl TcxProgram {
    /// Returns true if its name begins with `setup_lock`. A program that has ended has no name.
    pub(crate) fn has_name_prefix(self, setup_lock: &str) -> io::Result<bool> {
        Ok(self.name()?.starts_with(setup_lock))
    }

    /// Returns its name, up to 15 bytes. The name is empty if the program has ended.
    pub(crate) fn name(self) -> io::Result<String> {
        #[repr(C)]
        struct GetFd {
            id: u32,
            next: u32,
            flags: u32,
        }
        let attributes = GetFd {
            id: self.program,
            next: 0,
            flags: 0,
        };
        match bpf_fd(PROG_GET_FD_BY_ID, &attributes) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(String::new()),
            program => {
                let name = program_name(program?.as_fd())?;
                let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
                Ok(String::from_utf8_lossy(name).into_owned())
            }
        }
    }
}

/// Returns the tcx programs of an interface, in their order.
///
/// # Errors
///
/// `EINVAL` before Linux 6.6; `ENODEV` if the calling thread's network namespace has no such
/// interface.
pub(crate) fn tcx_programs(interface: u32, kind: u32) -> io::Result<Vec<TcxProgram>> {
    #[repr(C)]
    struct Query {
        interface: u32,
        kind: u32,
        query_flags: u32,
        attach_flags: u32,
        programs: u64,
        count: u32,
        padding: u32,
        program_flags: u64,
        links: u64,
        link_flags: u64,
        revision: u64,
    }
    /// `BPF_MPROG_MAX`.
    const MOST: usize = 64;
    let (mut programs, mut links) = ([0_u32; MOST], [0_u32; MOST]);
    let mut attributes = Query {
        interface,
        kind,
        query_flags: 0,
        attach_flags: 0,
        programs: programs.as_mut_ptr().expose_provenance() as u64,
        count: MOST as u32,
        padding: 0,
        program_flags: 0,
        links: links.as_mut_ptr().expose_provenance() as u64,
        link_flags: 0,
        revision: 0,
    };
    // Both addresses are those of `count` numbers that nobody else uses.
    bpf_writing(PROG_QUERY, &mut attributes)?;
    let pairs = programs.into_iter().zip(links);
    Ok(pairs
        .take(attributes.count as usize)
        .map(|(program, link)| TcxProgram { program, link })
        .collect())
}

/// Waits until all eBPF programs that are running now have ended. After this no program acts by the
/// previous content of a map.
///
/// On every kernel, updating a map of maps waits for running programs. `membarrier(2)` is no
/// alternative: it fails if some CPUs run without ticks (`nohz_full`).
pub(crate) fn wait_for_programs() -> io::Result<()> {
    #[repr(C)]
    struct MapCreate {
        kind: u32,
        key_size: u32,
        value_size: u32,
        max_entries: u32,
        flags: u32,
        inner: c_int,
    }
    #[repr(C)]
    struct MapUpdate {
        map: c_int,
        padding: u32,
        key: u64,
        value: u64,
        flags: u64,
    }
    const ARRAY: u32 = 2;
    const ARRAY_OF_MAPS: u32 = 12;
    let map = |kind, inner| MapCreate {
        kind,
        key_size: 4,
        value_size: 4,
        max_entries: 1,
        flags: 0,
        inner,
    };
    let (inner, outer) = without_memlock_limit(|| {
        let inner = bpf_fd(MAP_CREATE, &map(ARRAY, 0))?;
        let outer = bpf_fd(MAP_CREATE, &map(ARRAY_OF_MAPS, inner.as_raw_fd()))?;
        io::Result::Ok((inner, outer))
    })?;
    let (key, value) = (0_u32, inner.as_raw_fd());
    let attributes = MapUpdate {
        map: outer.as_raw_fd(),
        padding: 0,
        key: (&raw const key).expose_provenance() as u64,
        value: (&raw const value).expose_provenance() as u64,
        flags: 0,
    };
    bpf(MAP_UPDATE_ELEM, &attributes).map(drop)
}

#[repr(C)]
struct Object {
    path: u64,
    fd: c_int,
    flags: u32,
}

/// Pins an object at a path of a BPF file system.
pub(crate) fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let attributes = Object {
        path: path.as_ptr().expose_provenance() as u64,
        fd: object.as_raw_fd(),
        flags: 0,
    };
    bpf(OBJ_PIN, &attributes).map(drop)
}

/// Opens a pinned object.
pub(crate) fn open(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let attributes = Object {
        path: path.as_ptr().expose_provenance() as u64,
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

/// Runs a command that also writes to the attributes and to the memory that they point to.
fn bpf_writing<T>(command: c_int, attributes: &mut T) -> io::Result<()> {
    // SAFETY: `attributes` is one of the structures above, each a prefix of `union bpf_attr` for
    // its command. The kernel reads and writes no more than its size, and any bytes are valid
    // there. A pointer in it leads to memory that the caller has borrowed mutably until this
    // returns, of the size stated beside it.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_mut(attributes),
            size_of_val(attributes),
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn bpf<T>(command: c_int, attributes: &T) -> io::Result<c_long> {
    // SAFETY: `attributes` is one of the structures above, each a prefix of `union bpf_attr` for
    // its command. The kernel reads its size, takes the rest for zero and writes nothing. A pointer
    // in it leads to a string, number or program that the caller keeps until this returns.
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
