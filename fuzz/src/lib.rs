//! The bodies of the fuzz targets. Each takes any bytes, and panics only if it finds a defect.
//!
//! `cargo +nightly fuzz run TARGET` runs a target under libFuzzer. `cargo test` replays the corpora
//! on a stable toolchain.

#[path = "../../crates/protocol/tests/common/mod.rs"]
mod common;

mod differential;
mod frames;
mod handshake;
mod input;
mod message;
mod parts;
mod seeds;
mod transport;

pub use differential::differential;
pub use frames::frames;
pub use handshake::handshake;
pub use message::message;
pub use parts::parts;
pub use seeds::seeds;
pub use taupe::c::c_surface;
pub use taupe_broker::fuzzing::{broker, broker_answers};
pub use taupe_config::fuzzing::file;
pub use taupe_nat::fuzzing::translate;
pub use taupe_packet::fuzzing::split_merge;
pub use taupe_service::fuzzing::service;
pub use taupe_stack::fuzzing::dns;
pub use taupe_transparent::fuzzing::bpf;
pub use taupe_uapi::fuzzing::uapi;
pub use transport::transport;

/// A target with its name.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 19] = [
    ("message", message),
    ("handshake", handshake),
    ("transport", transport),
    ("uapi", uapi),
    ("inner", inner),
    ("split_merge", split_merge),
    ("file", file),
    ("translate", translate),
    ("proxy", proxy),
    ("parts", parts),
    ("c_surface", c_surface),
    ("frames", frames),
    ("broker", broker),
    ("broker_answers", broker_answers),
    ("netlink", netlink),
    ("bpf", bpf),
    ("differential", differential),
    ("dns", dns),
    ("service", service),
];

/// Parses `data` as an inner packet, with every parser. Addresses and length that the protocol
/// finds must lie within the packet.
pub fn inner(data: &[u8]) {
    if let Some(view) = taupe_protocol::inner::parse(data) {
        assert!(view.length <= data.len());
        assert_eq!(view.source.is_ipv4(), view.destination.is_ipv4());
        let header = if view.source.is_ipv4() { 20 } else { 40 };
        assert!(view.length >= header);
        // Truncated to its length, it parses the same. One byte shorter, it is refused.
        assert_eq!(
            taupe_protocol::inner::parse(&data[..view.length]),
            Some(view)
        );
        assert_eq!(taupe_protocol::inner::parse(&data[..view.length - 1]), None);
    }
    taupe_packet::fuzzing::ip_parse(data);
}

/// Reads `data`, after its first byte, as answers of the kernel: of one of the families that configure
/// networks, or a description of a WireGuard device.
pub fn netlink(data: &[u8]) {
    match data.split_first() {
        Some((0, answers)) => taupe_os_linux::netlink::fuzzing::netlink(answers),
        Some((_, answers)) => taupe_client::fuzzing::kernel_device(answers),
        None => {}
    }
}

/// Parses `data` as each kind of input of a proxy: from clients, and from the tunnel.
pub fn proxy(data: &[u8]) {
    taupe_proxy::fuzzing::socks(data);
    taupe_proxy::fuzzing::http(data);
    taupe_stack::fuzzing::packet(data);
}
