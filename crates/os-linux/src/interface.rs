//! Conversion between interface names and indices.

use rustix::net::{AddressFamily, SocketType, netdevice, socket};

/// Returns the index of an interface in the caller's network namespace, or `None` if there is no
/// interface of this name.
#[must_use]
pub fn index(name: &str) -> Option<u32> {
    let any = socket(AddressFamily::UNIX, SocketType::DGRAM, None).ok()?;
    netdevice::name_to_index(any, name).ok()
}

/// Returns the name of the interface with this index in the caller's network namespace. It does not
/// use `/sys/class/net`, which may show another namespace.
#[must_use]
pub fn name(index: u32) -> Option<String> {
    let any = socket(AddressFamily::UNIX, SocketType::DGRAM, None).ok()?;
    netdevice::index_to_name(any, index).ok()
}

#[cfg(test)]
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
