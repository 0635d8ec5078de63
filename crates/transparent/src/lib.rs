//! The transparent client: chosen applications go through the tunnel from the
//! uplink they already use, and nothing else is touched.

pub mod flows;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod translate;
pub mod uplinks;
