//! Counters of a tunnel.

use core::ffi::c_char;
use std::ffi::CString;
use std::sync::OnceLock;

use super::to_c;
use crate::DropReason;
use crate::c::boundary::{guard, tunnel_of};
use crate::c::wireguard_tunnel;

/// Counters and state of a tunnel, besides struct stats.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct taupe_counters {
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes of these packets.
    pub tx_bytes: u64,
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes of these packets.
    pub rx_bytes: u64,
    /// Sessions so far.
    pub sessions: u64,
    /// Packets that are queued until there is a session.
    pub waiting: u64,
    /// Messages and packets dropped; taupe_dropped returns them by reason.
    pub dropped: u64,
    /// The handshake of the current session, a taupe_suite.
    pub suite: u32,
    /// 1 if TAUPE_PQ_PREFER has become as strict as TAUPE_PQ_REQUIRE. Save this, and pass it to
    /// taupe_set_post_quantum for the next tunnel to this peer.
    pub latched: u32,
}

/// Returns the counters of a tunnel; zeros for NULL.
///
/// # Safety
/// `tunnel` is NULL or a tunnel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taupe_get_counters(tunnel: *const wireguard_tunnel) -> taupe_counters {
    guard(taupe_counters::default(), || {
        // SAFETY: the caller guarantees the tunnel.
        let Some(it) = (unsafe { tunnel_of(tunnel) }) else {
            return taupe_counters::default();
        };
        let statistics = it.tunnel.statistics();
        taupe_counters {
            tx_packets: statistics.tx.0,
            tx_bytes: statistics.tx.1,
            rx_packets: statistics.rx.0,
            rx_bytes: statistics.rx.1,
            sessions: statistics.sessions,
            waiting: statistics.waiting as u64,
            dropped: DropReason::ALL
                .iter()
                .map(|it_is| it.tunnel.dropped(*it_is))
                .sum(),
            suite: statistics.suite.map_or(0, |suite| suite as u32),
            latched: u32::from(statistics.latched),
        }
    })
}

/// Returns the number of messages and packets that were dropped for reason number `cause`, see
/// taupe_drop_reason. 0 for NULL, and if there is no such reason.
///
/// # Safety
/// `tunnel` is NULL or a tunnel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taupe_dropped(tunnel: *const wireguard_tunnel, cause: usize) -> u64 {
    // SAFETY: the caller guarantees the tunnel.
    let it = unsafe { tunnel_of(tunnel) };
    let cause = DropReason::ALL.get(cause);
    guard(0, || match (it, cause) {
        (Some(it), Some(cause)) => it.tunnel.dropped(*cause),
        _ => 0,
    })
}

/// Returns drop reason number `cause` as a sentence in English, or NULL if there is no such reason.
/// The numbers begin at 0.
#[unsafe(no_mangle)]
pub extern "C" fn taupe_drop_reason(cause: usize) -> *const c_char {
    static TEXTS: OnceLock<Vec<CString>> = OnceLock::new();
    guard(core::ptr::null(), || {
        let texts = TEXTS.get_or_init(|| DropReason::ALL.map(|it| to_c(it.to_string())).into());
        texts
            .get(cause)
            .map_or(core::ptr::null(), |text| text.as_ptr())
    })
}
