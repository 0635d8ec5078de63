//! Selected applications: the settings that a file has for them, in transparent mode or by marks in
//! adapter mode, and what a running device keeps for them.

use crate::app_conflicts;
use ipnet::IpNet;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use taupe_adapter::{Translation, TransparentSettings};
use taupe_config::destinations;
use taupe_config::file::{File, Forwarded, KillSwitch, Peer, SystemBus, Table};
use taupe_inspect::check;
use taupe_inspect::conf::Conf;
use taupe_inspect::interface::InterfaceName;
use taupe_inspect::rules::resolve;
use taupe_inspect::traffic::Teller;
use taupe_nat::flows;
use taupe_nat::translate::{Settings, Translator};
use taupe_os_linux::netlink::{Netlink, NetlinkError};
use taupe_packet::tap::Tap;
use taupe_transparent::capture::{Capture, Choice};
use taupe_transparent::fault::Fault;
use taupe_transparent::marks::Marking;
use taupe_transparent::state::{Lock, Names};

/// Part of a file that is not supported for selected applications.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unsupported {
    #[error(
        "there is no Address under [Interface]: for chosen applications the tunnel needs one, as \
         other machines see it; write the one that the tunnel's provider gave you"
    )]
    NoAddress,
    #[error(
        "KillSwitch = all is for transparent mode, which is not to be had here: in adapter mode \
         only what chosen applications send can be held back; write KillSwitch = app, or use \
         Linux 5.19 or newer"
    )]
    LocksAll,
    #[error(
        "Forwarded = tunnel is for transparent mode, which is not to be had here; delete the \
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
pub(crate) enum Failure {
    #[error(transparent)]
    Unreadable(#[from] check::Unreadable),
    #[error("{0} has changed, and has errors now (`taupe check` says which)")]
    Wrong(String),
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    #[error(transparent)]
    Clash(#[from] app_conflicts::Clash),
    #[error(transparent)]
    System(#[from] NetlinkError),
    #[error("the interface {0} is gone")]
    NoInterface(String),
    #[error("cannot switch IPv6 off on {interface}: {source}")]
    Ipv6 {
        interface: String,
        source: io::Error,
    },
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// Resources that a running device holds for selected applications until dropped.
pub(crate) enum Held {
    Captured {
        _capture: Capture,
        _teller: Option<Teller>,
    },
    Marked {
        _marking: Box<Marking>,
    },
}

/// Method by which selected applications' packets enter the tunnel.
#[derive(Debug)]
enum Means {
    Translation(Translator),
    Mark(u32),
}

/// Settings of a file for selected applications.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) choice: Choice,
    means: Means,
    /// Name servers of the file. They are not used with a mark.
    pub(crate) servers: Vec<IpAddr>,
    /// Networks of the peers, to which the tunnel carries packets.
    pub(crate) routed: Vec<IpNet>,
    /// Settings that cannot change while the tunnel is up.
    pub(crate) fixed: TransparentSettings,
}

impl Plan {
    /// Moves the settings that are handled differently for selected applications out of the file.
    /// The remaining file describes an interface without addresses, routes and name servers, or
    /// with a mark an interface without name servers.
    pub(crate) fn take(file: &mut File, mark: Option<u32>) -> Result<Self, Unsupported> {
        let transparent = &file.transparent;
        let lock = match transparent.kill_switch.unwrap_or_default() {
            KillSwitch::App => Lock::Chosen,
            KillSwitch::All => Lock::Everybody,
            KillSwitch::Off => Lock::Nobody,
        };
        if mark.is_some() && lock == Lock::Everybody {
            return Err(Unsupported::LocksAll);
        }
        let forwarded = transparent.forwarded.unwrap_or_default();
        if mark.is_some() && forwarded == Forwarded::Tunnel {
            return Err(Unsupported::Forwarded);
        }
        let mut rules = transparent.apps.clone();
        if let Err(rule) = resolve(&mut rules) {
            return Err(Unsupported::NoUser {
                line: rule.line,
                name: rule.application.to_string(),
            });
        }
        let bypass_lan = transparent.bypass_lan.unwrap_or(false);
        let destinations = destinations::table_for_peers(&file.peers, bypass_lan);
        let system_bus = transparent.system_bus.unwrap_or_default();
        let addresses = || file.interface.addresses.iter().map(|own| own.address);
        let settings = Settings {
            v4: addresses().find_map(|address| match address {
                IpAddr::V4(address) => Some(address),
                IpAddr::V6(_) => None,
            }),
            v6: addresses().find_map(|address| match address {
                IpAddr::V6(address) => Some(address),
                IpAddr::V4(_) => None,
            }),
            mtu: FIRST_MTU,
            dns: std::mem::take(&mut file.interface.dns),
            capacity: flows::CAPACITY,
        };
        if (settings.v4, settings.v6) == (None, None) {
            return Err(Unsupported::NoAddress);
        }
        let names = Names {
            v4: settings.dns.iter().any(IpAddr::is_ipv4),
            v6: settings.dns.iter().any(IpAddr::is_ipv6),
            bus: system_bus == SystemBus::Allow,
        };
        let for_all = file.transparent.first.is_none();
        let (means, translation) = match mark {
            // With a mark, a reload can change addresses as in plain adapter mode.
            Some(mark) => (Means::Mark(mark), None),
            None => {
                file.interface.addresses.clear();
                file.interface.table = Table::Off;
                let means = Means::Translation(Translator::new(&settings));
                (means, Some(translation(&settings)))
            }
        };
        file.interface.dns_search.clear();
        file.interface.save_config = false;
        Ok(Self {
            choice: Choice {
                rules,
                destinations,
                lock,
                forwarded,
                names,
            },
            means,
            servers: settings.dns,
            routed: file.peers.iter().flat_map(Peer::routed).collect(),
            fixed: TransparentSettings {
                for_all,
                translation,
            },
        })
    }

    /// Checks whether the file selects no applications, so that transparent mode applies to all of
    /// them.
    pub(crate) fn takes_all(&self) -> bool {
        self.fixed.for_all
    }

    /// Applies [`Self::take`] to the file of a tunnel, which has been checked before. The tunnel
    /// may be named after a link to the file.
    pub(crate) fn read(
        path: &Path,
        interface: &InterfaceName,
        mark: Option<u32>,
    ) -> Result<Self, Failure> {
        let conf = Conf {
            interface: interface.clone(),
            path: path.to_owned(),
            shown: path.to_owned(),
        };
        let checked = check::check_with_available_keys(&conf)?;
        let wrong = || Failure::Wrong(conf.shown.display().to_string());
        let mut file = checked.file.ok_or_else(wrong)?;
        Ok(Self::take(&mut file, mark)?)
    }

    /// Returns the mark of selected applications' sockets, if the plan uses one.
    pub(crate) fn mark(&self) -> Option<u32> {
        match self.means {
            Means::Translation(_) => None,
            Means::Mark(mark) => Some(mark),
        }
    }

    /// Returns the translation between the interface and the tunnel, if the plan uses one.
    pub(crate) fn tap(&self) -> Option<Arc<dyn Tap>> {
        match &self.means {
            Means::Translation(translator) => Some(Arc::new(translator.clone())),
            Means::Mark(_) => None,
        }
    }

    /// Starts to capture packets for a device in this process, whose file is `file`. When this
    /// returns, selected applications use the tunnel or are blocked. With a mark, they use it as
    /// soon as the routes exist.
    pub(crate) fn begin(self, interface: &str, file: &Path) -> Result<Held, Failure> {
        // The starting process holds the lock by which tunnels are set up one after another. Of two
        // tunnels that start at once, the second therefore finds the first.
        app_conflicts::check(interface, file, &self.choice.rules)?;
        let link = Netlink::open()?.link(interface)?;
        let link = link.ok_or_else(|| Failure::NoInterface(interface.to_owned()))?;
        let Self { choice, means, .. } = self;
        let held = match means {
            Means::Translation(translator) => {
                without_ipv6(interface)?;
                let told = translator.clone();
                let _capture = Capture::begin(interface, link.index, &choice, translator)?;
                // The tunnel works without it.
                let teller = Teller::begin(interface, told);
                let _teller = teller
                    .inspect_err(|error| tracing::warn!(%error, "bytes of UDP are not told"))
                    .ok();
                Held::Captured { _capture, _teller }
            }
            Means::Mark(mark) => {
                let marking = Marking::begin(interface, link.index, mark, &choice)?;
                Held::Marked {
                    _marking: Box::new(marking),
                }
            }
        };
        Ok(held)
    }
}

/// Returns the addresses that the translation uses.
fn translation(settings: &Settings) -> Translation {
    let v4 = settings.v4.map(IpAddr::V4);
    Translation {
        addresses: v4.into_iter().chain(settings.v6.map(IpAddr::V6)).collect(),
        servers: settings.dns.clone(),
    }
}

/// MTU until the interface reports its own.
const FIRST_MTU: u16 = 1420;

/// Keeps the kernel from giving the interface an IPv6 address and sending packets by it.
fn without_ipv6(interface: &str) -> Result<(), Failure> {
    let setting = format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6");
    match std::fs::write(setting, "1") {
        // The kernel has no IPv6.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        written => written.map_err(|source| Failure::Ipv6 {
            interface: interface.to_owned(),
            source,
        }),
    }
}
