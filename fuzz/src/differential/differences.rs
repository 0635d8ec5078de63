//! The differences between Taupe and boringtun 0.7.1 that are legitimate. Everything else is a
//! finding.
//!
//! Some differences cannot occur here, because no datagram is made that would show them:
//!
//! | difference | reason |
//! |---|---|
//! | at [`REJECT_AFTER_MESSAGES`] Taupe's sessions end | boringtun knows no such counter, and accepts it; only Taupe gets the message |
//! | under load | each has a measure of its own (Taupe: the length of its queue; boringtun: a number of handshakes per second); neither is under load |
//! | floods | Taupe accepts an initiation of one peer every 20 ms, as the kernel does; boringtun's core has no such limit. The clock of Taupe goes on before each one |
//! | unconfirmed sessions | Taupe keeps the confirmed sessions, and one that is not; boringtun keeps those of the last eight handshakes. A session that only one of them has is not used |
//! | age of sessions | boringtun's core checks it by a timer, which does not run here |
//! | an empty datagram | boringtun's core takes it for a request for its own queued packets |
//! | sources of inner packets | boringtun leaves this to its caller; [`implementations`](super::implementations) does the same as boringtun's device |

use taupe_protocol::inner;
use taupe_protocol::limits::REJECT_AFTER_MESSAGES;
use taupe_protocol::testing::replay::WINDOW_LEN;

use super::implementations::{Both, Verdict};

/// Distance below the greatest counter from which boringtun refuses a message.
pub(super) const BORINGTUN_WINDOW: u64 = 1024;

/// Number of handshakes after which boringtun forgets a session.
pub(super) const BORINGTUN_SESSIONS: usize = 8;

/// A datagram, as far as a legitimate difference depends on it.
#[derive(Debug)]
pub(super) enum Datagram<'a> {
    /// A genuine data message.
    Data {
        counter: u64,
        /// The greatest counter that the session has accepted.
        greatest: u64,
        /// True if the session had a message with this counter before.
        is_repeated: bool,
        plaintext: &'a [u8],
    },
    /// A genuine cookie reply to an initiation.
    Cookie {
        /// True if there was a cookie for the same initiation before.
        is_repeated: bool,
    },
    Other,
}

/// Returns true if the verdicts may differ.
pub(super) fn is_legitimate(datagram: &Datagram<'_>, verdicts: &Both<Verdict>) -> bool {
    match *datagram {
        Datagram::Data {
            counter,
            greatest,
            is_repeated,
            plaintext,
        } => {
            assert!(counter < REJECT_AFTER_MESSAGES);
            is_of_windows(greatest.saturating_sub(counter), is_repeated, verdicts)
                || is_of_short_header(plaintext, verdicts)
        }
        Datagram::Cookie { is_repeated } => is_repeated && is_of_cookie(verdicts),
        Datagram::Other => false,
    }
}

/// boringtun's window has 1,024 counters, Taupe's has the [`WINDOW_LEN`] of the kernel.
fn is_of_windows(distance: u64, is_repeated: bool, verdicts: &Both<Verdict>) -> bool {
    // Nobody accepts a counter twice.
    let may_accept = !is_repeated || verdicts.taupe == Verdict::Refused;
    (BORINGTUN_WINDOW..=WINDOW_LEN).contains(&distance)
        && verdicts.boringtun == Verdict::Refused
        && may_accept
}

/// boringtun does not compare the lengths in an IPv4 header with each other, so it delivers a packet
/// that ends within its header. Taupe delivers no such packet.
fn is_of_short_header(plaintext: &[u8], verdicts: &Both<Verdict>) -> bool {
    let Some([first, _, length @ ..]) = plaintext.first_chunk::<4>() else {
        return false;
    };
    let header = usize::from(first & 0x0f) * 4;
    let length = usize::from(u16::from_be_bytes(*length));
    let is_short = first >> 4 == 4 && (header < 20 || length < header);
    let delivered = Verdict::Packet(plaintext.get(..length).unwrap_or_default().to_vec());
    assert!(!is_short || inner::parse(plaintext).is_none());
    is_short && verdicts.taupe == Verdict::Refused && verdicts.boringtun == delivered
}

/// Taupe takes one cookie for each message that it has sent, as the kernel does. boringtun takes any
/// number.
fn is_of_cookie(verdicts: &Both<Verdict>) -> bool {
    verdicts.taupe == Verdict::Refused && verdicts.boringtun == Verdict::Silent
}
