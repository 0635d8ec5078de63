//! An empty crate. Its dependency makes cargo build boringtun with its C library.
