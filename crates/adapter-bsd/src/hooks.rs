//! Commands of the file.

/// Replaces `%i` with the interface's name, and `%I` with the tunnel's, as wg-quick of macOS does.
/// Without an interface, both are the tunnel's.
#[must_use]
pub fn with_names(command: &str, device: Option<&str>, tunnel: &str) -> String {
    command
        .replace("%i", device.unwrap_or(tunnel))
        .replace("%I", tunnel)
}

#[cfg(test)]
mod tests {
    #[test]
    fn both_names_are_replaced() {
        let command = super::with_names("a %i b %I", Some("utun4"), "wg0");
        assert_eq!(command, "a utun4 b wg0");
    }
}
