//! Devices in the kernel (generic netlink, `linux/wireguard.h`).

#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
mod messages;

use std::io;
use std::net::IpAddr;

use ipnet::IpNet;
use netlink_bindings::traits::{NetlinkRequest as _, Pusher};
use netlink_bindings::wireguard::{
    self, IterableWgdevice, IterableWgpeer, OpGetDeviceDump, PushWgdevice, PushWgpeer,
};
use rustix::io::Errno;
use rustix::net::AddressFamily;
use taupe_os_linux::netlink::{GenericFamily, Netlink, NetlinkError};
use taupe_protocol::key::{KEY_LEN, PresharedKey, PrivateKey, PublicKey};
use taupe_protocol::update::{AllowedIpChange, PeerStatus, PeerUpdate};
use taupe_uapi::{Device, SetRequest, push_peer, since_epoch};
use zeroize::Zeroizing;

use crate::error::Error;
use messages::PeerPart;

/// The kernel's name for this kind of link.
const KIND: &str = "wireguard";

const F_DEVICE_REPLACE_PEERS: u32 = 1 << 0;
const F_PEER_REMOVE: u32 = 1 << 0;
const F_PEER_REPLACE_ALLOWED_IPS: u32 = 1 << 1;
const F_PEER_UPDATE_ONLY: u32 = 1 << 2;
/// Since Linux 6.16. Older kernels refuse the attribute.
const F_ALLOWED_IP_REMOVE: u32 = 1 << 0;

/// Returns the names of the kernel's devices, in the kernel's order.
pub(crate) fn interfaces() -> io::Result<Vec<String>> {
    let links = Netlink::open().and_then(|mut netlink| netlink.links());
    let links = links.map_err(|error| error.source)?;
    let devices = links
        .into_iter()
        .filter(|link| link.kind.as_deref() == Some(KIND));
    Ok(devices.map(|link| link.name).collect())
}

pub(crate) fn read(interface: &str) -> Result<Device, Error> {
    let mut request = wireguard::Request::new().op_get_device_dump();
    request.encode().push_ifname_bytes(interface.as_bytes());
    let parts = family()?.dump(&request).map_err(refused)?;
    let mut device = Device::new(interface);
    for part in &parts {
        merge_device(&mut device, &OpGetDeviceDump::decode_reply(part))?;
    }
    Ok(device)
}

pub(crate) fn apply(interface: &str, request: &SetRequest) -> Result<(), Error> {
    let mut family = family()?;
    // Capacity for the largest message: reallocation would leave copies of keys in freed memory.
    let mut buffer = Zeroizing::new(Vec::with_capacity(2 * messages::SIZE));
    for (index, parts) in messages::split(&request.device.peers).iter().enumerate() {
        let mut message = wireguard::Request::new_with_buf(&mut buffer).op_set_device_do();
        let mut device = message.encode().push_ifname_bytes(interface.as_bytes());
        if index == 0 {
            device = push_device(device, request);
        }
        if !parts.is_empty() {
            let mut array = device.array_peers();
            for part in parts {
                let mut peer = push_peer_update(array.entry_nested(), part);
                if !part.allowed_ips.is_empty() {
                    let mut networks = peer.array_allowedips();
                    for change in part.allowed_ips {
                        let (prefix, flags) = match change {
                            AllowedIpChange::Add(prefix) => (prefix, None),
                            AllowedIpChange::Remove(prefix) => (prefix, Some(F_ALLOWED_IP_REMOVE)),
                        };
                        let mut network = networks
                            .entry_nested()
                            .push_family(address_family(prefix.addr()))
                            .push_ipaddr(prefix.addr())
                            .push_cidr_mask(prefix.prefix_len());
                        if let Some(flags) = flags {
                            network = network.push_flags(flags);
                        }
                        networks = network.end_nested();
                    }
                    peer = networks.end_array();
                }
                array = peer.end_nested();
            }
            drop(array.end_array());
        } else {
            drop(device);
        }
        family.request(&message).map_err(refused)?;
    }
    Ok(())
}

fn push_device<P: Pusher>(device: PushWgdevice<P>, request: &SetRequest) -> PushWgdevice<P> {
    let mut device = device;
    if let Some(update) = &request.device.private_key {
        let key = update
            .key
            .as_ref()
            .map_or(&[0; KEY_LEN], PrivateKey::expose);
        device = device.push_private_key(key);
    }
    if let Some(port) = request.listen_port {
        device = device.push_listen_port(port);
    }
    if let Some(mark) = request.fwmark {
        device = device.push_fwmark(mark);
    }
    if request.device.replace_peers {
        device = device.push_flags(F_DEVICE_REPLACE_PEERS);
    }
    device
}

fn push_peer_update<P: Pusher>(peer: PushWgpeer<P>, part: &PeerPart<'_>) -> PushWgpeer<P> {
    let PeerUpdate {
        public_key,
        remove,
        update_only,
        preshared_key,
        endpoint,
        persistent_keepalive,
        replace_allowed_ips,
        ..
    } = part.peer;
    let mut peer = peer.push_public_key(&public_key.0);
    let flags = [
        (*remove, F_PEER_REMOVE),
        (
            part.first && *replace_allowed_ips,
            F_PEER_REPLACE_ALLOWED_IPS,
        ),
        (*update_only, F_PEER_UPDATE_ONLY),
    ];
    let flags: u32 = flags
        .iter()
        .filter(|(set, _)| *set)
        .map(|(_, flag)| flag)
        .sum();
    if flags != 0 {
        peer = peer.push_flags(flags);
    }
    if !part.first {
        return peer;
    }
    if let Some(key) = preshared_key {
        peer = peer.push_preshared_key(key.expose());
    }
    if let Some(address) = endpoint {
        peer = peer.push_endpoint(*address);
    }
    if let Some(seconds) = persistent_keepalive {
        peer = peer.push_persistent_keepalive_interval(*seconds);
    }
    peer
}

/// Merges one message of the answer into `device`. If a peer's allowed IPs do not fit into one
/// message, the next message repeats the peer's key with more of them.
fn merge_device(device: &mut Device, part: &IterableWgdevice<'_>) -> Result<(), Error> {
    if let Ok(key) = part.get_private_key() {
        device.status.private_key = PrivateKey::new(*Zeroizing::new(key_from(key)?));
    }
    if let Ok(key) = part.get_public_key() {
        device.public_key = Some(PublicKey(key_from(key)?));
    }
    if let Ok(port) = part.get_listen_port() {
        device.listen_port = port;
    }
    if let Ok(mark) = part.get_fwmark() {
        device.fwmark = mark;
    }
    let peers = &mut device.status.peers;
    for reported in part.get_peers().into_iter().flatten() {
        let public_key = PublicKey(key_from(reported.get_public_key().map_err(malformed)?)?);
        if peers
            .last()
            .is_none_or(|peer| peer.public_key != public_key)
        {
            push_peer(peers, public_key);
        }
        if let Some(peer) = peers.last_mut() {
            merge_peer(peer, &reported)?;
        }
    }
    Ok(())
}

fn merge_peer(peer: &mut PeerStatus, reported: &IterableWgpeer<'_>) -> Result<(), Error> {
    if let Ok(key) = reported.get_preshared_key() {
        peer.preshared_key = PresharedKey::new(*Zeroizing::new(key_from(key)?));
    }
    if let Ok(address) = reported.get_endpoint() {
        peer.endpoint = Some(address);
    }
    if let Ok(seconds) = reported.get_persistent_keepalive_interval() {
        peer.persistent_keepalive = seconds;
    }
    if let Ok(time) = reported.get_last_handshake_time() {
        let nanoseconds = u32::try_from(time.nsec).unwrap_or(u32::MAX);
        peer.latest_handshake = since_epoch((time.sec, nanoseconds));
    }
    if let Ok(bytes) = reported.get_rx_bytes() {
        peer.rx_bytes = bytes;
    }
    if let Ok(bytes) = reported.get_tx_bytes() {
        peer.tx_bytes = bytes;
    }
    for network in reported.get_allowedips().into_iter().flatten() {
        let address = network.get_ipaddr().map_err(malformed)?;
        let length = network.get_cidr_mask().map_err(malformed)?;
        let prefix = IpNet::new(address, length).map_err(malformed)?;
        peer.allowed_ips.push(prefix);
    }
    Ok(())
}

fn key_from(bytes: &[u8]) -> Result<[u8; KEY_LEN], Error> {
    bytes.try_into().map_err(malformed)
}

fn malformed<E>(_: E) -> Error {
    Error::Malformed
}

fn address_family(address: IpAddr) -> u16 {
    match address {
        IpAddr::V4(_) => AddressFamily::INET.as_raw(),
        IpAddr::V6(_) => AddressFamily::INET6.as_raw(),
    }
}

fn family() -> Result<GenericFamily, Error> {
    GenericFamily::open(KIND).map_err(|error| {
        if error.errno() == Some(Errno::NOENT.raw_os_error()) {
            Error::NoKernelSupport
        } else {
            error.source.into()
        }
    })
}

fn refused(error: NetlinkError) -> Error {
    match error.errno() {
        None => error.source.into(),
        Some(errno) if errno == Errno::NODEV.raw_os_error() => Error::NoDevice,
        Some(errno) => Error::Refused {
            errno,
            reason: error.reason,
        },
    }
}
