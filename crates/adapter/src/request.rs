//! Requests: the tunnel, its options, and what starts its device.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use taupe_config::file::{File, Personality};

use crate::transparent::TransparentSettings;

/// A tunnel to bring up or reload, and its options.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The interface's name, 1 to 15 bytes.
    pub interface: &'a str,
    /// Where the file is.
    pub config: &'a Path,
    /// What it says.
    pub file: &'a File,
    /// Whose habits are followed.
    pub personality: Personality,
    /// What was asked for.
    pub options: Options,
    /// Settings of transparent mode that the journal keeps
    /// ([`Header::transparent`](crate::journal::Header::transparent)).
    pub transparent: Option<&'a TransparentSettings>,
    /// The tunnel that this one goes through.
    pub outer: Option<&'a Outer>,
}

/// What was asked for on the command line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Options {
    /// The tunnel wins against routes that exist and local networks
    /// ([`Personality::Taupe`] only).
    pub override_routes: bool,
    /// The nf_tables table of a tunnelled default route is made.
    pub firewall: bool,
    /// Only packets with this mark use the tunnel, of which all bits count that are set in
    /// it; everybody else's go where they would without it.
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

/// A tunnel that another one goes through: nothing of it is seen on the system but that what
/// is sent to its endpoints leaves in the place of the inner one's datagrams.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Outer {
    /// The name by which its device is configured.
    pub name: String,
    /// The file that it was made from.
    pub config: PathBuf,
    /// This machine's addresses in it.
    pub addresses: Vec<IpAddr>,
    /// What is reached by it.
    pub networks: Vec<IpNet>,
    /// Its MTU in bytes.
    pub mtu: u32,
    /// The mark that its file has for its datagrams.
    pub mark: Option<u32>,
    /// Where its peers are, as far as that is known.
    pub endpoints: Vec<SocketAddr>,
}

/// Starts devices.
pub trait Devices {
    /// Starts a device, whose interface and configuration socket are there when
    /// this returns, and which ends by itself when its interface is deleted.
    ///
    /// # Errors
    /// Why there is none, and what to do.
    fn start(&mut self, interface: &str) -> Result<(), String>;
}

/// What takes a tunnel down starts none.
pub(crate) struct NoDevices;

impl Devices for NoDevices {
    fn start(&mut self, interface: &str) -> Result<(), String> {
        Err(format!("{interface} is being taken down"))
    }
}
