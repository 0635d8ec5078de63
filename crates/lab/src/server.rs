//! A WireGuard server at the other end of a machine's cable, as the tests of clients have it.

use crate::error::Result;
use crate::host::{Host, Transport};
use crate::peers::{Implementation, Keys, PeerSettings, Settings, Tunnel};
use crate::process::wait_until;
use std::time::Duration;

/// The port that it listens at.
pub const PORT: u16 = 51821;

/// Its interface.
const INTERFACE: &str = "wgfar";

/// The server, 10.77.0.2 and fd77::2 in the tunnel. It has one client, 10.77.0.1 and fd77::1, which
/// begins.
pub struct Server {
    /// The client's keys.
    pub client: Keys,
    /// Its own.
    pub keys: Keys,
    /// Keeps it running.
    _tunnel: Tunnel,
}

impl Server {
    /// Starts it on the second of two [neighbours](crate::host::neighbours).
    ///
    /// # Errors
    ///
    /// [`Error`](crate::Error) when a program or command fails.
    pub fn start(near: &Host, far: &Host) -> Result<Self> {
        let [client, keys] = [Keys::new(near)?, Keys::new(far)?];
        let tunnel = Implementation::Taupe.start(far, INTERFACE)?;
        tunnel.configure(&Settings {
            private_key: &keys.private,
            listen_port: Some(PORT),
            addresses: &["10.77.0.2/24", "fd77::2/64"],
            peers: &[PeerSettings {
                public_key: &client.public,
                preshared_key: None,
                endpoint: None,
                allowed_ips: "10.77.0.1/32, fd77::1/128",
            }],
        })?;
        // An initiation that comes before is tried again 5 s later.
        wait_until("the WireGuard server", Duration::from_secs(30), || {
            far.listens(Transport::Udp, PORT)
        })?;
        Ok(Self {
            client,
            keys,
            _tunnel: tunnel,
        })
    }

    /// The client's file, with more lines in each section.
    pub fn file(&self, interface: &str, peer: &str) -> String {
        self.file_to(&self.keys.public, PORT, interface, peer)
    }

    /// The client's file for another server of the same machine.
    pub fn file_to(&self, public_key: &str, port: u16, interface: &str, peer: &str) -> String {
        format!(
            "[Interface]\nPrivateKey = {}\nAddress = 10.77.0.1/24, fd77::1/64\n{interface}\n\
             [Peer]\nPublicKey = {public_key}\nEndpoint = 192.0.2.2:{port}\n{peer}\n",
            self.client.private
        )
    }
}
