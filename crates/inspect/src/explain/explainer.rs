//! Explanations by a tunnel's file and the system's state.

use super::ExplainError;
use super::steps::{APPLICATION, Explanation, Packets, Sender, Step};
use crate::app_matcher::AppMatcher;
use crate::check::check_with_available_keys;
use crate::conf::Conf;
use crate::destination::Destination;
use crate::families;
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

/// Explains decisions by a tunnel's file and the system's state.
pub struct Explainer {
    interface: String,
    shown: PathBuf,
    text: Zeroizing<Vec<u8>>,
    pub(crate) file: File,
    matcher: AppMatcher,
    /// The tunnel is up in adapter mode, by the mark of sockets.
    is_by_mark: bool,
}

impl Explainer {
    /// Reads a file, and the state of its tunnel.
    ///
    /// # Errors
    /// Fails if the file cannot be read or has errors.
    pub fn read(conf: &Conf) -> Result<Self, ExplainError> {
        let checked = check_with_available_keys(conf)?;
        let wrong = || ExplainError::Wrong(conf.shown.display().to_string());
        let mut file = checked.file.ok_or_else(wrong)?;
        file.transparent.apps = resolved(file.transparent.apps);
        Ok(Self {
            matcher: AppMatcher::of(conf.interface.as_str()),
            interface: conf.interface.to_string(),
            shown: conf.shown.clone(),
            text: checked.text,
            file,
            // An unprivileged user gets the answer for transparent mode.
            is_by_mark: mark_of(conf.interface.as_str()).is_ok_and(|mark| mark.is_some()),
        })
    }

    /// Returns all decisions about a process, or about forwarded packets.
    #[must_use]
    pub fn steps(
        &self,
        subject: Option<&Subject>,
        to: Option<Destination>,
        addresses: &[IpAddr],
    ) -> Vec<Step> {
        let from = match subject {
            Some(subject) => Sender::Process {
                process: subject.process(),
                judgement: self.matcher.decide(&self.file.transparent.apps, subject),
                is_device_process: is_device(subject, &self.interface),
                is_in_other_namespace: subject.is_in_other_namespace,
            },
            None => Sender::Forwarded,
        };
        let explanation = Explanation {
            shown: self.shown.clone(),
            text: &self.text,
            file: &self.file,
            is_by_mark: self.is_by_mark,
            missing_route: families::missing_route,
        };
        explanation.steps(&Packets {
            from,
            to,
            addresses,
            is_on_link: to.is_some_and(|to| is_on_link(to.address)),
        })
    }

    /// Returns the reason for the path of a process's packets: inside the tunnel the step that
    /// selects the application, outside the step that decides.
    pub(crate) fn why(
        &self,
        subject: &Subject,
        to: Option<Destination>,
        addresses: &[IpAddr],
        is_in_tunnel: bool,
    ) -> Option<String> {
        // The socket belongs to this network namespace, even if its process is in another.
        let steps = self.steps(Some(&subject.clone().into_local()), to, addresses);
        let mut steps = steps.into_iter();
        let step = match is_in_tunnel {
            true => steps.find(|step| step.title == APPLICATION && !step.decides),
            false => steps.find(|step| step.decides),
        };
        step.map(|step| step.text)
    }
}

/// Returns the addresses of this host's interfaces.
///
/// # Errors
/// Returns an error if the system cannot be asked.
pub fn addresses() -> Result<Vec<IpAddr>, NetlinkError> {
    let addresses = Netlink::open()?.addresses()?.into_iter();
    Ok(addresses.map(|address| address.network.addr()).collect())
}

/// Checks whether an address is link-local, with no router on the path. An IPv6 address counts
/// as such without a look-up, which would need the interface.
pub(crate) fn is_on_link(address: IpAddr) -> bool {
    let gateway = || {
        let route = Netlink::open().ok()?.route_to(address, 0).ok()?;
        route.gateway
    };
    is_link_local(address) && gateway().is_none()
}

/// Checks whether a process carries the tunnel: it has the configuration socket.
fn is_device(subject: &Subject, interface: &str) -> bool {
    let socket = taupe_client::socket_path(interface);
    let socket = socket.to_string_lossy();
    let table = fs::read_to_string("/proc/self/net/unix").unwrap_or_default();
    let lines = table.lines().filter(|line| line.ends_with(&*socket));
    let inodes = lines.filter_map(|line| line.split_whitespace().nth(6)?.parse().ok());
    let inodes: HashSet<u64> = inodes.collect();
    subject.count(&inodes) > 0
}
