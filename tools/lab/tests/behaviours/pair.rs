//! Two connected Taupes and their machines.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
pub(crate) use taupe_lab::host::neighbours;
use taupe_lab::host::{Host, Transport};
use taupe_lab::peers::{Implementation, Keys, PeerSettings, Settings, Tunnel};
use taupe_lab::process::wait_until;
use taupe_lab::{Error, Result, ensure};

/// The inner addresses.
pub(crate) const NEAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1));
pub(crate) const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2));
pub(crate) const NEAR6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1));
pub(crate) const FAR6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2));

/// The outer addresses.
pub(crate) const NEAR_OUTER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
pub(crate) const FAR_OUTER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
pub(crate) const FAR_OUTER6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2));

pub(crate) const NEAR_PORT: u16 = 51820;
pub(crate) const FAR_PORT: u16 = 51821;

/// A machine with a Taupe and its keys.
pub(crate) struct End {
    pub(crate) host: Host,
    pub(crate) tunnel: Tunnel,
    pub(crate) keys: Keys,
}

/// Both ends; `near` has the endpoint of `far`, and initiates.
pub(crate) struct Pair {
    pub(crate) near: End,
    pub(crate) far: End,
}

/// Waits until a program listens on a port. A program with a TUN notices only after `ip link set
/// up` has returned that the link is up, and an initiation that arrives before is retried after 5
/// s.
pub(crate) fn await_port(host: &Host, port: u16) -> Result<()> {
    wait_until("a listening port", Duration::from_secs(10), || {
        host.listens(Transport::Udp, port)
    })
}

impl End {
    pub(crate) fn start(host: &Host, interface: &str, options: &[&str]) -> Result<Self> {
        Ok(Self {
            tunnel: Implementation::Taupe.start_with(host, interface, options)?,
            keys: Keys::new(host)?,
            host: host.clone(),
        })
    }

    /// Returns `wg show transfer` of a peer: bytes received and sent.
    pub(crate) fn transfer(&self, peer: &Keys) -> Result<(u64, u64)> {
        let shown = self.tunnel.field("transfer", &peer.public)?;
        let numbers: Vec<u64> = shown
            .split('\t')
            .filter_map(|word| word.parse().ok())
            .collect();
        match numbers[..] {
            [received, sent] => Ok((received, sent)),
            _ => Err(Error::unmet(format!("transfer is {shown:?}"))),
        }
    }

    pub(crate) fn ensure_endpoint(&self, peer: &Keys, expected: &str) -> Result<()> {
        let shown = self.tunnel.field("endpoints", &peer.public)?;
        ensure!(shown == expected, "endpoint {shown}, expected {expected}");
        Ok(())
    }

    pub(crate) fn dump(&self) -> Result<String> {
        Ok(self.tunnel.show(Some("dump"))?.stdout)
    }

    /// Returns the id of the program's process that carries packets. The program must still run.
    pub(crate) fn id(&mut self) -> Result<u32> {
        let interface = self.tunnel.interface().to_owned();
        let process = self.tunnel.process();
        let process = process.ok_or_else(|| Error::unmet("not a program of this machine"))?;
        if !process.runs()? {
            let result = process.output();
            return Err(Error::unmet(format!("{interface} has ended: {result}")));
        }
        Ok(process.packet_process_id())
    }

    /// Returns the ids of all processes of the program, which must still run.
    pub(crate) fn ids(&mut self) -> Result<Vec<u32>> {
        self.id()?;
        Ok(self
            .tunnel
            .process()
            .map_or_else(Vec::new, |it| it.all_ids()))
    }

    /// Runs `ip link set` on the interface.
    pub(crate) fn link(&self, arguments: &[&str]) -> Result<()> {
        let command = [&["link", "set", self.tunnel.interface()], arguments].concat();
        self.host.ip(&command).map(drop)
    }
}

impl Pair {
    /// Connects two new machines over IPv4.
    pub(crate) fn new() -> Result<Self> {
        let (near, far) = neighbours()?;
        Self::between(&near, &far, FAR_OUTER, [&[], &[]])
    }

    /// Connects two given machines, with more options for each program.
    pub(crate) fn between(
        near: &Host,
        far: &Host,
        outer: IpAddr,
        options: [&[&str]; 2],
    ) -> Result<Self> {
        let pair = Self {
            near: End::start(near, "wgnear", options[0])?,
            far: End::start(far, "wgfar", options[1])?,
        };
        pair.near.tunnel.configure(&Settings {
            private_key: &pair.near.keys.private,
            listen_port: Some(NEAR_PORT),
            addresses: &["10.77.0.1/24", "fd77::1/64"],
            peers: &[PeerSettings {
                public_key: &pair.far.keys.public,
                preshared_key: None,
                endpoint: Some(SocketAddr::new(outer, FAR_PORT)),
                allowed_ips: "10.77.0.2/32, fd77::2/128",
            }],
        })?;
        pair.far.tunnel.configure(&Settings {
            private_key: &pair.far.keys.private,
            listen_port: Some(FAR_PORT),
            addresses: &["10.77.0.2/24", "fd77::2/64"],
            peers: &[PeerSettings {
                public_key: &pair.near.keys.public,
                preshared_key: None,
                endpoint: None,
                allowed_ips: "10.77.0.1/32, fd77::1/128",
            }],
        })?;
        await_port(near, NEAR_PORT)?;
        await_port(far, FAR_PORT)?;
        Ok(pair)
    }

    /// Runs `wg set` on the near end for the far one.
    pub(crate) fn set_far(&self, arguments: &[&str]) -> Result<()> {
        let command = [&["peer", &*self.far.keys.public], arguments].concat();
        self.near.tunnel.set(&command).map(drop)
    }

    /// Runs `wg set` on the far end for the near one.
    pub(crate) fn set_near(&self, arguments: &[&str]) -> Result<()> {
        let command = [&["peer", &*self.near.keys.public], arguments].concat();
        self.far.tunnel.set(&command).map(drop)
    }
}
