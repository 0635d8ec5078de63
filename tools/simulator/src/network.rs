//! The network between hosts.

use core::net::SocketAddr;

use taupe_protocol::message::{Kind, classify};

use crate::plan::{Nanos, Quality, SECOND};
use crate::random::Random;
use crate::stats::Stats;

/// Datagrams of equal size under way, as one system call would receive them.
pub(crate) struct Datagrams {
    /// Source address that the receiver sees.
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    /// Host that has sent them.
    pub(crate) sender: usize,
    /// Time of sending.
    pub(crate) sent: Nanos,
    pub(crate) bytes: Vec<u8>,
    /// Length of each datagram in `bytes`.
    pub(crate) stride: usize,
    /// True if the network has changed them, so that they are not authentic.
    pub(crate) tampered: bool,
}

impl Datagrams {
    /// Splits them into single datagrams.
    pub(crate) fn split(self) -> Vec<Self> {
        if self.bytes.len() <= self.stride {
            return vec![self];
        }
        let one = |bytes: &[u8]| Self {
            bytes: bytes.to_vec(),
            ..self
        };
        self.bytes.chunks(self.stride).map(one).collect()
    }
}

/// A delivery of a datagram.
pub(crate) struct Delivery {
    pub(crate) after: Nanos,
    pub(crate) datagrams: Datagrams,
}

/// One direction between two hosts.
#[derive(Clone, Copy, Default)]
pub(crate) struct Link {
    impaired: Option<(Quality, Nanos)>,
    cut_until: Nanos,
    /// Time since which the link has delivered everything.
    good_since: Nanos,
}

impl Link {
    /// Reduces the quality until `until`.
    pub(crate) fn impair(&mut self, quality: Quality, until: Nanos) {
        self.impaired = Some((quality, until));
        if !quality.delivers() {
            self.good_since = self.good_since.max(until);
        }
    }

    /// Blocks all datagrams until `until`.
    pub(crate) fn cut(&mut self, until: Nanos) {
        self.cut_until = self.cut_until.max(until);
        self.good_since = self.good_since.max(until);
    }

    /// Blocks all datagrams, but reports the link as good.
    #[cfg(test)]
    pub(crate) fn cut_unnoticed(&mut self) {
        self.cut_until = Nanos::MAX;
    }

    /// Returns the current quality.
    pub(crate) fn quality(&self, now: Nanos) -> Quality {
        let quality = match self.impaired {
            Some((quality, until)) if now < until => quality,
            _ => Quality::GOOD,
        };
        if now < self.cut_until {
            return Quality {
                loss: 1000,
                ..quality
            };
        }
        quality
    }

    /// Returns true if a datagram sent now arrives.
    pub(crate) fn is_good(&self, now: Nanos) -> bool {
        now >= self.good_since
    }
}

impl Quality {
    /// Returns the deliveries of one datagram.
    pub(crate) fn deliveries(
        &self,
        random: &mut Random,
        mut datagram: Datagrams,
        stats: &mut Stats,
    ) -> Vec<Delivery> {
        if random.permille(self.loss) {
            stats.lost += 1;
            return Vec::new();
        }
        let copies = if random.permille(self.duplicate) {
            2
        } else {
            1
        };
        let mut deliveries = Vec::with_capacity(copies);
        if copies == 2 {
            stats.duplicated += 1;
            let copy = Datagrams {
                bytes: datagram.bytes.clone(),
                ..datagram
            };
            deliveries.push(Delivery {
                after: self.time(random),
                datagrams: copy,
            });
        }
        let mut after = self.time(random);
        if random.permille(self.long_delay) {
            stats.delayed += 1;
            after += random.spread(SECOND, 299 * SECOND);
        }
        if random.permille(self.corrupt) {
            stats.corrupted += 1;
            flip(random, &mut datagram.bytes);
            datagram.tampered = true;
        } else if random.permille(self.truncate) {
            stats.corrupted += 1;
            let len = random.index(datagram.bytes.len());
            datagram.bytes.truncate(len);
            datagram.tampered = true;
        }
        datagram.stride = datagram.bytes.len().max(1);
        deliveries.push(Delivery {
            after,
            datagrams: datagram,
        });
        deliveries
    }

    fn time(&self, random: &mut Random) -> Nanos {
        self.delay + random.below(self.jitter)
    }
}

/// Flips one bit that the receiver checks. mac2 is excluded, because it is checked under load only.
pub(crate) fn flip(random: &mut Random, datagram: &mut [u8]) {
    let unchecked = match classify(datagram) {
        Ok(Kind::Data | Kind::CookieReply) | Err(_) => 0,
        Ok(_) => 16,
    };
    let bits = (datagram.len().saturating_sub(unchecked)) * 8;
    let bit = random.index(bits);
    if let Some(byte) = datagram.get_mut(bit / 8) {
        *byte ^= 1 << (bit % 8);
    }
}
