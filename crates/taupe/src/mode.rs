//! In which mode a tunnel is brought up, and why.

use crate::arguments::ModeOption;
use std::fmt;
use taupe_adapter::Personality;

/// Why a tunnel is brought up in adapter mode, the only one that there is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Adapter {
    Asked,
    CalledAsWgQuick,
    PeerWithoutEndpoint,
    SeveralPeers(usize),
    /// It would be transparent mode.
    Alone,
}

/// Transparent mode was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "transparent mode is not in this version; leave --transparent out to have an interface with \
     addresses, routes and DNS (adapter mode)"
)]
pub(crate) struct NoTransparentMode;

/// Chooses the mode. `endpoints` says of each peer whether the file has an
/// endpoint for it.
pub(crate) fn choose(
    asked: Option<ModeOption>,
    personality: Personality,
    endpoints: &[bool],
) -> Result<Adapter, NoTransparentMode> {
    Ok(match (asked, personality) {
        (Some(ModeOption::Transparent), _) => return Err(NoTransparentMode),
        (Some(ModeOption::Adapter), _) => Adapter::Asked,
        (None, Personality::WgQuick) => Adapter::CalledAsWgQuick,
        (None, Personality::Taupe) if endpoints.contains(&false) => Adapter::PeerWithoutEndpoint,
        (None, Personality::Taupe) if endpoints.len() > 1 => Adapter::SeveralPeers(endpoints.len()),
        (None, Personality::Taupe) => Adapter::Alone,
    })
}

impl fmt::Display for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("adapter mode, because ")?;
        match self {
            Self::Asked => f.write_str("--adapter says so"),
            Self::CalledAsWgQuick => f.write_str("it is called as wg-quick"),
            Self::PeerWithoutEndpoint => f.write_str("the file has a peer without Endpoint"),
            Self::SeveralPeers(count) => write!(f, "the file has {count} peers"),
            Self::Alone => f.write_str("transparent mode is not in this version"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Adapter, NoTransparentMode, choose};
    use crate::arguments::ModeOption::{Adapter as AskAdapter, Transparent};
    use taupe_adapter::Personality::{Taupe, WgQuick};

    #[test]
    fn the_first_rule_that_applies_decides() {
        for (asked, personality, endpoints, mode) in [
            (Some(AskAdapter), Taupe, &[true][..], Adapter::Asked),
            (Some(AskAdapter), Taupe, &[false, true], Adapter::Asked),
            (Some(AskAdapter), WgQuick, &[true], Adapter::Asked),
            (None, WgQuick, &[true], Adapter::CalledAsWgQuick),
            (None, WgQuick, &[false, true], Adapter::CalledAsWgQuick),
            (None, Taupe, &[false], Adapter::PeerWithoutEndpoint),
            (None, Taupe, &[true, false], Adapter::PeerWithoutEndpoint),
            (None, Taupe, &[true, true], Adapter::SeveralPeers(2)),
            (None, Taupe, &[true], Adapter::Alone),
            (None, Taupe, &[], Adapter::Alone),
        ] {
            let chosen = choose(asked, personality, endpoints);
            assert_eq!(chosen, Ok(mode), "{asked:?} {personality:?} {endpoints:?}");
        }
        for endpoints in [&[][..], &[true], &[false], &[true, true]] {
            let chosen = choose(Some(Transparent), Taupe, endpoints);
            assert_eq!(chosen, Err(NoTransparentMode));
        }
    }

    #[test]
    fn the_line_says_which_and_why() {
        for (mode, line) in [
            (Adapter::Asked, "adapter mode, because --adapter says so"),
            (
                Adapter::SeveralPeers(3),
                "adapter mode, because the file has 3 peers",
            ),
            (
                Adapter::Alone,
                "adapter mode, because transparent mode is not in this version",
            ),
        ] {
            assert_eq!(mode.to_string(), line);
        }
    }
}
