//! Defects planted on purpose, to prove that the simulator finds them.
//!
//! They exist only in builds with the feature `planted-defects`, which does not
//! compile without debug assertions; elsewhere `is` is `false` at compile
//! time and nothing of them remains.

#[cfg(all(feature = "planted-defects", not(debug_assertions)))]
compile_error!("`planted-defects` is for simulation; it cannot be enabled in a release build");

/// What can be planted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Defect {
    /// A counter is used for two packets.
    NonceReuse = 1,
    /// The replay window accepts a counter it has already forgotten.
    ReplayWindowOffByOne,
    /// A session receives after Reject-After-Time.
    LateKey,
    /// A packet that did not authenticate moves the peer's endpoint.
    UnauthRoam,
    /// A timer armed by the way of a packet is not told to the control loop.
    MissedDeadline,
    /// A staged packet is lost when the session comes up.
    LostStaged,
    /// A clock that went back sends labels that peers have already seen.
    ClockLockout,
    /// The second part of a hybrid message is taken for any first one.
    PqPartMixup,
    /// A part of a response that comes again puts its session in place again.
    PqReinstall,
    /// A hybrid handshake counts before the initiator has used its session.
    PqEarlyCommit,
}

impl Defect {
    /// Every defect, by the name that the command line has for it.
    pub const ALL: [(&'static str, Self); 10] = [
        ("nonce-reuse", Self::NonceReuse),
        ("replay-window-off-by-one", Self::ReplayWindowOffByOne),
        ("late-key", Self::LateKey),
        ("unauth-roam", Self::UnauthRoam),
        ("missed-deadline", Self::MissedDeadline),
        ("lost-staged", Self::LostStaged),
        ("clock-lockout", Self::ClockLockout),
        ("pq-part-mixup", Self::PqPartMixup),
        ("pq-reinstall", Self::PqReinstall),
        ("pq-early-commit", Self::PqEarlyCommit),
    ];
}

#[cfg(feature = "planted-defects")]
static PLANTED: core::sync::atomic::AtomicU8 = core::sync::atomic::AtomicU8::new(0);

/// Plants a defect for the rest of the process.
#[cfg(feature = "planted-defects")]
pub fn plant(defect: Defect) {
    PLANTED.store(defect as u8, core::sync::atomic::Ordering::Relaxed);
}

/// Whether `defect` is planted.
#[inline(always)]
pub(crate) fn is(defect: Defect) -> bool {
    #[cfg(feature = "planted-defects")]
    return PLANTED.load(core::sync::atomic::Ordering::Relaxed) == defect as u8;
    #[cfg(not(feature = "planted-defects"))]
    {
        let _ = defect;
        false
    }
}
