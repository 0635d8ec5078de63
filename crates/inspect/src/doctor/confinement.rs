//! Layers of the kernel by which processes of Taupe give up rights.

use super::Check;
use taupe_confine::{Layer, LayerState, LayerStatus, available};

pub(super) fn checks() -> Vec<Check> {
    available().iter().map(check).collect()
}

fn check(status: &LayerStatus) -> Check {
    let (name, effect, fix) = match status.layer {
        Layer::Calls => (
            "seccomp",
            "processes that parse packets (of `up`, `device`, `proxy`, `exec`) make only the system calls that \
             they need",
            "use a 64-bit kernel with CONFIG_SECCOMP_FILTER",
        ),
        _ => (
            "landlock",
            "processes that parse packets (of `up`, `device`, `proxy`, `exec`) open only the files that they \
             need",
            "use Linux 5.13 or newer, and write `landlock` into `lsm=` if its command line has that",
        ),
    };
    let layer = status.layer.name();
    match &status.state {
        LayerState::Holds => Check::ok(name, format!("the kernel has {layer}: {effect}")),
        LayerState::Partly(gaps) => Check::ok(
            name,
            format!("the kernel has {layer}: {effect}; its {gaps}"),
        ),
        LayerState::Missing(reason) => Check::warn(
            name,
            format!("no {layer} ({reason}): it is not enforced that {effect}"),
            fix,
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::doctor::Outcome;
    use taupe_confine::{Layer, LayerState, LayerStatus};

    #[test]
    fn a_missing_layer_is_a_warning_and_a_gap_is_named() {
        for layer in [Layer::Paths, Layer::Calls] {
            let of = |state| check(&LayerStatus { layer, state });
            assert_eq!(of(LayerState::Holds).result, Outcome::Ok);
            let missing = of(LayerState::Missing("too old".into()));
            assert_eq!(missing.result, Outcome::Warn);
            assert!(missing.text.contains("(too old)"), "{}", missing.text);
            let partly = of(LayerState::Partly("version 1 does not refuse this".into()));
            assert!(
                partly.text.contains("does not refuse this"),
                "{}",
                partly.text
            );
        }
    }
}
