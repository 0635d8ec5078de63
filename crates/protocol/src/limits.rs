//! Every constant of the protocol, in one place.
//!
//! The whitepaper's section 6 where it says; the Linux kernel's value where
//! the two differ or the paper is silent, and then it is said so.

use core::time::Duration;

/// After this many messages a new handshake is wanted (whitepaper §6.1).
pub const REKEY_AFTER_MESSAGES: u64 = 1 << 60;
/// A session sends and accepts no counter from this one on (whitepaper §6.1:
/// 2^64 − 2^13 − 1. The kernel allows 63 more; the smaller number is safe with
/// both).
pub const REJECT_AFTER_MESSAGES: u64 = u64::MAX - (1 << 13);
/// After this age the initiator of a session starts a new handshake when it
/// sends (whitepaper §6.1).
pub const REKEY_AFTER_TIME: Duration = Duration::from_secs(120);
/// After this age a session neither sends nor receives (whitepaper §6.1).
pub const REJECT_AFTER_TIME: Duration = Duration::from_secs(180);
/// From one initiation to the next, at least (whitepaper §6.1).
pub const REKEY_TIMEOUT: Duration = Duration::from_secs(5);
/// The same after the network has changed, or the machine has slept: what was sent before
/// may have reached nobody (neither the paper nor the kernel has this).
pub const HURRIED_REKEY_TIMEOUT: Duration = Duration::from_secs(1);
/// Silence after received data that is broken by a keepalive (whitepaper §6.5).
pub const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// After this age the initiator of a session starts a new handshake when it
/// receives, so that a peer that only receives is never cut off (whitepaper
/// §6.2: Reject-After-Time − Keepalive-Timeout − Rekey-Timeout).
pub const REKEY_ON_RECEIVE: Duration = Duration::from_secs(165);
/// Data sent and nothing heard for this long: the peer is dead or has lost its
/// keys, so a handshake is started (whitepaper §6.5).
pub const DEAD_PEER_TIMEOUT: Duration = Duration::from_secs(15);
/// Every key is erased when it is this old (whitepaper §6.3: 3 ×
/// Reject-After-Time). The kernel counts from the newest session, so that an
/// older one may stay longer; here each session counts for itself.
pub const ERASE_AFTER_TIME: Duration = Duration::from_secs(540);
/// Retries of an unanswered initiation before giving up. The paper says 90 s;
/// the kernel counts to 18 and tests with `>`, so that 20 initiations go out
/// over 100 to 106.7 s.
pub const MAX_HANDSHAKE_ATTEMPTS: u32 = 18;
/// Timer-fired initiations are late by a random time up to this (kernel:
/// HZ/3), so that two peers do not initiate at once for ever.
pub const MAX_JITTER: Duration = Duration::from_nanos(333_333_333);
/// Initiations of one peer that are accepted per second (kernel).
pub const INITIATIONS_PER_SECOND: u32 = 50;
/// Packets kept for a peer without a session; the oldest go first (kernel).
pub const MAX_STAGED_PACKETS: usize = 128;
/// Peers of one device (kernel).
pub const MAX_PEERS: usize = 1 << 20;

/// A cookie secret lives this long (whitepaper §5.4.7).
pub const COOKIE_SECRET_LIFETIME: Duration = Duration::from_secs(120);
/// A received cookie is used this long: 5 s less than it is valid, so that it
/// does not expire on the way (kernel).
pub const COOKIE_LIFETIME: Duration = Duration::from_secs(115);
/// Handshake messages that wait before new ones are dropped unread (kernel).
pub const MAX_QUEUED_HANDSHAKES: usize = 4096;
/// Handshake messages that wait when the device calls itself under load
/// (kernel: an eighth of the queue).
pub const UNDER_LOAD_BACKLOG: usize = MAX_QUEUED_HANDSHAKES / 8;
/// How long a device stays under load after the last sign of it (kernel).
pub const UNDER_LOAD_LATCH: Duration = Duration::from_secs(1);
/// Under load: initiations per second from one IPv4 address or IPv6 /64
/// (kernel).
pub const SOURCE_PACKETS_PER_SECOND: u64 = 20;
/// Under load: initiations at once from one source (kernel).
pub const SOURCE_BURST: u64 = 5;
/// Sources remembered under load; a new one is refused beyond (kernel, on
/// machines with more than 1 GiB).
pub const MAX_SOURCES: usize = 65_536;
/// Under load: cookies given per second to who asks for the first time (no
/// standard; the kernel gives one to everybody whose message it takes from its
/// queue).
pub const COOKIES_PER_SECOND: u64 = 1_000;
/// Under load: messages per second of which mac1 is looked at although they show
/// no cookie and have not asked before (no standard).
pub const LOOKS_PER_SECOND: u64 = 2_000;
/// Under load: cookies given per second to who asks again (no standard).
pub const COOKIES_AGAIN_PER_SECOND: u64 = 4_000;
/// Under load: cookies given at once to who asks for the first time, and as many
/// to who asks again (no standard).
pub const COOKIE_BURST: u64 = 5_000;

/// Initiations unanswered for this long are worth a [`crate::Notice`]: two have been lost
/// (no standard).
pub const NOTICE_AFTER: Duration = Duration::from_secs(10);

/// Initiations unanswered for this long have the endpoint's name looked up, and
/// this long after once more; then after twice as long each time (no standard). If no handshake
/// has completed by the name yet, the second initiation has it looked up too.
pub const RESOLVE_AFTER: Duration = Duration::from_secs(15);
/// From one look-up of an endpoint's name to the next, at most (no standard).
pub const MAX_RESOLVE_INTERVAL: Duration = Duration::from_secs(120);
/// Addresses of one name that are tried in turn (no standard).
pub const MAX_NAME_ADDRESSES: usize = 16;
/// Look-ups that give the address of a peer that still does not answer, until
/// another address of the same answer is tried (no standard).
pub const ROUNDS_PER_ADDRESS: u32 = 2;

/// A hybrid initiation's parts are sent again this long after they were first sent, until they
/// are answered (no standard).
pub const RESEND_PARTS_AFTER: [Duration; 4] = [
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_millis(1_000),
    Duration::from_millis(2_000),
];
/// Hybrid initiations that go unanswered before ordinary ones are sent to a peer that need not
/// be post-quantum, and the other way round (no standard).
pub const TRIES_OF_A_KIND: u32 = 3;

/// How often a cookie reply has those of that kind begin again before a handshake is completed
/// or given up: once for a cookie, and once more for the next, where the secret of the first has
/// been replaced before it could be used (no standard).
pub const COOKIES_OF_A_KIND: u32 = 2;

/// Hybrid handshakes of one peer that wait for their confirmation at once, and responses to one
/// initiation of which a part has come (no standard).
pub const MAX_PROVISIONAL: usize = 4;
/// Second parts of hybrid initiations, of all peers, that wait for their first (no standard).
pub const MAX_EARLY_PARTS: usize = 16;

/// Plaintext is padded to a multiple of this (whitepaper §5.4.6).
pub const PADDING: usize = 16;
/// The traffic class of handshake messages: DSCP AF41 (kernel), no ECN.
pub const HANDSHAKE_TOS: u8 = 0x88;
