//! What can be seen without changing anything: what a kernel takes, who else is there, and
//! which sockets are chosen.

use aya::EbpfLoader;
use aya_obj::generated::bpf_insn;
use taupe_os_linux::memory::with_locked_memory;
use taupe_os_linux::netlink::{Connection, Hook, System};

use super::{Place, Programs, Way, guards};
use crate::fault::Fault;
use crate::filters::OURS;
use crate::pins;
use crate::syscall::{self, Code, attach_type, program_type};

/// How loading one program has gone, which nothing is attached of.
#[derive(Debug)]
pub struct Trial {
    /// Its name, as `bpftool prog` shows it.
    pub program: &'static str,
    /// What of the kernel it is built on.
    pub needs: &'static str,
    /// The kernel can do without it, and something does not hold then.
    pub is_optional: bool,
    /// Why the kernel does not take it.
    pub refused: Option<Fault>,
}

/// Loads all programs of a way, one after the other, into maps of their own, and lets
/// them go again. Nothing is attached or pinned.
///
/// # Errors
///
/// [`Fault::Object`]: the maps cannot be made. [`Fault::Missing`].
pub fn try_all(way: Way) -> Result<Vec<Trial>, Fault> {
    let load = || {
        let mut object = EbpfLoader::new()
            .load(way.object())
            .map_err(Fault::object)?;
        let btf = aya::Btf::from_sys_fs().map_err(|error| Fault::object(error.into()))?;
        let trial = |&(program, place, needs): &(&'static str, Place, &'static str)| {
            let loaded = Programs::load_program(&mut object, program, place, &btf)?;
            Ok(Trial {
                program,
                needs,
                is_optional: matches!(place, Place::Entry(_) | Place::Security(_)),
                refused: loaded
                    .err()
                    .map(|source| Fault::program(program, needs, source)),
            })
        };
        way.programs().iter().map(trial).collect()
    };
    with_locked_memory(load)
}

/// Whether the kernel takes programs in netfilter (Linux 6.4), which hold back what is
/// forwarded by links without a filter.
#[must_use]
pub fn try_forwarding() -> bool {
    takes(program_type::NETFILTER, attach_type::NETFILTER)
}

/// Whether the kernel takes programs where a socket of `AF_UNIX` is connected (Linux 6.7),
/// which keep questions for names from services of this machine.
#[must_use]
pub fn try_services() -> bool {
    takes(program_type::CGROUP_SOCK_ADDR, attach_type::UNIX_CONNECT)
}

/// Loads a program that allows everything.
fn takes(kind: u32, attach_type: u32) -> bool {
    let instruction = |code, imm| bpf_insn {
        code,
        _bitfield_align_1: [],
        _bitfield_1: bpf_insn::new_bitfield_1(0, 0),
        off: 0,
        imm,
    };
    /// `BPF_ALU64 | BPF_MOV | BPF_K` and `BPF_JMP | BPF_EXIT`.
    const MOVE: u8 = 0xb7;
    const EXIT: u8 = 0x95;
    /// Of both kinds: `NF_ACCEPT`, and that a connection may be made.
    const ALLOW: i32 = 1;
    let code = Code {
        name: "taupe_trial",
        kind,
        attach_type,
        instructions: &[instruction(MOVE, ALLOW), instruction(EXIT, 0)],
        types: &[],
        functions: (&[], 0),
    };
    with_locked_memory(|| syscall::load(&code)).is_ok()
}

/// Whether there is a place for what outlives the process, or can be.
///
/// # Errors
///
/// [`Fault::Call`]: the first process's file systems are out of reach.
pub fn try_pinning() -> Result<(), Fault> {
    pins::have_place()
}

/// The names of other programs' filters of BPF on an interface, in tcx or `clsact`; one
/// without a name is `?`.
///
/// # Errors
///
/// [`Fault::Call`].
pub fn foreign_filters(index: u32) -> Result<Vec<String>, Fault> {
    let failed = || Fault::call(format!("looking at the filters of interface {index}"));
    let mut names = Vec::new();
    for kind in [attach_type::TCX_INGRESS, attach_type::TCX_EGRESS] {
        // Before Linux 6.6 there are none, nor on an interface that is gone.
        for program in syscall::attached(index, kind).unwrap_or_default() {
            names.push(program.name().map_err(failed())?);
        }
    }
    for hook in [Hook::Ingress, Hook::Egress] {
        let filters = System::open().and_then(|mut system| system.filters(index, hook));
        let filters = filters.map_err(std::io::Error::other).map_err(failed())?;
        // A priority is listed by itself, too.
        let filters = filters.into_iter().filter(|filter| filter.handle != 0);
        names.extend(filters.map(|filter| filter.name));
    }
    names.retain(|name| !name.starts_with(OURS));
    for name in &mut names {
        if name.is_empty() {
            *name = "?".into();
        }
    }
    names.sort();
    names.dedup();
    Ok(names)
}

impl Programs {
    /// The chosen applications' sockets, and which of them nobody chooses any more; with
    /// [`Way::Marks`] they are known by their mark alone, and it is none.
    ///
    /// # Errors
    ///
    /// [`Fault::Call`].
    pub fn chosen(&self) -> Result<Vec<Connection>, Fault> {
        let sockets = self.chosen_sockets()?.into_iter();
        Ok(sockets.map(|socket| socket.connection).collect())
    }

    /// Whether filters are in tcx (Linux 6.6), where other programs' cannot come before
    /// them unnoticed.
    #[must_use]
    pub fn has_tcx() -> bool {
        !guards::is_without_tcx()
    }
}
