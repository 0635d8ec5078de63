//! Two connected machines. One runs Taupe, the other one Taupe or another program.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;
use taupe_lab::host::{Host, Transport, neighbours};
use taupe_lab::peers::{Implementation, Keys, PeerSettings, Settings, Tunnel};
use taupe_lab::process::wait_until;
use taupe_lab::traffic::first_answer;
use taupe_lab::{Error, Result};

/// The addresses of the two ends in the tunnel.
pub(crate) const NEAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1));
pub(crate) const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2));

/// The ports of the two programs.
pub(crate) const PORTS: [u16; 2] = [51820, 51821];

/// Both ends. `near` runs Taupe and initiates.
pub(crate) struct Ends {
    pub(crate) near: Host,
    pub(crate) far: Host,
    pub(crate) near_tunnel: Tunnel,
    far_key: String,
    _far_tunnel: Tunnel,
}

impl Ends {
    /// Connects a Taupe with this number of lanes to a program.
    pub(crate) fn connect(lanes: usize, program: Implementation, options: &[&str]) -> Result<Self> {
        let (near, far) = neighbours()?;
        let lanes = lanes.to_string();
        let near_tunnel =
            Implementation::Taupe.start_with(&near, "wgnear", &["--lanes", &lanes])?;
        let far_tunnel = program.start_with(&far, "wgfar", options)?;
        let [near_keys, far_keys] = [Keys::new(&near)?, Keys::new(&far)?];
        far_tunnel.configure(&Settings {
            private_key: &far_keys.private,
            listen_port: Some(PORTS[1]),
            addresses: &["10.77.0.2/24"],
            peers: &[PeerSettings {
                public_key: &near_keys.public,
                preshared_key: None,
                endpoint: None,
                allowed_ips: "10.77.0.1/32",
            }],
        })?;
        near_tunnel.configure(&Settings {
            private_key: &near_keys.private,
            listen_port: Some(PORTS[0]),
            addresses: &["10.77.0.1/24"],
            peers: &[PeerSettings {
                public_key: &far_keys.public,
                preshared_key: None,
                endpoint: Some(SocketAddr::from(([192, 0, 2, 2], PORTS[1]))),
                allowed_ips: "10.77.0.2/32",
            }],
        })?;
        for (host, port) in [(&near, PORTS[0]), (&far, PORTS[1])] {
            wait_until("a listening port", Duration::from_secs(10), || {
                host.listens(Transport::Udp, port)
            })?;
        }
        first_answer(&near, FAR, Duration::from_secs(15))?;
        Ok(Self {
            near,
            far,
            near_tunnel,
            far_key: far_keys.public,
            _far_tunnel: far_tunnel,
        })
    }

    /// Connects two Taupes with these numbers of lanes.
    pub(crate) fn taupes([near, far]: [usize; 2]) -> Result<Self> {
        Self::connect(near, Implementation::Taupe, &["--lanes", &far.to_string()])
    }

    /// Returns the time of the near end's last handshake, in seconds.
    pub(crate) fn latest_handshake(&self) -> Result<String> {
        self.near_tunnel.field("latest-handshakes", &self.far_key)
    }

    /// Returns the bytes that the near end has received.
    pub(crate) fn received(&self) -> Result<u64> {
        let shown = self.near_tunnel.field("transfer", &self.far_key)?;
        let received = shown.split('\t').next().and_then(|word| word.parse().ok());
        received.ok_or_else(|| Error::unmet(format!("transfer is {shown:?}")))
    }
}
