//! Errors of transparent mode.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};

use aya::EbpfError;
use aya::maps::MapError;
use aya::programs::ProgramError;
use aya_obj::btf::BtfError;
use rustix::io::Errno;

/// An error while setting up or changing the eBPF programs.
#[derive(Debug, thiserror::Error)]
pub enum TransparentError {
    /// The tunnel's applications are blocked by the programs of the other mode.
    #[error("traffic of the applications selected for {0} is blocked by programs of another mode")]
    OtherMode(String),
    /// The kernel refuses a program.
    #[error("Linux {release} cannot load the program {program}, which needs {needs}: {reason}")]
    Program {
        /// The program's name, as `bpftool prog` shows it.
        program: &'static str,
        /// The kernel features that it needs, with their version.
        needs: &'static str,
        /// Release of the running kernel.
        release: String,
        /// The kernel's reason.
        reason: String,
        /// The error of loading.
        source: Box<ProgramError>,
    },
    /// The maps cannot be created, or the object does not suit the kernel.
    #[error("Linux {release} does not accept Taupe's eBPF object: {reason}")]
    Object {
        /// Release of the running kernel.
        release: String,
        /// The reason.
        reason: String,
        /// The error of loading.
        source: Box<EbpfError>,
    },
    /// The kernel's type information, by which the programs find members of its structures, cannot
    /// be read.
    #[error("Linux {release} has no type information (BTF): cannot read {path}: {source}")]
    TypeInformation {
        /// Release of the running kernel.
        release: String,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A kernel with pointers of 32 bits.
    #[error(
        "Linux {release} is a 32-bit kernel, and Taupe's eBPF programs need structures of a 64-bit one"
    )]
    NarrowKernel {
        /// Release of the running kernel.
        release: String,
    },
    /// The kernel does not permit this process to load eBPF programs or maps.
    #[error("{what}: {source}")]
    Forbidden {
        /// The operation.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// The eBPF object lacks a program or map.
    #[error("Taupe's eBPF object has no {0}: it was not built from the same source")]
    Missing(&'static str),
    /// Maps of another version of Taupe are pinned.
    #[error(
        "{path} belongs to another version of Taupe (layout {found}, this version has {wanted}), \
         which blocks traffic of the applications selected for {interface}"
    )]
    Schema {
        /// The tunnel's interface.
        interface: String,
        /// Directory of the pins.
        path: PathBuf,
        /// The layout found.
        found: u32,
        /// The layout of this version.
        wanted: u32,
    },
    /// An operation on a map failed.
    #[error("{what}: {source}")]
    Map {
        /// The operation.
        what: &'static str,
        /// The error.
        source: Box<MapError>,
    },
    /// More entries than the maps can hold.
    #[error("there are {found} {what}; the maximum is {limit}")]
    TooMany {
        /// The kind of entries.
        what: &'static str,
        /// The number found.
        found: usize,
        /// The maximum.
        limit: usize,
    },
    /// A name too long to be compared.
    #[error("the name {0} is too long to be compared: write a * after its beginning")]
    NameTooLong(String),
    /// A rule for a user whose name has not been looked up.
    #[error("this system has no user {0}")]
    UnknownUser(String),
    /// Another program's filter precedes Taupe's on an interface.
    #[error(
        "a filter of another program sees packets of {interface} before Taupe's, and could redirect \
         them: remove it, or attach it after Taupe's (`tc filter show dev {interface} egress` and \
         `ingress`, or `bpftool net`, show it)"
    )]
    FilterPreceded {
        /// The interface's name.
        interface: String,
    },
    /// Existing sockets of selected applications that cannot be marked.
    #[error(
        "{0} open sockets of selected applications have no memory for a verdict: raise \
         net.core.optmem_max, or end these applications and try again"
    )]
    UnmarkedSockets(usize),
    /// Sockets that have used a tunnel, are no longer selected, and cannot be closed.
    #[error(
        "{count} sockets have used the tunnel, are no longer selected and cannot be closed \
         ({examples}): {reason}; traffic of the selected applications stays blocked: end the \
         applications that have these sockets (`ss -apntu` shows them) and try again"
    )]
    OpenSockets {
        /// Number of these sockets.
        count: usize,
        /// Some of them, with their addresses.
        examples: String,
        /// The kernel's reason for the first one.
        reason: String,
    },
    /// The file systems of PID 1, where everything is pinned, are not accessible.
    #[error(
        "cannot reach the file systems of PID 1 by {path}, where eBPF programs are pinned: {source} \
         (this takes root on the machine itself, or a PID namespace without the host's processes)"
    )]
    InitRootInaccessible {
        /// Root directory of PID 1.
        path: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The daemon is not known any more: another process has taken its place and has ended.
    #[error("another process has taken over the tunnel's eBPF programs, and has ended")]
    NoDaemon,
    /// A packet process has ended, or is no child of its broker.
    #[error("the process {0} does not carry packets: it has ended, or is no child of this process")]
    NoPacketProcess(u32),
    /// A system call failed.
    #[error("{what}: {source}")]
    Call {
        /// The operation.
        what: String,
        /// The system's error.
        source: io::Error,
    },
}

impl TransparentError {
    /// Returns the kernel features that a refused program needs, if that is the cause.
    #[must_use]
    pub fn required_features(&self) -> Option<&'static str> {
        match self {
            Self::Program { needs, .. } => Some(needs),
            _ => None,
        }
    }

    /// Returns true if this process, or the system, has no descriptors or no memory left. The same
    /// operation may succeed later.
    #[must_use]
    pub fn is_exhaustion(&self) -> bool {
        is_exhaustion(self)
    }

    /// Returns true if this process, or the system, has no descriptors left.
    #[must_use]
    pub fn needs_descriptors(&self) -> bool {
        errnos(self).any(|errno| matches!(errno, Errno::MFILE | Errno::NFILE))
    }

    pub(crate) fn call<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        let what = what.into();
        |source| Self::Call {
            what,
            source: source.into(),
        }
    }

    pub(crate) fn map(what: &'static str) -> impl FnOnce(MapError) -> Self {
        move |source| Self::Map {
            what,
            source: Box::new(source),
        }
    }

    /// Makes the error of a pinned map that cannot be opened.
    pub(crate) fn pinned_map(path: &Path, source: &MapError) -> Self {
        let what = format!("opening {}", path.display());
        match errnos(source).next() {
            Some(errno) => Self::process(what, errno),
            None => Self::call(what)(io::Error::other(with_sources(source))),
        }
    }

    /// Makes the error of a program that could not be loaded or attached. The cause is a missing kernel
    /// feature, unless the error concerns this process.
    pub(crate) fn program(
        program: &'static str,
        needs: &'static str,
        source: ProgramError,
    ) -> Self {
        if let Some(errno) = process_error(&source) {
            return Self::process(format!("loading the program {program}"), errno);
        }
        let reason = match &source {
            // The log is long. One of its last lines names the reason.
            ProgramError::LoadError {
                io_error,
                verifier_log,
            } => {
                let log = verifier_log.to_string();
                let is_sum = |line: &str| SUMMARY_LINES.iter().any(|sum| line.starts_with(sum));
                let mut lines = log.lines().rev();
                let line = lines.find(|line| !line.is_empty() && !is_sum(line));
                line.map_or_else(|| io_error.to_string(), str::to_owned)
            }
            other => other.to_string(),
        };
        Self::Program {
            program,
            needs,
            release: release(),
            reason,
            source: Box::new(source),
        }
    }

    pub(crate) fn object(source: EbpfError) -> Self {
        if let Some(errno) = process_error(&source) {
            return Self::process("loading Taupe's eBPF object".to_owned(), errno);
        }
        match source {
            EbpfError::BtfError(BtfError::FileError { path, error }) => Self::TypeInformation {
                release: release(),
                path,
                source: error,
            },
            source => Self::Object {
                release: release(),
                reason: with_sources(&source),
                source: Box::new(source),
            },
        }
    }

    pub(crate) fn narrow_kernel() -> Self {
        let release = release();
        Self::NarrowKernel { release }
    }

    /// Makes the error of a failure that concerns this process.
    fn process(what: String, errno: Errno) -> Self {
        let source = errno.into();
        match errno {
            Errno::PERM => Self::Forbidden { what, source },
            _ => Self::Call { what, source },
        }
    }
}

/// Returns the texts of an error and of those that caused it. Some of aya's errors contain the text
/// of their cause.
fn with_sources(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        let cause = error.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
        next = error.source();
    }
    text
}

/// Returns the error number if it concerns this process rather than the kernel's features: no more
/// descriptors, memory or permissions.
fn process_error(error: &(dyn Error + 'static)) -> Option<Errno> {
    errnos(error).find(|errno| {
        matches!(
            *errno,
            Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::PERM | Errno::AGAIN | Errno::INTR
        )
    })
}

/// As [`TransparentError::is_exhaustion`], for any error. It says nothing about the kernel's
/// features.
pub(crate) fn is_exhaustion(error: &(dyn Error + 'static)) -> bool {
    errnos(error).any(|errno| matches!(errno, Errno::MFILE | Errno::NFILE | Errno::NOMEM))
}

/// Returns the kernel's errors in an error and in those that caused it.
fn errnos(error: &(dyn Error + 'static)) -> impl Iterator<Item = Errno> {
    let mut next = Some(error);
    let errors = std::iter::from_fn(move || {
        let error = next?;
        next = error.source();
        Some(error)
    });
    errors.filter_map(|error| {
        let error = error.downcast_ref::<io::Error>()?;
        match error.kind() {
            // Also if this process's own allocator has no more.
            io::ErrorKind::OutOfMemory => Some(Errno::NOMEM),
            _ => Errno::from_io_error(error),
        }
    })
}

/// The beginnings of a log's last lines, whatever the reason.
const SUMMARY_LINES: [&str; 3] = ["processed ", "stack depth ", "verification time "];

fn release() -> String {
    rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use aya::sys::SyscallError;

    fn refused(errno: Errno) -> TransparentError {
        let source = ProgramError::LoadError {
            io_error: errno.into(),
            verifier_log: aya_obj::VerifierLog::new(String::new()),
        };
        TransparentError::program("taupe_x", "a helper", source)
    }

    #[test]
    fn exhausted_descriptors_are_not_blamed_on_the_kernel() {
        for errno in [Errno::MFILE, Errno::NOMEM, Errno::PERM] {
            let error = refused(errno);
            assert_eq!(error.required_features(), None, "{error}");
            let text = error.to_string();
            assert!(text.contains(&io::Error::from(errno).to_string()), "{text}");
            assert!(!text.contains("kernel"), "{text}");
            let is_forbidden = matches!(error, TransparentError::Forbidden { .. });
            assert_eq!(is_forbidden, errno == Errno::PERM);
            assert_eq!(error.is_exhaustion(), !is_forbidden, "{error}");
            // As the loader of other program types wraps it.
            let wrapped = io::Error::other(error);
            assert_eq!(is_exhaustion(&wrapped), !is_forbidden);
        }
        let unattached = |errno: Errno| {
            let io_error = errno.into();
            let source = SyscallError {
                call: "bpf_link_create",
                io_error,
            };
            TransparentError::program("taupe_x", "a hook", source.into())
        };
        assert_eq!(unattached(Errno::PERM).required_features(), None);
        // ENOTSUPP, the kernel's own number: it cannot call programs from its functions.
        let unsupported = unattached(Errno::from_raw_os_error(524));
        assert_eq!(unsupported.required_features(), Some("a hook"));
        assert!(!unsupported.is_exhaustion());
        // Refused by the verifier, or an unknown program type.
        for errno in [Errno::ACCESS, Errno::INVAL] {
            assert_eq!(refused(errno).required_features(), Some("a helper"));
        }
    }

    #[test]
    fn a_kernel_without_type_information_is_told_from_one_that_refuses_the_object() {
        const PATH: &str = "/sys/kernel/btf/vmlinux";
        let unreadable = |errno: Errno| {
            let path = PATH.into();
            let error = errno.into();
            TransparentError::object(BtfError::FileError { path, error }.into())
        };
        let missing = unreadable(Errno::NOENT);
        assert!(matches!(missing, TransparentError::TypeInformation { .. }));
        let text = missing.to_string();
        for part in ["no type information (BTF)", PATH, "No such file"] {
            assert!(text.contains(part), "{text}");
        }
        let exhausted = unreadable(Errno::MFILE);
        assert!(matches!(exhausted, TransparentError::Call { .. }));
        let path = PATH.into();
        let error = io::ErrorKind::OutOfMemory.into();
        let exhausted = TransparentError::object(BtfError::FileError { path, error }.into());
        assert!(matches!(exhausted, TransparentError::Call { .. }));
        assert!(exhausted.is_exhaustion());
        let other = TransparentError::object(BtfError::InvalidTypeInfo.into());
        let reason = BtfError::InvalidTypeInfo.to_string();
        assert!(other.to_string().ends_with(&reason), "{other}");
    }

    #[test]
    fn the_cause_of_a_refused_map_is_named_once() {
        let source = MapError::CreateError {
            name: "taupe_flows".to_owned(),
            io_error: Errno::INVAL.into(),
        };
        let text = TransparentError::object(source.into()).to_string();
        assert_eq!(text.matches("taupe_flows").count(), 1, "{text}");
        assert_eq!(text.matches("Invalid argument").count(), 1, "{text}");
    }
}
