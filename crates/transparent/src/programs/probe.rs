//! Checks that change nothing: the programs that the kernel accepts, other programs' filters, and
//! the sockets that are selected.

use std::io;
use std::os::fd::AsFd as _;

use aya::programs::ProgramError;
use aya::sys::SyscallError;
use aya_obj::generated::bpf_insn;
use taupe_os_linux::memory::without_memlock_limit;
use taupe_os_linux::netlink::{Hook, Netlink, SocketId};

use super::attach_points::ProgramSpec;
use super::loading::{load_maps, load_programs};
use super::{AttachPoint, CaptureMode, Programs, guards};
use crate::clsact::NAME_PREFIX;
use crate::error::TransparentError;
use crate::pins;
use crate::syscall::{self, AttachTarget, Code, attach_type, program_type};

/// Result of loading one program, and of attaching it if it is optional.
#[derive(Debug)]
pub struct Trial {
    /// The program's name, as `bpftool prog` shows it.
    pub program: &'static str,
    /// The kernel features that the program needs.
    pub needs: &'static str,
    /// True if Taupe works without the program, with a [`MissingFeature`](super::MissingFeature).
    pub is_optional: bool,
    /// The kernel's reason to refuse the program.
    pub refused: Option<TransparentError>,
}

/// Loads all programs of a mode, with maps of their own, and releases them.
/// Pins nothing. Attaches optional programs for a moment: a kernel without direct calls of
/// trampolines, such as Linux for AArch64 before 6.4, loads them and refuses only to attach them.
/// Their maps have no rules, so they have no effect.
///
/// # Errors
///
/// [`TransparentError::Object`]: the maps cannot be created. [`TransparentError::Missing`].
pub fn try_all(mode: CaptureMode) -> Result<Vec<Trial>, TransparentError> {
    let load = || {
        let mut object = load_maps(mode, |_| {})?;
        // Nothing is missing without this one.
        let needed =
            |spec: &&ProgramSpec| !matches!(spec.attach_point, AttachPoint::MapIterator(_));
        let specs: Vec<_> = mode.programs().iter().filter(needed).collect();
        let loaded = load_programs(&mut object, &specs)?;
        let trials = specs.into_iter().zip(loaded);
        trials
            .map(|(spec, loaded)| try_one(&object, spec, loaded))
            .collect()
    };
    without_memlock_limit(load)
}

fn try_one(
    object: &aya::Ebpf,
    &ProgramSpec {
        name,
        attach_point,
        needs,
    }: &ProgramSpec,
    loaded: Result<(), ProgramError>,
) -> Result<Trial, TransparentError> {
    let is_optional = matches!(
        attach_point,
        AttachPoint::Entry(_) | AttachPoint::Security(_)
    );
    let refused = match loaded {
        Err(source) => Some(TransparentError::program(name, needs, source)),
        Ok(()) if is_optional => {
            let program = object.program(name).and_then(|program| program.fd().ok());
            let program = program.ok_or(TransparentError::Missing(name))?;
            // A kernel may load a program that it cannot call from its functions: Linux before 6.4 on
            // 64-bit ARM does. The program is detached when the link is closed.
            let attached = syscall::attach(program.as_fd(), AttachTarget::Tracepoint);
            attached.err().map(|io_error| {
                let call = "bpf_link_create";
                let source = SyscallError { call, io_error };
                TransparentError::program(name, needs, source.into())
            })
        }
        Ok(()) => None,
    };
    Ok(Trial {
        program: name,
        needs,
        is_optional,
        refused,
    })
}

/// Checks that the kernel accepts netfilter programs (Linux 6.4), which block forwarded packets on
/// links without a filter.
///
/// # Errors
///
/// The kernel's, if it refuses the program for another reason than its type.
pub fn try_forwarding() -> io::Result<bool> {
    takes(program_type::NETFILTER, attach_type::NETFILTER)
}

/// Checks that the kernel accepts programs at `connect` of `AF_UNIX` sockets (Linux 6.7), which
/// refuse connections to local services that resolve names.
///
/// # Errors
///
/// As [`try_forwarding`].
pub fn try_services() -> io::Result<bool> {
    takes(program_type::CGROUP_SOCK_ADDR, attach_type::UNIX_CONNECT)
}

/// Checks that the kernel loads a program of this type that allows everything.
fn takes(kind: u32, attach_type: u32) -> io::Result<bool> {
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
    /// `NF_ACCEPT` for netfilter, and "allow" for connect.
    const ALLOW: i32 = 1;
    let code = Code {
        name: "taupe_trial",
        kind,
        attach_type,
        instructions: &[instruction(MOVE, ALLOW), instruction(EXIT, 0)],
        types: &[],
        functions: (&[], 0),
    };
    match without_memlock_limit(|| syscall::load(&code)) {
        Ok(_) => Ok(true),
        // Also for an attach type that the kernel does not know.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Checks that a BPF file system for the pins exists or can be mounted.
///
/// # Errors
///
/// [`TransparentError::Call`]: the file systems of PID 1 are not accessible.
pub fn try_pinning() -> Result<(), TransparentError> {
    pins::check_mount_point()
}

/// Returns the names of other programs' BPF filters on an interface, in tcx or `clsact`. A filter
/// without a name is `?`.
///
/// # Errors
///
/// [`TransparentError::Call`].
pub fn foreign_filters(index: u32) -> Result<Vec<String>, TransparentError> {
    let failed = || TransparentError::call(format!("listing the filters of interface {index}"));
    let mut names = Vec::new();
    for kind in [attach_type::TCX_INGRESS, attach_type::TCX_EGRESS] {
        // Before Linux 6.6 and on an interface that no longer exists there are none.
        for program in syscall::tcx_programs(index, kind).unwrap_or_default() {
            names.push(program.name().map_err(failed())?);
        }
    }
    for hook in [Hook::Ingress, Hook::Egress] {
        let filters = Netlink::open().and_then(|mut system| system.filters(index, hook));
        let filters = filters.map_err(std::io::Error::other).map_err(failed())?;
        // A priority has an entry of its own, with handle 0.
        let filters = filters.into_iter().filter(|filter| filter.handle != 0);
        names.extend(filters.map(|filter| filter.name));
    }
    names.retain(|name| !name.starts_with(NAME_PREFIX));
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
    /// Returns the sockets of selected applications, including those that no rule selects any more.
    /// With [`CaptureMode::Fwmark`] sockets cannot be listed and the result is empty.
    ///
    /// # Errors
    ///
    /// [`TransparentError::Call`].
    pub fn selected_connections(&self) -> Result<Vec<SocketId>, TransparentError> {
        let sockets = self.selected_sockets()?.into_iter();
        Ok(sockets.map(|socket| socket.connection).collect())
    }

    /// Returns true if the kernel has tcx (Linux 6.6). With tcx no other program's filter can
    /// precede Taupe's unnoticed.
    #[must_use]
    pub fn has_tcx() -> bool {
        !guards::is_without_tcx()
    }
}
