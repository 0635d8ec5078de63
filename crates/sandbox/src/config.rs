//! Configuration of a sandbox.

use std::net::IpAddr;
use std::path::PathBuf;

use ipnet::IpNet;

/// Configuration of a sandbox.
#[derive(Clone, Debug)]
pub struct SandboxConfig {
    /// Name of the TUN.
    pub interface: String,
    /// Addresses of the TUN with prefix lengths.
    pub addresses: Vec<IpNet>,
    /// Destinations reached through the TUN. No others are reachable.
    pub routes: Vec<IpNet>,
    /// MTU of the TUN, in bytes.
    pub mtu: u32,
    /// Name servers. If there are none, those of `/etc/resolv.conf` are used, through the tunnel.
    pub name_servers: Vec<IpAddr>,
    /// Search domains for names without a dot.
    pub search: Vec<String>,
    /// True to hide the session bus and the user's service manager, too.
    pub hide_session: bool,
    /// A folder of this user that is hidden in the sandbox. The sandbox's own files take its place.
    pub folder: PathBuf,
}
