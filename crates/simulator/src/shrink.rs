//! Makes a failing episode smaller.
