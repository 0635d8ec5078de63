//! A WireGuard server at the far end of a machine's cable, for tests of clients.

use crate::error::Result;
use crate::host::{Host, Transport};
use crate::peers::{Implementation, Keys, PeerSettings, PqKeys, Settings, Tunnel};
use crate::process::wait_until;
use crate::sandbox::scratch_file;
use std::time::Duration;

/// UDP port of the server.
pub const PORT: u16 = 51821;

/// Interface of the server.
const INTERFACE: &str = "wgfar";

/// The server, 10.77.0.2 and fd77::2 in the tunnel. It has one client, 10.77.0.1 and fd77::1, which
/// initiates.
pub struct Server {
    /// Keys of the client.
    pub client: Keys,
    /// Keys of the server.
    pub keys: Keys,
    host: Host,
    tunnel: Tunnel,
}

/// Keys in a client's file for hybrid handshakes with a [`Server`].
pub struct Hybrid {
    /// The client's ML-KEM keys.
    pub client: PqKeys,
    /// The server's public key for `hybrid-768`.
    pub server: String,
}

impl Server {
    /// Starts the server on the second of two [neighbours](crate::host::neighbours).
    ///
    /// # Errors
    ///
    /// [`Error`](crate::Error) if a program or command fails.
    pub fn start(near: &Host, far: &Host) -> Result<Self> {
        Self::of(Implementation::Taupe, near, far)
    }

    /// As [`start`](Self::start), with another implementation as the server.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn of(implementation: Implementation, near: &Host, far: &Host) -> Result<Self> {
        let [client, keys] = [Keys::new(near)?, Keys::new(far)?];
        let tunnel = implementation.start(far, INTERFACE)?;
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
        // An initiation sent before the server listens is repeated only 5 s later.
        wait_until("the WireGuard server", Duration::from_secs(30), || {
            far.listens(Transport::Udp, PORT)
        })?;
        Ok(Self {
            client,
            keys,
            host: far.clone(),
            tunnel,
        })
    }

    /// Returns the client's file, with additional lines in each section.
    pub fn file(&self, interface: &str, peer: &str) -> String {
        self.file_to(&self.keys.public, PORT, interface, peer)
    }

    /// Returns the client's file for another server on the same machine.
    pub fn file_to(&self, public_key: &str, port: u16, interface: &str, peer: &str) -> String {
        format!(
            "[Interface]\nPrivateKey = {}\nAddress = 10.77.0.1/24, fd77::1/64\n{interface}\n\
             [Peer]\nPublicKey = {public_key}\nEndpoint = 192.0.2.2:{port}\n{peer}\n",
            self.client.private
        )
    }

    /// Ends the server's program.
    pub fn end(self) {
        drop(self.tunnel);
    }

    /// Requires hybrid handshakes with the client from now on, and creates the keys for them.
    ///
    /// # Errors
    ///
    /// [`Error`](crate::Error) if a program or command fails.
    pub fn begin_hybrid(&self) -> Result<Hybrid> {
        let [client, own] = [PqKeys::new(&self.host)?, PqKeys::new(&self.host)?];
        let seed = scratch_file("server.pq-private", &own.seed)?;
        let key = scratch_file("client.pq.pub", &client.public("hybrid-768")?)?;
        self.taupe(&[
            "set",
            INTERFACE,
            "pq-private-key",
            &seed,
            "peer",
            &self.client.public,
            "pq-public-key",
            &key,
        ])?;
        let server = own.public("hybrid-768")?;
        Ok(Hybrid { client, server })
    }

    /// Sets the rule for handshakes with the client: `require`, `prefer`, `off`.
    ///
    /// # Errors
    ///
    /// [`Error`](crate::Error) if the command fails.
    pub fn set_post_quantum(&self, rule: &str) -> Result<()> {
        let peer = &self.client.public;
        self.taupe(&["set", INTERFACE, "peer", peer, "post-quantum", rule])
            .map(drop)
    }

    /// Returns the output of `taupe show`.
    ///
    /// # Errors
    ///
    /// [`Error`](crate::Error) if the command fails.
    pub fn shown(&self) -> Result<String> {
        self.taupe(&["show", INTERFACE])
    }

    fn taupe(&self, arguments: &[&str]) -> Result<String> {
        let program = Implementation::Taupe.program()?.display().to_string();
        let command = [&[&*program], arguments].concat();
        Ok(self.host.run(&command)?.stdout)
    }
}

impl Hybrid {
    /// Returns the line for `[Interface]`.
    pub fn interface(&self) -> String {
        format!("PqPrivateKey = {}", self.client.seed)
    }

    /// Returns the lines for `[Peer]`.
    pub fn peer(&self, rule: &str) -> String {
        format!("PqPublicKey = {}\nPostQuantum = {rule}", self.server)
    }
}
