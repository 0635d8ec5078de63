//! WireGuard: programs with a TUN interface, and the kernel's own implementation.

mod gateway;

use super::{Contestant, End, GatewayEnds, HandshakeTarget, PackPlace, PackedProgram};
use crate::gateway::GatewayMachines;
use crate::pair::Pair;
use crate::side::Side;
use base64ct::{Base64, Encoding};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use taupe_lab::ensure;
use taupe_lab::error::{Error, Result};
use taupe_lab::host::{Host, add_address};
use taupe_lab::peers::{Implementation, Keys, PeerSettings, Settings, StartOptions};
use taupe_lab::process::{self, Process};

/// The server's UDP port. It is also the client's port if the server must know that beforehand.
const PORT: u16 = 51820;

/// MTU that WireGuard's tools choose for a path MTU of 1,500 bytes.
pub(super) const MTU: &str = "1420";

/// Addresses of peers that do not exist: 10.128.0.0/9.
const PEER_ADDRESSES: u32 = u32::from_be_bytes([10, 128, 0, 0]);
const PEER_ADDRESS_COUNT: u32 = 1 << 23;

/// An interface that `wg` configures.
#[derive(Debug, Clone)]
pub(super) struct WireGuard {
    source: Source,
    title: &'static str,
    /// The id, if this is a variant of Taupe.
    variant: Option<&'static str>,
    /// Additions to the program's command line and environment.
    options: StartOptions,
}

/// The program or kernel module that makes the interface.
#[derive(Debug, Clone, Copy)]
enum Source {
    Program(Implementation),
    Kernel,
}

const NO_OPTIONS: StartOptions = StartOptions {
    arguments: Vec::new(),
    variables: Vec::new(),
};

/// A program with its default logging.
pub(super) const fn program(implementation: Implementation, title: &'static str) -> WireGuard {
    WireGuard {
        source: Source::Program(implementation),
        title,
        variant: None,
        options: NO_OPTIONS,
    }
}

/// Returns a variant of Taupe with these options.
pub(super) const fn variant(
    id: &'static str,
    title: &'static str,
    options: StartOptions,
) -> WireGuard {
    WireGuard {
        source: Source::Program(Implementation::Taupe),
        title,
        variant: Some(id),
        options,
    }
}

/// The module of the running kernel.
pub(super) const KERNEL: WireGuard = WireGuard {
    source: Source::Kernel,
    title: "WireGuard in the kernel",
    variant: None,
    options: NO_OPTIONS,
};

impl Contestant for WireGuard {
    fn id(&self) -> &str {
        match (self.variant, &self.source) {
            (Some(id), _) => id,
            (None, Source::Program(implementation)) => implementation.name(),
            (None, Source::Kernel) => "kernel",
        }
    }

    fn title(&self) -> &str {
        self.title
    }

    fn install(&self) -> Result<()> {
        match self.source {
            Source::Program(implementation) => implementation.install().map(drop),
            Source::Kernel => Ok(()),
        }
    }

    fn version(&self) -> Result<Option<String>> {
        match self.source {
            Source::Program(Implementation::Taupe) => own_version().map(Some),
            // The version it was built from; the other programs print less than this.
            Source::Program(implementation) => {
                implementation.program()?;
                Ok(Some(implementation.version().to_owned()))
            }
            Source::Kernel => kernel_version().map(Some),
        }
    }

    fn prepare(&self, pair: &Pair) -> Result<()> {
        let [client, server] = [Keys::new(&pair.client)?, Keys::new(&pair.server)?];
        let secret = pair.client.run(&["wg", "genpsk"])?;
        let peer = |keys, side: Side, endpoint| {
            let allowed = format!("{}/32", side.inner());
            PeerSettings {
                public_key: keys,
                preshared_key: Some(secret.text()),
                endpoint,
                allowed_ips: &allowed,
            }
            .to_string()
        };
        let own = |keys: &Keys, listen_port| {
            Settings {
                private_key: &keys.private,
                listen_port,
                addresses: &[],
                peers: &[],
            }
            .to_string()
        };
        let endpoint = |side: Side| Some(SocketAddr::from((side.outer(), PORT)));
        let (port, endpoint_of_client) = match self.needs_endpoints() {
            true => (Some(PORT), endpoint(Side::Client)),
            false => (None, None),
        };
        let to_server = peer(&server.public, Side::Server, endpoint(Side::Server));
        let to_client = peer(&client.public, Side::Client, endpoint_of_client);
        let of_client = own(&client, port) + &to_server;
        let of_server = own(&server, Some(PORT)) + &to_client;
        pair.write(file(Side::Client), &of_client)?;
        pair.write(file(Side::Server), &of_server)?;
        Ok(())
    }

    fn start(&self, pair: &Pair, side: Side) -> Result<End> {
        let host = pair.host(side);
        let mut end = self.start_interface(host, &pair.path(file(side)), side.inner(), 24)?;
        if side == Side::Server {
            // A program notices only later that its interface is up. It would lose packets sent
            // before, and a handshake is repeated only after 5 s.
            end.await_port(host, PORT)?;
        }
        Ok(end)
    }

    fn start_gateway(&self, machines: &GatewayMachines) -> Option<Result<GatewayEnds>> {
        Some(self.gateway(machines))
    }

    fn with_workers(&self, count: usize) -> Result<Option<Box<dyn Contestant>>> {
        let Source::Program(implementation) = self.source else {
            return Ok(None);
        };
        let options = implementation.with_workers(count)?;
        Ok(options.map(|options| -> Box<dyn Contestant> {
            let mut with_workers = self.clone();
            with_workers.options.arguments.extend(options.arguments);
            with_workers.options.variables.extend(options.variables);
            Box::new(with_workers)
        }))
    }

    fn packed(&self) -> Result<Vec<PackedProgram>> {
        let Source::Program(implementation) = self.source else {
            return Ok(Vec::new());
        };
        Ok(vec![PackedProgram {
            file: implementation.install()?,
            place: implementation
                .path_in_cache()
                .map_or(PackPlace::Taupe, PackPlace::Cache),
        }])
    }

    fn add_peers(&self, pair: &Pair, server: &End, count: usize) -> Option<Result<()>> {
        let interface = server.interface.as_ref()?;
        Some(add_peers_in_bulk(pair.host(Side::Server), interface, count))
    }

    fn handshakes(&self, pair: &Pair, server: &End) -> Option<Result<HandshakeTarget>> {
        let interface = server.interface.as_ref()?;
        Some(
            public_key(pair.host(Side::Server), interface).map(|public_key| HandshakeTarget {
                port: PORT,
                public_key,
            }),
        )
    }

    fn remove_peers(&self, pair: &Pair, server: &End) -> Option<Result<()>> {
        let interface = server.interface.as_ref()?;
        let settings = pair.path(file(Side::Server));
        let host = pair.host(Side::Server);
        Some(
            host.run(&["wg", "syncconf", interface, &settings])
                .map(drop),
        )
    }

    fn max_peers(&self) -> usize {
        match self.source {
            Source::Program(Implementation::Taupe) | Source::Kernel => 100_000,
            Source::Program(_) => 10_000,
        }
    }
}

impl WireGuard {
    /// Returns true if both ends must know each other's endpoint beforehand.
    fn needs_endpoints(&self) -> bool {
        match self.source {
            Source::Program(implementation) => implementation.quirks().needs_endpoints,
            Source::Kernel => false,
        }
    }

    /// Makes an interface, configures it with a file for `wg setconf`, and brings it up.
    fn start_interface(
        &self,
        host: &Host,
        settings: &str,
        address: Ipv4Addr,
        prefix: u8,
    ) -> Result<End> {
        let interface = interface();
        let process = self.create_interface(host, &interface)?;
        host.run(&["wg", "setconf", &interface, settings])?;
        add_address(host, &interface, &format!("{address}/{prefix}"))?;
        host.ip(&["link", "set", &interface, "mtu", MTU, "up"])?;
        Ok(End {
            address: address.into(),
            interface: Some(interface),
            processes: process.into_iter().collect(),
        })
    }

    /// Makes the interface; returns the program, if there is one.
    fn create_interface(&self, host: &Host, interface: &str) -> Result<Option<Process>> {
        match self.source {
            Source::Program(implementation) => {
                let tunnel = implementation.start_quietly(host, interface, &self.options)?;
                Ok(tunnel.into_process())
            }
            Source::Kernel => {
                host.ip(&["link", "add", interface, "type", "wireguard"])?;
                Ok(None)
            }
        }
    }
}

/// Returns the name of a side's file for `wg setconf`.
pub(super) const fn file(side: Side) -> &'static str {
    match side {
        Side::Client => "client.conf",
        Side::Server => "server.conf",
    }
}

/// Returns a new interface name. The sandbox has one folder of configuration sockets for all
/// machines, so all names must differ.
pub(super) fn interface() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("wg{}", COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Returns the version that Taupe prints; `TAUPE_BIN` may be another version than this crate's.
fn own_version() -> Result<String> {
    let mut command = Command::new(Implementation::Taupe.program()?);
    command.arg("--version");
    let output = process::run("this machine", command, None)?;
    let first = output.stdout.lines().next().unwrap_or_default();
    Ok(first.strip_prefix("taupe ").unwrap_or(first).to_owned())
}

/// Returns the kernel's release if it can make WireGuard interfaces.
fn kernel_version() -> Result<String> {
    const RELEASE: &str = "/proc/sys/kernel/osrelease";
    let release = std::fs::read_to_string(RELEASE).map_err(Error::io(RELEASE))?;
    let release = release.trim();
    ensure!(
        rustix::process::geteuid().is_root(),
        "it takes root to find out whether this kernel ({release}) has WireGuard"
    );
    // The network namespace disappears with the command. The list of contestants is made outside a
    // sandbox, where an interface would be created on the machine itself.
    let mut probe = Command::new("unshare");
    probe.args(["--net", "ip", "link", "add", "wg0", "type", "wireguard"]);
    let made = process::attempt("this machine", probe, None)?;
    let output = made.stderr.trim().lines().last().unwrap_or_default();
    ensure!(
        made.status == Some(0),
        "this kernel ({release}) has no WireGuard: `ip link add type wireguard`: {output}"
    );
    Ok(release.to_owned())
}

/// Returns an interface's public key.
fn public_key(host: &Host, interface: &str) -> Result<[u8; 32]> {
    let shown = host.run(&["wg", "show", interface, "public-key"])?;
    let mut key = [0; 32];
    let decoded = Base64::decode(shown.text(), &mut key);
    ensure!(
        decoded.is_ok_and(|bytes| bytes.len() == 32),
        "the public key of {interface}: {}",
        shown.text()
    );
    Ok(key)
}

/// Adds peers with unknown private keys, each with an address.
fn add_peers_in_bulk(host: &Host, interface: &str, count: usize) -> Result<()> {
    let known = host.run(&["wg", "show", interface, "peers"])?;
    let first = known.stdout.lines().count();
    let mut text = String::new();
    for number in first..first + count {
        let number = u32::try_from(number)
            .ok()
            .filter(|number| *number < PEER_ADDRESS_COUNT)
            .ok_or_else(|| Error::unmet(format!("there is no room for {count} peers more")))?;
        let address = IpAddr::from(Ipv4Addr::from(PEER_ADDRESSES + number));
        let peer = PeerSettings {
            public_key: &key(number),
            preshared_key: None,
            endpoint: None,
            allowed_ips: &format!("{address}/32"),
        };
        text.push_str(&peer.to_string());
    }
    host.run_with_input(&["wg", "addconf", interface, "/dev/stdin"], &text)?;
    Ok(())
}

/// Returns a public key: any 32 bytes are a point on the curve or its twist (RFC 7748).
fn key(number: u32) -> String {
    let mut bytes = [0x5a; 32];
    for (byte, digit) in bytes.iter_mut().zip(number.to_le_bytes()) {
        *byte = digit;
    }
    Base64::encode_string(&bytes)
}
