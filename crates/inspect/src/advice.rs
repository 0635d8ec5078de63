//! Errors and missing features of transparent mode, with the commands that help.
//!
//! `taupe-transparent` names no command of this program.

use taupe_transparent::error::TransparentError;
use taupe_transparent::programs::MissingFeature;

/// Returns an error of transparent mode, with advice.
#[must_use]
pub fn error(error: &TransparentError) -> String {
    match error {
        TransparentError::OtherMode(interface) => {
            format!("{error}: run `taupe down {interface}` first")
        }
        TransparentError::Program { .. } => format!(
            "{error}. Use a newer kernel, or `taupe up --adapter`, which needs less and does less"
        ),
        TransparentError::Schema { interface, .. } => format!(
            "{error}: `taupe down {interface}` removes it, and the traffic bypasses the tunnel until \
             it is up again"
        ),
        error => error.to_string(),
    }
}

/// Returns a missing feature of transparent mode, with advice.
#[must_use]
pub fn missing_feature(feature: MissingFeature) -> String {
    match feature {
        MissingFeature::SocketHandover
        | MissingFeature::SocketFamilies
        | MissingFeature::Nfqueue => {
            format!("{feature} (`taupe doctor` says why)")
        }
        feature => feature.to_string(),
    }
}
