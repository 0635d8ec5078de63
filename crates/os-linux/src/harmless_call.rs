//! System calls that a confined process must not make, with arguments by which they do nothing. Tests
//! make them to find them refused.

use std::io;

use libc::{c_int, c_long};

/// Bytes of a page that tests map: less than a page, which the kernel rounds up.
const LENGTH: usize = 1;

/// A call. Without a filter it fails, or succeeds and changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the calls")]
pub enum HarmlessCall {
    AttachFilter,
    Bpf,
    Chroot,
    CloneIntoNamespace,
    CloneProcess,
    DeleteModule,
    ExecveAt,
    InsertInput,
    IoUringSetup,
    Keyctl,
    Kill,
    Listen,
    MapExecutable,
    MemfdCreate,
    Mount,
    OpenByHandleAt,
    PerfEventOpen,
    PidfdGetfd,
    ProcessVmRead,
    ProcessVmWrite,
    ProtectExecutable,
    Ptrace,
    ReadDumpable,
    Setns,
    SetUid,
    Symlink,
    Unshare,
    Userfaultfd,
}

impl HarmlessCall {
    /// All calls.
    pub const ALL: [Self; 28] = [
        Self::AttachFilter,
        Self::Bpf,
        Self::Chroot,
        Self::CloneIntoNamespace,
        Self::CloneProcess,
        Self::DeleteModule,
        Self::ExecveAt,
        Self::InsertInput,
        Self::IoUringSetup,
        Self::Keyctl,
        Self::Kill,
        Self::Listen,
        Self::MapExecutable,
        Self::MemfdCreate,
        Self::Mount,
        Self::OpenByHandleAt,
        Self::PerfEventOpen,
        Self::PidfdGetfd,
        Self::ProcessVmRead,
        Self::ProcessVmWrite,
        Self::ProtectExecutable,
        Self::Ptrace,
        Self::ReadDumpable,
        Self::Setns,
        Self::SetUid,
        Self::Symlink,
        Self::Unshare,
        Self::Userfaultfd,
    ];

    /// Makes the call.
    ///
    /// # Errors
    /// The kernel's: `EPERM` from a filter, or the error of the arguments.
    pub fn make(self) -> io::Result<()> {
        const INVALID: c_long = -1;
        let (number, arguments) = match self {
            Self::CloneProcess => return clone(libc::SIGCHLD),
            Self::CloneIntoNamespace => return clone(libc::SIGCHLD | libc::CLONE_NEWUSER),
            Self::MapExecutable => return map(libc::PROT_READ | libc::PROT_EXEC).map(drop),
            Self::ProtectExecutable => return protect(),
            Self::AttachFilter => {
                let option = [libc::SOL_SOCKET, libc::SO_ATTACH_FILTER].map(c_long::from);
                (libc::SYS_setsockopt, [INVALID, option[0], option[1]])
            }
            Self::Bpf => (libc::SYS_bpf, [INVALID, 0, 0]),
            Self::Chroot => (libc::SYS_chroot, [0; 3]),
            Self::DeleteModule => (libc::SYS_delete_module, [0; 3]),
            Self::ExecveAt => (libc::SYS_execveat, [INVALID, 0, 0]),
            Self::InsertInput => (libc::SYS_ioctl, [INVALID, libc::TIOCSTI as c_long, 0]),
            Self::IoUringSetup => (libc::SYS_io_uring_setup, [0; 3]),
            Self::Keyctl => (libc::SYS_keyctl, [INVALID, 0, 0]),
            // Signal 0 to this process's own group is no signal.
            Self::Kill => (libc::SYS_kill, [0; 3]),
            Self::Listen => (libc::SYS_listen, [INVALID, 0, 0]),
            Self::MemfdCreate => (libc::SYS_memfd_create, [0; 3]),
            Self::Mount => (libc::SYS_mount, [0; 3]),
            Self::OpenByHandleAt => (libc::SYS_open_by_handle_at, [INVALID, 0, 0]),
            Self::PerfEventOpen => (libc::SYS_perf_event_open, [0; 3]),
            Self::PidfdGetfd => (libc::SYS_pidfd_getfd, [INVALID, INVALID, 0]),
            Self::ProcessVmRead => (libc::SYS_process_vm_readv, [INVALID, 0, 0]),
            Self::ProcessVmWrite => (libc::SYS_process_vm_writev, [INVALID, 0, 0]),
            // An unknown request.
            Self::Ptrace => (libc::SYS_ptrace, [INVALID, 0, 0]),
            Self::ReadDumpable => (libc::SYS_prctl, [libc::PR_GET_DUMPABLE.into(), 0, 0]),
            Self::Setns => (libc::SYS_setns, [INVALID, 0, 0]),
            // The id -1 leaves the user as it is.
            Self::SetUid => (libc::SYS_setresuid, [INVALID; 3]),
            Self::Symlink => (libc::SYS_symlinkat, [0; 3]),
            Self::Unshare => (libc::SYS_unshare, [0; 3]),
            Self::Userfaultfd => (libc::SYS_userfaultfd, [INVALID, 0, 0]),
        };
        let [first, second, third] = arguments;
        // SAFETY: every pointer among the arguments is null, every descriptor, process and command is
        // -1, every flag 0, except for the two calls above that change nothing by their documentation.
        // So the kernel reads and writes no memory of this process, and no state of it changes.
        let done = unsafe { libc::syscall(number, first, second, third, 0, 0, 0) };
        checked(done).map(drop)
    }
}

fn checked(done: c_long) -> io::Result<c_long> {
    match done {
        -1 => Err(io::Error::last_os_error()),
        done => Ok(done),
    }
}

/// Starts a process that ends at once.
fn clone(flags: c_int) -> io::Result<()> {
    // SAFETY: without `CLONE_VM` the new process has a copy of the memory, and with a null stack it
    // continues on the copy of this one, as after `fork`. It only calls `_exit`, which takes no lock.
    let pid = checked(unsafe { libc::syscall(libc::SYS_clone, c_long::from(flags), 0, 0, 0, 0) })?;
    if pid == 0 {
        // SAFETY: `_exit` accepts any number and does not return.
        unsafe { libc::_exit(0) }
    }
    Ok(())
}

/// Maps new memory and removes it again. Returns the result of what was done with it in between.
fn with_memory<T>(protection: c_int, work: impl FnOnce(*mut libc::c_void) -> T) -> io::Result<T> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: without an address the kernel chooses one that nothing uses.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), LENGTH, protection, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let result = work(page);
    // SAFETY: nothing refers to the memory, which was mapped above.
    unsafe { libc::munmap(page, LENGTH) };
    Ok(result)
}

fn map(protection: c_int) -> io::Result<()> {
    with_memory(protection, |_| ())
}

fn protect() -> io::Result<()> {
    with_memory(libc::PROT_READ | libc::PROT_WRITE, |page| {
        // SAFETY: the page was mapped by the caller, holds nothing and is removed afterwards.
        let done = unsafe { libc::mprotect(page, LENGTH, libc::PROT_READ | libc::PROT_EXEC) };
        checked(done.into()).map(drop)
    })?
}
