//! Stand-in for systems without kernel devices. On Windows, WireGuardNT devices are not supported.

use crate::error::Error;
use std::io;
use taupe_uapi::{Device, SetRequest};

pub(crate) fn interfaces() -> io::Result<Vec<String>> {
    Ok(Vec::new())
}

pub(crate) fn read(_interface: &str) -> Result<Device, Error> {
    Err(Error::NoDevice)
}

pub(crate) fn apply(_interface: &str, _request: &SetRequest) -> Result<(), Error> {
    Err(Error::NoDevice)
}
