//! One handshake between two ends, and its cost.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;
use taupe_lab::error::Result;

/// UDP payload of an IPv6 packet of 1,280 bytes.
const DATAGRAM: usize = 1_280 - 40 - 8;

/// Two ends that perform handshakes repeatedly.
pub(crate) trait Handshake {
    /// Performs a whole handshake, and checks that both ends have the same keys.
    ///
    /// # Errors
    ///
    /// [`Error::Unmet`] if it does not complete.
    fn perform(&mut self) -> Result<Exchange>;

    /// Carries a batch of packets from one end to the other in the session of the last handshake,
    /// and returns the time it took. `None` if the ends carry no packets.
    ///
    /// # Errors
    ///
    /// [`Error::Unmet`] if packets are missing.
    fn transfer_batch(&mut self) -> Result<Option<Duration>> {
        Ok(None)
    }
}

/// The cost of one handshake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Exchange {
    /// UDP payload of each message in order, in bytes.
    pub messages: Vec<usize>,
    /// Time to make the initiation and process the response.
    pub client: Duration,
    /// Time to process the initiation and make the response.
    pub server: Duration,
    /// Processor time of the server's part on this thread.
    pub server_cpu: Duration,
}

impl Exchange {
    /// Returns the UDP payload of both directions, in bytes.
    pub(crate) fn traffic(&self) -> usize {
        self.messages.iter().sum()
    }

    /// Returns the number of IPv6 packets of at most 1,280 bytes for all messages.
    pub(crate) fn packets(&self) -> usize {
        let packets = self.messages.iter();
        packets.map(|length| length.div_ceil(DATAGRAM)).sum()
    }
}

/// Runs `work` and returns the processor time of this thread for it.
pub(super) fn processor_time<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let now = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::try_from(time).unwrap_or_default()
    };
    let start = now();
    let done = work();
    (done, now().saturating_sub(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_take_several_packets() {
        let exchange = |messages: &[usize]| Exchange {
            messages: messages.to_vec(),
            client: Duration::ZERO,
            server: Duration::ZERO,
            server_cpu: Duration::ZERO,
        };
        for (messages, packets) in [
            ([1232, 1], 2),
            ([1233, 92], 3),
            // Sizes of the published programs' messages.
            ([2388, 2236], 4),
            ([1684, 1436], 4),
            ([1080, 832], 2),
        ] {
            assert_eq!(exchange(&messages).packets(), packets, "{messages:?}");
        }
    }
}
