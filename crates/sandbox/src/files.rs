//! The sandbox's view of the file system: name servers, and no set-user-ID programs.

use std::ffi::CString;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};
use taupe_os_linux::mounts::forbid_gaining_rights;

use crate::Plan;
use crate::hidden::{Covered, hide};
use crate::refusal::{Failed, failed};

const RESOLVER: &str = "/etc/resolv.conf";
const SWITCH: &str = "/etc/nsswitch.conf";

/// Turns the calling process's new mount namespace into that of a sandbox.
pub(crate) fn set_up(plan: &Plan, remarks: &mut Vec<String>) -> Result<Covered, Failed> {
    // Mounts propagate from the machine into the sandbox, and not back.
    let below = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", below).map_err(|error| failed("change how mounts spread", error.into()))?;
    let resolver = fs::canonicalize(RESOLVER);
    let present = fs::read(RESOLVER).unwrap_or_default();
    let text = match plan.name_servers.is_empty() {
        true => present,
        false => resolv_conf(plan).into_bytes(),
    };
    if let Some(remark) = reachable(plan, &text) {
        remarks.push(remark);
    }
    let switch = fs::read_to_string(SWITCH).ok().map(|text| nsswitch(&text));
    let covered = hide(plan, remarks)?;
    let files = [
        (RESOLVER, Some(text)),
        (SWITCH, switch.map(String::into_bytes)),
    ];
    let layer = plan.folder.join("etc");
    let written = fs::create_dir(&layer).and_then(|()| {
        let files = files
            .iter()
            .filter_map(|(path, text)| Some((path, text.as_ref()?)));
        let mut files = files.map(|(path, text)| fs::write(beneath(&layer, path), text));
        files.try_for_each(|written| written)
    });
    written.map_err(|error| failed("write resolv.conf and nsswitch.conf of the cell", error))?;
    if let Err(refused) = cover_etc(&layer) {
        let is_fixed = is_mounted(RESOLVER);
        let is_there = match resolver {
            Ok(path) if path.exists() => {
                bind(&beneath(&layer, RESOLVER), &path)?;
                true
            }
            // The file is below a folder that the sandbox has copied without it: write it there.
            Ok(path) if covered.own.iter().any(|folder| path.starts_with(folder)) => {
                let made = path.parent().map_or(Ok(()), fs::create_dir_all);
                let made = made.and_then(|()| fs::copy(beneath(&layer, RESOLVER), &path).map(drop));
                made.map_err(|error| failed(format!("write {}", path.display()), error))?;
                true
            }
            Ok(_) | Err(_) => false,
        };
        if !is_there {
            let what = "give the cell a resolv.conf, as there is none in /etc (`sudo touch \
                        /etc/resolv.conf` helps)";
            return Err(failed(what, refused));
        }
        let switch = beneath(&layer, SWITCH);
        if switch.exists() {
            bind(&switch, Path::new(SWITCH))?;
        }
        if !is_fixed {
            remarks.push(format!(
                "who replaces {RESOLVER} outside replaces the command's too, whose questions then go \
                 through the tunnel to the servers of that: /etc cannot be covered ({refused})"
            ));
        }
    }
    match forbid_gaining_rights() {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => remarks.push(
            "programs with capabilities of their files, as `ping` may be, cannot be started: that \
             takes Linux 5.12"
                .to_owned(),
        ),
        done => done.map_err(|error| failed("mount everything nosuid", error))?,
    }
    Ok(covered)
}

fn bind(from: &Path, over: &Path) -> Result<(), Failed> {
    let what = || format!("put the cell's own file in the place of {}", over.display());
    mount_bind(from, over).map_err(|error| failed(what(), error.into()))
}

/// Returns the path of a file of `/etc` in the folder that covers it.
fn beneath(layer: &Path, path: &str) -> PathBuf {
    let name = Path::new(path).file_name().unwrap_or_default();
    layer.join(name)
}

/// Covers `/etc` by a read-only overlay with the files of `layer` above those of the machine
/// (Linux 5.11).
///
/// A bind mount on a file itself would not last: when a program outside replaces the file, as DHCP
/// clients do with `resolv.conf`, the kernel detaches mounts on it in other namespaces
/// (`mount_namespaces(7)`). The kernel refuses the overlay if something is mounted below `/etc`, as
/// in containers, because the overlay would lack it.
fn cover_etc(layer: &Path) -> io::Result<()> {
    let options = CString::new(format!("lowerdir={}:/etc", layer.display()))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    Ok(mount("overlay", "/etc", "overlay", flags, &*options)?)
}

/// Returns true if something is mounted on the file itself. Then no program can replace it.
fn is_mounted(path: &str) -> bool {
    let looked = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::empty());
    looked.is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// Returns a `resolv.conf(5)` with the tunnel's name servers.
fn resolv_conf(plan: &Plan) -> String {
    let mut text = format!("# The name servers of {}.\n", plan.interface);
    for server in &plan.name_servers {
        text.push_str(&format!("nameserver {server}\n"));
    }
    if !plan.search.is_empty() {
        text.push_str(&format!("search {}\n", plan.search.join(" ")));
    }
    text
}

/// Returns an `nsswitch.conf(5)` that resolves hosts from files and name servers only, and through
/// no service of this machine.
fn nsswitch(text: &str) -> String {
    const HOSTS: &str = "hosts: files dns\n";
    let is_hosts = |line: &&str| line.trim_start().starts_with("hosts:");
    let others = text.lines().filter(|line| !is_hosts(line));
    let mut text: String = others.map(|line| format!("{line}\n")).collect();
    text.push_str(HOSTS);
    text
}

/// Returns a remark about name servers: if the plan has none, or if none is reached through the
/// tunnel.
fn reachable(plan: &Plan, text: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(text);
    let servers: Vec<IpAddr> = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("nameserver"))
        .filter_map(|server| server.trim().split('%').next()?.parse().ok())
        .collect();
    let is_routed = |server: &IpAddr| plan.routes.iter().any(|route| route.contains(server));
    let is_reached = |server: &&IpAddr| !server.is_loopback() && is_routed(server);
    let list = |servers: &[IpAddr]| {
        let servers: Vec<_> = servers.iter().map(ToString::to_string).collect();
        servers.join(", ")
    };
    match (
        plan.name_servers.is_empty(),
        servers.iter().any(|server| is_reached(&server)),
    ) {
        (false, true) => None,
        (false, false) => Some(format!(
            "names cannot be resolved: AllowedIPs does not contain the servers of DNS ({}); add them",
            list(&plan.name_servers)
        )),
        (true, true) => Some(format!(
            "the file has no DNS: {} of {RESOLVER} will be asked for names, through the tunnel",
            list(&servers)
        )),
        (true, false) => Some(format!(
            "names cannot be resolved: the file has no DNS, and what {RESOLVER} names ({}) is not \
             reached through the tunnel; add a line DNS",
            list(&servers)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::{nsswitch, reachable, resolv_conf};
    use crate::Plan;
    use std::path::PathBuf;

    fn plan(servers: &[&str], routes: &[&str]) -> Plan {
        Plan {
            interface: "home".to_owned(),
            addresses: Vec::new(),
            routes: routes
                .iter()
                .map(|route| route.parse().expect(route))
                .collect(),
            mtu: 1420,
            name_servers: servers.iter().map(|one| one.parse().expect(one)).collect(),
            search: vec!["example.org".to_owned(), "lan".to_owned()],
            hide_session: false,
            folder: PathBuf::new(),
        }
    }

    #[test]
    fn name_servers_and_domains_are_those_of_the_file() {
        let text = resolv_conf(&plan(&["10.0.0.1", "fd00::1"], &[]));
        let lines = "nameserver 10.0.0.1\nnameserver fd00::1\nsearch example.org lan\n";
        assert_eq!(text, format!("# The name servers of home.\n{lines}"));
    }

    #[test]
    fn hosts_are_asked_of_no_service_whatever_else_the_file_says() {
        let text = "passwd: files systemd\n hosts:\tmymachines resolve [!UNAVAIL=return] files\n\
                    # hosts: x\nnetworks: files";
        let expected = "passwd: files systemd\n# hosts: x\nnetworks: files\nhosts: files dns\n";
        assert_eq!(nsswitch(text), expected);
        assert_eq!(nsswitch(""), "hosts: files dns\n");
    }

    #[test]
    fn who_cannot_be_asked_is_told_of() {
        let all = &["0.0.0.0/0", "::/0"][..];
        let say = |servers: &[&str], routes: &[&str], text: &str| {
            reachable(&plan(servers, routes), text.as_bytes()).unwrap_or_default()
        };
        let text = "nameserver 10.0.0.1\n";
        assert_eq!(say(&["10.0.0.1"], all, text), "");
        assert!(say(&["10.0.0.1"], &["192.0.2.0/24"], text).contains("AllowedIPs"));
        assert!(say(&[], all, text).contains("10.0.0.1 of /etc/resolv.conf will be asked"));
        let own = "nameserver 127.0.0.53\noptions edns0\n";
        assert!(say(&[], all, own).contains("add a line DNS"));
        assert!(say(&[], all, "").contains("add a line DNS"));
    }
}
