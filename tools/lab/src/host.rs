//! Machines made of network namespaces, and the links between them.

use crate::error::{Error, Result};
use crate::process::{self, Attempt, Output, Process, wait_until};
use crate::snmp::{self, Snmp};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;
use std::time::Duration;

/// A machine: a named network namespace inside the sandbox.
///
/// It shares the sandbox's file system and processes, and disappears with the sandbox. A clone
/// refers to the same machine; dropping one does nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    name: String,
}

impl Host {
    /// Creates a machine whose only interface is `lo`, up.
    ///
    /// # Errors
    ///
    /// [`Error::Command`] if the name is taken.
    pub fn new(name: &str) -> Result<Self> {
        let host = Self {
            name: name.to_owned(),
        };
        host.outside(&["netns", "add", name])?;
        host.ip(&["link", "set", "lo", "up"])?;
        Ok(host)
    }

    /// Returns its name, which is the namespace's.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs a command here, which must succeed.
    ///
    /// # Errors
    ///
    /// [`Error::Command`] with its output if it fails.
    pub fn run(&self, command: &[&str]) -> Result<Output> {
        process::run(&self.name, self.command(command), None)
    }

    /// Runs a command here with `input` as its standard input.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn run_with_input(&self, command: &[&str], input: &str) -> Result<Output> {
        process::run(&self.name, self.command(command), Some(input))
    }

    /// Runs a command here, which may fail.
    ///
    /// # Errors
    ///
    /// [`Error::Start`].
    pub fn attempt(&self, command: &[&str]) -> Result<Attempt> {
        process::attempt(&self.name, self.command(command), None)
    }

    /// Starts a program here that keeps running until it is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::Start`].
    pub fn spawn(&self, command: &[&str]) -> Result<Process> {
        Process::start(&self.name, self.command(command))
    }

    /// Returns a command that runs here, for uses that [`run`](Self::run) and
    /// [`spawn`](Self::spawn) do not cover.
    pub fn command(&self, command: &[&str]) -> Command {
        let mut inside = Command::new("ip");
        inside.args(["netns", "exec", &self.name]).args(command);
        inside
    }

    /// Runs `ip` for this machine's interfaces, addresses and routes.
    ///
    /// # Errors
    ///
    /// [`Error::Command`].
    pub fn ip(&self, arguments: &[&str]) -> Result<Output> {
        self.outside(&[&["-n", &self.name], arguments].concat())
    }

    /// Sets a variable of the network stack, named as below `/proc/sys`.
    ///
    /// # Errors
    ///
    /// [`Error::Command`] if the variable does not exist.
    pub fn sysctl(&self, name: &str, value: &str) -> Result<()> {
        let path = format!("/proc/sys/{name}");
        self.run_with_input(&["tee", &path], value).map(drop)
    }

    /// Reads the counters of this machine's network stack.
    ///
    /// # Errors
    ///
    /// [`Error::Command`].
    pub fn snmp(&self) -> Result<Snmp> {
        let [standard, extended] = snmp::FILES;
        Ok(Snmp::new(self.run(&["cat", standard, extended])?.stdout))
    }

    /// Runs `work` on a thread inside this machine. The sockets that it opens belong to this
    /// machine, also after they are returned.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the machine no longer exists, or the error of `work`.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                let path = format!("/run/netns/{}", self.name);
                let namespace = File::open(&path).map_err(Error::io(&*path))?;
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                    .map_err(Error::io(path))?;
                work()
            });
            inside
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Returns true if a program here listens on a port.
    ///
    /// # Errors
    ///
    /// [`Error::Command`].
    pub fn listens(&self, transport: Transport, port: u16) -> Result<bool> {
        let kind = match transport {
            Transport::Tcp => "-t",
            Transport::Udp => "-u",
        };
        let filter = format!("sport = :{port}");
        let sockets = self.run(&["ss", "-H", kind, "-l", "-n", &filter])?;
        Ok(!sockets.text().is_empty())
    }

    /// Moves an interface of this machine to another one. The kernel takes it down and removes its
    /// addresses.
    ///
    /// # Errors
    ///
    /// [`Error::Command`].
    pub fn move_interface(&self, interface: &str, to: &Self) -> Result<()> {
        self.ip(&["link", "set", interface, "netns", &to.name])
            .map(drop)
    }

    /// Deletes the machine. The kernel keeps the namespace itself while a process runs in it or a
    /// socket belongs to it.
    ///
    /// # Errors
    ///
    /// [`Error::Command`].
    pub fn delete(self) -> Result<()> {
        self.outside(&["netns", "delete", &self.name]).map(drop)
    }

    /// Describes one end of a link for [`link`].
    pub fn port<'a>(&'a self, interface: &'a str, addresses: &'a [&'a str]) -> Port<'a> {
        Port {
            host: self,
            interface,
            addresses,
        }
    }

    fn outside(&self, arguments: &[&str]) -> Result<Output> {
        let mut command = Command::new("ip");
        command.args(arguments);
        process::run(&self.name, command, None)
    }
}

/// A transport protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// One end of a link: made by [`Host::port`], used by [`link`].
#[derive(Debug, Clone, Copy)]
pub struct Port<'a> {
    host: &'a Host,
    interface: &'a str,
    addresses: &'a [&'a str],
}

/// Connects two machines with a virtual Ethernet cable, both ends up.
///
/// Addresses include their prefix length, and are usable at once: duplicate address detection is
/// off. `mtu` is in bytes of IP packet.
///
/// # Errors
///
/// [`Error::Command`] if a name is taken or an address is malformed.
pub fn link(a: Port<'_>, b: Port<'_>, mtu: u16) -> Result<()> {
    let mtu = mtu.to_string();
    #[rustfmt::skip]
    a.host.ip(&[
        "link", "add", a.interface, "mtu", &mtu, "type", "veth",
        "peer", "name", b.interface, "mtu", &mtu, "netns", &b.host.name,
    ])?;
    for port in [a, b] {
        for address in port.addresses {
            add_address(port.host, port.interface, address)?;
        }
        port.host.ip(&["link", "set", port.interface, "up"])?;
    }
    // The kernel may take up to a second to notice the carrier of a link (net/core/link_watch.c),
    // and uses no IPv6 address before.
    for port in [a, b] {
        wait_until("carrier", Duration::from_secs(5), || {
            let shown = port
                .host
                .ip(&["-o", "link", "show", "dev", port.interface])?;
            Ok(shown.stdout.contains(" state UP "))
        })?;
    }
    Ok(())
}

/// Creates two machines, `near` and `far`, on one cable: 192.0.2.1 and .2, 2001:db8::1 and ::2.
///
/// # Errors
///
/// As [`link`].
pub fn neighbours() -> Result<(Host, Host)> {
    let (near, far) = (Host::new("near")?, Host::new("far")?);
    for host in [&near, &far] {
        // Otherwise an address may appear in the middle of a test.
        host.sysctl("net/ipv6/conf/default/accept_dad", "0")?;
    }
    link(
        near.port("eth0", &["192.0.2.1/24", "2001:db8::1/64"]),
        far.port("eth0", &["192.0.2.2/24", "2001:db8::2/64"]),
        1500,
    )?;
    Ok((near, far))
}

/// Adds an address to an interface, `192.0.2.1/24` or `fd00::1/64`, usable at once.
///
/// # Errors
///
/// [`Error::Command`].
pub fn add_address(host: &Host, interface: &str, address: &str) -> Result<()> {
    let mut arguments = vec!["address", "add", address, "dev", interface];
    if address.contains(':') {
        arguments.push("nodad");
    }
    host.ip(&arguments).map(drop)
}
