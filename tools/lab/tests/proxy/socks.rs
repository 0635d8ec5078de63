//! A SOCKS 5 client that sends arbitrary requests.

use crate::world::{SOCKS, World};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use taupe_lab::{Error, Result, ensure};

/// Beginning of a CONNECT request.
pub(crate) const CONNECT: [u8; 3] = [5, 1, 0];

/// Returns the bytes of an address and a port in a request.
pub(crate) fn at(address: SocketAddr) -> Vec<u8> {
    let mut bytes = match address.ip() {
        IpAddr::V4(a) => [&[1], &a.octets()[..]].concat(),
        IpAddr::V6(a) => [&[4], &a.octets()[..]].concat(),
    };
    bytes.extend(address.port().to_be_bytes());
    bytes
}

/// Returns the bytes of a name and a port in a request.
pub(crate) fn named(name: &str, port: u16) -> Vec<u8> {
    let mut bytes = vec![3, name.len() as u8];
    bytes.extend(name.as_bytes());
    bytes.extend(port.to_be_bytes());
    bytes
}

/// Sends a request without authentication, and returns the code of the reply.
pub(crate) fn ask(world: &World, request: &[u8]) -> Result<(u8, TcpStream)> {
    let mut stream = world.connect(SOCKS)?;
    let what = || Error::io("SOCKS");
    stream.write_all(&[5, 1, 0]).map_err(what())?;
    let mut method = [0; 2];
    stream.read_exact(&mut method).map_err(what())?;
    ensure!(method == [5, 0], "method {method:?}");
    stream.write_all(request).map_err(what())?;
    let (code, _) = reply(&mut stream)?;
    Ok((code, stream))
}

/// Reads a reply: its code, and the address in it.
pub(crate) fn reply(stream: &mut TcpStream) -> Result<(u8, SocketAddr)> {
    let what = || Error::io("a reply of SOCKS");
    let mut head = [0; 4];
    stream.read_exact(&mut head).map_err(what())?;
    let [version, code, 0, kind] = head else {
        return Err(Error::unmet(format!("reply {head:?}")));
    };
    let address: IpAddr = match (version, kind) {
        (5, 1) => {
            let mut bytes = [0; 4];
            stream.read_exact(&mut bytes).map_err(what())?;
            bytes.into()
        }
        (5, 4) => {
            let mut bytes = [0; 16];
            stream.read_exact(&mut bytes).map_err(what())?;
            bytes.into()
        }
        _ => return Err(Error::unmet(format!("reply {head:?}"))),
    };
    let mut port = [0; 2];
    stream.read_exact(&mut port).map_err(what())?;
    Ok((code, SocketAddr::new(address, u16::from_be_bytes(port))))
}

/// Opens a connection through the proxy.
pub(crate) fn connected(world: &World, to: SocketAddr) -> Result<TcpStream> {
    let (code, stream) = ask(world, &[&CONNECT[..], &at(to)].concat())?;
    ensure!(code == 0, "connecting to {to}: reply {code}");
    Ok(stream)
}
