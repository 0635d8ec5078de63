//! Errors and missing features of transparent mode, with the commands that help.
//!
//! `taupe-transparent` names no command of this program.

use taupe_os_linux::memory::limit_of_ebpf;
use taupe_transparent::error::TransparentError;
use taupe_transparent::programs::MissingFeature;

const WITHOUT_PROGRAMS: &str = "with this one, a tunnel can carry all applications (a file without \
                                AllowedApps and DisallowedApps) or one command (`taupe exec`)";

/// Returns an error of transparent mode, with advice.
#[must_use]
pub fn error(error: &TransparentError) -> String {
    match remedy(error) {
        Some(remedy) => format!("{error}; {remedy}"),
        None => error.to_string(),
    }
}

/// Returns advice about an error of transparent mode; `None` if the error contains it, or there is
/// none.
#[must_use]
pub fn remedy(error: &TransparentError) -> Option<String> {
    match error {
        TransparentError::OtherMode(interface) => {
            Some(format!("run `taupe down {interface}` first"))
        }
        TransparentError::Program { .. } => Some(
            "use a newer kernel, or adapter mode (`taupe up --adapter`), which needs less and does \
             less"
                .to_owned(),
        ),
        TransparentError::TypeInformation { .. } => Some(format!(
            "use a kernel with CONFIG_DEBUG_INFO_BTF, like those of distributions; {WITHOUT_PROGRAMS}"
        )),
        TransparentError::NarrowKernel { .. } => Some(format!(
            "use a 64-bit kernel, which also runs 32-bit systems; {WITHOUT_PROGRAMS}"
        )),
        TransparentError::Forbidden { .. } => Some(forbidden(limit_of_ebpf())),
        TransparentError::Schema { interface, .. } => Some(format!(
            "while the tunnel's process runs, use commands with the name {interface}: the other \
             version executes them; after it has ended, run `taupe up {interface}`: the traffic stays \
             blocked until the tunnel is up; if `taupe up` refuses, run `taupe down {interface}` \
             first: the traffic then bypasses the tunnel until the next `taupe up`"
        )),
        error if error.needs_descriptors() => {
            Some("raise the limit (`ulimit -n`, or LimitNOFILE= of a service)".to_owned())
        }
        error if error.is_exhaustion() => {
            Some("free memory, or raise the limit on this process's memory".to_owned())
        }
        _ => None,
    }
}

/// Returns advice if the kernel forbids eBPF, possibly because of a limit on locked memory in bytes.
fn forbidden(limit: Option<u64>) -> String {
    match limit {
        Some(limit) => format!(
            "before Linux 5.11, eBPF programs count as locked memory, of which this process may have \
             {} KiB: raise the limit (`ulimit -l unlimited`, or LimitMEMLOCK=infinity of a service), or \
             run it with CAP_SYS_RESOURCE",
            limit / 1024
        ),
        None => {
            "run it as root outside containers; for root there, a security module, lockdown or \
                 the host of this machine forbids eBPF"
                .to_owned()
        }
    }
}

/// Returns a missing feature of transparent mode, with advice.
#[must_use]
pub fn missing_feature(feature: MissingFeature) -> String {
    match feature {
        MissingFeature::SocketHandover
        | MissingFeature::SocketFamilies
        | MissingFeature::Nfqueue => {
            format!("{feature} (`taupe doctor` says why)")
        }
        feature => feature.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_on_locked_memory_is_named() {
        let limited = forbidden(Some(64 << 10));
        for part in ["locked memory", "64 KiB", "ulimit -l"] {
            assert!(limited.contains(part), "{limited}");
        }
        assert!(!forbidden(None).contains("locked"));
    }

    #[test]
    fn a_32_bit_kernel_is_refused_in_one_line() {
        let release = "6.1.0-rpi7-rpi-v7l".to_owned();
        let sentence = error(&TransparentError::NarrowKernel { release });
        let expected = "Linux 6.1.0-rpi7-rpi-v7l is a 32-bit kernel, and Taupe's eBPF programs need \
            structures of a 64-bit one; use a 64-bit kernel, which also runs 32-bit systems; with this \
            one, a tunnel can carry all applications (a file without AllowedApps and DisallowedApps) or \
            one command (`taupe exec`)";
        assert_eq!(sentence, expected);
    }
}
