//! What `taupe up` has made of an interface.

use crate::wg::console;
use taupe_adapter::State;
use taupe_inspect::tunnel::{attached, word_of};
use taupe_transparent::programs::Way;

/// A machine may be cut off by what a killed process has left, which no device
/// can tell. Whether there is any such.
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

/// What is known of a tunnel that `up` has made.
pub(super) fn of_its_making(interface: &str) -> Vec<(&'static str, String)> {
    let made = State::default().of_running(interface);
    let mode = match attached(interface, made.as_ref())
        .map(|found| found.map(|programs| programs.way()))
    {
        Ok(Some(Way::Filters)) => "transparent",
        Ok(Some(Way::Marks)) => "adapter, for chosen applications",
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
