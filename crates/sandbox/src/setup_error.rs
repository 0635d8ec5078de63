//! Reasons why a sandbox could not be set up.

use std::fs;
use std::io;

use rustix::io::Errno;
use taupe_os_linux::namespace::NamespaceKind;
use taupe_os_linux::netlink::NetlinkError;
use taupe_os_linux::tun::OpenError;

use crate::obstacle::Obstacle;

/// Failed step, with its reason.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SetupError {
    #[error("the command cannot have a {} namespace of its own: {source}: {reason}", .kind.name())]
    Namespace {
        kind: NamespaceKind,
        source: io::Error,
        reason: String,
        obstacle: Obstacle,
    },
    #[error(transparent)]
    Tun(OpenError),
    #[error("cannot {what}: {source}{}", because(*.obstacle))]
    Step {
        what: String,
        source: io::Error,
        obstacle: Option<Obstacle>,
    },
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
}

impl SetupError {
    pub(crate) fn namespace(kind: NamespaceKind, source: io::Error, facts: &SystemFacts) -> Self {
        let (reason, obstacle) = namespace_obstacle(kind, &source, facts);
        Self::Namespace {
            kind,
            source,
            reason,
            obstacle,
        }
    }

    pub(crate) fn tun(error: OpenError, facts: &SystemFacts) -> Self {
        match error {
            OpenError::Permission(name) => {
                let what = format!("create the interface {name}");
                Self::step(failed(what, Errno::PERM.into()), facts)
            }
            error => Self::Tun(error),
        }
    }

    pub(crate) fn step(step: FailedStep, facts: &SystemFacts) -> Self {
        let FailedStep {
            what,
            source,
            mut obstacle,
        } = step;
        if source.kind() == io::ErrorKind::PermissionDenied && facts.apparmor_restricts {
            obstacle = Some(Obstacle::AppArmor);
        }
        Self::Step {
            what,
            source,
            obstacle,
        }
    }

    /// Returns the obstacle that caused the error, if it is known.
    pub(crate) fn obstacle(&self) -> Option<Obstacle> {
        match self {
            Self::Namespace { obstacle, .. } => Some(*obstacle),
            Self::Tun(OpenError::Device(source)) => tun_obstacle(source),
            Self::Step { obstacle, .. } => *obstacle,
            Self::Tun(_) | Self::Netlink(_) => None,
        }
    }
}

/// A failed step.
pub(crate) struct FailedStep {
    what: String,
    source: io::Error,
    obstacle: Option<Obstacle>,
}

pub(crate) fn failed(what: impl Into<String>, source: io::Error) -> FailedStep {
    FailedStep {
        what: what.into(),
        source,
        obstacle: None,
    }
}

impl FailedStep {
    pub(crate) fn with_obstacle(self, obstacle: Obstacle) -> Self {
        Self {
            obstacle: Some(obstacle),
            ..self
        }
    }

    /// Names the obstacle to mapping `user` into the new user namespace, if it is known.
    pub(crate) fn of_mapping(self, user: u32) -> Self {
        match Errno::from_io_error(&self.source) {
            Some(Errno::PERM) if user == 0 => self.with_obstacle(Obstacle::RootMapping),
            _ => self,
        }
    }
}

/// Settings of the system that may be the reason.
#[derive(Clone, Default, Debug)]
pub(crate) struct SystemFacts {
    /// `kernel.unprivileged_userns_clone` (Debian's kernels) is 0.
    userns_clone_is_off: bool,
    /// AppArmor takes the capabilities in new user namespaces from programs without a profile
    /// (Ubuntu, since 23.10).
    apparmor_restricts: bool,
    /// A seccomp filter is active, as in most containers.
    has_seccomp: bool,
    /// Limits on user, network and mount namespaces.
    limits: [Option<u64>; 3],
}

const APPARMOR: &str = "AppArmor lets no program without a profile have namespaces";

/// Returns the reason of a failed step for its message, if it is known.
fn because(obstacle: Option<Obstacle>) -> String {
    match obstacle {
        Some(Obstacle::AppArmor) => format!("; {APPARMOR}"),
        Some(Obstacle::RootMapping) => {
            "; a root without CAP_SETFCAP may have no user namespace with a root".to_owned()
        }
        _ => String::new(),
    }
}

impl SystemFacts {
    /// Reads the settings. Must run before the process enters a new user namespace, which has
    /// limits of its own.
    pub(crate) fn read() -> Self {
        let read = |path: &str| fs::read_to_string(path).ok();
        let number = |path: &str| read(path)?.trim().parse().ok();
        let has_seccomp = |status: String| status.lines().any(|line| line == "Seccomp:\t2");
        Self {
            userns_clone_is_off: number("/proc/sys/kernel/unprivileged_userns_clone") == Some(0),
            apparmor_restricts: number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
                == Some(1),
            has_seccomp: read("/proc/self/status").is_some_and(has_seccomp),
            limits: [
                NamespaceKind::User,
                NamespaceKind::Network,
                NamespaceKind::Mount,
            ]
            .map(|kind| number(&format!("/proc/sys/user/{}", limit(kind)))),
        }
    }
}

/// Returns the name of the limit below `/proc/sys/user`.
fn limit(kind: NamespaceKind) -> String {
    format!("max_{}_namespaces", kind.name())
}

/// Returns the reason why a namespace was refused, and the obstacle to remove.
fn namespace_obstacle(
    kind: NamespaceKind,
    error: &io::Error,
    facts: &SystemFacts,
) -> (String, Obstacle) {
    let (reason, obstacle) = match Errno::from_io_error(error) {
        Some(Errno::NOSPC) => {
            let name = limit(kind);
            let reason = match facts.limits[kind as usize] {
                Some(0) => format!("user.{name} is 0, which forbids them"),
                Some(most) => format!("all {most} of user.{name} may be in use"),
                None => format!("the limit user.{name} may be reached"),
            };
            return (reason, Obstacle::NamespaceLimit(kind));
        }
        Some(Errno::INVAL) => (
            "this kernel has none (CONFIG_USER_NS, CONFIG_NET_NS)",
            Obstacle::NoNamespaces,
        ),
        Some(Errno::USERS) => (
            "too many are inside one another",
            Obstacle::NestedNamespaces,
        ),
        _ if facts.userns_clone_is_off => (
            "kernel.unprivileged_userns_clone is 0, which forbids them",
            Obstacle::UsernsCloneOff,
        ),
        _ if facts.apparmor_restricts => (APPARMOR, Obstacle::AppArmor),
        _ if facts.has_seccomp => (
            "a filter of system calls (seccomp) forbids it, as a container's does",
            Obstacle::Seccomp,
        ),
        _ => (
            "in a chroot there is none, and a security module may forbid it",
            Obstacle::Forbidden,
        ),
    };
    (reason.to_owned(), obstacle)
}

/// Returns the obstacle to opening `/dev/net/tun`.
fn tun_obstacle(error: &io::Error) -> Option<Obstacle> {
    match Errno::from_io_error(error)? {
        Errno::NOENT | Errno::NODEV | Errno::NXIO => Some(Obstacle::NoTun),
        Errno::ACCESS => Some(Obstacle::TunAccess),
        Errno::PERM => Some(Obstacle::TunDevice),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{NamespaceKind, SetupError, SystemFacts, failed, namespace_obstacle, tun_obstacle};
    use crate::obstacle::Obstacle;
    use rustix::io::Errno;
    use std::io;

    #[test]
    fn each_obstacle_is_named() {
        let none = SystemFacts::default();
        let clone = SystemFacts {
            userns_clone_is_off: true,
            has_seccomp: true,
            ..SystemFacts::default()
        };
        let apparmor = SystemFacts {
            apparmor_restricts: true,
            ..SystemFacts::default()
        };
        let seccomp = SystemFacts {
            has_seccomp: true,
            ..SystemFacts::default()
        };
        let full = SystemFacts {
            limits: [Some(0), Some(7), None],
            ..SystemFacts::default()
        };
        let (user, network, mount) = (
            NamespaceKind::User,
            NamespaceKind::Network,
            NamespaceKind::Mount,
        );
        for (kind, error, facts, words, obstacle) in [
            (
                user,
                Errno::PERM,
                &clone,
                "kernel.unprivileged_userns_clone is 0",
                Obstacle::UsernsCloneOff,
            ),
            (user, Errno::PERM, &seccomp, "seccomp", Obstacle::Seccomp),
            (
                network,
                Errno::PERM,
                &apparmor,
                "AppArmor",
                Obstacle::AppArmor,
            ),
            (user, Errno::PERM, &none, "chroot", Obstacle::Forbidden),
            (
                user,
                Errno::NOSPC,
                &full,
                "user.max_user_namespaces is 0",
                Obstacle::NamespaceLimit(user),
            ),
            (
                network,
                Errno::NOSPC,
                &full,
                "all 7 of user.max_net_namespaces",
                Obstacle::NamespaceLimit(network),
            ),
            (
                mount,
                Errno::NOSPC,
                &full,
                "user.max_mnt_namespaces may be reached",
                Obstacle::NamespaceLimit(mount),
            ),
            (
                user,
                Errno::INVAL,
                &none,
                "CONFIG_USER_NS",
                Obstacle::NoNamespaces,
            ),
            (
                user,
                Errno::USERS,
                &none,
                "inside one another",
                Obstacle::NestedNamespaces,
            ),
        ] {
            let (reason, found) = namespace_obstacle(kind, &io::Error::from(error), facts);
            assert!(reason.contains(words), "{kind:?}, {error:?}: {reason}");
            assert_eq!(found, obstacle);
        }
    }

    #[test]
    fn apparmor_is_named_where_a_later_step_is_refused() {
        let facts = SystemFacts {
            apparmor_restricts: true,
            ..SystemFacts::default()
        };
        let error = |errno: Errno| SetupError::step(failed("do it", errno.into()), &facts);
        let refused = error(Errno::PERM);
        assert!(refused.to_string().contains("AppArmor"), "{refused}");
        assert_eq!(refused.obstacle(), Some(Obstacle::AppArmor));
        let missing = error(Errno::NOENT);
        assert!(!missing.to_string().contains("AppArmor"), "{missing}");
        assert_eq!(missing.obstacle(), None);
    }

    #[test]
    fn a_root_without_the_capability_for_a_mapping_is_told_so() {
        let facts = SystemFacts::default();
        for (user, errno, obstacle) in [
            (0, Errno::PERM, Some(Obstacle::RootMapping)),
            (1000, Errno::PERM, None),
            (0, Errno::INVAL, None),
        ] {
            let step = failed("write /proc/self/uid_map", errno.into());
            let error = SetupError::step(step.of_mapping(user), &facts);
            assert_eq!(error.obstacle(), obstacle, "{error}");
            assert_eq!(
                error.to_string().contains("CAP_SETFCAP"),
                obstacle.is_some()
            );
        }
    }

    #[test]
    fn what_is_wrong_with_the_tun_is_told_apart() {
        for (error, obstacle) in [
            (Errno::NOENT, Some(Obstacle::NoTun)),
            (Errno::ACCESS, Some(Obstacle::TunAccess)),
            (Errno::PERM, Some(Obstacle::TunDevice)),
            (Errno::BUSY, None),
        ] {
            assert_eq!(tun_obstacle(&io::Error::from(error)), obstacle);
        }
    }
}
