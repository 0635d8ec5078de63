//! Obstacles to a sandbox that the user or an administrator can remove.

use taupe_os_linux::namespace::NamespaceKind;

/// An obstacle to a sandbox that the user or an administrator can remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The limit on namespaces of this kind is reached (`user.max_*_namespaces`).
    NamespaceLimit(NamespaceKind),
    /// The kernel has no user or network namespaces.
    NoNamespaces,
    /// Too many user namespaces are nested.
    NestedNamespaces,
    /// `kernel.unprivileged_userns_clone` (Debian's kernels) is 0.
    UsernsCloneOff,
    /// AppArmor takes the capabilities in new user namespaces from programs without a profile
    /// (Ubuntu, since 23.10).
    AppArmor,
    /// A filter of system calls (seccomp) forbids namespaces, as in most containers.
    Seccomp,
    /// The kernel forbids namespaces for another reason: a chroot or a security module.
    Forbidden,
    /// Root lacks `CAP_SETFCAP`, without which it cannot map itself into a user namespace
    /// (Linux 5.12).
    RootMapping,
    /// `/dev/net/tun` does not exist.
    NoTun,
    /// The user may not open `/dev/net/tun`.
    TunAccess,
    /// The container may not use the device `/dev/net/tun`.
    TunDevice,
    /// `/etc/resolv.conf` does not exist, and `/etc` cannot be covered.
    NoResolvConf,
}

/// All obstacles, in the order of their codes.
const ALL: [Obstacle; 14] = [
    Obstacle::NamespaceLimit(NamespaceKind::User),
    Obstacle::NamespaceLimit(NamespaceKind::Network),
    Obstacle::NamespaceLimit(NamespaceKind::Mount),
    Obstacle::NoNamespaces,
    Obstacle::NestedNamespaces,
    Obstacle::UsernsCloneOff,
    Obstacle::AppArmor,
    Obstacle::Seccomp,
    Obstacle::Forbidden,
    Obstacle::RootMapping,
    Obstacle::NoTun,
    Obstacle::TunAccess,
    Obstacle::TunDevice,
    Obstacle::NoResolvConf,
];

/// Returns the code of an obstacle in a message of the child; 0 stands for none.
pub(crate) fn encode(obstacle: Option<Obstacle>) -> u8 {
    let position = obstacle.and_then(|one| ALL.iter().position(|other| *other == one));
    position.map_or(0, |position| position as u8 + 1)
}

/// Returns the obstacle of a code.
pub(crate) fn decode(code: u8) -> Option<Obstacle> {
    let position = usize::from(code).checked_sub(1)?;
    ALL.get(position).copied()
}

#[cfg(test)]
mod tests {
    use super::{ALL, decode, encode};

    #[test]
    fn codes_are_decoded() {
        for obstacle in ALL.map(Some).into_iter().chain([None]) {
            assert_eq!(decode(encode(obstacle)), obstacle);
        }
        assert_eq!(decode(u8::MAX), None);
    }
}
