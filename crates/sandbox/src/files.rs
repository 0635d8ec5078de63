//! The sandbox's view of the file system: name servers, and no set-user-ID programs.

use std::ffi::CString;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};
use taupe_os_linux::mounts::set_nosuid_everywhere;

use crate::config::SandboxConfig;
use crate::hidden::{CoveredPaths, hide};
use crate::obstacle::Obstacle;
use crate::setup_error::{FailedStep, failed};

const RESOLV_CONF: &str = "/etc/resolv.conf";
const NSSWITCH_CONF: &str = "/etc/nsswitch.conf";

/// Turns the calling process's new mount namespace into that of a sandbox.
pub(crate) fn set_up(
    config: &SandboxConfig,
    remarks: &mut Vec<String>,
) -> Result<CoveredPaths, FailedStep> {
    // Mounts propagate from the machine into the sandbox, and not back.
    let below = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", below)
        .map_err(|error| failed("change the propagation of mounts", error.into()))?;
    let resolver = fs::canonicalize(RESOLV_CONF);
    let present = fs::read(RESOLV_CONF).unwrap_or_default();
    let text = match config.name_servers.is_empty() {
        true => present,
        false => resolv_conf(config).into_bytes(),
    };
    if let Some(remark) = name_server_remark(config, &text) {
        remarks.push(remark);
    }
    let switch = fs::read_to_string(NSSWITCH_CONF)
        .ok()
        .map(|text| nsswitch_conf(&text));
    let covered = hide(config, remarks)?;
    let files = [
        (RESOLV_CONF, Some(text)),
        (NSSWITCH_CONF, switch.map(String::into_bytes)),
    ];
    let layer = config.folder.join("etc");
    let written = fs::create_dir(&layer).and_then(|()| {
        let files = files
            .iter()
            .filter_map(|(path, text)| Some((path, text.as_ref()?)));
        let mut files = files.map(|(path, text)| fs::write(layer_path(&layer, path), text));
        files.try_for_each(|written| written)
    });
    written.map_err(|error| failed("write resolv.conf and nsswitch.conf of the sandbox", error))?;
    if let Err(refused) = cover_etc(&layer) {
        let is_mount_point = is_mounted(RESOLV_CONF);
        let is_there = match resolver {
            Ok(path) if path.exists() => {
                bind(&layer_path(&layer, RESOLV_CONF), &path)?;
                true
            }
            // The file is below a folder that the sandbox has copied without it: write it there.
            Ok(path) if covered.own.iter().any(|folder| path.starts_with(folder)) => {
                let made = path.parent().map_or(Ok(()), fs::create_dir_all);
                let made =
                    made.and_then(|()| fs::copy(layer_path(&layer, RESOLV_CONF), &path).map(drop));
                made.map_err(|error| failed(format!("write {}", path.display()), error))?;
                true
            }
            Ok(_) | Err(_) => false,
        };
        if !is_there {
            let what = "give the sandbox a resolv.conf, as there is none in /etc";
            return Err(failed(what, refused).with_obstacle(Obstacle::NoResolvConf));
        }
        let switch = layer_path(&layer, NSSWITCH_CONF);
        if switch.exists() {
            bind(&switch, Path::new(NSSWITCH_CONF))?;
        }
        if !is_mount_point {
            remarks.push(format!(
                "if a program outside replaces {RESOLV_CONF}, the command gets the new file, and its \
                 queries go through the tunnel to those servers: /etc cannot be covered ({refused})"
            ));
        }
    }
    match set_nosuid_everywhere() {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => remarks.push(
            "programs with file capabilities, as `ping` may have, cannot be started: that needs \
             Linux 5.12"
                .to_owned(),
        ),
        done => done.map_err(|error| failed("mount everything nosuid", error))?,
    }
    Ok(covered)
}

fn bind(from: &Path, over: &Path) -> Result<(), FailedStep> {
    let what = || {
        format!(
            "put the sandbox's own file in the place of {}",
            over.display()
        )
    };
    mount_bind(from, over).map_err(|error| failed(what(), error.into()))
}

/// Returns the path of a file of `/etc` in the folder that covers it.
fn layer_path(layer: &Path, path: &str) -> PathBuf {
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
fn resolv_conf(config: &SandboxConfig) -> String {
    let mut text = format!("# The name servers of {}.\n", config.interface);
    for server in &config.name_servers {
        text.push_str(&format!("nameserver {server}\n"));
    }
    if !config.search.is_empty() {
        text.push_str(&format!("search {}\n", config.search.join(" ")));
    }
    text
}

/// Returns an `nsswitch.conf(5)` that resolves hosts from files and name servers only, and through
/// no service of this machine.
fn nsswitch_conf(text: &str) -> String {
    const HOSTS: &str = "hosts: files dns\n";
    let is_hosts = |line: &&str| line.trim_start().starts_with("hosts:");
    let others = text.lines().filter(|line| !is_hosts(line));
    let mut text: String = others.map(|line| format!("{line}\n")).collect();
    text.push_str(HOSTS);
    text
}

/// Returns a remark about name servers: if the plan has none, or if none is reached through the
/// tunnel.
fn name_server_remark(config: &SandboxConfig, text: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(text);
    let servers: Vec<IpAddr> = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("nameserver"))
        .filter_map(|server| server.trim().split('%').next()?.parse().ok())
        .collect();
    let is_routed = |server: &IpAddr| config.routes.iter().any(|route| route.contains(server));
    let is_reached = |server: &&IpAddr| !server.is_loopback() && is_routed(server);
    let list = |servers: &[IpAddr]| {
        let servers: Vec<_> = servers.iter().map(ToString::to_string).collect();
        servers.join(", ")
    };
    match (
        config.name_servers.is_empty(),
        servers.iter().any(|server| is_reached(&server)),
    ) {
        (false, true) => None,
        (false, false) => Some(format!(
            "names cannot be resolved: AllowedIPs does not contain the servers of DNS ({}); add them",
            list(&config.name_servers)
        )),
        (true, true) => Some(format!(
            "the file has no DNS: {} of {RESOLV_CONF} will be asked for names, through the tunnel",
            list(&servers)
        )),
        (true, false) => Some(format!(
            "names cannot be resolved: the file has no DNS, and the servers of {RESOLV_CONF} ({}) are \
             not reached through the tunnel; add a line DNS",
            list(&servers)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::{name_server_remark, nsswitch_conf, resolv_conf};
    use crate::config::SandboxConfig;
    use std::path::PathBuf;

    fn config(servers: &[&str], routes: &[&str]) -> SandboxConfig {
        SandboxConfig {
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
        let text = resolv_conf(&config(&["10.0.0.1", "fd00::1"], &[]));
        let lines = "nameserver 10.0.0.1\nnameserver fd00::1\nsearch example.org lan\n";
        assert_eq!(text, format!("# The name servers of home.\n{lines}"));
    }

    #[test]
    fn hosts_are_asked_of_no_service_whatever_else_the_file_says() {
        let text = "passwd: files systemd\n hosts:\tmymachines resolve [!UNAVAIL=return] files\n\
                    # hosts: x\nnetworks: files";
        let expected = "passwd: files systemd\n# hosts: x\nnetworks: files\nhosts: files dns\n";
        assert_eq!(nsswitch_conf(text), expected);
        assert_eq!(nsswitch_conf(""), "hosts: files dns\n");
    }

    #[test]
    fn who_cannot_be_asked_is_told_of() {
        let all = &["0.0.0.0/0", "::/0"][..];
        let remark = |servers: &[&str], routes: &[&str], text: &str| {
            name_server_remark(&config(servers, routes), text.as_bytes()).unwrap_or_default()
        };
        let text = "nameserver 10.0.0.1\n";
        assert_eq!(remark(&["10.0.0.1"], all, text), "");
        assert!(remark(&["10.0.0.1"], &["192.0.2.0/24"], text).contains("AllowedIPs"));
        assert!(remark(&[], all, text).contains("10.0.0.1 of /etc/resolv.conf will be asked"));
        let own = "nameserver 127.0.0.53\noptions edns0\n";
        assert!(remark(&[], all, own).contains("add a line DNS"));
        assert!(remark(&[], all, "").contains("add a line DNS"));
    }
}
