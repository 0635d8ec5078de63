//! Features of the kernel, tested by loading the programs that use them.

use super::Check;
use super::memory::Memory;
use crate::advice;
use std::{fs, io};
use taupe_transparent::error::TransparentError;
use taupe_transparent::programs::{
    CaptureMode, Programs, Trial, try_all, try_forwarding, try_pinning, try_services,
};

const FORBIDDEN: &str =
    "find out what forbids it here: a security module, lockdown or the host of this machine";

/// List of active security modules, if securityfs is mounted.
const LSM: &str = "/sys/kernel/security/lsm";

/// The kernel's type information, which CO-RE programs need.
const BTF: &str = "/sys/kernel/btf/vmlinux";

pub(super) fn checks(is_fresh: bool) -> Vec<Check> {
    let mut checks = vec![release()];
    checks.push(match fs::exists(BTF) {
        Ok(true) => Check::ok("type-information", "the kernel has type information (BTF)"),
        _ => Check::fail(
            "type-information",
            format!("there is no {BTF}: applications cannot be selected"),
            "use a kernel with CONFIG_DEBUG_INFO_BTF, like those of distributions",
        ),
    });
    checks.push(cgroup2());
    let mut memory = Memory::new(is_fresh);
    let modes = [
        (
            "transparent-mode",
            "transparent mode",
            CaptureMode::TrafficControl,
            "use Linux 5.19 or newer; until then `taupe up` selects applications in adapter mode",
        ),
        (
            "marks",
            "adapter mode for selected applications",
            CaptureMode::Fwmark,
            "use Linux 5.10 or newer",
        ),
    ];
    checks.extend(modes.map(|(name, what, mode, fix)| {
        Check::with_root(name, || {
            memory.get(name).unwrap_or_else(|| {
                let check = programs(name, what, try_all(mode), fix);
                memory.add(&check);
                check
            })
        })
    }));
    memory.write();
    let trials: [(_, fn(_) -> _); 2] = [("tcx", tcx), ("netfilter", netfilter)];
    checks.extend(trials.map(|(name, look)| Check::with_root(name, || look(name))));
    checks.push(lsm(has_bpf_lsm()));
    let trials: [(_, fn(_) -> _); 2] = [("unix-sockets", unix_sockets), ("lock", lock)];
    checks.extend(trials.map(|(name, look)| Check::with_root(name, || look(name))));
    checks
}

fn tcx(name: &'static str) -> Check {
    match Programs::has_tcx() {
        true => Check::ok(name, "the kernel has tcx"),
        false => Check::warn(
            name,
            "the kernel has no tcx: if another program has a filter of priority 1 on a link, \
             selected applications cannot use the link",
            "use Linux 6.6 or newer, or remove such filters (`tc filter show`)",
        ),
    }
}

fn netfilter(name: &'static str) -> Check {
    match try_forwarding() {
        Err(error) => untried(name, &error),
        Ok(true) => Check::ok(
            name,
            "the kernel has eBPF programs in netfilter, which block forwarded packets",
        ),
        Ok(false) => Check::warn(
            name,
            "the kernel has no eBPF programs in netfilter: with Forwarded = tunnel, forwarded \
             packets can leave by a link that appears while Taupe does not run",
            "use Linux 6.4 or newer with CONFIG_NETFILTER_BPF_LINK",
        ),
    }
}

/// Describes a trial whose program the kernel refused for another reason than its type.
fn untried(name: &'static str, error: &io::Error) -> Check {
    Check {
        text: format!("cannot load an eBPF program to find out: {error}"),
        fix: Some(FORBIDDEN.to_owned()),
        ..Check::unknown(name)
    }
}

fn release() -> Check {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy();
    let machine = name.machine().to_string_lossy();
    Check::ok("kernel", format!("Linux {release}, {machine}"))
}

fn cgroup2() -> Check {
    const NAME: &str = "cgroup2";
    let kinds = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let has = kinds.lines().any(|line| line.ends_with("\tcgroup2"));
    match has {
        true => Check::ok(NAME, "the kernel has cgroup2"),
        false => Check::fail(
            NAME,
            "the kernel has no cgroup2: applications cannot be selected",
            "use a kernel with CONFIG_CGROUPS and CONFIG_CGROUP_BPF",
        ),
    }
}

/// Describes the trial of a mode's programs.
fn programs(
    name: &'static str,
    what: &str,
    trials: Result<Vec<Trial>, TransparentError>,
    fix: &str,
) -> Check {
    let unavailable = |error: &TransparentError| {
        let fix = match error.required_features() {
            Some(_) => fix.to_owned(),
            None => advice::remedy(error).unwrap_or_else(|| fix.to_owned()),
        };
        Check::fail(name, format!("{what} is not available: {error}"), fix)
    };
    let trials = match trials {
        Ok(trials) => trials,
        Err(error) => return unavailable(&error),
    };
    let mut refusals: Vec<_> = trials
        .iter()
        .filter(|trial| trial.is_optional)
        .filter_map(|trial| trial.refused.as_ref())
        .collect();
    // Errors that do not come from a missing kernel feature name the reason, such as a security
    // policy.
    refusals.retain(|fault| fault.required_features().is_none());
    let refused = |is_optional| {
        let refused = trials.iter().filter_map(move |trial| {
            (trial.is_optional == is_optional).then_some(())?;
            trial.refused.as_ref().map(|fault| (trial.program, fault))
        });
        refused.collect::<Vec<_>>()
    };
    if let Some((_, error)) = refused(false).first() {
        return unavailable(error);
    }
    match refused(true).as_slice() {
        [] => Check::ok(
            name,
            format!("{what}: the kernel accepts all {} programs", trials.len()),
        ),
        some => {
            let names: Vec<_> = some.iter().map(|(program, _)| *program).collect();
            let (reason, fix) = match refusals.first() {
                Some(fault) => (format!(" ({fault})"), FORBIDDEN),
                None => (
                    String::new(),
                    "use a kernel with CONFIG_FUNCTION_TRACER and CONFIG_BPF_LSM; on 64-bit ARM, \
                     Linux 6.4 or newer",
                ),
            };
            Check::warn(
                name,
                format!(
                    "{what}: the kernel accepts all programs except {}{reason}: Taupe sees \
                     handed-over sockets late, and does not refuse some socket families",
                    names.join(", ")
                ),
                fix,
            )
        }
    }
}

/// Checks whether the kernel runs with BPF LSM. `None` if the kernel does not say.
fn has_bpf_lsm() -> Option<bool> {
    let listed = || {
        fs::read_to_string(LSM)
            .ok()
            .map(|modules| names_bpf(&modules))
    };
    taupe_os_linux::security::has_bpf_lsm().ok().or_else(listed)
}

fn names_bpf(modules: &str) -> bool {
    modules.trim().split(',').any(|module| module == "bpf")
}

fn lsm(has_bpf: Option<bool>) -> Check {
    const NAME: &str = "bpf-lsm";
    let Some(has_bpf) = has_bpf else {
        return Check {
            text: format!("cannot read {LSM}, the list of security modules"),
            fix: Some("mount -t securityfs securityfs /sys/kernel/security".to_owned()),
            ..Check::unknown(NAME)
        };
    };
    match has_bpf {
        true => Check::ok(NAME, "the kernel runs with BPF LSM"),
        false => Check::warn(
            NAME,
            "the kernel runs without BPF LSM: packets that selected applications send below IP \
             (AF_PACKET) or by SMC, RDS, RXRPC or TIPC bypass the tunnel",
            "if selected applications use these, add bpf to lsm= on the kernel's command line",
        ),
    }
}

fn unix_sockets(name: &'static str) -> Check {
    match try_services() {
        Err(error) => untried(name, &error),
        Ok(true) => Check::ok(
            name,
            "the kernel can keep selected applications from the sockets of name services",
        ),
        Ok(false) => Check::warn(
            name,
            "the kernel cannot keep selected applications from the sockets of name services \
             (nss-resolve, nscd)",
            "use Linux 6.7 or newer, or remove resolve from hosts: in /etc/nsswitch.conf",
        ),
    }
}

/// Checks that programs and maps can be pinned. Only pinned ones stay in effect without a process.
fn lock(name: &'static str) -> Check {
    match try_pinning() {
        Ok(()) => Check::ok(
            name,
            "programs and maps can be pinned, so the kill switch outlives a tunnel's process",
        ),
        Err(fault) => Check::fail(
            name,
            fault.to_string(),
            "run Taupe where the file systems of process 1 are accessible; no kill switch is possible \
             here",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Outcome;
    use super::*;

    #[test]
    fn bpf_is_found_only_as_a_whole_word() {
        for (modules, result) in [
            ("lockdown,capability,bpf\n", Outcome::Ok),
            ("bpf", Outcome::Ok),
            ("lockdown,bpfilter", Outcome::Warn),
            ("", Outcome::Warn),
        ] {
            assert_eq!(lsm(Some(names_bpf(modules))).result, result, "{modules}");
        }
        assert_eq!(lsm(None).result, Outcome::Unknown);
    }

    #[test]
    fn a_program_that_the_kernel_refuses_is_reported() {
        let trial = |is_optional, refused| Trial {
            program: "taupe_x",
            needs: "y",
            is_optional,
            refused,
        };
        let fault = || TransparentError::Missing("taupe_x");
        let denied = || TransparentError::Forbidden {
            what: "loading the program taupe_x".to_owned(),
            source: rustix::io::Errno::PERM.into(),
        };
        let check = programs("n", "it", Ok(vec![trial(true, Some(denied()))]), "fix");
        let said = format!("{} {:?}", check.text, check.fix);
        assert!(said.contains("Operation not permitted"), "{said}");
        assert!(!said.contains("CONFIG_"), "{said}");
        let found = |trials| programs("n", "it", trials, "fix").result;
        assert_eq!(found(Ok(vec![trial(false, None)])), Outcome::Ok);
        assert_eq!(found(Ok(vec![trial(true, Some(fault()))])), Outcome::Warn);
        let both = vec![trial(true, None), trial(false, Some(fault()))];
        assert_eq!(found(Ok(both)), Outcome::Fail);
        assert_eq!(found(Err(fault())), Outcome::Fail);
    }

    #[test]
    fn only_a_missing_feature_is_mended_by_a_newer_kernel() {
        let source = || rustix::io::Errno::NOENT.into();
        let no_types = TransparentError::TypeInformation {
            release: "6.1.0".to_owned(),
            path: BTF.into(),
            source: source(),
        };
        let forbidden = TransparentError::Forbidden {
            what: "loading Taupe's eBPF object".to_owned(),
            source: rustix::io::Errno::PERM.into(),
        };
        let trial = |refused| Trial {
            program: "taupe_x",
            needs: "y",
            is_optional: false,
            refused: Some(refused),
        };
        for (result, word) in [
            (Err(no_types), "CONFIG_DEBUG_INFO_BTF"),
            (Ok(vec![trial(forbidden)]), "outside containers"),
        ] {
            let fix = programs("n", "it", result, "use Linux 9").fix;
            let fix = fix.expect("a fix");
            assert!(fix.contains(word) && !fix.contains("Linux 9"), "{fix}");
        }
        let check = untried("n", &source());
        assert_eq!(check.result, Outcome::Unknown);
        assert!(check.fix.is_some(), "{}", check.text);
    }
}
