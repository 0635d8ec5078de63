//! The Internet checksum (RFC 1071, RFC 1624).
