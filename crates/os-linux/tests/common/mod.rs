//! Network namespaces for the tests. Each disappears with the last handle to it.

#![allow(dead_code, reason = "each test program uses its part")]

use std::{
    fs::File,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    process::Command,
    sync::mpsc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    thread::{LinkNameSpaceType, UnshareFlags, gettid, move_into_link_name_space, unshare_unsafe},
};

/// Time limit for events that should happen at once.
pub(crate) const SOON: Duration = Duration::from_secs(5);

/// A network namespace, and a thread in it whose id names the namespace for other programs.
pub(crate) struct Namespace {
    fd: OwnedFd,
    thread_id: i32,
    thread: Option<JoinHandle<()>>,
}

impl Namespace {
    /// Creates a namespace in which loopback is up. Needs `CAP_SYS_ADMIN`.
    pub(crate) fn new() -> Self {
        let (sender, receiver) = mpsc::channel();
        let inhabit = move || {
            // SAFETY: this thread alone moves to a new network namespace; it
            // has no descriptors that depend on the old one.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
                .expect("these tests need root: they make network namespaces");
            let fd = OwnedFd::from(File::open("/proc/thread-self/ns/net").unwrap());
            sender.send((fd, gettid().as_raw_nonzero().get())).unwrap();
            thread::park();
        };
        let thread = thread::spawn(inhabit);
        let (fd, thread_id) = receiver.recv().unwrap();
        let namespace = Self {
            fd,
            thread_id,
            thread: Some(thread),
        };
        namespace.ip("link set lo up");
        namespace
    }

    /// Runs `body` on a new thread in this namespace.
    pub(crate) fn run<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let inside = || {
                let kind = Some(LinkNameSpaceType::Network);
                move_into_link_name_space(self.fd.as_fd(), kind).unwrap();
                body()
            };
            match scope.spawn(inside).join() {
                Ok(value) => value,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// Runs `ip` with these arguments.
    pub(crate) fn ip(&self, arguments: &str) {
        self.command("ip", arguments);
    }

    /// Runs a program with these arguments.
    pub(crate) fn command(&self, program: &str, arguments: &str) {
        let status = self.run(|| {
            let arguments = arguments.split(' ');
            Command::new(program).args(arguments).status().unwrap()
        });
        assert!(status.success(), "{program} {arguments}");
    }

    /// Writes a file below `/proc/sys/net`.
    pub(crate) fn sysctl(&self, name: &str, value: &str) {
        self.run(|| std::fs::write(format!("/proc/sys/net/{name}"), value).unwrap());
    }

    /// Waits until the kernel has finished duplicate address detection of added IPv6 addresses.
    pub(crate) fn settle(&self) {
        const TENTATIVE: u32 = 0x40;
        let read = |name| {
            let read = || std::fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap();
            self.run(read)
        };
        eventually("IPv6 addresses", || {
            let routes = read("ipv6_route");
            read("if_inet6").lines().all(|line| {
                let fields: Vec<_> = line.split_whitespace().collect();
                let host_route = format!("{} 80 ", fields[0]);
                u32::from_str_radix(fields[4], 16).unwrap() & TENTATIVE == 0
                    && routes.lines().any(|route| route.starts_with(&host_route))
            })
        });
    }

    /// Returns a name of this namespace that `ip` accepts.
    pub(crate) fn name(&self) -> String {
        self.thread_id.to_string()
    }

    /// Returns true if `other` is the same namespace.
    pub(crate) fn is(&self, other: &OwnedFd) -> bool {
        let [a, b] = [&self.fd, other].map(|fd| rustix::fs::fstat(fd).unwrap());
        (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// Returns true if `fd` becomes readable within the time.
pub(crate) fn readable(fd: BorrowedFd<'_>, within: Duration) -> bool {
    let mut events = [PollFd::new(&fd, PollFlags::IN)];
    let timeout = within.try_into().unwrap();
    poll(&mut events, Some(&timeout)).unwrap() == 1
}

/// Repeats `condition` until it returns true; panics after a while.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < SOON, "{what} did not happen");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Returns pseudo-random bytes: a xorshift of `seed`.
pub(crate) fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Makes a system call fail with `error` for the calling thread from now on.
pub(crate) fn forbid(call: libc::c_long, error: libc::c_int) {
    forbid_if(call, None, error);
}

/// Makes a socket option fail with `error` for the calling thread from now on.
pub(crate) fn forbid_option(name: libc::c_int, error: libc::c_int) {
    const NAME: usize = 2;
    forbid_if(libc::SYS_setsockopt, Some((NAME, name as u32)), error);
}

/// Makes the calling thread unable to open sockets of an address family, as on a system without it.
pub(crate) fn forbid_family(family: libc::c_int) {
    forbid_if(
        libc::SYS_socket,
        Some((0, family as u32)),
        libc::EAFNOSUPPORT,
    );
}

/// Makes a system call fail with `error`. With an `argument` (its index and a value), the call
/// fails only if the lower half of this argument has this value.
fn forbid_if(call: libc::c_long, argument: Option<(usize, u32)>, error: libc::c_int) {
    let instruction = |code: u32, jt, jf, k| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    // Offsets of `struct seccomp_data`. The number of the call is its first field.
    let lower = if cfg!(target_endian = "little") { 0 } else { 4 };
    let mut conditions = vec![(0, call as u32)];
    conditions.extend(argument.map(|(index, value)| (16 + 8 * index as u32 + lower, value)));
    let mut filter = Vec::new();
    for (i, (offset, value)) in conditions.iter().enumerate() {
        let left = 2 * (conditions.len() - i - 1) as u8;
        filter.extend([
            instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, *offset),
            instruction(
                libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
                0,
                left + 1,
                *value,
            ),
        ]);
    }
    filter.extend([
        instruction(
            libc::BPF_RET | libc::BPF_K,
            0,
            0,
            libc::SECCOMP_RET_ERRNO | error as u32,
        ),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ]);
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the kernel copies the program, which is live and has as many instructions as its
    // length says. Nothing else of this thread changes.
    let result = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            | libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const program,
            )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}
