//! Source addresses of datagrams, and the peer's address.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::Error;
use crate::c::boundary::{buffers, guard, tunnel_of};
use crate::c::{wireguard_result, wireguard_tunnel};

/// An address and UDP port.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct taupe_address {
    /// 4 or 6.
    pub version: u8,
    /// In host byte order.
    pub port: u16,
    /// In network byte order. IPv4 uses the first four bytes.
    pub ip: [u8; 16],
    /// The interface index of a link-local IPv6 address, else 0.
    pub scope: u32,
}

/// Handles a datagram as wireguard_read does, and also takes its source address; NULL if that is
/// unknown. Under load (more than 10 handshake messages in a second), handshake messages with a
/// source address are answered with cookies. Those without one are refused.
///
/// # Safety
/// As wireguard_read. `from` is NULL or an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taupe_read_from(
    tunnel: *const wireguard_tunnel,
    from: *const taupe_address,
    src: *const u8,
    src_size: u32,
    dst: *mut u8,
    dst_size: u32,
) -> wireguard_result {
    // SAFETY: the caller guarantees the address.
    let Ok(from) = (unsafe { address(from) }) else {
        return wireguard_result::error(Error::InvalidArgument);
    };
    // SAFETY: the caller guarantees the tunnel and both buffers.
    unsafe {
        buffers(tunnel, (src, src_size), (dst, dst_size), |it, src, dst| {
            it.read(from, src, dst)
        })
    }
}

/// Returns the address of a pointer. `Err` if its version is neither 4 nor 6.
///
/// # Safety
/// `from` is NULL or an address.
pub(super) unsafe fn address(from: *const taupe_address) -> Result<Option<SocketAddr>, ()> {
    // SAFETY: the caller guarantees it.
    let Some(from) = (unsafe { from.as_ref() }) else {
        return Ok(None);
    };
    let [a, b, c, d, ..] = from.ip;
    match from.version {
        4 => Ok(Some((Ipv4Addr::new(a, b, c, d), from.port).into())),
        6 => {
            let ip = Ipv6Addr::from(from.ip);
            let address = core::net::SocketAddrV6::new(ip, from.port, 0, from.scope);
            Ok(Some(address.into()))
        }
        _ => Err(()),
    }
}

/// Writes the peer's address to `address`: the source of its last authentic message, as given to
/// taupe_read_from, taupe_read_in_place or taupe_read_batch. Returns false if it is unknown.
///
/// # Safety
/// `tunnel` is NULL or a tunnel. `address` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taupe_peer_address(
    tunnel: *const wireguard_tunnel,
    address: *mut taupe_address,
) -> bool {
    guard(false, || {
        // SAFETY: the caller guarantees the tunnel.
        let known = unsafe { tunnel_of(tunnel) }.and_then(|it| it.tunnel.peer_address());
        let (Some(known), false) = (known, address.is_null()) else {
            return false;
        };
        let mut converted = taupe_address {
            version: 4,
            port: known.port(),
            ip: [0; 16],
            scope: 0,
        };
        match known.ip() {
            IpAddr::V4(ip) => converted.ip[..4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => {
                converted.version = 6;
                converted.ip = ip.octets();
            }
        }
        if let SocketAddr::V6(known) = known {
            converted.scope = known.scope_id();
        }
        // SAFETY: it is not NULL, and the caller guarantees the rest.
        unsafe { address.write(converted) };
        true
    })
}
