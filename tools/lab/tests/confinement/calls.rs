//! Calls that a packet process must not be able to make.

mod objects;

use crate::descriptors::Descriptor;
use crate::intruder::{Intruder, Outcome};
use rustix::io::Errno;
use taupe_lab::Result;

/// An argument of a call.
#[derive(Clone, Debug)]
enum Argument {
    Number(u64),
    /// The address of bytes.
    Bytes(Vec<u8>),
}

use Argument::Number;

/// A call that the list must refuse.
struct Attempt {
    name: String,
    number: i64,
    arguments: Vec<Argument>,
    expected: Errno,
}

impl Attempt {
    fn new(name: impl Into<String>, number: i64, arguments: impl Into<Vec<Argument>>) -> Self {
        Self {
            name: name.into(),
            number,
            arguments: arguments.into(),
            expected: Errno::PERM,
        }
    }
}

/// Things that attempts are directed at.
pub(crate) struct Targets<'a> {
    /// The process id of the broker.
    pub(crate) broker: u32,
    /// A file with a private key.
    pub(crate) key_file: &'a str,
    /// A pinned eBPF map.
    pub(crate) pin: &'a str,
}

/// Makes all attempts. Returns those that were not refused, and the number of attempts.
pub(crate) fn attempt_all(
    intruder: &mut Intruder,
    descriptors: &[Descriptor],
    targets: &Targets<'_>,
) -> Result<(Vec<String>, usize)> {
    let attempts = attempts(descriptors, targets);
    let mut escapes = Vec::new();
    for attempt in &attempts {
        let mut arguments = [0; 6];
        for (argument, given) in arguments.iter_mut().zip(&attempt.arguments) {
            *argument = match given {
                Number(number) => *number,
                Argument::Bytes(bytes) => intruder.place(bytes)?,
            };
        }
        let outcome = intruder.call(attempt.number, arguments)?;
        intruder.clear();
        if outcome != Outcome::Failed(attempt.expected) {
            escapes.push(format!("{}: {outcome:?}", attempt.name));
        }
        if matches!(outcome, Outcome::Ended(_)) {
            break;
        }
    }
    Ok((escapes, attempts.len()))
}

/// A file that attempts would create or remove. If one is not refused, it does no harm to the machine:
/// the other calls have invalid arguments, or act on the test's own namespaces.
const CREATED: &str = "/run/lab/scratch/escape";

/// The first argument of `openat` that stands for the working folder.
const HERE: Argument = Number(libc::AT_FDCWD.cast_unsigned() as u64);

fn number(value: impl Into<i64>) -> Argument {
    Number(value.into().cast_unsigned())
}

fn text(text: &str) -> Argument {
    let mut bytes = text.as_bytes().to_vec();
    bytes.push(0);
    Argument::Bytes(bytes)
}

fn zeros(count: usize) -> Argument {
    Argument::Bytes(vec![0; count])
}

fn words(words: &[u64]) -> Argument {
    Argument::Bytes(words.iter().flat_map(|word| word.to_ne_bytes()).collect())
}

fn attempts(descriptors: &[Descriptor], targets: &Targets<'_>) -> Vec<Attempt> {
    let mut all = paths(targets);
    all.extend(objects::sockets());
    all.extend(processes(targets));
    all.extend(kernel());
    all.extend(objects::bpf(descriptors, targets));
    all.extend(objects::by_descriptors(descriptors));
    #[cfg(target_arch = "x86_64")]
    all.extend(of_x86_64());
    all
}

fn paths(targets: &Targets<'_>) -> Vec<Attempt> {
    let memory = format!("/proc/{}/mem", targets.broker);
    let files = [
        "/etc/os-release",
        "/etc/shadow",
        targets.key_file,
        "/proc/self/mem",
        "/proc/self/exe",
        &memory,
        "/dev/net/tun",
        "/sys/fs/bpf",
    ];
    let mut all: Vec<_> = files
        .iter()
        .map(|path| {
            let arguments = [HERE, text(path), number(libc::O_RDONLY)];
            Attempt::new(format!("openat {path}"), libc::SYS_openat, arguments)
        })
        .collect();
    let created = CREATED;
    let write = number(libc::O_CREAT | libc::O_WRONLY);
    let folder = || text("/etc");
    all.extend([
        Attempt::new(
            "openat creates",
            libc::SYS_openat,
            [HERE, text(created), write, number(0o600)],
        ),
        Attempt::new(
            "openat2",
            libc::SYS_openat2,
            [HERE, folder(), zeros(24), Number(24)],
        ),
        Attempt::new(
            "name_to_handle_at",
            libc::SYS_name_to_handle_at,
            [HERE, folder(), zeros(136), zeros(4), Number(0)],
        ),
        Attempt::new(
            "open_by_handle_at",
            libc::SYS_open_by_handle_at,
            [HERE, zeros(136), Number(0)],
        ),
        Attempt::new(
            "open_tree",
            libc::SYS_open_tree,
            [HERE, folder(), Number(0)],
        ),
        Attempt::new(
            "newfstatat",
            libc::SYS_newfstatat,
            [HERE, text(targets.key_file), zeros(256), Number(0)],
        ),
        Attempt::new(
            "readlinkat",
            libc::SYS_readlinkat,
            [HERE, text("/proc/self/exe"), zeros(256), Number(256)],
        ),
        Attempt::new(
            "unlinkat",
            libc::SYS_unlinkat,
            [HERE, text(targets.key_file), Number(0)],
        ),
        Attempt::new(
            "mkdirat",
            libc::SYS_mkdirat,
            [HERE, text(created), Number(0)],
        ),
        Attempt::new(
            "symlinkat",
            libc::SYS_symlinkat,
            [folder(), HERE, text(created)],
        ),
        Attempt::new("chdir", libc::SYS_chdir, [folder()]),
        Attempt::new(
            "getdents64",
            libc::SYS_getdents64,
            [Number(0), zeros(64), Number(64)],
        ),
        Attempt::new("inotify_init1", libc::SYS_inotify_init1, [Number(0)]),
        Attempt::new(
            "fanotify_init",
            libc::SYS_fanotify_init,
            [Number(0), Number(0)],
        ),
    ]);
    all
}

fn processes(targets: &Targets<'_>) -> Vec<Attempt> {
    let broker = || number(targets.broker);
    let clone = |name: &str, flags: i32| {
        Attempt::new(format!("clone {name}"), libc::SYS_clone, [number(flags)])
    };
    let prctl = |name: &str, option: i32, value: i64| {
        let arguments = [number(option), number(value)];
        Attempt::new(format!("prctl {name}"), libc::SYS_prctl, arguments)
    };
    let thread = libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SIGHAND;
    let shell = || text("/bin/true");
    let vector = || zeros(16);
    let pages = || words(&[0; 2]);
    vec![
        Attempt::new("execve", libc::SYS_execve, [shell(), vector(), vector()]),
        Attempt::new(
            "execveat",
            libc::SYS_execveat,
            [HERE, shell(), vector(), vector(), Number(0)],
        ),
        clone("as fork", libc::SIGCHLD),
        clone(
            "as vfork",
            libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
        ),
        clone("into a user namespace", thread | libc::CLONE_NEWUSER),
        clone("into a network namespace", thread | libc::CLONE_NEWNET),
        Attempt {
            expected: Errno::NOSYS,
            ..Attempt::new("clone3", libc::SYS_clone3, [zeros(88), Number(88)])
        },
        Attempt::new(
            "ptrace",
            libc::SYS_ptrace,
            [number(libc::PTRACE_ATTACH), broker()],
        ),
        Attempt::new(
            "process_vm_readv",
            libc::SYS_process_vm_readv,
            [broker(), pages(), Number(1), pages(), Number(1), Number(0)],
        ),
        Attempt::new(
            "process_vm_writev",
            libc::SYS_process_vm_writev,
            [broker(), pages(), Number(1), pages(), Number(1), Number(0)],
        ),
        Attempt::new("kill", libc::SYS_kill, [broker(), number(libc::SIGKILL)]),
        Attempt::new(
            "kill all",
            libc::SYS_kill,
            [number(-1), number(libc::SIGKILL)],
        ),
        Attempt::new("tkill", libc::SYS_tkill, [broker(), number(libc::SIGKILL)]),
        Attempt::new(
            "tgkill",
            libc::SYS_tgkill,
            [broker(), broker(), number(libc::SIGKILL)],
        ),
        Attempt::new(
            "rt_sigqueueinfo",
            libc::SYS_rt_sigqueueinfo,
            [broker(), number(libc::SIGTERM), zeros(128)],
        ),
        Attempt::new("pidfd_open", libc::SYS_pidfd_open, [broker(), Number(0)]),
        Attempt::new(
            "pidfd_getfd",
            libc::SYS_pidfd_getfd,
            [Number(3), Number(3), Number(0)],
        ),
        Attempt::new(
            "pidfd_send_signal",
            libc::SYS_pidfd_send_signal,
            [Number(3), number(libc::SIGKILL), Number(0), Number(0)],
        ),
        Attempt::new("kcmp", libc::SYS_kcmp, [broker(), broker(), Number(0)]),
        Attempt::new(
            "prlimit64",
            libc::SYS_prlimit64,
            [broker(), Number(0), zeros(16)],
        ),
        prctl("dumpable", libc::PR_SET_DUMPABLE, 1),
        prctl("read dumpable", libc::PR_GET_DUMPABLE, 0),
        prctl("ambient capabilities", libc::PR_CAP_AMBIENT, 2),
        prctl("capabilities of root", libc::PR_SET_SECUREBITS, 0),
        prctl("keep capabilities", libc::PR_SET_KEEPCAPS, 1),
        prctl("seccomp", libc::PR_SET_SECCOMP, 1),
        prctl("tracers", libc::PR_SET_PTRACER, -1),
        prctl("memory layout", libc::PR_SET_MM, 1),
        Attempt::new("capset", libc::SYS_capset, [zeros(8), zeros(24)]),
        Attempt::new("setuid", libc::SYS_setuid, [Number(0)]),
        Attempt::new("setresuid", libc::SYS_setresuid, []),
        Attempt::new("setgroups", libc::SYS_setgroups, [Number(0), Number(0)]),
        Attempt::new(
            "seccomp",
            libc::SYS_seccomp,
            [Number(1), Number(0), zeros(16)],
        ),
    ]
}

fn kernel() -> Vec<Attempt> {
    let executable = number(libc::PROT_READ | libc::PROT_EXEC);
    let anonymous = number(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let folder = || text("/tmp");
    let namespaces = libc::CLONE_NEWNET | libc::CLONE_NEWNS | libc::CLONE_NEWUSER;
    vec![
        Attempt::new(
            "mmap executable",
            libc::SYS_mmap,
            [
                Number(0),
                Number(4096),
                executable.clone(),
                anonymous,
                Number(u64::MAX),
            ],
        ),
        Attempt::new(
            "mprotect executable",
            libc::SYS_mprotect,
            [Number(0), Number(4096), executable.clone()],
        ),
        Attempt::new(
            "pkey_mprotect executable",
            libc::SYS_pkey_mprotect,
            [Number(0), Number(4096), executable, Number(0)],
        ),
        Attempt::new(
            "memfd_create",
            libc::SYS_memfd_create,
            [folder(), Number(0)],
        ),
        Attempt::new("memfd_secret", libc::SYS_memfd_secret, [Number(0)]),
        Attempt::new(
            "shmget",
            libc::SYS_shmget,
            [Number(0), Number(4096), Number(0o1600)],
        ),
        Attempt::new(
            "io_uring_setup",
            libc::SYS_io_uring_setup,
            [Number(1), zeros(120)],
        ),
        Attempt::new("io_uring_enter", libc::SYS_io_uring_enter, []),
        Attempt::new("io_setup", libc::SYS_io_setup, [Number(1), zeros(8)]),
        Attempt::new(
            "perf_event_open",
            libc::SYS_perf_event_open,
            [
                zeros(128),
                Number(0),
                Number(u64::MAX),
                Number(u64::MAX),
                Number(0),
            ],
        ),
        Attempt::new("personality", libc::SYS_personality, [number(0x0040_0000)]),
        Attempt::new("userfaultfd", libc::SYS_userfaultfd, [Number(0)]),
        Attempt::new(
            "mount",
            libc::SYS_mount,
            [text("none"), folder(), text("tmpfs"), Number(0), Number(0)],
        ),
        Attempt::new("umount2", libc::SYS_umount2, [folder(), Number(0)]),
        Attempt::new("pivot_root", libc::SYS_pivot_root, [folder(), folder()]),
        Attempt::new("chroot", libc::SYS_chroot, [folder()]),
        Attempt::new("fsopen", libc::SYS_fsopen, [text("tmpfs"), Number(0)]),
        Attempt::new("unshare", libc::SYS_unshare, [number(namespaces)]),
        Attempt::new(
            "sethostname",
            libc::SYS_sethostname,
            [Number(0), number(-1)],
        ),
        Attempt::new(
            "init_module",
            libc::SYS_init_module,
            [zeros(16), Number(16), folder()],
        ),
        Attempt::new(
            "finit_module",
            libc::SYS_finit_module,
            [Number(0), folder(), Number(0)],
        ),
        Attempt::new(
            "delete_module",
            libc::SYS_delete_module,
            [Number(0), Number(0)],
        ),
        Attempt::new(
            "kexec_load",
            libc::SYS_kexec_load,
            [Number(0), Number(0), Number(0), number(-1)],
        ),
        Attempt::new("reboot", libc::SYS_reboot, []),
        Attempt::new(
            "syslog",
            libc::SYS_syslog,
            [Number(3), zeros(64), Number(64)],
        ),
        Attempt::new(
            "clock_settime",
            libc::SYS_clock_settime,
            [Number(0), Number(0)],
        ),
        Attempt::new(
            "keyctl",
            libc::SYS_keyctl,
            [Number(0), number(-3), Number(0)],
        ),
        Attempt::new(
            "add_key",
            libc::SYS_add_key,
            [text("user"), text("taupe"), zeros(4), Number(4), number(-3)],
        ),
        Attempt::new(
            "request_key",
            libc::SYS_request_key,
            [text("user"), text("taupe"), Number(0), number(-3)],
        ),
    ]
}

/// Calls that only this processor has, and calls by other numbers.
#[cfg(target_arch = "x86_64")]
fn of_x86_64() -> Vec<Attempt> {
    /// `__X32_SYSCALL_BIT` of `asm/unistd.h`.
    const X32: i64 = 0x4000_0000;
    let shadow = || text("/etc/shadow");
    vec![
        Attempt::new("open", libc::SYS_open, [shadow(), Number(0)]),
        Attempt::new("creat", libc::SYS_creat, [text(CREATED), number(0o600)]),
        Attempt::new("unlink", libc::SYS_unlink, [text(CREATED)]),
        Attempt::new(
            "readlink",
            libc::SYS_readlink,
            [shadow(), zeros(8), Number(8)],
        ),
        Attempt::new("fork", libc::SYS_fork, []),
        Attempt::new("vfork", libc::SYS_vfork, []),
        Attempt::new(
            "ioperm",
            libc::SYS_ioperm,
            [Number(0), Number(1), Number(1)],
        ),
        Attempt::new("iopl", libc::SYS_iopl, [Number(3)]),
        Attempt::new(
            "modify_ldt",
            libc::SYS_modify_ldt,
            [Number(0), zeros(16), Number(16)],
        ),
        Attempt::new(
            "arch_prctl",
            libc::SYS_arch_prctl,
            [Number(0x1003), zeros(8)],
        ),
        Attempt::new(
            "openat of x32",
            X32 | libc::SYS_openat,
            [HERE, shadow(), Number(0)],
        ),
        Attempt::new(
            "socket of x32",
            X32 | libc::SYS_socket,
            [Number(2), Number(2), Number(0)],
        ),
        // `execve` and `ptrace` have numbers of their own there.
        Attempt::new(
            "execve of x32",
            X32 | 520,
            [text("/bin/true"), zeros(8), zeros(8)],
        ),
        Attempt::new("ptrace of x32", X32 | 521, []),
        Attempt::new("an unknown call", 0x3fff, [Number(0)]),
    ]
}
