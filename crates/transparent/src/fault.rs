//! What can go wrong with the kernel's part.

use std::error::Error;
use std::io;
use std::path::PathBuf;

use aya::EbpfError;
use aya::maps::MapError;
use aya::programs::ProgramError;
use rustix::io::Errno;

/// Why the kernel's part could not be set up or changed.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The other of two ways holds the packets of its applications.
    #[error(
        "what the applications chosen for {0} send is held back in another mode than it is to be \
         brought up in: `taupe down {0}` first"
    )]
    OtherWay(String),
    /// The kernel refuses a program.
    #[error(
        "Linux {release} cannot load the program {program}, which needs {needs}: {reason}. \
         Use a newer kernel, or `taupe up --adapter`, which takes less and does less"
    )]
    Program {
        /// Its name, as `bpftool prog` shows it.
        program: &'static str,
        /// What of the kernel it is built on, and since when that exists.
        needs: &'static str,
        /// The running kernel's release.
        release: String,
        /// What the kernel says.
        reason: String,
        /// How loading failed.
        source: Box<ProgramError>,
    },
    /// The maps cannot be made, or the object does not suit the kernel.
    #[error(
        "Linux {release} does not take Taupe's eBPF object; it needs a kernel with type \
         information (CONFIG_DEBUG_INFO_BTF), and root's rights"
    )]
    Object {
        /// The running kernel's release.
        release: String,
        /// How loading failed.
        source: Box<EbpfError>,
    },
    /// The object lacks something that this library knows.
    #[error("Taupe's eBPF object has no {0}: it was not built from the same source")]
    Missing(&'static str),
    /// Maps of another version of Taupe are pinned.
    #[error(
        "{path} is another version's of Taupe (layout {found}, this one has {wanted}), which holds \
         back what the applications chosen for {interface} send: `taupe down {interface}` removes \
         it, and they go past the tunnel until it is brought up again"
    )]
    Schema {
        /// The tunnel's interface.
        interface: String,
        /// Where they are pinned.
        path: PathBuf,
        /// Their layout.
        found: u32,
        /// This version's.
        wanted: u32,
    },
    /// A map refuses an entry.
    #[error("{what}: {source}")]
    Map {
        /// What was to be done.
        what: &'static str,
        /// How it failed.
        source: Box<MapError>,
    },
    /// There are more than fit.
    #[error("there are {found} {what}, of which {limit} can be told apart")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many there are.
        found: usize,
        /// How many there may be.
        limit: usize,
    },
    /// A name that is longer than what is compared.
    #[error("the name {0} is too long to be recognised: write a * behind its beginning")]
    LongName(String),
    /// A rule about a user whose name has not been looked up.
    #[error("the user {0} is not known on this system")]
    User(String),
    /// Somebody else's filter sees the packets of an interface first.
    #[error(
        "another program's filter sees the packets of {interface} before Taupe's, and could \
         send them elsewhere: remove it (`tc filter show dev {interface} egress` and `ingress`, \
         or `bpftool net`), or give it a later place"
    )]
    Behind {
        /// Its name.
        interface: String,
    },
    /// Sockets of chosen applications that do not know it.
    #[error(
        "{0} sockets of chosen applications that are open already cannot be marked, for want \
         of memory: raise net.core.optmem_max, or end these applications and try again"
    )]
    Unmarked(usize),
    /// Where what holds packets back is pinned, and outlives whoever pinned it, is out of reach.
    #[error(
        "reaching the file systems of the first process by {path}, where the lock is kept: {source} \
         (that takes root on the machine itself, or a PID namespace of one's own: `unshare --pid \
         --fork --mount-proc`, or a container without the host's processes)"
    )]
    Unreachable {
        /// The first process's root directory.
        path: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// A call of the system.
    #[error("{what}: {source}")]
    Call {
        /// What was to be done.
        what: String,
        /// The system's answer.
        source: io::Error,
    },
}

impl Fault {
    /// What the kernel lacks, where it is that.
    #[must_use]
    pub fn lack(&self) -> Option<&'static str> {
        match self {
            Self::Program { needs, .. } => Some(needs),
            _ => None,
        }
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

    /// A program that could not be loaded: the kernel lacks something that it needs, unless the
    /// system's answer is about this process.
    pub(crate) fn program(
        program: &'static str,
        needs: &'static str,
        source: ProgramError,
    ) -> Self {
        if let Some(errno) = not_of_the_kernel(&source) {
            return Self::call(format!("loading the program {program}"))(errno);
        }
        let reason = match &source {
            // The log is long; what was refused is in one of its last lines.
            ProgramError::LoadError {
                io_error,
                verifier_log,
            } => {
                let log = verifier_log.to_string();
                let is_sum = |line: &str| SUMS.iter().any(|sum| line.starts_with(sum));
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
        if let Some(errno) = not_of_the_kernel(&source) {
            return Self::call("loading Taupe's eBPF object")(errno);
        }
        Self::Object {
            release: release(),
            source: Box::new(source),
        }
    }
}

/// Returns the system's answer if it says nothing about what the kernel has: the process has no
/// descriptor, memory or right left.
fn not_of_the_kernel(error: &(dyn Error + 'static)) -> Option<Errno> {
    let mut next = Some(error);
    let errors = std::iter::from_fn(|| {
        let error = next?;
        next = error.source();
        Some(error)
    });
    let mut answers = errors.filter_map(|error| {
        let error = error.downcast_ref::<io::Error>()?;
        Some(Errno::from_raw_os_error(error.raw_os_error()?))
    });
    answers.find(|errno| {
        matches!(
            *errno,
            Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::PERM | Errno::AGAIN | Errno::INTR
        )
    })
}

/// What a log ends with, whatever was refused.
const SUMS: [&str; 3] = ["processed ", "stack depth ", "verification time "];

/// The running kernel's.
fn release() -> String {
    rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(errno: Errno) -> Fault {
        let source = ProgramError::LoadError {
            io_error: errno.into(),
            verifier_log: aya_obj::VerifierLog::new(String::new()),
        };
        Fault::program("taupe_x", "a helper", source)
    }

    #[test]
    fn a_process_without_descriptors_is_not_told_to_use_another_kernel() {
        for errno in [Errno::MFILE, Errno::NOMEM, Errno::PERM] {
            let fault = refused(errno);
            assert_eq!(fault.lack(), None, "{fault}");
            let text = fault.to_string();
            assert!(text.contains(&io::Error::from(errno).to_string()), "{text}");
            assert!(!text.contains("kernel"), "{text}");
        }
        // The verifier, or a type of program that there is not.
        for errno in [Errno::ACCESS, Errno::INVAL] {
            assert_eq!(refused(errno).lack(), Some("a helper"));
        }
    }
}
