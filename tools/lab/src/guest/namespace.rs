//! Machines inside a virtual machine: network namespaces of a guest.

use super::{Guest, quote};
use crate::error::Result;
use crate::peers::{Place, Quirks, Tunnel};
use crate::process::Output;
use std::net::SocketAddr;
use std::time::Duration;

/// A network namespace of a guest; it disappears with the guest.
#[derive(Debug, Clone)]
pub struct Namespace {
    guest: Guest,
    name: String,
}

impl Guest {
    /// Creates a network namespace whose only interface is `lo`, up.
    ///
    /// # Errors
    ///
    /// [`Error::Command`](crate::Error::Command) if the name is taken.
    pub fn namespace(&self, name: &str) -> Result<Namespace> {
        self.run(&format!(
            "ip netns add {name} && ip -n {name} link set lo up"
        ))?;
        Ok(Namespace {
            guest: self.clone(),
            name: name.to_owned(),
        })
    }
}

impl Namespace {
    /// Runs `ip` for its interfaces, addresses and routes; `arguments` are in shell syntax.
    ///
    /// # Errors
    ///
    /// [`Error::Command`](crate::Error::Command).
    pub fn ip(&self, arguments: &str) -> Result<Output> {
        self.guest.run(&format!("ip -n {} {arguments}", self.name))
    }

    /// Returns the command that runs here, in the syntax of the guest's shell.
    pub fn command(&self, command: &[&str]) -> String {
        format!("ip netns exec {} {}", self.name, quote(command))
    }

    /// Starts a program that runs until the guest ends. Its output goes to the guest's file `log`.
    ///
    /// # Errors
    ///
    /// Those of the guest; a failure to start the program is not detected.
    pub fn start(&self, command: &[&str], log: &str) -> Result<()> {
        let command = self.command(command);
        self.guest
            .run(&format!("{command} > {log} 2>&1 &"))
            .map(drop)
    }

    /// Creates a WireGuard interface of the guest's kernel, not yet configured.
    ///
    /// # Errors
    ///
    /// [`Error::Command`](crate::Error::Command) if the name is taken.
    pub fn kernel_tunnel(&self, interface: &str) -> Result<Tunnel> {
        self.ip(&format!("link add {interface} type wireguard"))?;
        let quirks = Quirks::default();
        Ok(Tunnel::at("kernel", self.clone(), interface, quirks))
    }

    /// Returns the interface of a program started here, once it can be configured.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`](crate::Error::Timeout) after 20 seconds.
    pub fn program_tunnel(&self, interface: &str, quirks: Quirks) -> Result<Tunnel> {
        let socket = crate::uapi::socket(interface);
        let script = format!("until [ -S {} ]; do sleep 0.05; done", socket.display());
        self.guest.run_within(Duration::from_secs(20), &script)?;
        Ok(Tunnel::at("program", self.clone(), interface, quirks))
    }
}

impl Place for Namespace {
    fn run(&self, command: &[&str]) -> Result<Output> {
        self.guest.run(&self.command(command))
    }

    fn run_with_input(&self, command: &[&str], input: &str) -> Result<Output> {
        let source = quote(&["printf", "%s", input]);
        self.guest
            .run(&format!("{source} | {}", self.command(command)))
    }

    fn add_address(&self, interface: &str, address: &str) -> Result<()> {
        let nodad = if address.contains(':') { "nodad" } else { "" };
        self.ip(&format!("address add {address} dev {interface} {nodad}"))
            .map(drop)
    }

    fn serve_echo(&self, address: SocketAddr) -> Result<()> {
        self.guest
            .serve_echo_in(&format!("ip netns exec {}", self.name), address)
    }
}
