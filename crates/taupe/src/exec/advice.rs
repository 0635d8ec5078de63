//! Advice for errors of sandboxes: commands that help.
//!
//! The errors of `taupe-sandbox` say what failed, where and why, and name no command.

use rustix::process::geteuid;
use taupe_sandbox::{JoinError, Obstacle, RendezvousError, SandboxError};

/// Returns advice for an error of a sandbox's name or of the user's folder, or nothing.
pub(super) fn place(error: &RendezvousError) -> String {
    match error {
        RendezvousError::Running(name) => {
            format!("; `taupe exec --join {name} -- COMMAND` uses the same tunnel")
        }
        RendezvousError::Unsafe { .. } => "; remove it".to_owned(),
        RendezvousError::Io { .. } => String::new(),
    }
}

/// Returns advice for an error of joining, or nothing.
pub(super) fn join(error: &JoinError) -> String {
    match error {
        JoinError::NoSandbox { running, .. } if running.is_empty() => {
            "; `taupe exec CONF -- COMMAND` begins one".to_owned()
        }
        JoinError::Place(error) => place(error),
        JoinError::NoSandbox { .. } | JoinError::Ended(_) => String::new(),
    }
}

/// Returns advice for an error of creating a sandbox, or nothing.
pub(super) fn sandbox(error: &SandboxError) -> String {
    match error {
        SandboxError::SetupFailed {
            obstacle: Some(obstacle),
            ..
        } => format!(": {}", remedy(*obstacle, geteuid().as_raw())),
        _ => String::new(),
    }
}

/// Returns the remedy for an obstacle that `user` meets.
fn remedy(obstacle: Obstacle, user: u32) -> String {
    let remedy = match obstacle {
        Obstacle::NamespaceLimit(kind) => {
            let name = kind.name();
            return format!("`sudo sysctl -w user.max_{name}_namespaces=16384`");
        }
        Obstacle::TunAccess => {
            return format!(
                "user {user} must be able to read and write it, which by itself gives no rights: \
                 `sudo chmod 0666 /dev/net/tun`"
            );
        }
        Obstacle::NoNamespaces => "use another kernel",
        Obstacle::NestedNamespaces => "run it further outside",
        Obstacle::UsernsCloneOff => "`sudo sysctl -w kernel.unprivileged_userns_clone=1`",
        Obstacle::AppArmor => "`sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`",
        Obstacle::Seccomp => "start the container with `--security-opt seccomp=unconfined`",
        Obstacle::Forbidden => "run it outside, or use `sudo taupe up`",
        Obstacle::RootMapping => {
            "run it as another user, or start the container with `--cap-add SETFCAP`"
        }
        Obstacle::NoTun => {
            "`sudo modprobe tun`, or start the container with `--device /dev/net/tun`"
        }
        Obstacle::TunDevice => {
            "this container may not use the device: start it with `--device /dev/net/tun`"
        }
        Obstacle::NoResolvConf => "`sudo touch /etc/resolv.conf`",
    };
    remedy.to_owned()
}

#[cfg(test)]
mod tests {
    use super::{Obstacle, remedy};
    use taupe_os_linux::namespace::NamespaceKind;

    #[test]
    fn each_obstacle_has_a_remedy() {
        for (obstacle, words) in [
            (
                Obstacle::NamespaceLimit(NamespaceKind::Mount),
                "sysctl -w user.max_mnt_namespaces=",
            ),
            (
                Obstacle::UsernsCloneOff,
                "kernel.unprivileged_userns_clone=1",
            ),
            (Obstacle::AppArmor, "restrict_unprivileged_userns=0"),
            (Obstacle::Seccomp, "seccomp=unconfined"),
            (Obstacle::Forbidden, "sudo taupe up"),
            (Obstacle::RootMapping, "--cap-add SETFCAP"),
            (Obstacle::NoTun, "modprobe tun"),
            (
                Obstacle::TunAccess,
                "user 1000 must be able to read and write it",
            ),
            (Obstacle::TunDevice, "--device /dev/net/tun"),
        ] {
            let found = remedy(obstacle, 1000);
            assert!(found.contains(words), "{found}");
        }
    }
}
