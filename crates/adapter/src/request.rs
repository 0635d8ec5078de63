//! Requests: the tunnel, its options, and the function that starts its device.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use taupe_config::file::{Compatibility, File};

use crate::file_stamp::FileStamp;
use crate::transparent::TransparentSettings;

/// A tunnel to bring up or reload, and its options.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The interface's name, 1 to 15 bytes.
    pub interface: &'a str,
    /// The path of the file.
    pub config: &'a Path,
    /// The contents of the file.
    pub file: &'a File,
    /// The state of the file when it was read, to report later edits.
    pub stamp: Option<FileStamp>,
    /// The command whose behaviour to follow.
    pub compatibility: Compatibility,
    /// The options of the command.
    pub options: Options,
    /// Settings of transparent mode that the journal keeps
    /// ([`Header::transparent`](crate::journal::Header::transparent)).
    pub transparent: Option<&'a TransparentSettings>,
    /// The tunnel through which this one is routed.
    pub outer: Option<&'a Outer>,
    /// The state of that tunnel's file when it was read. A reload does not use it.
    pub outer_stamp: Option<FileStamp>,
}

/// Options from the command line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Options {
    /// The tunnel has precedence over existing routes and local networks ([`Compatibility::Taupe`]
    /// only).
    pub override_routes: bool,
    /// Create the nf_tables table for a tunnelled default route.
    pub firewall: bool,
    /// Only packets with this mark use the tunnel: all bits that are set in it must be set in
    /// theirs. Other packets are routed as without the tunnel.
    #[serde(default)]
    pub chosen: Option<u32>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            override_routes: false,
            firewall: true,
            chosen: None,
        }
    }
}

/// A tunnel through which another tunnel is routed. It changes nothing on the system, except that
/// its datagrams leave instead of the inner tunnel's.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Outer {
    /// The device's name for configuration.
    pub name: String,
    /// The path of its file.
    pub config: PathBuf,
    /// This machine's addresses in the tunnel.
    pub addresses: Vec<IpAddr>,
    /// The networks reachable through it.
    pub networks: Vec<IpNet>,
    /// Its MTU in bytes.
    pub mtu: u32,
    /// The mark of its datagrams, from its file.
    pub mark: Option<u32>,
    /// The known endpoints of its peers.
    pub endpoints: Vec<SocketAddr>,
}

/// Starts devices.
pub trait Devices {
    /// Starts a device. When this returns, its interface and configuration socket exist. The device
    /// ends by itself when its interface is deleted.
    ///
    /// # Errors
    /// The reason for the failure, with advice.
    fn start(&mut self, interface: &str) -> Result<(), String>;
}

/// Refuses to start devices, for operations that never need one.
pub(crate) struct NoDevices;

impl Devices for NoDevices {
    fn start(&mut self, interface: &str) -> Result<(), String> {
        Err(format!("{interface} is being taken down"))
    }
}
