//! A network namespace with a TUN and loopback only: that of a sandbox, or of a tunnel that carries
//! another tunnel.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use ipnet::IpNet;
use taupe_os_linux::netlink::{Address, Netlink, NetlinkError, Route};
use taupe_os_linux::tun::{Offloads, OpenError, Tun};
use taupe_os_linux::watch::LinkWatch;

use crate::config::SandboxConfig;
use crate::setup_error::{SetupError, SystemFacts, failed};

/// Loopback is the first interface of every network namespace.
const LOOPBACK: u32 = 1;

/// Range of group IDs that may ping (`icmp(7)`). It is empty in a new namespace.
const PING_GROUP_RANGE: &str = "/proc/sys/net/ipv4/ping_group_range";

/// A TUN with its addresses and routes, as the only network of a namespace.
#[derive(Clone, Copy, Debug)]
pub struct TunNetwork<'a> {
    /// Name of the TUN.
    pub interface: &'a str,
    /// Addresses with prefix lengths.
    pub addresses: &'a [IpNet],
    /// Destinations reached through the TUN.
    pub routes: &'a [IpNet],
    /// MTU in bytes.
    pub mtu: u32,
}

/// Reason why the network could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The TUN could not be created.
    #[error(transparent)]
    Tun(#[from] OpenError),
    /// A system call failed.
    #[error("cannot {what}: {source}")]
    Step {
        /// The failed step.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// An address or a route could not be added.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
}

/// Descriptors that another namespace needs to serve the TUN.
#[derive(Debug)]
pub struct OpenedTun {
    /// The TUN, which is up.
    pub tun: OwnedFd,
    /// Watch of the TUN from inside its network namespace.
    pub watch: LinkWatch,
}

/// Sets a network up in the calling thread's network namespace, which must be new. Adds remarks for
/// the user, one sentence each.
///
/// # Errors
///
/// See [`NetworkError`].
pub fn set_up_network(
    network: &TunNetwork<'_>,
    remarks: &mut Vec<String>,
) -> Result<OpenedTun, NetworkError> {
    let step = |what: &'static str| move |source| NetworkError::Step { what, source };
    let mut netlink = Netlink::open()?;
    netlink.set_up(LOOPBACK, true)?;
    // The process that serves the TUN enables offloads.
    let tun = Tun::create(network.interface, Offloads::NONE)?;
    let watch = LinkWatch::open(&tun).map_err(step("watch the interface"))?;
    let index = tun.index().map_err(step("find the interface"))?;
    let has_ipv6 = enable_ipv6(network.interface, remarks);
    let fits = |network: &&IpNet| has_ipv6 || matches!(network, IpNet::V4(_));
    netlink.set_mtu(index, network.mtu)?;
    for &network in network.addresses.iter().filter(fits) {
        let interface = index;
        netlink.add_address(&Address { interface, network })?;
    }
    netlink.set_up(index, true)?;
    for &network in network.routes.iter().filter(fits) {
        let route = Route::by_interface(network, index, Route::MAIN_TABLE);
        match netlink.add_route(&route) {
            // An address's connected route exists already.
            Err(error) if error.errno() == Some(rustix::io::Errno::EXIST.raw_os_error()) => {}
            added => added?,
        }
    }
    let tun = tun.as_fd().try_clone_to_owned();
    let tun = tun.map_err(step("copy the TUN"))?;
    Ok(OpenedTun { tun, watch })
}

/// Sets the network of a sandbox up in the calling process's network namespace: its TUN, routes,
/// and permission to ping.
pub(crate) fn set_up(
    config: &SandboxConfig,
    group: u32,
    facts: &SystemFacts,
    remarks: &mut Vec<String>,
) -> Result<OpenedTun, SetupError> {
    let network = TunNetwork {
        interface: &config.interface,
        addresses: &config.addresses,
        routes: &config.routes,
        mtu: config.mtu,
    };
    let opened = set_up_network(&network, remarks).map_err(|error| match error {
        NetworkError::Tun(error) => SetupError::tun(error, facts),
        NetworkError::Step { what, source } => SetupError::step(failed(what, source), facts),
        NetworkError::Netlink(error) => error.into(),
    })?;
    if let Err(error) = fs::write(PING_GROUP_RANGE, format!("{group} {group}")) {
        remarks.push(format!("`ping` will not work: {PING_GROUP_RANGE}: {error}"));
    }
    Ok(opened)
}

/// Enables IPv6 on the interface, because the default for new interfaces may be off. Returns false
/// if the kernel has no IPv6.
fn enable_ipv6(interface: &str, remarks: &mut Vec<String>) -> bool {
    let switch = format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6");
    match fs::write(&switch, "0") {
        Ok(()) => true,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            remarks.push("this kernel has no IPv6: only IPv4 goes through the tunnel".to_owned());
            false
        }
        // IPv6 may be enabled already.
        Err(_) => true,
    }
}
