//! Where the kernel has no devices that could be asked: on Windows those of WireGuardNT are not
//! looked at.

use crate::Error;
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
