//! Diffie-Hellman: the trait.

use crate::SharedSecret;

/// X25519 (RFC 7748).
///
/// A private key is any 32 bytes; clamping is part of the function.
pub trait Dh: Send + Sync {
    /// The public key of `private`: the base point times `private`.
    fn public(&self, private: &[u8; 32]) -> [u8; 32];

    /// The secret shared with the owner of `public`, or `None` when it is all
    /// zeros.
    ///
    /// It is all zeros exactly when `public` is a point of low order: such a
    /// "secret" is known to everyone. The decision takes constant time
    /// (RFC 7748 §6.1).
    fn agree(&self, private: &[u8; 32], public: &[u8; 32]) -> Option<SharedSecret>;

    /// Computes several agreements. Writes the result of [`Self::agree`] for each of them to the
    /// same place in `shared`. If the lengths differ, computes as many as the shorter one has.
    fn agree_many(&self, agreements: &[Agreement<'_>], shared: &mut [Option<SharedSecret>]) {
        for (agreement, shared) in agreements.iter().zip(shared) {
            *shared = self.agree(agreement.private, agreement.public);
        }
    }

    /// Returns the number of agreements that [`Self::agree_many`] computes side by side. If it is
    /// more than 1, two agreements take about as long as one.
    fn width(&self) -> usize {
        1
    }
}

/// The base point, whose u-coordinate is 9 (RFC 7748 §4.1). The secret shared with it is the
/// public key of the private key.
pub const BASE_POINT: [u8; 32] = {
    let mut point = [0; 32];
    point[0] = 9;
    point
};

/// Keys to agree with.
#[derive(Clone, Copy)]
pub struct Agreement<'a> {
    /// This side's private key.
    pub private: &'a [u8; 32],
    /// The other side's public key.
    pub public: &'a [u8; 32],
}
