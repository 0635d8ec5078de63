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
    Asked,
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
    Asked,
    Applications,
}

/// Chooses the mode. `chooses` is true if the file has keys of transparent mode. `endpoints` has an
/// entry for each peer, which is true if the peer has an endpoint.
pub(crate) fn choose(
    asked: Option<ModeOption>,
    personality: Compatibility,
    chooses: bool,
    endpoints: &[bool],
) -> Mode {
    let adapter = match (asked, personality) {
        (Some(ModeOption::Transparent), _) => return Mode::Transparent(TransparentReason::Asked),
        (Some(ModeOption::Adapter), _) => AdapterReason::Asked,
        (None, Compatibility::WgQuick) => AdapterReason::CalledAsWgQuick,
        (None, Compatibility::Taupe) if chooses => {
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
            Self::Asked => f.write_str("--adapter says so"),
            Self::CalledAsWgQuick => f.write_str("it is called as wg-quick"),
            Self::PeerWithoutEndpoint => f.write_str("the file has a peer without Endpoint"),
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
            Self::Asked => "--transparent says so",
            Self::Applications => "the file selects applications",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{AdapterReason, Mode, TransparentReason, choose};
    use crate::arguments::ModeOption::{Adapter as AskAdapter, Transparent as AskTransparent};
    use taupe_adapter::Compatibility::{Taupe, WgQuick};

    #[test]
    fn the_first_rule_that_applies_decides() {
        let adapter = Mode::Adapter;
        let transparent = Mode::Transparent;
        for (asked, personality, chooses, endpoints, mode) in [
            (
                Some(AskAdapter),
                Taupe,
                false,
                &[true][..],
                adapter(AdapterReason::Asked),
            ),
            (
                Some(AskAdapter),
                Taupe,
                true,
                &[false, true],
                adapter(AdapterReason::Asked),
            ),
            (
                Some(AskAdapter),
                WgQuick,
                false,
                &[true],
                adapter(AdapterReason::Asked),
            ),
            (
                Some(AskTransparent),
                Taupe,
                false,
                &[true],
                transparent(TransparentReason::Asked),
            ),
            (
                Some(AskTransparent),
                Taupe,
                true,
                &[],
                transparent(TransparentReason::Asked),
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
            let chosen = choose(asked, personality, chooses, endpoints);
            assert_eq!(
                chosen, mode,
                "{asked:?} {personality:?} {chooses} {endpoints:?}"
            );
        }
    }

    #[test]
    fn the_line_says_which_and_why() {
        for (mode, line) in [
            (
                Mode::Adapter(AdapterReason::Asked),
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
