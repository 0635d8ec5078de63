//! Facts about interfaces that `taupe up` has set up.

use crate::wg::console;
use taupe_adapter::State;
use taupe_inspect::tunnel::{attached, word_of};
use taupe_transparent::programs::CaptureMode;

/// Prints a line for each tunnel whose process was killed. The routes and rules that it left may cut
/// off the machine, and no device can report them. Returns true if there are such tunnels.
pub(super) fn tell_of_the_killed(is_asked_for: impl Fn(&str) -> bool) -> bool {
    let mut killed = State::default().killed();
    killed.retain(|name| is_asked_for(name));
    for name in &killed {
        let message = format!(
            "taupe: the process of {name} was killed; what it had taken on, all of it or chosen \
             applications, goes nowhere until `taupe up {}` starts it again or `taupe down {name}` \
             gives the network back\n",
            word_of(name)
        );
        console::complain(message.as_bytes());
    }
    !killed.is_empty()
}

/// Returns the known facts about a tunnel that `up` has set up.
pub(super) fn of_its_making(interface: &str) -> Vec<(&'static str, String)> {
    let made = State::default().of_running(interface);
    let mode = match attached(interface, made.as_ref())
        .map(|found| found.map(|programs| programs.mode()))
    {
        Ok(Some(CaptureMode::TrafficControl)) => "transparent",
        Ok(Some(CaptureMode::Fwmark)) => "adapter, for chosen applications",
        Ok(None) => "adapter",
        Err(_) => "unknown",
    };
    made.map_or(Vec::new(), |header| {
        vec![
            ("mode", mode.to_owned()),
            ("file", header.config.display().to_string()),
        ]
    })
}
