//! Texts that make the packets of probes recognisable.

use std::fmt::Write as _;

/// Nonces of one run. A nonce is 22 lower-case letters and digits, so that it can be a label of a DNS
/// name: `tp`, 16 random digits, and four digits for its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nonces {
    prefix: String,
}

/// Digits of a nonce's number.
const DIGITS: usize = 4;

impl Nonces {
    /// Creates the nonces of a run from eight random bytes.
    #[must_use]
    pub fn new(random: [u8; 8]) -> Self {
        let mut prefix = String::from("tp");
        for byte in random {
            // Writing to a string does not fail.
            let _ = write!(prefix, "{byte:02x}");
        }
        Self { prefix }
    }

    /// Returns a nonce by its number, below 10,000.
    #[must_use]
    pub fn nonce(&self, number: usize) -> String {
        format!("{}{:0width$}", self.prefix, number, width = DIGITS)
    }

    /// Finds the first nonce of this run in a packet, and returns its number. Upper case is accepted,
    /// since resolvers vary the case of names (draft-vixie-dnsext-dns0x20).
    #[must_use]
    pub fn find(&self, bytes: &[u8]) -> Option<usize> {
        let prefix = self.prefix.as_bytes();
        let mut windows = bytes.windows(prefix.len() + DIGITS);
        windows.find_map(|window| {
            let (start, digits) = window.split_at(prefix.len());
            if !start[0].eq_ignore_ascii_case(&prefix[0]) || !start.eq_ignore_ascii_case(prefix) {
                return None;
            }
            std::str::from_utf8(digits).ok()?.parse().ok()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nonce_is_found_anywhere_and_in_any_case() {
        let nonces = Nonces::new([0, 1, 2, 3, 4, 5, 6, 255]);
        assert_eq!(nonces.nonce(12), "tp00010203040506ff0012");
        let packet = [b"\x16", nonces.nonce(12).as_bytes(), b"\x07invalid"].concat();
        assert_eq!(nonces.find(&packet), Some(12));
        assert_eq!(nonces.find(&packet.to_ascii_uppercase()), Some(12));
        let other = Nonces::new([1; 8]);
        assert_eq!(other.find(&packet), None);
    }

    #[test]
    fn a_nonce_that_is_cut_off_or_no_number_is_none() {
        let nonces = Nonces::new([7; 8]);
        let text = nonces.nonce(3);
        for length in 0..text.len() {
            assert_eq!(nonces.find(&text.as_bytes()[..length]), None, "{length}");
        }
        let wrong = text.replace("0003", "00\u{e9}");
        assert_eq!(nonces.find(wrong.as_bytes()), None);
        let second = [&text.as_bytes()[..18], b"zzzz", text.as_bytes()].concat();
        assert_eq!(nonces.find(&second), Some(3));
    }
}
