//! Two UDP sockets, one on each machine, that know each other.

use crate::bench::session::Session;
use crate::error::{Error, Result};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

/// A connected pair: whatever does not come from the other is not received.
#[derive(Debug)]
pub(super) struct Datagrams {
    pub(super) client: UdpSocket,
    pub(super) server: UdpSocket,
}

impl Datagrams {
    /// Opens them; nothing is sent. On the server's side the address is the session's
    /// target, on the client's what the system chooses for it.
    pub(super) fn open(session: &Session) -> Result<Self> {
        let target = session.target();
        let any: IpAddr = match target {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let failed = || Error::io(format!("UDP sockets to measure {target} with"));
        let bind = |address: IpAddr| move || UdpSocket::bind((address, 0)).map_err(failed());
        let server = session.pair.server.enter(bind(target))?;
        let client = session.pair.client.enter(bind(any))?;
        let address = server.local_addr().map_err(failed())?;
        client.connect(address).map_err(failed())?;
        let address = client.local_addr().map_err(failed())?;
        server.connect(address).map_err(failed())?;
        Ok(Self { client, server })
    }
}
