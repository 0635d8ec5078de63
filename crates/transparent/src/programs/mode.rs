//! The two modes of capture and their eBPF objects.

use std::hash::Hasher as _;

use aya::include_bytes_aligned;
use siphasher::sip::SipHasher24;

use super::attach_points::{self, AttachPoint, ProgramSpec};
use crate::pins::Pins;

/// Objects that `scripts/bpf` builds from `bpf/taupe.c` and `bpf/marks.c`.
pub(super) static TRAFFIC_CONTROL_OBJECT: &[u8] = include_bytes_aligned!("../bpf/taupe.o");
static FWMARK_OBJECT: &[u8] = include_bytes_aligned!("../bpf/marks.o");

/// Method that brings the packets of selected applications into the tunnel. Each mode has its own
/// programs and uses all maps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CaptureMode {
    /// Transparent mode: filters of traffic control on the uplinks redirect them.
    TrafficControl,
    /// Adapter mode: sockets get a firewall mark, and routes for the mark lead into the tunnel.
    /// Works from Linux 5.10 on.
    Fwmark,
}

impl CaptureMode {
    pub(super) fn object(self) -> &'static [u8] {
        #[cfg(debug_assertions)]
        if let Some(object) = other_object().filter(|_| self == Self::TrafficControl) {
            return object;
        }
        match self {
            Self::TrafficControl => TRAFFIC_CONTROL_OBJECT,
            Self::Fwmark => FWMARK_OBJECT,
        }
    }

    pub(super) fn programs(self) -> &'static [ProgramSpec] {
        match self {
            Self::TrafficControl => &attach_points::TRAFFIC_CONTROL,
            Self::Fwmark => &attach_points::FWMARK,
        }
    }

    /// Returns the mode whose programs are attached for a tunnel.
    pub(crate) fn of(pins: &Pins) -> Option<Self> {
        let is_attached = |mode: &Self| {
            let mut programs = mode.programs().iter();
            programs.any(|program| match program.attach_point {
                AttachPoint::Cgroup(link, _) => pins.link(link).exists(),
                _ => false,
            })
        };
        [Self::TrafficControl, Self::Fwmark]
            .into_iter()
            .find(is_attached)
    }
}

/// Returns a hash of the objects. Another version of Taupe has another one if its programs differ.
#[must_use]
pub fn objects_hash() -> u64 {
    let mut hash = SipHasher24::new();
    for mode in [CaptureMode::TrafficControl, CaptureMode::Fwmark] {
        hash.write(mode.object());
    }
    hash.finish()
}

/// Returns the object that tests with planted faults name (`cargo xtask bpf-mutants`). Programs
/// without debug assertions do not have this function.
#[cfg(debug_assertions)]
fn other_object() -> Option<&'static [u8]> {
    static OTHER: std::sync::LazyLock<Option<Vec<u8>>> = std::sync::LazyLock::new(|| {
        let path = std::env::var_os("TAUPE_TEST_BPF_OBJECT")?;
        Some(std::fs::read(path).expect("the object that TAUPE_TEST_BPF_OBJECT names"))
    });
    OTHER.as_deref()
}
