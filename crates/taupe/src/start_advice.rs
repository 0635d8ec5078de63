//! Advice about a device that does not start.

use rustix::io::Errno;
use std::io;
use taupe_engine::StartError;
use taupe_inspect::is_root;
use taupe_os_linux::tun::OpenError;
use taupe_runtime::configuration_socket::{ListenError, RunDirectoryError};

/// Returns advice for an error of starting, or nothing.
pub(crate) fn start_advice(error: &StartError) -> String {
    match error {
        StartError::Tun(error) => tun_advice(error, is_root()),
        StartError::Listen(ListenError::Running(_)) => {
            "; delete the interface (`ip link del`) to end it".to_owned()
        }
        StartError::Listen(ListenError::Directory(RunDirectoryError::Unsafe { path, .. })) => {
            let path = path.display();
            format!(" (`chown root {path}`, `chmod o-w {path}`)")
        }
        _ => String::new(),
    }
}

fn tun_advice(error: &OpenError, is_root: bool) -> String {
    let advice = match error {
        OpenError::Device(error) => device_advice(error, is_root),
        OpenError::Permission(_) if is_root => {
            "this root lacks it, as in a container: start the container with `--cap-add NET_ADMIN`"
        }
        OpenError::Permission(_) => "run it as root",
        OpenError::Busy(interface) => {
            return format!("; choose another name, or remove it (`ip link delete {interface}`)");
        }
        _ => return String::new(),
    };
    format!("; {advice}")
}

/// Returns advice for an error of opening `/dev/net/tun`.
fn device_advice(error: &io::Error, is_root: bool) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::ACCESS) if !is_root => "run it as root",
        Some(Errno::ACCESS) => {
            "root may not open it here: look at its mode (`ls -l /dev/net/tun`, usually crw-rw-rw-) and \
             at the security module's messages (`dmesg`)"
        }
        // A container's rules for devices.
        Some(Errno::PERM) => {
            "this container may not use the device: start it with `--device /dev/net/tun`"
        }
        // Without the driver, a device file that exists answers with these.
        Some(Errno::NODEV | Errno::NXIO) => {
            "the kernel runs without its TUN driver: `modprobe tun`, or use a kernel with CONFIG_TUN"
        }
        Some(Errno::MFILE | Errno::NFILE) => {
            "raise the limit (`ulimit -n`, or LimitNOFILE= of a service)"
        }
        Some(Errno::NOENT) => {
            "load the kernel's TUN driver (`modprobe tun`), or start the container with `--device \
             /dev/net/tun`"
        }
        _ if is_root => "the kernel's messages (`dmesg`) may say why",
        _ => "it takes root, and the kernel's TUN driver (`modprobe tun`)",
    }
}

#[cfg(test)]
mod tests {
    use super::{OpenError, tun_advice};
    use rustix::io::Errno;

    #[test]
    fn each_obstacle_to_a_tun_has_its_advice() {
        let device = |errno: Errno| OpenError::Device(errno.into());
        let permission = || OpenError::Permission("wg0".to_owned());
        for (error, is_root, words) in [
            (device(Errno::NOENT), true, "--device /dev/net/tun"),
            (device(Errno::NODEV), true, "CONFIG_TUN"),
            (device(Errno::NXIO), true, "CONFIG_TUN"),
            (device(Errno::PERM), true, "may not use the device"),
            (device(Errno::ACCESS), false, "run it as root"),
            (device(Errno::ACCESS), true, "ls -l /dev/net/tun"),
            (device(Errno::IO), true, "dmesg"),
            (device(Errno::MFILE), true, "ulimit -n"),
            (permission(), false, "run it as root"),
            (permission(), true, "--cap-add NET_ADMIN"),
            (
                OpenError::Busy("wg0".to_owned()),
                true,
                "`ip link delete wg0`",
            ),
        ] {
            let advice = tun_advice(&error, is_root);
            assert!(advice.contains(words), "{error:?}: {advice}");
            let asks_for_root = advice.contains("as root") || advice.contains("takes root");
            assert!(!asks_for_root || !is_root, "{error:?}: {advice}");
        }
    }
}
