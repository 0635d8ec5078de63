//! Nothing: cargo builds boringtun, with its C library, because of this package.
