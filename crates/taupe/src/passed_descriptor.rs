//! Descriptors that the caller passes by number, in the variables that wireguard-go has.

use std::os::fd::RawFd;

/// Variable with the number of an open TUN.
pub(crate) const TUN: &str = "WG_TUN_FD";

/// Variable with the number of a listening configuration socket.
pub(crate) const UAPI: &str = "WG_UAPI_FD";

/// The number of an inherited descriptor. As in BoringTun, -1 means none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Descriptor(Option<RawFd>);

#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(crate) enum NotDescriptor {
    #[error("it is not the number of a descriptor")]
    Syntax,
    #[error("descriptors 0 to 2 are the standard streams, pass another")]
    StandardStream,
}

impl Descriptor {
    pub(crate) fn number(self) -> Option<RawFd> {
        self.0
    }
}

impl std::str::FromStr for Descriptor {
    type Err = NotDescriptor;

    fn from_str(text: &str) -> Result<Self, NotDescriptor> {
        match text.parse() {
            Ok(-1) => Ok(Self(None)),
            Ok(0..=2) => Err(NotDescriptor::StandardStream),
            Ok(number @ 3..) => Ok(Self(Some(number))),
            Ok(_) | Err(_) => Err(NotDescriptor::Syntax),
        }
    }
}
