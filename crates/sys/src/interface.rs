//! Interfaces by name.

use rustix::net::{AddressFamily, SocketType, netdevice, socket};

/// The index of an interface of the caller's network namespace; `None` if there
/// is none of this name.
#[must_use]
pub fn index(name: &str) -> Option<u32> {
    let any = socket(AddressFamily::UNIX, SocketType::DGRAM, None).ok()?;
    netdevice::name_to_index(any, name).ok()
}

#[cfg(test)]
mod tests {
    use super::index;

    #[test]
    fn the_loopback_interface_is_the_first() {
        assert_eq!(index("lo"), Some(1));
        assert_eq!(index(""), None);
        assert_eq!(index("no-such-interface-name"), None);
    }
}
