//! A WireGuard interface of any implementation, configured with `wg`.

use super::Quirks;
use crate::error::{Error, Result};
use crate::host::{Host, add_address};
use crate::process::{Output, Process};
use crate::traffic;
use std::fmt::Write;
use std::net::SocketAddr;

/// A WireGuard interface of some implementation, ready to be configured.
pub struct Tunnel {
    implementation: String,
    place: Box<dyn Place>,
    interface: String,
    quirks: Quirks,
    pub(super) process: Option<Process>,
}

impl Tunnel {
    /// Creates a tunnel for an existing interface at a place.
    pub fn at(
        implementation: impl Into<String>,
        place: impl Place + 'static,
        interface: &str,
        quirks: Quirks,
    ) -> Self {
        Self {
            implementation: implementation.into(),
            place: Box::new(place),
            interface: interface.to_owned(),
            quirks,
            process: None,
        }
    }

    /// Returns the name of the implementation.
    pub fn implementation(&self) -> &str {
        &self.implementation
    }

    /// Returns the place of the interface.
    pub fn place(&self) -> &dyn Place {
        &*self.place
    }

    /// Returns the interface's name.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// Returns its implementation's known deviations.
    pub const fn quirks(&self) -> Quirks {
        self.quirks
    }

    /// Returns true if a program of this machine runs it.
    pub const fn is_program(&self) -> bool {
        self.process.is_some()
    }

    /// Returns the program that runs it, if it is a program.
    pub const fn process(&mut self) -> Option<&mut Process> {
        self.process.as_mut()
    }

    /// Returns the program that runs it, if it is a program, and lets it live on.
    pub fn into_process(self) -> Option<Process> {
        self.process
    }

    /// Applies a complete configuration, adds the inner addresses and brings the interface up.
    ///
    /// # Errors
    ///
    /// [`Error::Command`] if one of the steps fails.
    pub fn configure(&self, settings: &Settings<'_>) -> Result<()> {
        self.wg_with_input("setconf", &settings.to_string())?;
        for address in settings.addresses {
            self.place.add_address(&self.interface, address)?;
        }
        #[rustfmt::skip]
        self.place.run(&[
            "ip", "link", "set", &self.interface, "mtu", "1420", "up",
        ])?;
        Ok(())
    }

    /// Removes a peer and adds it again, which ends its sessions.
    ///
    /// # Errors
    ///
    /// [`Error::Command`].
    pub fn replace_peer(&self, peer: &PeerSettings<'_>) -> Result<()> {
        self.set(&["peer", peer.public_key, "remove"])?;
        self.wg_with_input("addconf", &peer.to_string()).map(drop)
    }

    /// Runs `wg set` on this interface.
    ///
    /// # Errors
    ///
    /// [`Error::Command`].
    pub fn set(&self, arguments: &[&str]) -> Result<Output> {
        let command = [&["wg", "set", &self.interface], arguments].concat();
        self.place.run(&command)
    }

    /// Runs `wg show` on this interface; without a field, in its readable form.
    ///
    /// # Errors
    ///
    /// [`Error::Command`].
    pub fn show(&self, field: Option<&str>) -> Result<Output> {
        let mut command = vec!["wg", "show", &self.interface];
        command.extend(field);
        self.place.run(&command)
    }

    /// Returns the value of a field of `wg show` for a peer.
    ///
    /// # Errors
    ///
    /// [`Error::Unmet`] if there is no such peer.
    pub fn field(&self, field: &str, peer: &str) -> Result<String> {
        let output = self.show(Some(field))?;
        let mut lines = output.stdout.lines();
        let value = lines.find_map(|line| line.strip_prefix(peer)?.strip_prefix('\t'));
        value
            .map(str::to_owned)
            .ok_or_else(|| Error::unmet(format!("no peer {peer} in {field}: {}", output.text())))
    }

    /// Runs `wg setconf`, `addconf` or `syncconf` with this text as the file.
    ///
    /// # Errors
    ///
    /// [`Error::Command`].
    pub fn wg_with_input(&self, verb: &str, text: &str) -> Result<Output> {
        let command = ["wg", verb, &self.interface, "/dev/stdin"];
        self.place.run_with_input(&command, text)
    }
}

/// The configuration of a [`Tunnel`], written as a file for `wg setconf`.
#[derive(Debug, Clone)]
pub struct Settings<'a> {
    /// Its private key.
    pub private_key: &'a str,
    /// The outer port; `None` for one of the implementation's choice.
    pub listen_port: Option<u16>,
    /// The inner addresses, with prefix length.
    pub addresses: &'a [&'a str],
    /// The peers.
    pub peers: &'a [PeerSettings<'a>],
}

/// One peer in [`Settings`].
#[derive(Debug, Clone, Copy)]
pub struct PeerSettings<'a> {
    /// Its public key.
    pub public_key: &'a str,
    /// The preshared key, if any.
    pub preshared_key: Option<&'a str>,
    /// Its endpoint; `None` if the peer initiates.
    pub endpoint: Option<SocketAddr>,
    /// Its allowed IPs, separated by commas.
    pub allowed_ips: &'a str,
}

impl std::fmt::Display for Settings<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "[Interface]\nPrivateKey = {}", self.private_key)?;
        if let Some(port) = self.listen_port {
            writeln!(f, "ListenPort = {port}")?;
        }
        self.peers.iter().try_for_each(|peer| write!(f, "{peer}"))
    }
}

impl std::fmt::Display for PeerSettings<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = format!("[Peer]\nPublicKey = {}\n", self.public_key);
        if let Some(key) = self.preshared_key {
            writeln!(text, "PresharedKey = {key}")?;
        }
        if let Some(endpoint) = self.endpoint {
            writeln!(text, "Endpoint = {endpoint}")?;
        }
        writeln!(text, "AllowedIPs = {}", self.allowed_ips)?;
        f.write_str(&text)
    }
}

/// A place that holds a tunnel's interface and can run commands for it.
pub trait Place: Send + Sync {
    /// Runs a command there, which must succeed.
    ///
    /// # Errors
    ///
    /// [`Error::Command`] if it fails.
    fn run(&self, command: &[&str]) -> Result<Output>;

    /// Runs a command there with the given standard input.
    ///
    /// # Errors
    ///
    /// [`Error::Command`] if it fails.
    fn run_with_input(&self, command: &[&str], input: &str) -> Result<Output>;

    /// Adds an address with its prefix length to an interface there, usable at once.
    ///
    /// # Errors
    ///
    /// [`Error::Command`] if it fails.
    fn add_address(&self, interface: &str, address: &str) -> Result<()>;

    /// Echoes every byte that arrives at a TCP port there, on every connection until the end of the
    /// test.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if it cannot listen.
    fn serve_echo(&self, address: SocketAddr) -> Result<()>;
}

impl Place for Host {
    fn run(&self, command: &[&str]) -> Result<Output> {
        self.run(command)
    }

    fn run_with_input(&self, command: &[&str], input: &str) -> Result<Output> {
        self.run_with_input(command, input)
    }

    fn add_address(&self, interface: &str, address: &str) -> Result<()> {
        add_address(self, interface, address)
    }

    fn serve_echo(&self, address: SocketAddr) -> Result<()> {
        traffic::serve_echo(self, address)
    }
}
