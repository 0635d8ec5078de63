//! Interfaces by name and by number.

#[cfg(target_os = "linux")]
use rustix::net::{AddressFamily, SocketType, netdevice, socket};

/// The index of an interface of the caller's network namespace; `None` if there
/// is none of this name.
#[cfg(target_os = "linux")]
#[must_use]
pub fn index(name: &str) -> Option<u32> {
    let any = socket(AddressFamily::UNIX, SocketType::DGRAM, None).ok()?;
    netdevice::name_to_index(any, name).ok()
}

/// The name of the interface with an index in the caller's network namespace,
/// which `/sys/class/net` may not show.
#[cfg(target_os = "linux")]
#[must_use]
pub fn name(index: u32) -> Option<String> {
    let any = socket(AddressFamily::UNIX, SocketType::DGRAM, None).ok()?;
    netdevice::index_to_name(any, index).ok()
}

/// The index of an interface, which elsewhere than on Linux is asked for by number alone:
/// Windows writes the zone of a link-local address as one (`fe80::1%12`).
#[cfg(not(target_os = "linux"))]
#[must_use]
pub fn index(name: &str) -> Option<u32> {
    name.parse().ok()
}

/// The name of an interface, which elsewhere than on Linux is its number: see [`index`].
#[cfg(not(target_os = "linux"))]
#[must_use]
pub fn name(index: u32) -> Option<String> {
    Some(index.to_string())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::{index, name};

    #[test]
    fn the_loopback_interface_is_the_first() {
        assert_eq!(index("lo"), Some(1));
        assert_eq!(name(1).as_deref(), Some("lo"));
        assert_eq!(name(0), None);
        assert_eq!(index(""), None);
        assert_eq!(index("no-such-interface-name"), None);
    }
}
