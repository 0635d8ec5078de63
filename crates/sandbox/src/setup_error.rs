//! Reasons why a sandbox could not be set up, with advice.

use std::fs;
use std::io;

use rustix::io::Errno;
use rustix::process::geteuid;
use taupe_os_linux::namespace::Kind;
use taupe_os_linux::netlink::SystemError;
use taupe_os_linux::tun::OpenError;

/// Failed step, with its reason and advice.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SetupError {
    #[error("the command cannot have a {} namespace of its own: {source}: {advice}", .kind.name())]
    Namespace {
        kind: Kind,
        source: io::Error,
        advice: String,
    },
    #[error("{0}")]
    Tun(String),
    #[error("cannot {what}: {source}{hint}")]
    Step {
        what: String,
        source: io::Error,
        hint: &'static str,
    },
    #[error(transparent)]
    System(#[from] SystemError),
}

impl SetupError {
    pub(crate) fn namespace(kind: Kind, source: io::Error, facts: &SystemFacts) -> Self {
        let advice = namespace_advice(kind, &source, facts);
        Self::Namespace {
            kind,
            source,
            advice,
        }
    }

    pub(crate) fn tun(error: OpenError, facts: &SystemFacts) -> Self {
        Self::Tun(match error {
            OpenError::Device(source) => tun(&source, geteuid().as_raw()),
            OpenError::Permission(name) => {
                let source = Errno::PERM.into();
                let what = format!("make the interface {name}");
                return Self::step(failed(what, source), facts);
            }
            error => error.to_string(),
        })
    }

    pub(crate) fn step(FailedStep { what, source }: FailedStep, facts: &SystemFacts) -> Self {
        let hint = match is_permission_denied(&source) && facts.apparmor_restricts {
            true => APPARMOR,
            false => "",
        };
        Self::Step { what, source, hint }
    }
}

/// A failed step.
pub(crate) struct FailedStep {
    what: String,
    source: io::Error,
}

pub(crate) fn failed(what: impl Into<String>, source: io::Error) -> FailedStep {
    let what = what.into();
    FailedStep { what, source }
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

const APPARMOR: &str = "; AppArmor lets no program without a profile have namespaces: `sudo sysctl -w \
                        kernel.apparmor_restrict_unprivileged_userns=0`";

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
            limits: [Kind::User, Kind::Network, Kind::Mount]
                .map(|kind| number(&format!("/proc/sys/user/{}", limit(kind)))),
        }
    }
}

/// Returns the name of the limit below `/proc/sys/user`.
fn limit(kind: Kind) -> String {
    format!("max_{}_namespaces", kind.name())
}

fn is_permission_denied(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

/// Returns the reason why a namespace was refused, with one piece of advice.
fn namespace_advice(kind: Kind, error: &io::Error, facts: &SystemFacts) -> String {
    let clone = "kernel.unprivileged_userns_clone";
    match Errno::from_io_error(error) {
        Some(Errno::NOSPC) => {
            let name = limit(kind);
            let set = format!("`sudo sysctl -w user.{name}=16384`");
            match facts.limits[kind as usize] {
                Some(0) => format!("user.{name} is 0, which forbids them: {set}"),
                Some(most) => format!("all {most} of user.{name} may be in use: {set}"),
                None => set,
            }
        }
        Some(Errno::INVAL) => {
            "this kernel has none (CONFIG_USER_NS, CONFIG_NET_NS): use another kernel".to_owned()
        }
        Some(Errno::USERS) => "too many are inside one another: run it further outside".to_owned(),
        _ if facts.userns_clone_is_off => {
            format!("{clone} is 0, which forbids them: `sudo sysctl -w {clone}=1`")
        }
        _ if facts.apparmor_restricts => APPARMOR.trim_start_matches("; ").to_owned(),
        _ if facts.has_seccomp => {
            "a filter of system calls (seccomp) forbids it, as a container's does: start the \
             container with `--security-opt seccomp=unconfined`"
                .to_owned()
        }
        _ => "in a chroot there is none, and a security module may forbid it: run it outside, or \
              use `sudo taupe up`"
            .to_owned(),
    }
}

/// Returns the reason why `/dev/net/tun` cannot be opened, with advice.
fn tun(error: &io::Error, user: u32) -> String {
    let what = format!("cannot open /dev/net/tun: {error}");
    match Errno::from_io_error(error) {
        Some(Errno::NOENT | Errno::NODEV | Errno::NXIO) => format!(
            "{what}: `sudo modprobe tun`, or start the container with `--device /dev/net/tun`"
        ),
        Some(Errno::ACCESS) => format!(
            "{what}: user {user} must be able to read and write it, which by itself gives no \
             rights: `sudo chmod 0666 /dev/net/tun`"
        ),
        Some(Errno::PERM) => format!(
            "{what}: this container may not use the device: start it with `--device /dev/net/tun`"
        ),
        _ => what,
    }
}

#[cfg(test)]
mod tests {
    use super::{Kind, SetupError, SystemFacts, failed, namespace_advice, tun};
    use rustix::io::Errno;
    use std::io;

    #[test]
    fn each_obstacle_is_named_with_what_to_do() {
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
        for (kind, error, facts, words) in [
            (
                Kind::User,
                Errno::PERM,
                &clone,
                "kernel.unprivileged_userns_clone=1",
            ),
            (Kind::User, Errno::PERM, &seccomp, "seccomp=unconfined"),
            (
                Kind::Network,
                Errno::PERM,
                &apparmor,
                "restrict_unprivileged_userns=0",
            ),
            (Kind::User, Errno::PERM, &none, "chroot"),
            (
                Kind::User,
                Errno::NOSPC,
                &full,
                "user.max_user_namespaces is 0",
            ),
            (
                Kind::Network,
                Errno::NOSPC,
                &full,
                "all 7 of user.max_net_namespaces",
            ),
            (
                Kind::Mount,
                Errno::NOSPC,
                &full,
                "sysctl -w user.max_mnt_namespaces=",
            ),
            (Kind::User, Errno::INVAL, &none, "CONFIG_USER_NS"),
            (Kind::User, Errno::USERS, &none, "inside one another"),
        ] {
            let said = namespace_advice(kind, &io::Error::from(error), facts);
            assert!(said.contains(words), "{kind:?}, {error:?}: {said}");
        }
    }

    #[test]
    fn apparmor_is_named_where_a_later_step_is_refused() {
        let facts = SystemFacts {
            apparmor_restricts: true,
            ..SystemFacts::default()
        };
        let text =
            |errno: Errno| SetupError::step(failed("do it", errno.into()), &facts).to_string();
        assert!(text(Errno::PERM).contains("apparmor_restrict_unprivileged_userns=0"));
        assert!(!text(Errno::NOENT).contains("AppArmor"));
    }

    #[test]
    fn what_is_wrong_with_the_tun_is_told_apart() {
        for (error, words) in [
            (Errno::NOENT, "modprobe tun"),
            (Errno::ACCESS, "user 1000 must be able to read and write it"),
            (Errno::PERM, "--device /dev/net/tun"),
        ] {
            let said = tun(&io::Error::from(error), 1000);
            assert!(said.contains(words), "{said}");
        }
    }
}
