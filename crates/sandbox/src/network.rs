//! A network of which a TUN is all there is but loopback: that of a cell, or of a tunnel
//! which others go through.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use ipnet::IpNet;
use taupe_os_linux::netlink::{Address, Route, System, SystemError};
use taupe_os_linux::tun::{Offloads, OpenError, Tun};
use taupe_os_linux::watch::LinkWatch;

use crate::Plan;
use crate::refusal::{Facts, Refusal, failed};

/// Loopback is the first interface of every network namespace.
const LOOPBACK: u32 = 1;

/// Groups whose members may ping (`icmp(7)`); in a new namespace nobody's.
const PING: &str = "/proc/sys/net/ipv4/ping_group_range";

/// A TUN with addresses, and what is reached by it, as the only network of a namespace.
#[derive(Clone, Copy, Debug)]
pub struct Network<'a> {
    /// The name of the TUN.
    pub interface: &'a str,
    /// Its addresses with the lengths of their networks.
    pub addresses: &'a [IpNet],
    /// What is reached by it.
    pub routes: &'a [IpNet],
    /// Its MTU in bytes.
    pub mtu: u32,
}

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The TUN.
    #[error(transparent)]
    Tun(#[from] OpenError),
    /// A step.
    #[error("cannot {what}: {source}")]
    Step {
        /// What was tried.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// Addresses, routes.
    #[error(transparent)]
    System(#[from] SystemError),
}

/// What another namespace needs to serve the TUN.
#[derive(Debug)]
pub struct Opened {
    /// The TUN, which is up.
    pub tun: OwnedFd,
    /// What watches it, from where it is.
    pub watch: LinkWatch,
}

/// Makes a network in the calling thread's network namespace, which is new. What is not as
/// one may expect is remarked, a sentence each.
///
/// # Errors
///
/// See [`NetworkError`].
pub fn lay(network: &Network<'_>, remarks: &mut Vec<String>) -> Result<Opened, NetworkError> {
    let step = |what: &'static str| move |source| NetworkError::Step { what, source };
    let mut system = System::open()?;
    system.set_up(LOOPBACK, true)?;
    // Offloads are for who serves it to ask for.
    let tun = Tun::create(network.interface, Offloads::NONE)?;
    let watch = LinkWatch::open(&tun).map_err(step("watch the interface"))?;
    let index = tun.index().map_err(step("find the interface"))?;
    let has_ipv6 = allow_ipv6(network.interface, remarks);
    let fits = |network: &&IpNet| has_ipv6 || matches!(network, IpNet::V4(_));
    system.set_mtu(index, network.mtu)?;
    for &network in network.addresses.iter().filter(fits) {
        let interface = index;
        system.add_address(&Address { interface, network })?;
    }
    system.set_up(index, true)?;
    for &network in network.routes.iter().filter(fits) {
        let route = Route::by_interface(network, index, Route::MAIN_TABLE);
        match system.add_route(&route) {
            // The network of one of its addresses leads there already.
            Err(error) if error.errno() == Some(rustix::io::Errno::EXIST.raw_os_error()) => {}
            added => added?,
        }
    }
    let tun = tun.as_fd().try_clone_to_owned();
    let tun = tun.map_err(step("copy the TUN"))?;
    Ok(Opened { tun, watch })
}

/// The network of a cell, in the calling process's network namespace: its TUN, and all
/// that leads into it.
pub(crate) fn set_up(
    plan: &Plan,
    group: u32,
    facts: &Facts,
    remarks: &mut Vec<String>,
) -> Result<Opened, Refusal> {
    let network = Network {
        interface: &plan.interface,
        addresses: &plan.addresses,
        routes: &plan.routes,
        mtu: plan.mtu,
    };
    let opened = lay(&network, remarks).map_err(|error| match error {
        NetworkError::Tun(error) => Refusal::tun(error, facts),
        NetworkError::Step { what, source } => Refusal::step(failed(what, source), facts),
        NetworkError::System(error) => error.into(),
    })?;
    if let Err(error) = fs::write(PING, format!("{group} {group}")) {
        remarks.push(format!("`ping` will not work: {PING}: {error}"));
    }
    Ok(opened)
}

/// Has the interface take IPv6 addresses although new interfaces may be told not to;
/// whether it does.
fn allow_ipv6(interface: &str, remarks: &mut Vec<String>) -> bool {
    let switch = format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6");
    match fs::write(&switch, "0") {
        Ok(()) => true,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            remarks.push("this kernel has no IPv6: only IPv4 goes through the tunnel".to_owned());
            false
        }
        // It may be on already.
        Err(_) => true,
    }
}
