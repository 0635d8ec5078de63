//! A tunnel over an impaired link, and a machine behind it.
//!
//! ```text
//! near ══ road ══ far ── beyond
//! ```
//!
//! `near` and `far` are the tunnel's ends, `road` runs the [`Relay`], and the [`Inspector`] checks
//! every packet from `far` to `beyond`.

use crate::inspector::Inspector;
use crate::relay::Relay;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use taupe_lab::host::{Host, Transport, link};
use taupe_lab::peers::{Keys, PeerSettings, Settings, Tunnel};
use taupe_lab::process::wait_until;
use taupe_lab::traffic::first_answer;
use taupe_lab::{Error, Result};

/// An IP version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) const BOTH: [Self; 2] = [Self::V4, Self::V6];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::V4 => "ipv4",
            Self::V6 => "ipv6",
        }
    }

    fn choose(self, v4: [u8; 4], v6: [u16; 8]) -> IpAddr {
        match self {
            Self::V4 => Ipv4Addr::from(v4).into(),
            Self::V6 => Ipv6Addr::from(v6).into(),
        }
    }

    /// Returns the near end's address inside the tunnel.
    pub(crate) fn near(self) -> IpAddr {
        self.choose([10, 77, 0, 1], [0xfd77, 0, 0, 0, 0, 0, 0, 1])
    }

    /// Returns the address of the machine behind the far end.
    pub(crate) fn beyond(self) -> IpAddr {
        self.choose([10, 88, 0, 2], [0xfd88, 0, 0, 0, 0, 0, 0, 2])
    }

    fn entry(self) -> IpAddr {
        self.choose([192, 0, 2, 2], [0x2001, 0xdb8, 0, 0, 0, 0, 0, 2])
    }

    fn far(self) -> IpAddr {
        self.choose([198, 51, 100, 2], [0x2001, 0xdb8, 1, 0, 0, 0, 0, 2])
    }
}

/// The tunnel's interface at each end.
pub(crate) const NEAR: &str = "wgnear";
pub(crate) const FAR: &str = "wgfar";

const PORT: u16 = 51820;

/// All machines and their tunnel.
pub(crate) struct Scene {
    pub(crate) near: Host,
    pub(crate) far: Host,
    pub(crate) beyond: Host,
    pub(crate) relay: Relay,
    pub(crate) inspector: Inspector,
    _tunnels: [Tunnel; 2],
}

impl Scene {
    /// Sets everything up over the given outer version. `start` starts an end; `mtu` is that of
    /// near's cable, in bytes.
    pub(crate) fn new(
        outer: Family,
        mtu: u16,
        start: impl Fn(&Host, &str) -> Result<Tunnel>,
    ) -> Result<Self> {
        let [near, road, far, beyond] = ["near", "road", "far", "beyond"].map(Host::new);
        let (near, road, far, beyond) = (near?, road?, far?, beyond?);
        link(
            near.port("eth0", &["192.0.2.1/24", "2001:db8::1/64"]),
            road.port("eth0", &["192.0.2.2/24", "2001:db8::2/64"]),
            mtu,
        )?;
        link(
            road.port("eth1", &["198.51.100.1/24", "2001:db8:1::1/64"]),
            far.port("eth0", &["198.51.100.2/24", "2001:db8:1::2/64"]),
            1500,
        )?;
        let inspector = Inspector::between(
            (&far, &["10.88.0.1/24", "fd88::1/64"]),
            (&beyond, &["10.88.0.2/24", "fd88::2/64"]),
        )?;
        for host in [&near, &beyond] {
            host.sysctl("net/ipv4/tcp_ecn", "1")?;
            // Keeps ECN also for connections whose first packet was lost.
            host.sysctl("net/ipv4/tcp_ecn_fallback", "0")?;
        }
        for version in ["ipv4", "ipv6"] {
            far.sysctl(&format!("net/{version}/conf/all/forwarding"), "1")?;
        }
        beyond.ip(&["route", "add", "10.77.0.0/24", "via", "10.88.0.1"])?;
        beyond.ip(&["-6", "route", "add", "fd77::/64", "via", "fd88::1"])?;
        let relay = Relay::start(&road, outer.entry(), SocketAddr::new(outer.far(), PORT))?;
        let tunnels = [start(&near, NEAR)?, start(&far, FAR)?];
        connect(&near, &far, &tunnels, relay.entry)?;
        for network in [["-4", "10.88.0.0/24"], ["-6", "fd88::/64"]] {
            near.ip(&[network[0], "route", "add", network[1], "dev", NEAR])?;
        }
        for inner in Family::BOTH {
            first_answer(&near, inner.beyond(), Duration::from_secs(15))?;
        }
        Ok(Self {
            near,
            far,
            beyond,
            relay,
            inspector,
            _tunnels: tunnels,
        })
    }

    /// Returns how often a program of the far end has received datagrams.
    pub(crate) fn receives_of_far(&self) -> Result<u64> {
        let text = self.far.run(&["cat", "/proc/net/snmp6"])?.stdout;
        let over_ipv6 = text.lines().find_map(|line| {
            let value = line.strip_prefix("Udp6InDatagrams")?;
            value.trim().parse::<u64>().ok()
        });
        let none = || Error::unmet(format!("no count of datagrams in {text}"));
        Ok(self.far.snmp()?.get("Udp", "InDatagrams")? + over_ipv6.ok_or_else(none)?)
    }
}

/// Returns the packets and super-packets into an interface (received, in the kernel's terms) and
/// out of it.
pub(crate) fn packets(host: &Host, interface: &str) -> Result<(u64, u64)> {
    let text = host.run(&["cat", "/proc/net/dev"])?.stdout;
    let line = text.lines().find_map(|line| {
        let rest = line.trim_start().strip_prefix(interface)?;
        rest.strip_prefix(':')
    });
    let numbers: Vec<u64> = line
        .unwrap_or_default()
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    match (numbers.get(1), numbers.get(9)) {
        (Some(received), Some(sent)) => Ok((*received, *sent)),
        _ => Err(Error::unmet(format!("no {interface} in {text}"))),
    }
}

fn connect(near: &Host, far: &Host, tunnels: &[Tunnel; 2], entry: SocketAddr) -> Result<()> {
    let (near_keys, far_keys) = (Keys::new(near)?, Keys::new(far)?);
    // Far first: an initiation that arrives before far listens is retried after 5 s.
    tunnels[1].configure(&Settings {
        private_key: &far_keys.private,
        listen_port: Some(PORT),
        addresses: &["10.77.0.2/24", "fd77::2/64"],
        peers: &[PeerSettings {
            public_key: &near_keys.public,
            preshared_key: None,
            endpoint: None,
            allowed_ips: "10.77.0.1/32, fd77::1/128",
        }],
    })?;
    let listens = |host: &Host| {
        let limit = Duration::from_secs(10);
        wait_until("a listening port", limit, || {
            host.listens(Transport::Udp, PORT)
        })
    };
    listens(far)?;
    tunnels[0].configure(&Settings {
        private_key: &near_keys.private,
        listen_port: Some(PORT),
        addresses: &["10.77.0.1/24", "fd77::1/64"],
        peers: &[PeerSettings {
            public_key: &far_keys.public,
            preshared_key: None,
            endpoint: Some(entry),
            allowed_ips: "10.77.0.2/32, fd77::2/128, 10.88.0.0/24, fd88::/64",
        }],
    })?;
    listens(near)
}
