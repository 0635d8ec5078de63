//! Settings of the system.

use super::{Check, Outcome};
use crate::dns;
use crate::is_root;
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, capabilities};
use std::fs;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::path::Path;
use std::time::SystemTime;
use taupe_transparent::programs::try_services;

const TUN: &str = "/dev/net/tun";

pub(super) fn checks() -> Vec<Check> {
    let mut checks = vec![tun(), clock(), buffers()];
    let nsswitch = read("/etc/nsswitch.conf").unwrap_or_default();
    // Without a list of addresses, no resolver counts as local.
    let own = crate::explain::addresses().unwrap_or_default();
    checks.push(resolver(&dns::system_servers(), &own));
    checks.push(Check::with_root(SERVICES, || {
        let is_refused = try_services().unwrap_or(false);
        name_services(&nsswitch, &running_services(), is_refused)
    }));
    checks.push(reverse_path());
    checks.push(terminals(number("/proc/sys/dev/tty/legacy_tiocsti")));
    checks.push(mptcp(read("/proc/sys/net/mptcp/enabled").as_deref()));
    checks.push(user_namespaces(&Namespaces {
        most: number("/proc/sys/user/max_user_namespaces"),
        clone: number("/proc/sys/kernel/unprivileged_userns_clone"),
        apparmor: number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
    }));
    checks
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok()
}

fn number(path: &str) -> Option<u64> {
    read(path)?.trim().parse().ok()
}

fn tun() -> Check {
    let opened = fs::OpenOptions::new().read(true).write(true).open(TUN);
    let rights = capabilities(None).map(|own| own.effective);
    let may_create = rights.is_ok_and(|own| own.contains(CapabilitySet::NET_ADMIN));
    tun_check(opened.map(drop), is_root(), may_create)
}

fn tun_check(opened: io::Result<()>, is_root: bool, may_create: bool) -> Check {
    const NAME: &str = "tun";
    match opened {
        Ok(()) if is_root && !may_create => Check::fail(
            NAME,
            format!("{TUN} can be opened, but this root lacks CAP_NET_ADMIN to create interfaces"),
            "start the container with `--cap-add NET_ADMIN`",
        ),
        Ok(()) => Check::ok(NAME, format!("{TUN} can be opened")),
        // Root does not need access to the device file.
        Err(error) if error.kind() == ErrorKind::PermissionDenied && !is_root => Check::warn(
            NAME,
            format!("this user cannot open {TUN}, which `taupe exec` without root needs"),
            format!("chmod 0666 {TUN}; this alone lets nobody create an interface"),
        ),
        Err(error) => Check::fail(
            NAME,
            format!("{TUN} cannot be opened: {error}"),
            match Errno::from_io_error(&error) {
                Some(Errno::NOENT) => {
                    "modprobe tun, or start the container with `--device /dev/net/tun`"
                }
                Some(Errno::NODEV | Errno::NXIO) => "modprobe tun, or use a kernel with CONFIG_TUN",
                _ => "allow the container the device 10:200 (`--device /dev/net/tun`)",
            },
        ),
    }
}

/// Checks the clock against the time at which Taupe was installed. Handshakes fail if the clock is
/// behind, because a peer rejects a handshake whose timestamp is older than the last one.
fn clock() -> Check {
    const NAME: &str = "clock";
    let written = std::env::current_exe()
        .and_then(fs::metadata)
        .and_then(|data| data.modified());
    match written {
        Ok(written) if SystemTime::now() < written => Check::warn(
            NAME,
            "the clock is earlier than the time at which Taupe was installed",
            "set the clock (`timedatectl set-ntp true`)",
        ),
        _ => Check::ok(
            NAME,
            "the clock is later than the time at which Taupe was installed",
        ),
    }
}

/// Root can exceed the system's limit on buffers.
fn buffers() -> Check {
    let most = number("/proc/sys/net/core/rmem_max").unwrap_or_default();
    Check::ok(
        "udp-buffers",
        format!("net.core.rmem_max is {most}; as root, Taupe can exceed it"),
    )
}

/// Names the resolver of the system. `own` are the addresses of this machine.
fn resolver(servers: &[IpAddr], own: &[IpAddr]) -> Check {
    const NAME: &str = "resolver";
    let is_here = |server: &&IpAddr| server.is_loopback() || own.contains(server);
    let text = match servers.iter().find(is_here) {
        Some(server) => format!(
            "this machine's resolver at {server} looks up names; for selected applications, the \
             tunnel's DNS = answers instead; without DNS =, their queries bypass the tunnel"
        ),
        None => format!(
            "the name servers in {} are not on this machine: queries of selected applications go \
             through the tunnel",
            dns::RESOLV_CONF
        ),
    };
    Check::ok(NAME, text)
}

/// Returns the running services that look up names for others, found by their sockets.
fn running_services() -> Vec<&'static str> {
    const SOCKETS: [(&str, &str); 4] = [
        (
            "/run/systemd/resolve/io.systemd.Resolve",
            "systemd-resolved",
        ),
        ("/run/nscd/socket", "nscd"),
        ("/var/run/nscd/socket", "nscd"),
        ("/run/avahi-daemon/socket", "avahi-daemon"),
    ];
    let mut there: Vec<_> = SOCKETS
        .into_iter()
        .filter_map(|(path, name)| Path::new(path).exists().then_some(name))
        .collect();
    there.dedup();
    there
}

const SERVICES: &str = "name-services";

fn name_services(nsswitch: &str, running: &[&'static str], is_refused: bool) -> Check {
    const NAME: &str = SERVICES;
    let mut hosts = nsswitch
        .lines()
        .filter_map(|line| line.strip_prefix("hosts:"));
    let hosts: Vec<_> = hosts
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    let asks = |service: &&&str| match **service {
        "systemd-resolved" => hosts.contains(&"resolve"),
        "avahi-daemon" => hosts.iter().any(|word| word.starts_with("mdns")),
        // nscd answers before the sources in `nsswitch.conf` do.
        _ => true,
    };
    let asked: Vec<&str> = running.iter().filter(asks).copied().collect();
    match asked.as_slice() {
        [] => Check::ok(
            NAME,
            "no service of this machine looks up names for the C library",
        ),
        some if is_refused => Check::ok(
            NAME,
            format!(
                "the C library may ask {}; a tunnel with DNS = refuses that to its selected \
                 applications",
                some.join(" and ")
            ),
        ),
        some => Check::warn(
            NAME,
            format!(
                "the C library may ask {}, whose queries bypass the tunnel, also for selected \
                 applications",
                some.join(" and ")
            ),
            "write `hosts: files dns` into /etc/nsswitch.conf, and stop nscd",
        ),
    }
}

/// Shows the reverse path filter. A strict filter drops replies that arrive by another link;
/// replies for Taupe's tunnels are not affected.
fn reverse_path() -> Check {
    let all = number("/proc/sys/net/ipv4/conf/all/rp_filter").unwrap_or_default();
    let how = match all {
        0 => "off",
        1 => "strict",
        _ => "loose",
    };
    Check::ok(
        "rp-filter",
        format!("net.ipv4.conf.all.rp_filter is {all} ({how}); Taupe works with this value"),
    )
}

/// Checks whether programs can inject input into their terminal (`TIOCSTI`). `legacy` is the
/// kernel's setting, which exists since Linux 6.2.
fn terminals(legacy: Option<u64>) -> Check {
    const NAME: &str = "terminals";
    match legacy {
        Some(0) => Check::ok(NAME, "programs cannot insert input into their terminal"),
        legacy => Check::warn(
            NAME,
            "programs can insert input into their terminal (TIOCSTI): a hostile command of `taupe \
             exec` can have its shell run commands outside the tunnel",
            match legacy {
                Some(_) => "sysctl -w dev.tty.legacy_tiocsti=0",
                None => "use Linux 6.2 or newer, or give such commands a terminal of their own",
            },
        ),
    }
}

fn mptcp(enabled: Option<&str>) -> Check {
    const NAME: &str = "mptcp";
    match enabled.map(str::trim) {
        Some("1") => Check::ok(
            NAME,
            "MPTCP is enabled: it is refused to selected applications, which then use TCP",
        ),
        _ => Check::ok(NAME, "MPTCP is not enabled"),
    }
}

/// Settings that decide whether users may create user namespaces.
struct Namespaces {
    most: Option<u64>,
    /// `kernel.unprivileged_userns_clone`, in the kernels of Debian and Arch.
    clone: Option<u64>,
    /// `kernel.apparmor_restrict_unprivileged_userns`, in the kernels of Ubuntu.
    apparmor: Option<u64>,
}

fn user_namespaces(found: &Namespaces) -> Check {
    const NAME: &str = "user-namespaces";
    let without = |what: &str, fix: &str| {
        Check::warn(
            NAME,
            format!("users may not create user namespaces ({what}): `taupe exec` takes root here"),
            fix,
        )
    };
    match found {
        Namespaces { most: Some(0), .. } => without(
            "user.max_user_namespaces is 0",
            "sysctl -w user.max_user_namespaces=15000",
        ),
        Namespaces { clone: Some(0), .. } => without(
            "kernel.unprivileged_userns_clone is 0",
            "sysctl -w kernel.unprivileged_userns_clone=1",
        ),
        Namespaces {
            apparmor: Some(1..),
            ..
        } => without(
            "kernel.apparmor_restrict_unprivileged_userns is 1",
            "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        Namespaces { most: None, .. } => {
            without("the kernel has none", "use a kernel with CONFIG_USER_NS")
        }
        _ => Check {
            result: Outcome::Ok,
            ..Check::ok(NAME, "users may create user namespaces")
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resolver_of_this_machine_is_named() {
        let parse = |text: &str| text.parse().unwrap();
        for (servers, words) in [
            (vec![parse("192.0.2.53")], "through the tunnel"),
            (
                vec![parse("192.0.2.53"), parse("127.0.0.53")],
                "at 127.0.0.53",
            ),
            (vec![parse("::1")], "at ::1"),
            (vec![parse("10.9.9.9")], "at 10.9.9.9"),
        ] {
            let text = resolver(&servers, &[parse("10.9.9.9")]).text;
            assert!(text.contains(words), "{servers:?}: {text}");
        }
    }

    #[test]
    fn terminals_that_accept_inserted_input_are_warned_of() {
        assert_eq!(terminals(Some(0)).result, Outcome::Ok);
        for legacy in [Some(1), None] {
            let found = terminals(legacy);
            assert_eq!(found.result, Outcome::Warn);
            assert!(found.fix.is_some());
        }
    }

    #[test]
    fn services_that_the_c_library_asks_are_warned_of() {
        let resolve = "passwd: files\nhosts: files resolve [!UNAVAIL=return] dns\n";
        let plain = "hosts: files dns\n";
        for (nsswitch, running, result) in [
            (resolve, &["systemd-resolved"][..], Outcome::Warn),
            (plain, &["systemd-resolved", "avahi-daemon"], Outcome::Ok),
            (
                "hosts: files mdns4_minimal dns",
                &["avahi-daemon"],
                Outcome::Warn,
            ),
            (resolve, &[], Outcome::Ok),
            (plain, &["nscd"], Outcome::Warn),
        ] {
            let found = name_services(nsswitch, running, false);
            assert_eq!(found.result, result, "{nsswitch} {running:?}");
            let refused = name_services(nsswitch, running, true);
            assert_eq!(refused.result, Outcome::Ok, "{nsswitch} {running:?}");
        }
    }

    #[test]
    fn the_obstacle_to_a_tun_is_named() {
        let refused = |errno: Errno| Err(errno.into());
        for (opened, is_root, may_create, result, words) in [
            (Ok(()), true, true, Outcome::Ok, "can be opened"),
            (Ok(()), false, false, Outcome::Ok, "can be opened"),
            (Ok(()), true, false, Outcome::Fail, "--cap-add NET_ADMIN"),
            (refused(Errno::NOENT), true, true, Outcome::Fail, "--device"),
            (
                refused(Errno::NODEV),
                true,
                true,
                Outcome::Fail,
                "CONFIG_TUN",
            ),
            (refused(Errno::PERM), true, true, Outcome::Fail, "10:200"),
            (refused(Errno::ACCESS), false, false, Outcome::Warn, "chmod"),
        ] {
            let check = tun_check(opened, is_root, may_create);
            let said = format!("{} {:?}", check.text, check.fix);
            assert_eq!(check.result, result, "{said}");
            assert!(said.contains(words), "{said}");
        }
    }

    #[test]
    fn the_setting_that_forbids_user_namespaces_is_named() {
        let free = Namespaces {
            most: Some(1000),
            clone: Some(1),
            apparmor: Some(0),
        };
        assert_eq!(user_namespaces(&free).result, Outcome::Ok);
        let only_most = Namespaces {
            clone: None,
            apparmor: None,
            ..free
        };
        assert_eq!(user_namespaces(&only_most).result, Outcome::Ok);
        for (found, word) in [
            (
                Namespaces {
                    most: Some(0),
                    ..only_most
                },
                "max_user",
            ),
            (
                Namespaces {
                    clone: Some(0),
                    ..only_most
                },
                "userns_clone",
            ),
            (
                Namespaces {
                    apparmor: Some(1),
                    ..only_most
                },
                "apparmor",
            ),
            (
                Namespaces {
                    most: None,
                    ..only_most
                },
                "CONFIG_USER_NS",
            ),
        ] {
            let check = user_namespaces(&found);
            let said = format!("{} {:?}", check.text, check.fix);
            assert_eq!(check.result, Outcome::Warn);
            assert!(said.contains(word), "{said}");
        }
    }
}
