//! Two machines with devices that perform hybrid handshakes.

use base64ct::{Base64, Encoding};
use rustix::process::Signal;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;
use taupe_lab::host::{Host, Transport, add_address, link};
use taupe_lab::peers::{Implementation, Keys, PqKeys, Tunnel};
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::scratch_file;
use taupe_lab::{Error, Result};

/// The inner addresses.
pub(crate) const NEAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1));
pub(crate) const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2));

/// Creates two machines on one cable.
pub(crate) fn neighbours(mtu: u16) -> Result<(Host, Host)> {
    let (near, far) = (Host::new("near")?, Host::new("far")?);
    link(
        near.port("eth0", &["2001:db8::1/64"]),
        far.port("eth0", &["2001:db8::2/64"]),
        mtu,
    )?;
    Ok((near, far))
}

/// A device with its keys.
pub(crate) struct End {
    pub(crate) host: Host,
    pub(crate) keys: Keys,
    tunnel: Tunnel,
    pub(crate) pq: PqKeys,
    addresses: Vec<String>,
    port: u16,
}

impl End {
    pub(crate) fn start(
        host: &Host,
        program: Implementation,
        interface: &str,
        addresses: &[&str],
        port: u16,
    ) -> Result<Self> {
        let keys = Keys::new(host)?;
        Self::start_with_keys(host, program, interface, addresses, port, keys)
    }

    pub(crate) fn start_with_keys(
        host: &Host,
        program: Implementation,
        interface: &str,
        addresses: &[&str],
        port: u16,
        keys: Keys,
    ) -> Result<Self> {
        let end = Self {
            tunnel: program.start(host, interface)?,
            host: host.clone(),
            keys,
            pq: PqKeys::new(host)?,
            addresses: addresses.iter().map(|it| (*it).to_owned()).collect(),
            port,
        };
        end.begin()?;
        Ok(end)
    }

    /// Configures the interface's keys and addresses and brings it up.
    fn begin(&self) -> Result<()> {
        let key = scratch_file("key", &self.keys.private)?;
        let port = self.port.to_string();
        self.tunnel
            .set(&["private-key", &key, "listen-port", &port])?;
        for address in &self.addresses {
            add_address(&self.host, self.interface(), address)?;
        }
        self.host
            .ip(&["link", "set", self.interface(), "mtu", "1200", "up"])?;
        wait_until("a listening port", Duration::from_secs(10), || {
            self.host.listens(Transport::Udp, self.port)
        })
    }

    /// Restarts the device's program.
    pub(crate) fn restart(mut self) -> Result<Self> {
        let interface = self.interface().to_owned();
        let process = self.tunnel.process();
        let process = process.ok_or_else(|| Error::unmet("not a program of this machine"))?;
        process.signal(Signal::TERM)?;
        process.wait(Duration::from_secs(10))?;
        self.tunnel = Implementation::Taupe.start(&self.host, &interface)?;
        self.begin()?;
        self.give_seed()?;
        Ok(self)
    }

    pub(crate) fn interface(&self) -> &str {
        self.tunnel.interface()
    }

    /// Returns the output of `taupe` with these arguments.
    pub(crate) fn taupe(&self, arguments: &[&str]) -> Result<String> {
        let taupe = Implementation::Taupe.program()?;
        let taupe = taupe.to_string_lossy();
        let command = [&[&*taupe], arguments].concat();
        Ok(self.host.run(&command)?.stdout)
    }

    /// Adds another device as a peer.
    pub(crate) fn add_peer(&self, other: &Self, allowed: &str, at: Option<&str>) -> Result<()> {
        let mut arguments = vec!["peer", &other.keys.public, "allowed-ips", allowed];
        if let Some(at) = at {
            arguments.extend(["endpoint", at]);
        }
        self.tunnel.set(&arguments).map(drop)
    }

    pub(crate) fn give_seed(&self) -> Result<()> {
        let seed = scratch_file("seed", &self.pq.seed)?;
        self.taupe(&["set", self.interface(), "pq-private-key", &seed])
            .map(drop)
    }

    /// Sets the rule for handshakes with a peer, and the peer's key.
    pub(crate) fn set_hybrid(&self, other: &Self, key: Option<&str>, rule: &str) -> Result<()> {
        let peer = &other.keys.public;
        let mut arguments = vec!["set", self.interface(), "peer", peer];
        let file = match key {
            Some(key) => scratch_file("pq-key", key)?,
            None => String::new(),
        };
        if key.is_some() {
            arguments.extend(["pq-public-key", &file]);
        }
        arguments.extend(["post-quantum", rule]);
        self.taupe(&arguments).map(drop)
    }
}

/// Two connected devices; `near` has the endpoint of `far`.
pub(crate) struct Pair {
    pub(crate) near: End,
    pub(crate) far: End,
}

impl Pair {
    /// Connects them, each configured with its suite.
    pub(crate) fn new(near: &Host, far: &Host, suite: &str, other: &str) -> Result<Self> {
        let taupe = Implementation::Taupe;
        let pair = Self {
            near: End::start(near, taupe, "wgnear", &["10.77.0.1/24"], 51820)?,
            far: End::start(far, taupe, "wgfar", &["10.77.0.2/24"], 51821)?,
        };
        let at = Some("[2001:db8::2]:51821");
        pair.near.add_peer(&pair.far, "10.77.0.2/32", at)?;
        pair.far.add_peer(&pair.near, "10.77.0.1/32", None)?;
        for (one, peer, suite) in [
            (&pair.near, &pair.far, suite),
            (&pair.far, &pair.near, other),
        ] {
            let key = match suite {
                "hybrid-light" => None,
                _ => {
                    one.give_seed()?;
                    Some(peer.pq.public(suite)?)
                }
            };
            one.set_hybrid(peer, key.as_deref(), "require")?;
        }
        Ok(pair)
    }

    /// Returns all public keys as bytes.
    pub(crate) fn public_keys(&self) -> Result<Vec<Vec<u8>>> {
        let mut keys = Vec::new();
        for end in [&self.near, &self.far] {
            let mut texts = vec![end.keys.public.clone()];
            for suite in ["hybrid-768", "hybrid-512"] {
                texts.push(end.pq.public(suite)?);
            }
            for text in texts {
                let key = Base64::decode_vec(&text);
                keys.push(key.map_err(|error| Error::unmet(error.to_string()))?);
            }
        }
        Ok(keys)
    }
}
