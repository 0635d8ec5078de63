//! A tunnel that goes through another one: `taupe up INNER --via OUTER`.
//!
//! Each device has its own packet process, with this process as the broker of both. A private network
//! namespace contains the outer device's TUN interface and the inner device's UDP sockets. The outer device's UDP sockets are in the
//! machine's network namespace.

mod device;
mod names;

use crate::console::say;
use crate::ending::Ending;
use crate::endpoint_names::{self, NamesToTake};
use crate::endpoints;
use crate::remarks::with_command;
use ipnet::IpNet;
use names::Servers;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::net::{IpAddr, SocketAddr};
use taupe_adapter::journal::Header;
use taupe_adapter::{Compatibility, FileStamp, Outer, State};
use taupe_client::SetRequest;
use taupe_config::file::{Endpoint, File, MIN_IPV6_MTU, Peer, Table};
use taupe_config::mtu::mtu_inside;
use taupe_inspect::check::{self, Checked, Unreadable, check_without_apps};
use taupe_inspect::conf::{self, Conf};
use taupe_inspect::endpoint_names::NamedEndpoint;
use taupe_inspect::interface::InterfaceName;

pub(crate) use device::{JoinedOuter, OuterDevice, OuterError, OuterStart, start};

/// Minimum MTU of a link for IPv4 in bytes (RFC 791, section 3.2).
const IPV4_MTU: u32 = 68;

/// Reason why a tunnel cannot go through another one.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ViaError {
    #[error(transparent)]
    Conf(#[from] conf::ConfError),
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// The errors have been printed.
    #[error("{file} has {errors}; nothing was changed")]
    Wrong { file: String, errors: String },
    #[error("{0} cannot go through itself; name another file after --via; nothing was changed")]
    Itself(String),
    #[error(
        "{outer} is up already; run `taupe down {outer}`, so that it can be up only for {inner}, or omit \
         --via, so that routes lead the datagrams of {inner}; nothing was changed"
    )]
    Taken { outer: String, inner: String },
    #[error(
        "{outer} is up already, because {by} goes through it; `taupe down {by}` ends both; nothing was changed"
    )]
    Beneath { outer: String, by: String },
    #[error(
        "{0}: there is no Address under [Interface], and datagrams through the tunnel need one; write \
         the one that the tunnel's provider gave you; nothing was changed"
    )]
    NoAddress(String),
    #[error("{0}; nothing was changed")]
    Unresolved(#[from] endpoints::Unresolved),
    #[error(
        "{inner}:{line}: the endpoint {endpoint} of this [Peer] cannot be reached through {outer}: \
         {reason}; nothing was changed"
    )]
    Beyond {
        inner: String,
        line: usize,
        endpoint: SocketAddr,
        outer: String,
        reason: String,
    },
    #[error(
        "through {outer} (MTU {mtu}) {inner} has an MTU of {left}, and {family} needs {needed}: \
         write MTU = {wanted} or more in {file}, if its path carries that{without}; nothing was \
         changed"
    )]
    Narrow {
        outer: String,
        inner: String,
        mtu: u32,
        left: u32,
        family: &'static str,
        needed: u32,
        wanted: u32,
        file: String,
        without: &'static str,
    },
}

/// An outer tunnel, as the process that brings the inner one up knows it.
pub(crate) struct OuterTunnel {
    pub(crate) outer: Outer,
    /// The state of its file when it was read.
    pub(crate) stamp: Option<FileStamp>,
    /// The interface of the inner tunnel.
    pub(crate) inner: InterfaceName,
    interface: InterfaceName,
    named: Vec<NamedEndpoint>,
    servers: Servers,
}

/// Plan of an outer device, for the inner device's process.
#[derive(Serialize, Deserialize)]
pub(crate) struct OuterPlan {
    pub(crate) interface: InterfaceName,
    /// Addresses of the interface.
    pub(crate) addresses: Vec<IpNet>,
    /// Networks of its peers.
    pub(crate) routes: Vec<IpNet>,
    /// MTU of the interface in bytes.
    pub(crate) mtu: u32,
    /// Name servers for the inner tunnel's endpoint names, which are asked through this device.
    pub(crate) servers: Vec<IpAddr>,
    /// Keys and peers. Because of the keys, this is not serialised with the rest.
    #[serde(skip)]
    pub(crate) configuration: SetRequest,
}

impl OuterTunnel {
    /// Reads the file of an outer tunnel. Looks up its endpoints, unless this process's traffic is
    /// blocked (`is_closed`): then the device's process looks them up. Also returns the plan of the
    /// device.
    pub(crate) fn find(
        word: &OsStr,
        inner: &Conf,
        is_closed: bool,
    ) -> Result<(Self, OuterPlan), ViaError> {
        let conf = Conf::find(word, Compatibility::Taupe)?;
        let name = conf.interface.as_str();
        if conf.interface == inner.interface {
            return Err(ViaError::Itself(name.to_owned()));
        }
        let stamp = FileStamp::of(&conf.path);
        let Checked { file, remarks, .. } = check_without_apps(&conf, Compatibility::Taupe)?;
        for remark in &remarks {
            say(&with_command(remark));
        }
        let shown = conf.shown.display();
        let Some(file) = file else {
            return Err(ViaError::Wrong {
                file: shown.to_string(),
                errors: check::count(&remarks),
            });
        };
        is_free(name)?;
        if was_beneath(name)
            && let Some(process) = Ending::of_orphan(name)
        {
            process.wait();
        }
        if taupe_os_linux::interface::index(name).is_some() || taupe_client::read(name).is_ok() {
            return Err(ViaError::Taken {
                outer: name.to_owned(),
                inner: inner.interface.to_string(),
            });
        }
        if let Some(keys) = without_effect(&file) {
            say(&format_args!(
                "[!] {shown}: {keys}: no effect on a tunnel that another one goes through"
            ));
        }
        let addresses = file.interface.addresses.iter().map(IpNet::addr);
        let addresses: Vec<_> = addresses.collect();
        if addresses.is_empty() {
            return Err(ViaError::NoAddress(shown.to_string()));
        }
        let endpoints = match is_closed {
            false => endpoints::endpoints(&file)?,
            true => file.peers.iter().map(address).collect(),
        };
        let named = taupe_inspect::endpoint_names::named_endpoints(&file);
        let servers = Servers::of(&file);
        let networks = endpoints::networks(&file);
        let mtu = endpoints::mtu(&file, &endpoints);
        let plan = OuterPlan {
            interface: conf.interface.clone(),
            addresses: file.interface.addresses.clone(),
            routes: networks.clone(),
            mtu,
            servers: servers.reachable.clone(),
            configuration: configuration(&file, &endpoints, &named),
        };
        let tunnel = Self {
            outer: Outer {
                name: name.to_owned(),
                config: conf.path.clone(),
                addresses,
                networks,
                mtu,
                mark: file.interface.fwmark,
                endpoints: endpoints.into_iter().flatten().collect(),
            },
            stamp,
            named,
            servers,
            inner: inner.interface.clone(),
            interface: conf.interface,
        };
        Ok((tunnel, plan))
    }

    /// Returns a warning if the names in `left`, of the inner tunnel, may not be found.
    pub(crate) fn warning_about(&self, left: &[NamedEndpoint]) -> Option<String> {
        let config = self.outer.config.display().to_string();
        let warning = self.servers.warning(&config, self.inner.as_str());
        warning.filter(|_| !left.is_empty())
    }

    /// Waits for look-ups, and prints which endpoints have no address.
    pub(crate) fn print_missing_addresses(&self) {
        for sentence in endpoint_names::await_addresses(self.interface.as_str(), &self.named) {
            say(&format_args!("[!] {}: {sentence}", self.interface));
        }
    }
}

/// Returns the request that configures the outer device: with these addresses of endpoints, and
/// with the names of those that the device's process looks up.
fn configuration(
    file: &File,
    endpoints: &[Option<SocketAddr>],
    named: &[NamedEndpoint],
) -> SetRequest {
    let mut request = taupe_client::setconf_request(file, endpoints);
    for peer in &mut request.device.peers {
        let named = named.iter().find(|named| named.peer == peer.public_key);
        if let Some(named) = named {
            peer.endpoint_name = Some(Some(named.name.clone()));
        }
    }
    request
}

/// Fails if another tunnel goes through the one of this name.
pub(crate) fn is_free(name: &str) -> Result<(), ViaError> {
    let runs = |header: &Header| State::default().of_running(&header.interface).is_some();
    match through(name).find(runs) {
        None => Ok(()),
        Some(header) => Err(ViaError::Beneath {
            outer: name.to_owned(),
            by: header.interface,
        }),
    }
}

/// Returns true if a tunnel that goes through this one has been killed. The process of this one ends
/// a moment later.
fn was_beneath(name: &str) -> bool {
    taupe_os_linux::interface::index(name).is_none() && through(name).next().is_some()
}

/// Returns the tunnels that were brought up to go through this one.
fn through(name: &str) -> impl Iterator<Item = Header> {
    let headers = State::default().here().into_iter();
    headers.filter(move |header| header.outer.as_ref().is_some_and(|it| it.name == name))
}

/// Returns the outer tunnel of a running one, with the current addresses of its peers. Prints a
/// warning if its file has been edited.
pub(crate) fn present(inner: &str) -> Option<Outer> {
    let header = State::default().of_running(inner)?;
    if header.is_outer_edited() {
        let config = header
            .outer
            .as_ref()
            .map(|outer| outer.config.display().to_string());
        say(&format_args!(
            "[!] {} was edited: what it says now holds after `taupe down {inner}` and `taupe up`",
            config.unwrap_or_default()
        ));
    }
    let mut outer = header.outer?;
    if let Ok(device) = taupe_client::read(&outer.name) {
        let peers = device.status.peers.iter();
        outer.endpoints = peers.filter_map(|peer| peer.endpoint).collect();
    }
    Some(outer)
}

/// Changes a file so that its tunnel goes through the outer one. Endpoint names are removed from it
/// ([`Routed::names`]): the device's process looks them up through the outer tunnel.
pub(crate) fn route_through(
    outer: &Outer,
    conf: &Conf,
    file: &mut File,
) -> Result<Routed, ViaError> {
    for peer in &file.peers {
        if let Some(endpoint) = address(peer)
            && let Err(reason) = reaches(outer, endpoint.ip())
        {
            return Err(ViaError::Beyond {
                inner: conf.shown.display().to_string(),
                line: peer.line,
                endpoint,
                outer: outer.name.clone(),
                reason,
            });
        }
    }
    let mut notices = vec![narrow(outer, conf, file)?];
    match (file.interface.fwmark, outer.mark) {
        (Some(own), Some(theirs)) if own != theirs => notices.push(format!(
            "FwMark = {theirs:#x} of {} is not used: datagrams of {} have {own:#x}, because they are \
             sent in place of those of {}",
            outer.config.display(),
            outer.name,
            conf.interface
        )),
        (own, theirs) => file.interface.fwmark = own.or(theirs),
    }
    Ok(Routed {
        notices,
        names: endpoint_names::take_names(file, NamesToTake::All),
    })
}

/// Changes by [`route_through`].
pub(crate) struct Routed {
    /// Messages for the user.
    pub(crate) notices: Vec<String>,
    /// Endpoint names of the file, which the device's process looks up.
    pub(crate) names: Vec<NamedEndpoint>,
}

/// Checks whether the outer tunnel carries packets to an address. The error is the reason why not.
fn reaches(outer: &Outer, to: IpAddr) -> Result<(), String> {
    let config = outer.config.display();
    if !outer
        .addresses
        .iter()
        .any(|own| own.is_ipv4() == to.is_ipv4())
    {
        let family = if to.is_ipv4() { "IPv4" } else { "IPv6" };
        return Err(format!(
            "{config} has no {family} address to send from; write one after Address there, or an \
             Endpoint of the other family here"
        ));
    }
    let alone = IpNet::from(to);
    if !outer
        .networks
        .iter()
        .any(|network| network.contains(&alone))
    {
        return Err(format!(
            "AllowedIPs of {config} does not contain it; add it there, or do without --via"
        ));
    }
    Ok(())
}

/// Limits the file's MTU to the size that fits through the outer tunnel. Returns a message about
/// it.
fn narrow(outer: &Outer, conf: &Conf, file: &mut File) -> Result<String, ViaError> {
    let left = mtu_inside(Some(outer.mtu));
    let mtu = file.interface.mtu.map_or(left, |own| own.min(left));
    let (family, needed, without) = match file.carries_ipv6() {
        true => (
            "IPv6",
            MIN_IPV6_MTU,
            ", or take IPv6 out of Address and AllowedIPs",
        ),
        false => ("IPv4", IPV4_MTU, ""),
    };
    // A file whose own MTU is too small has been refused before.
    if left < needed {
        return Err(ViaError::Narrow {
            outer: outer.name.clone(),
            inner: conf.interface.to_string(),
            mtu: outer.mtu,
            left,
            family,
            needed,
            wanted: needed + outer.mtu.min(80),
            file: outer.config.display().to_string(),
            without,
        });
    }
    let since = format!("since it goes through {} ({})", outer.name, outer.mtu);
    Ok(match file.interface.mtu.replace(mtu) {
        Some(own) if own > mtu => format!(
            "MTU {mtu}, {since}: MTU = {own} of {} would not fit",
            conf.shown.display()
        ),
        _ => format!("MTU {mtu}, {since}"),
    })
}

/// Returns a peer's address, if its endpoint is an address.
fn address(peer: &Peer) -> Option<SocketAddr> {
    match &peer.endpoint {
        Some(Endpoint::Address(address)) => Some(*address),
        Some(Endpoint::Name { .. }) | None => None,
    }
}

/// Returns the keys of a file that have no effect on an outer tunnel.
fn without_effect(file: &File) -> Option<String> {
    let interface = &file.interface;
    let hooks = &interface.hooks;
    let mut keys = Vec::new();
    for (name, is_there) in [
        ("PreUp", !hooks.pre_up.is_empty()),
        ("PostUp", !hooks.post_up.is_empty()),
        ("PreDown", !hooks.pre_down.is_empty()),
        ("PostDown", !hooks.post_down.is_empty()),
        (
            "a search domain under DNS",
            !interface.dns_search.is_empty(),
        ),
        ("Table", interface.table != Table::Auto),
        ("SaveConfig", interface.save_config),
    ] {
        keys.extend(is_there.then(|| name.to_owned()));
    }
    if let Some((key, line)) = file.transparent.first {
        keys.push(format!("{key} in line {line} and related keys"));
    }
    (!keys.is_empty()).then(|| keys.join(", "))
}

#[cfg(test)]
mod tests;
