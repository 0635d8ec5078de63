//! Numbered datagrams through a link.

use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;
use taupe_bench::pair::Pair;
use taupe_bench::side::Side;
use taupe_lab::{Error, Result};

/// Bytes of a datagram.
pub(crate) const LENGTH: usize = 200;

/// Sends numbered datagrams from the client to the server, and returns the numbers of those that
/// arrived, in order.
///
/// An error if a datagram arrives that was not sent.
pub(crate) fn send(pair: &Pair, count: u32) -> Result<Vec<u32>> {
    // A datagram occupies at most a page of the buffer.
    let room = count as usize * 4096;
    let to = SocketAddr::new(pair.outer(), 4000);
    let bind = |side: Side| {
        let address = SocketAddr::new(side.outer().into(), 4000);
        pair.host(side)
            .enter(|| UdpSocket::bind(address).map_err(Error::io(address.to_string())))
    };
    let (client, server) = (bind(Side::Client)?, bind(Side::Server)?);
    set_socket_recv_buffer_size_force(&server, room).map_err(Error::io("SO_RCVBUFFORCE"))?;
    for number in 0..count {
        client
            .send_to(&datagram(number), to)
            .map_err(Error::io("sending"))?;
    }
    receive(&server)
}

/// Receives until nothing arrives for a while.
fn receive(server: &UdpSocket) -> Result<Vec<u32>> {
    const PAUSE: Duration = Duration::from_secs(1);
    let what = "receiving";
    server
        .set_read_timeout(Some(PAUSE))
        .map_err(Error::io(what))?;
    let mut arrived = Vec::new();
    let mut buffer = [0; LENGTH + 1];
    loop {
        match server.recv(&mut buffer) {
            Ok(length) => {
                let found = buffer.get(..length).unwrap_or_default();
                let number = found.first_chunk().map(|first| u32::from_be_bytes(*first));
                match number {
                    Some(number) if found == datagram(number) => arrived.push(number),
                    _ => return Err(Error::unmet(format!("not as it was sent: {found:?}"))),
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(arrived),
            Err(error) => return Err(Error::io(what)(error)),
        }
    }
}

fn datagram(number: u32) -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    for (index, byte) in (0u32..).zip(&mut bytes) {
        *byte = number.wrapping_mul(31).wrapping_add(index * 7) as u8;
    }
    if let Some(first) = bytes.first_chunk_mut() {
        *first = number.to_be_bytes();
    }
    bytes
}
