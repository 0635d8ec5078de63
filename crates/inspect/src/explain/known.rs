//! A tunnel's file, with the system's state that influences decisions.

use super::Failure;
use super::steps::{APPLICATION, Explanation, Question, Sender, Step};
use crate::check::check_with_available_keys;
use crate::conf::Conf;
use crate::destination::Destination;
use crate::families;
use crate::judge::Judge;
use crate::processes::Subject;
use crate::rules::resolved;
use std::collections::HashSet;
use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use taupe_config::destinations::is_link_local;
use taupe_config::file::File;
use taupe_os_linux::netlink::{Netlink, NetlinkError};
use taupe_transparent::marks::mark_of;
use zeroize::Zeroizing;

/// A tunnel's file, with the system's state that influences decisions.
pub struct Known {
    interface: String,
    shown: PathBuf,
    text: Zeroizing<Vec<u8>>,
    pub file: File,
    judge: Judge,
    /// The tunnel is up in adapter mode, by the mark of sockets.
    by_mark: bool,
}

impl Known {
    pub fn read(conf: &Conf) -> Result<Self, Failure> {
        let checked = check_with_available_keys(conf)?;
        let wrong = || Failure::Wrong(conf.shown.display().to_string());
        let mut file = checked.file.ok_or_else(wrong)?;
        file.transparent.apps = resolved(file.transparent.apps);
        Ok(Self {
            judge: Judge::of(conf.interface.as_str()),
            interface: conf.interface.to_string(),
            shown: conf.shown.clone(),
            text: checked.text,
            file,
            // An unprivileged user gets the answer for transparent mode.
            by_mark: mark_of(conf.interface.as_str()).is_ok_and(|mark| mark.is_some()),
        })
    }

    /// Returns all decisions about a process, or about forwarded packets.
    pub fn steps(
        &self,
        subject: Option<&Subject>,
        to: Option<Destination>,
        addresses: &[IpAddr],
    ) -> Vec<Step> {
        let from = match subject {
            Some(subject) => Sender::Process {
                process: subject.process(),
                judgement: self.judge.judge(&self.file.transparent.apps, subject),
                is_own: is_device(subject, &self.interface),
                is_elsewhere: subject.is_elsewhere,
            },
            None => Sender::Elsewhere,
        };
        let explanation = Explanation {
            shown: self.shown.clone(),
            text: &self.text,
            file: &self.file,
            by_mark: self.by_mark,
            lack_of_route: families::lack_of_route,
        };
        explanation.steps(&Question {
            from,
            to,
            addresses,
            is_neighbour: to.is_some_and(|to| is_neighbour(to.address)),
        })
    }

    /// Returns the reason for the path of a process's packets: inside the tunnel the step that
    /// selects the application, outside the step that decides.
    pub fn why(
        &self,
        subject: &Subject,
        to: Option<Destination>,
        addresses: &[IpAddr],
        is_inside: bool,
    ) -> Option<String> {
        // The socket belongs to this network namespace, even if its process is in another.
        let steps = self.steps(Some(&subject.clone().of_here()), to, addresses);
        let mut steps = steps.into_iter();
        let step = match is_inside {
            true => steps.find(|step| step.title == APPLICATION && !step.decides),
            false => steps.find(|step| step.decides),
        };
        step.map(|step| step.text)
    }
}

/// Returns the addresses of this host's interfaces.
pub fn addresses() -> Result<Vec<IpAddr>, NetlinkError> {
    let addresses = Netlink::open()?.addresses()?.into_iter();
    Ok(addresses.map(|address| address.network.addr()).collect())
}

/// Checks whether an address is link-local, with no router on the path. An IPv6 address counts
/// as such without a look-up, which would need the interface.
pub fn is_neighbour(address: IpAddr) -> bool {
    let gateway = || {
        let route = Netlink::open().ok()?.route_to(address, 0).ok()?;
        route.gateway
    };
    is_link_local(address) && gateway().is_none()
}

/// Checks whether a process carries the tunnel: it has the configuration socket.
fn is_device(subject: &Subject, interface: &str) -> bool {
    let socket = format!("{}/{interface}.sock", taupe_os_linux::run_directory::PATH);
    let table = fs::read_to_string("/proc/self/net/unix").unwrap_or_default();
    let lines = table.lines().filter(|line| line.ends_with(&socket));
    let inodes = lines.filter_map(|line| line.split_whitespace().nth(6)?.parse().ok());
    let inodes: HashSet<u64> = inodes.collect();
    subject.count(&inodes) > 0
}
