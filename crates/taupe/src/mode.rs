//! Choice of the mode in which a tunnel is brought up.

use crate::arguments::ModeOption;
use std::fmt;
use taupe_adapter::Compatibility;

/// Mode of a tunnel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// With addresses, routes and name servers.
    Adapter(AdapterReason),
    /// For selected applications, by the interface that they use anyway.
    Transparent(TransparentReason),
}

/// Reason for adapter mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AdapterReason {
    Requested,
    CalledAsWgQuick,
    PeerWithoutEndpoint,
    SeveralPeers(usize),
    NoApplications,
    /// The kernel lacks a feature that transparent mode needs.
    Lacks(&'static str),
}

/// Reason for transparent mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TransparentReason {
    Requested,
    Applications,
}

/// Chooses the mode. `selects` is true if the file has keys of transparent mode. `endpoints` has an
/// entry for each peer, which is true if the peer has an endpoint.
pub(crate) fn choose(
    requested: Option<ModeOption>,
    compatibility: Compatibility,
    selects: bool,
    endpoints: &[bool],
) -> Mode {
    let adapter = match (requested, compatibility) {
        (Some(ModeOption::Transparent), _) => {
            return Mode::Transparent(TransparentReason::Requested);
        }
        (Some(ModeOption::Adapter), _) => AdapterReason::Requested,
        (None, Compatibility::WgQuick) => AdapterReason::CalledAsWgQuick,
        (None, Compatibility::Taupe) if selects => {
            return Mode::Transparent(TransparentReason::Applications);
        }
        (None, Compatibility::Taupe) if endpoints.contains(&false) => {
            AdapterReason::PeerWithoutEndpoint
        }
        (None, Compatibility::Taupe) if endpoints.len() > 1 => {
            AdapterReason::SeveralPeers(endpoints.len())
        }
        (None, Compatibility::Taupe) => AdapterReason::NoApplications,
    };
    Mode::Adapter(adapter)
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Adapter(why) => write!(f, "adapter mode, because {why}"),
            Self::Transparent(why) => write!(f, "transparent mode, because {why}"),
        }
    }
}

impl fmt::Display for AdapterReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Requested => f.write_str("--adapter says so"),
            Self::CalledAsWgQuick => f.write_str("it is called as wg-quick"),
            Self::PeerWithoutEndpoint => {
                f.write_str("the file selects no applications and has a peer without Endpoint")
            }
            Self::SeveralPeers(count) => write!(f, "the file has {count} peers"),
            Self::NoApplications => f.write_str("the file selects no applications"),
            Self::Lacks(what) => write!(
                f,
                "this kernel lacks a feature that transparent mode needs: {what}"
            ),
        }
    }
}

impl fmt::Display for TransparentReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Requested => "--transparent says so",
            Self::Applications => "the file selects applications",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{AdapterReason, Mode, TransparentReason, choose};
    use crate::arguments::ModeOption::{
        Adapter as RequestAdapter, Transparent as RequestTransparent,
    };
    use taupe_adapter::Compatibility::{Taupe, WgQuick};

    #[test]
    fn the_first_rule_that_applies_decides() {
        let adapter = Mode::Adapter;
        let transparent = Mode::Transparent;
        for (requested, compatibility, selects, endpoints, mode) in [
            (
                Some(RequestAdapter),
                Taupe,
                false,
                &[true][..],
                adapter(AdapterReason::Requested),
            ),
            (
                Some(RequestAdapter),
                Taupe,
                true,
                &[false, true],
                adapter(AdapterReason::Requested),
            ),
            (
                Some(RequestAdapter),
                WgQuick,
                false,
                &[true],
                adapter(AdapterReason::Requested),
            ),
            (
                Some(RequestTransparent),
                Taupe,
                false,
                &[true],
                transparent(TransparentReason::Requested),
            ),
            (
                Some(RequestTransparent),
                Taupe,
                true,
                &[],
                transparent(TransparentReason::Requested),
            ),
            (
                None,
                WgQuick,
                true,
                &[true],
                adapter(AdapterReason::CalledAsWgQuick),
            ),
            (
                None,
                WgQuick,
                false,
                &[false, true],
                adapter(AdapterReason::CalledAsWgQuick),
            ),
            (
                None,
                Taupe,
                true,
                &[true, false],
                transparent(TransparentReason::Applications),
            ),
            (
                None,
                Taupe,
                false,
                &[false],
                adapter(AdapterReason::PeerWithoutEndpoint),
            ),
            (
                None,
                Taupe,
                false,
                &[true, false],
                adapter(AdapterReason::PeerWithoutEndpoint),
            ),
            (
                None,
                Taupe,
                false,
                &[true, true],
                adapter(AdapterReason::SeveralPeers(2)),
            ),
            (
                None,
                Taupe,
                false,
                &[true],
                adapter(AdapterReason::NoApplications),
            ),
            (
                None,
                Taupe,
                false,
                &[],
                adapter(AdapterReason::NoApplications),
            ),
        ] {
            let chosen = choose(requested, compatibility, selects, endpoints);
            assert_eq!(
                chosen, mode,
                "{requested:?} {compatibility:?} {selects} {endpoints:?}"
            );
        }
    }

    #[test]
    fn the_line_says_which_and_why() {
        for (mode, line) in [
            (
                Mode::Adapter(AdapterReason::Requested),
                "adapter mode, because --adapter says so",
            ),
            (
                Mode::Adapter(AdapterReason::SeveralPeers(3)),
                "adapter mode, because the file has 3 peers",
            ),
            (
                Mode::Transparent(TransparentReason::Applications),
                "transparent mode, because the file selects applications",
            ),
        ] {
            assert_eq!(mode.to_string(), line);
        }
    }
}
