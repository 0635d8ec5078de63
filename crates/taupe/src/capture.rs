//! Selected applications: the settings that a file has for them, in transparent mode or by marks in
//! adapter mode, and what a running device keeps for them.

use crate::app_conflicts;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::io;
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use taupe_adapter::{Translation, TransparentSettings};
use taupe_broker::RemoteTranslator;
use taupe_config::application::UnknownUser;
use taupe_config::destinations;
use taupe_config::file::{File, Forwarded, KillSwitch, Peer, SystemBus, Table};
use taupe_inspect::rules::{follow_links, resolve};
use taupe_inspect::traffic::TrafficServer;
use taupe_nat::flows;
use taupe_nat::translate::Settings;
use taupe_os_linux::netlink::{Netlink, NetlinkError};
use taupe_transparent::capture::{Capture, CaptureSettings};
use taupe_transparent::error::TransparentError;
use taupe_transparent::marks::Marking;
use taupe_transparent::state::{DnsHandling, Lock, PacketProcesses};

/// Part of a file that is not supported for selected applications.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UnsupportedSetting {
    #[error(
        "there is no Address under [Interface]: for selected applications the tunnel needs one, as \
         other machines see it; write the one that the tunnel's provider gave you"
    )]
    NoAddress,
    #[error(
        "KillSwitch = all needs transparent mode: adapter mode can block only traffic of selected \
         applications; leave --adapter out if it was given, write KillSwitch = app, or use Linux 5.19 \
         or newer"
    )]
    LocksAll,
    #[error(
        "Forwarded = tunnel needs transparent mode; leave --adapter out if it was given, delete the \
         line, or use Linux 5.19 or newer"
    )]
    Forwarded,
    #[error(
        "line {line}: there is no user {name} on this system; write one that there is, or a number"
    )]
    NoUser { line: usize, name: String },
}

/// Reason why applications cannot be captured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CaptureError {
    #[error(transparent)]
    Conflict(#[from] app_conflicts::AppConflict),
    #[error(transparent)]
    System(#[from] NetlinkError),
    #[error("the device has no translator")]
    NoTranslator,
    #[error("the interface {0} is gone")]
    NoInterface(String),
    #[error("cannot switch IPv6 off on {interface}: {source}")]
    Ipv6 {
        interface: String,
        source: io::Error,
    },
    #[error("{}", taupe_inspect::advice::error(.0))]
    Fault(#[from] TransparentError),
}

/// Settings of a file for selected applications.
pub(crate) struct Selection {
    /// The part for the daemon.
    pub(crate) plan: CapturePlan,
    /// Name servers of the file. They are not used with a mark.
    pub(crate) servers: Vec<IpAddr>,
    /// Networks of the peers, to which the tunnel carries packets.
    pub(crate) routed: Vec<IpNet>,
    /// True if the file selects no applications, so that transparent mode applies to all of them.
    pub(crate) for_all: bool,
}

/// Plan of a capture, for the daemon.
#[derive(Serialize, Deserialize)]
pub(crate) struct CapturePlan {
    pub(crate) choice: CaptureSettings,
    means: Means,
    /// The file, for messages.
    file: PathBuf,
}

/// Method by which selected applications' packets enter the tunnel.
#[derive(Serialize, Deserialize)]
enum Means {
    /// Translation of addresses between the interface and the tunnel.
    Translation(Translation),
    /// Routes for packets with this mark.
    Mark(u32),
}

impl Selection {
    /// Moves the settings that are handled differently for selected applications out of the file at
    /// `path`. The remaining file describes an interface without addresses, routes and name
    /// servers, or with a mark an interface without name servers.
    pub(crate) fn take(
        file: &mut File,
        path: &Path,
        mark: Option<u32>,
    ) -> Result<Self, UnsupportedSetting> {
        let transparent = &file.transparent;
        let lock = match transparent.kill_switch.unwrap_or_default() {
            KillSwitch::App => Lock::Selected,
            KillSwitch::All => Lock::All,
            KillSwitch::Off => Lock::Off,
        };
        if mark.is_some() && lock == Lock::All {
            return Err(UnsupportedSetting::LocksAll);
        }
        let forwarded = transparent.forwarded.unwrap_or_default();
        if mark.is_some() && forwarded == Forwarded::Tunnel {
            return Err(UnsupportedSetting::Forwarded);
        }
        let mut rules = transparent.apps.clone();
        if let Err(UnknownUser { name, line }) = resolve(&mut rules) {
            return Err(UnsupportedSetting::NoUser { line, name });
        }
        let bypass_lan = transparent.bypass_lan.unwrap_or(false);
        let destinations = destinations::table_for_peers(&file.peers, bypass_lan);
        let system_bus = transparent.system_bus.unwrap_or_default();
        let servers = std::mem::take(&mut file.interface.dns);
        let first = |is_of_family: fn(&IpAddr) -> bool| {
            let mut addresses = file.interface.addresses.iter().map(IpNet::addr);
            addresses.find(is_of_family)
        };
        let addresses = [first(IpAddr::is_ipv4), first(IpAddr::is_ipv6)];
        let translation = Translation {
            addresses: addresses.into_iter().flatten().collect(),
            servers: servers.clone(),
        };
        if translation.addresses.is_empty() {
            return Err(UnsupportedSetting::NoAddress);
        }
        let dns = DnsHandling {
            v4: servers.iter().any(IpAddr::is_ipv4),
            v6: servers.iter().any(IpAddr::is_ipv6),
            bus: system_bus == SystemBus::Allow,
        };
        let for_all = file.transparent.first.is_none();
        let means = match mark {
            // With a mark, a reload can change addresses as in plain adapter mode.
            Some(mark) => Means::Mark(mark),
            None => {
                file.interface.addresses.clear();
                file.interface.table = Table::Off;
                Means::Translation(translation)
            }
        };
        file.interface.dns_search.clear();
        file.interface.save_config = false;
        Ok(Self {
            plan: CapturePlan {
                choice: CaptureSettings {
                    rules,
                    destinations,
                    lock,
                    forwarded,
                    dns,
                },
                means,
                file: path.to_owned(),
            },
            servers,
            routed: file.peers.iter().flat_map(Peer::routed).collect(),
            for_all,
        })
    }

    /// Returns the settings that cannot change while the tunnel is up.
    pub(crate) fn transparent_settings(&self) -> TransparentSettings {
        TransparentSettings {
            for_all: self.for_all,
            translation: match &self.plan.means {
                Means::Translation(translation) => Some(translation.clone()),
                Means::Mark(_) => None,
            },
        }
    }
}

impl CapturePlan {
    /// Returns the mark of selected applications' sockets, if the plan uses one.
    pub(crate) fn mark(&self) -> Option<u32> {
        match self.means {
            Means::Translation(_) => None,
            Means::Mark(mark) => Some(mark),
        }
    }

    /// Prepares the capture for a device that this process is about to start.
    pub(crate) fn prepare(mut self) -> PreparedCapture {
        // PreUp commands, which ran after the plan was made, may have changed what links lead to,
        // for example by mounting a file system.
        follow_links(&mut self.choice.rules);
        let entry = match self.means {
            Means::Translation(translation) => Entry::Translation(settings(translation)),
            Means::Mark(mark) => Entry::Mark(mark),
        };
        PreparedCapture {
            choice: self.choice,
            entry,
            file: self.file,
        }
    }
}

/// A capture that can begin as soon as the interface exists.
pub(crate) struct PreparedCapture {
    choice: CaptureSettings,
    entry: Entry,
    file: PathBuf,
}

enum Entry {
    Translation(Settings),
    Mark(u32),
}

/// A capture in effect until dropped.
pub(crate) enum RunningCapture {
    Translated {
        _capture: Capture,
        _teller: Option<TrafficServer>,
    },
    Marked {
        _marking: Box<Marking>,
    },
}

impl PreparedCapture {
    /// Returns the settings of the translation between the interface and the tunnel, if there is one.
    pub(crate) fn translation(&self) -> Option<Settings> {
        match &self.entry {
            Entry::Translation(settings) => Some(settings.clone()),
            Entry::Mark(_) => None,
        }
    }

    /// Starts to capture packets for a device. When this returns, selected applications use the tunnel
    /// or are blocked. With a mark, they use it as soon as the routes exist.
    pub(crate) fn begin(
        self,
        interface: &str,
        packet_processes: PacketProcesses,
        translator: Option<RemoteTranslator>,
    ) -> Result<RunningCapture, CaptureError> {
        let Self {
            choice,
            entry,
            file,
        } = self;
        // The starting process holds the lock by which tunnels are set up one after another. Of two
        // tunnels that start at once, the second therefore finds the first.
        app_conflicts::check(interface, &file, &choice.rules)?;
        let link = Netlink::open()?.link(interface)?;
        let link = link.ok_or_else(|| CaptureError::NoInterface(interface.to_owned()))?;
        Ok(match (entry, translator) {
            (Entry::Translation(_), None) => return Err(CaptureError::NoTranslator),
            (Entry::Translation(_), Some(translator)) => {
                without_ipv6(interface)?;
                let control = Box::new(translator.clone());
                let _capture =
                    Capture::begin(interface, link.index, packet_processes, &choice, control)?;
                // The tunnel works without it.
                let report = move |client: UnixStream| translator.report(&client);
                let teller = TrafficServer::begin(interface, report);
                let _teller = teller
                    .inspect_err(|error| tracing::warn!(%error, "UDP traffic is not counted"))
                    .ok();
                RunningCapture::Translated { _capture, _teller }
            }
            (Entry::Mark(mark), _) => {
                let marking =
                    Marking::begin(interface, link.index, packet_processes, mark, &choice)?;
                RunningCapture::Marked {
                    _marking: Box::new(marking),
                }
            }
        })
    }
}

/// MTU until the interface reports its own.
const FIRST_MTU: u16 = 1420;

fn settings(translation: Translation) -> Settings {
    let addresses = translation.addresses.iter();
    Settings {
        v4: addresses.clone().find_map(|address| match address {
            IpAddr::V4(address) => Some(*address),
            IpAddr::V6(_) => None,
        }),
        v6: addresses.clone().find_map(|address| match address {
            IpAddr::V6(address) => Some(*address),
            IpAddr::V4(_) => None,
        }),
        mtu: FIRST_MTU,
        dns: translation.servers,
        capacity: flows::CAPACITY,
    }
}

/// Keeps the kernel from giving the interface an IPv6 address and sending packets by it.
fn without_ipv6(interface: &str) -> Result<(), CaptureError> {
    let setting = format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6");
    match std::fs::write(setting, "1") {
        // The kernel has no IPv6.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        written => written.map_err(|source| CaptureError::Ipv6 {
            interface: interface.to_owned(),
            source,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::Selection;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;
    use taupe_config::application::{Decision, Process};
    use taupe_config::file::{Dialect, parse};

    #[test]
    fn links_that_a_preup_command_has_made_are_followed() {
        let name = format!("taupe-capture-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).expect("a folder");
        let folder = folder.canonicalize().expect("a folder");
        let (link, real) = (folder.join("game"), folder.join("game-real"));
        let text = format!(
            "[Interface]\nPrivateKey = yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=\n\
             Address = 10.9.0.2/24\nAllowedApps = {}\n\
             [Peer]\nPublicKey = xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=\n\
             AllowedIPs = 0.0.0.0/0\n",
            link.display()
        );
        let mut file = parse(text.as_bytes(), Dialect::Taupe).file.expect("a file");
        let selection = Selection::take(&mut file, Path::new("/etc/wireguard/wg0.conf"), None);
        fs::write(&real, "").expect("written");
        symlink(&real, &link).expect("a link");
        let rules = selection.expect("a selection").plan.prepare().choice.rules;
        fs::remove_dir_all(&folder).expect("removed");
        let process = Process {
            path: real.as_os_str().as_encoded_bytes(),
            name: b"game-real",
            cgroup: b"/",
            uid: 0,
        };
        assert_eq!(rules.decide(&process).0, Decision::Tunnel);
    }
}
