//! Constants of the protocol.
//!
//! Values come from section 6 of the whitepaper. Comments name the source where a value is the
//! Linux kernel's instead, because the paper is silent or differs, or is Taupe's own ("no
//! standard").

use core::time::Duration;

/// A session that has sent this many messages is renewed (whitepaper §6.1).
pub const REKEY_AFTER_MESSAGES: u64 = 1 << 60;
/// A session neither sends nor accepts counters from this one on (whitepaper §6.1: 2^64 − 2^13 −
/// 1). The kernel allows 63 more; the smaller limit is safe with both.
pub const REJECT_AFTER_MESSAGES: u64 = u64::MAX - (1 << 13);
/// Age of a session from which its initiator starts a new handshake when it sends (whitepaper
/// §6.1).
pub const REKEY_AFTER_TIME: Duration = Duration::from_secs(120);
/// A session of this age neither sends nor receives (whitepaper §6.1).
pub const REJECT_AFTER_TIME: Duration = Duration::from_secs(180);
/// Minimum interval between two initiations (whitepaper §6.1).
pub const REKEY_TIMEOUT: Duration = Duration::from_secs(5);
/// Minimum interval after the network has changed or the machine has slept, when earlier
/// initiations may have been lost (neither the paper nor the kernel has this).
pub const NETWORK_CHANGE_REKEY_TIMEOUT: Duration = Duration::from_secs(1);
/// Time after received data without an answer until a keepalive is sent (whitepaper §6.5).
pub const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Age of a session from which its initiator starts a new handshake when it receives, so that a
/// host that only receives does not lose its session (whitepaper §6.2: Reject-After-Time −
/// Keepalive-Timeout − Rekey-Timeout).
pub const REKEY_ON_RECEIVE: Duration = Duration::from_secs(165);
/// Time after sent data without any answer until a handshake is started: the peer is unreachable
/// or has lost its keys (whitepaper §6.5).
pub const DEAD_PEER_TIMEOUT: Duration = Duration::from_secs(15);
/// Keys of this age are erased (whitepaper §6.3: 3 × Reject-After-Time). The kernel counts from
/// the newest session, so that an older one may live longer; here each session's own age counts.
pub const ERASE_AFTER_TIME: Duration = Duration::from_secs(540);
/// Retries of an unanswered initiation before the handshake is given up. The paper says 90 s. The
/// kernel counts to 18 and tests with `>`, so that it sends 20 initiations over 100 to 106.7 s.
pub const MAX_HANDSHAKE_ATTEMPTS: u32 = 18;
/// Maximum random delay of initiations that a timer starts (kernel: HZ/3), so that two peers do
/// not keep initiating at the same time.
pub const MAX_JITTER: Duration = Duration::from_nanos(333_333_333);
/// Initiations accepted per peer and second (kernel).
pub const INITIATIONS_PER_SECOND: u32 = 50;
/// Packets that wait for a session of one peer; the oldest are dropped first (kernel).
pub const MAX_STAGED_PACKETS: usize = 128;
/// A session is renewed after this many received bytes if a new one would be received over more
/// lanes (no standard).
pub const SPREAD_AFTER_BYTES: u64 = 16 << 20;
/// Interval in which messages on the wrong lane are counted (no standard).
pub const INTERLEAVING_TIME: Duration = Duration::from_millis(100);
/// Least number of messages within [`INTERLEAVING_TIME`] from which the device draws a conclusion
/// (no standard).
pub const INTERLEAVING_MESSAGES: u32 = 1_000;
/// If more than this percentage of a peer's messages arrive on the wrong lane, its next sessions
/// are received on one lane (no standard).
pub const INTERLEAVING_PERCENT: u64 = 1;
/// Peers of one device (kernel).
pub const MAX_PEERS: usize = 1 << 20;

/// Lifetime of a cookie secret (whitepaper §5.4.7).
pub const COOKIE_SECRET_LIFETIME: Duration = Duration::from_secs(120);
/// Time for which a received cookie is used: 5 s less than its validity, so that it does not
/// expire in transit (kernel).
pub const COOKIE_LIFETIME: Duration = Duration::from_secs(115);
/// Capacity of the handshake queue (kernel).
pub const MAX_QUEUED_HANDSHAKES: usize = 4096;
/// Length of the handshake queue from which the device is under load (kernel: an eighth of the
/// capacity).
pub const UNDER_LOAD_BACKLOG: usize = MAX_QUEUED_HANDSHAKES / 8;
/// Time for which a device stays under load after the last sign of it (kernel).
pub const UNDER_LOAD_DURATION: Duration = Duration::from_secs(1);
/// Under load: handshake messages per second from one IPv4 address or IPv6 /64 (kernel).
pub const SOURCE_PACKETS_PER_SECOND: u64 = 20;
/// Under load: burst of handshake messages from one source (kernel).
pub const SOURCE_BURST: u64 = 5;
/// Under load: sources with a rate limit of their own; messages from further sources are refused
/// (kernel, on machines with more than 1 GiB).
pub const MAX_SOURCES: usize = 65_536;
/// Under load: cookies per second for senders that ask for the first time (no standard; the
/// kernel answers every message it takes from its queue).
pub const COOKIES_PER_SECOND: u64 = 1_000;
/// Under load: messages per second whose mac1 is checked although their sender has no cookie and
/// has not asked for one before (no standard).
pub const MAC1_CHECKS_PER_SECOND: u64 = 2_000;
/// Under load: cookies per second for senders that ask again (no standard).
pub const REPEATED_COOKIES_PER_SECOND: u64 = 4_000;
/// Under load: burst of cookies for senders that ask for the first time, and a separate burst of
/// the same size for senders that ask again (no standard).
pub const COOKIE_BURST: u64 = 5_000;

/// A peer that leaves initiations unanswered for this long causes a [`crate::Notice`]: two
/// initiations have been lost (no standard).
pub const NOTICE_AFTER: Duration = Duration::from_secs(10);

/// After this time without an answer, the endpoint's name is looked up; once more after the same
/// time, then at doubling intervals (no standard). If no handshake has completed by this name
/// yet, the second initiation also causes a look-up.
pub const RESOLVE_AFTER: Duration = Duration::from_secs(15);
/// Maximum interval between look-ups of an endpoint's name (no standard).
pub const MAX_RESOLVE_INTERVAL: Duration = Duration::from_secs(120);
/// Addresses of one name that are tried in turn (no standard).
pub const MAX_NAME_ADDRESSES: usize = 16;
/// Look-ups that return the address of a silent peer again before the next address of the answer
/// is tried (no standard).
pub const LOOKUPS_PER_ADDRESS: u32 = 2;

/// Delays, since the initiation, after which the parts of an unanswered hybrid initiation are
/// sent again (no standard).
pub const RESEND_PARTS_AFTER: [Duration; 4] = [
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_millis(1_000),
    Duration::from_millis(2_000),
];
/// Consecutive unanswered initiations of one kind (hybrid or ordinary) to a peer with
/// [`crate::update::PostQuantum::Prefer`] before the other kind is tried (no standard).
pub const ATTEMPTS_PER_KIND: u32 = 3;

/// Number of times that a cookie reply restarts the count of [`ATTEMPTS_PER_KIND`] before a
/// handshake completes or is given up (no standard): once for a cookie, and once more for its
/// successor if the responder has replaced its cookie secret before the first cookie could be
/// used.
pub const COOKIES_PER_KIND: u32 = 2;

/// Hybrid handshakes of one peer that wait for confirmation at the same time; also responses to
/// one initiation of which one part has arrived (no standard).
pub const MAX_PROVISIONAL: usize = 4;
/// Second parts of hybrid initiations, of all peers together, that have arrived before their
/// first part (no standard).
pub const MAX_EARLY_PARTS: usize = 16;

/// Plaintext is padded to a multiple of this many bytes (whitepaper §5.4.6).
pub const PADDING: usize = 16;
/// Traffic class of handshake messages: DSCP AF41 (kernel), no ECN.
pub const HANDSHAKE_TOS: u8 = 0x88;
