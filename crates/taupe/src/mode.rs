//! Choice of the mode in which a tunnel is brought up.

use crate::arguments::ModeOption;
use std::fmt;
use taupe_adapter::Compatibility;

/// Mode of a tunnel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// With addresses, routes and name servers.
    Adapter(Adapter),
    /// For selected applications, by the interface that they use anyway.
    Transparent(Transparent),
}

/// Reason for adapter mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Adapter {
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
pub(crate) enum Transparent {
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
        (Some(ModeOption::Transparent), _) => return Mode::Transparent(Transparent::Asked),
        (Some(ModeOption::Adapter), _) => Adapter::Asked,
        (None, Compatibility::WgQuick) => Adapter::CalledAsWgQuick,
        (None, Compatibility::Taupe) if chooses => {
            return Mode::Transparent(Transparent::Applications);
        }
        (None, Compatibility::Taupe) if endpoints.contains(&false) => Adapter::PeerWithoutEndpoint,
        (None, Compatibility::Taupe) if endpoints.len() > 1 => {
            Adapter::SeveralPeers(endpoints.len())
        }
        (None, Compatibility::Taupe) => Adapter::NoApplications,
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

impl fmt::Display for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asked => f.write_str("--adapter says so"),
            Self::CalledAsWgQuick => f.write_str("it is called as wg-quick"),
            Self::PeerWithoutEndpoint => f.write_str("the file has a peer without Endpoint"),
            Self::SeveralPeers(count) => write!(f, "the file has {count} peers"),
            Self::NoApplications => f.write_str("the file chooses no applications"),
            Self::Lacks(what) => write!(
                f,
                "this kernel cannot do what transparent mode needs: {what}"
            ),
        }
    }
}

impl fmt::Display for Transparent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Asked => "--transparent says so",
            Self::Applications => "the file chooses applications",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Adapter, Mode, Transparent, choose};
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
                adapter(Adapter::Asked),
            ),
            (
                Some(AskAdapter),
                Taupe,
                true,
                &[false, true],
                adapter(Adapter::Asked),
            ),
            (
                Some(AskAdapter),
                WgQuick,
                false,
                &[true],
                adapter(Adapter::Asked),
            ),
            (
                Some(AskTransparent),
                Taupe,
                false,
                &[true],
                transparent(Transparent::Asked),
            ),
            (
                Some(AskTransparent),
                Taupe,
                true,
                &[],
                transparent(Transparent::Asked),
            ),
            (
                None,
                WgQuick,
                true,
                &[true],
                adapter(Adapter::CalledAsWgQuick),
            ),
            (
                None,
                WgQuick,
                false,
                &[false, true],
                adapter(Adapter::CalledAsWgQuick),
            ),
            (
                None,
                Taupe,
                true,
                &[true, false],
                transparent(Transparent::Applications),
            ),
            (
                None,
                Taupe,
                false,
                &[false],
                adapter(Adapter::PeerWithoutEndpoint),
            ),
            (
                None,
                Taupe,
                false,
                &[true, false],
                adapter(Adapter::PeerWithoutEndpoint),
            ),
            (
                None,
                Taupe,
                false,
                &[true, true],
                adapter(Adapter::SeveralPeers(2)),
            ),
            (
                None,
                Taupe,
                false,
                &[true],
                adapter(Adapter::NoApplications),
            ),
            (None, Taupe, false, &[], adapter(Adapter::NoApplications)),
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
                Mode::Adapter(Adapter::Asked),
                "adapter mode, because --adapter says so",
            ),
            (
                Mode::Adapter(Adapter::SeveralPeers(3)),
                "adapter mode, because the file has 3 peers",
            ),
            (
                Mode::Transparent(Transparent::Applications),
                "transparent mode, because the file chooses applications",
            ),
        ] {
            assert_eq!(mode.to_string(), line);
        }
    }
}
