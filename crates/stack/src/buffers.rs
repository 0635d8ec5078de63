//! Memory of connections' buffers.

/// Buffer sizes of a connection, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Windows {
    pub(crate) receive: usize,
    pub(crate) send: usize,
}

/// Budget of buffer memory for all connections.
pub(crate) struct BufferBudget {
    /// Remaining bytes of [`BufferBudget::POOL`].
    remaining: usize,
    /// Bytes of the pool that are promised to half-open connections.
    promised: usize,
}

impl BufferBudget {
    /// Bytes of each connection in each direction: enough for 10 Mbit/s at 25 ms.
    const MIN_BUFFER: usize = 32 << 10;
    /// Bytes beyond that for all connections together.
    const POOL: usize = 256 << 20;
    /// Most of these bytes for one connection: 160 Mbit/s at 75 ms.
    const MAX_EXTRA: usize = 2 << 20;
    /// Most of these bytes for all half-open connections. A flood of SYNs takes no more.
    const MAX_PROMISED: usize = Self::POOL / 8;

    pub(crate) fn new() -> Self {
        Self {
            remaining: Self::POOL,
            promised: 0,
        }
    }

    /// Allots buffer sizes to a connection: a sixteenth of the remaining pool, so each further
    /// connection gets less.
    pub(crate) fn allot(&mut self) -> Windows {
        let extra = (self.remaining / 16).min(Self::MAX_EXTRA);
        self.remaining -= extra;
        Self::windows(extra)
    }

    /// Allots the smallest buffers, for which there is always room.
    pub(crate) fn least() -> Windows {
        Self::windows(0)
    }

    /// Returns the buffers of a connection.
    pub(crate) fn release(&mut self, windows: Windows) {
        self.remaining += Self::extra(windows);
    }

    /// Promises buffers to a half-open connection. [`BufferBudget::keep`] follows when it is open,
    /// or [`BufferBudget::withdraw`] if it is dropped.
    pub(crate) fn promise(&mut self) -> Windows {
        let left = Self::MAX_PROMISED - self.promised;
        let extra = (self.remaining / 16).min(left / 16).min(Self::MAX_EXTRA);
        self.remaining -= extra;
        self.promised += extra;
        Self::windows(extra)
    }

    pub(crate) fn keep(&mut self, windows: Windows) {
        self.promised -= Self::extra(windows);
    }

    pub(crate) fn withdraw(&mut self, windows: Windows) {
        self.keep(windows);
        self.release(windows);
    }

    fn windows(extra: usize) -> Windows {
        let send = extra / 4;
        Windows {
            receive: Self::MIN_BUFFER + extra - send,
            send: Self::MIN_BUFFER + send,
        }
    }

    fn extra(windows: Windows) -> usize {
        windows.receive + windows.send - 2 * Self::MIN_BUFFER
    }
}

#[cfg(test)]
mod tests {
    use super::{BufferBudget, Windows};

    #[test]
    fn every_connection_gets_buffers_and_returns_them() {
        let mut budget = BufferBudget::new();
        let all: Vec<_> = (0..4096).map(|_| budget.allot()).collect();
        let sum: usize = all.iter().map(|one| one.receive + one.send).sum();
        assert!(sum <= BufferBudget::POOL + 4096 * 2 * BufferBudget::MIN_BUFFER);
        assert_eq!(
            all[0].receive + all[0].send,
            BufferBudget::MAX_EXTRA + 2 * BufferBudget::MIN_BUFFER
        );
        let least = all.iter().map(|one| one.receive.min(one.send)).min();
        assert!(least >= Some(BufferBudget::MIN_BUFFER));
        all.into_iter().for_each(|one| budget.release(one));
        assert_eq!(budget.remaining, BufferBudget::POOL);
    }

    #[test]
    fn half_open_connections_are_promised_a_part_of_the_pool() {
        let mut budget = BufferBudget::new();
        let all: Vec<_> = (0..8192).map(|_| budget.promise()).collect();
        assert_eq!(all[0], budget_of_first());
        assert_eq!(all[8191], BufferBudget::least());
        assert!(budget.remaining >= BufferBudget::POOL / 8 * 7);
        for (at, windows) in all.into_iter().enumerate() {
            match at % 2 {
                0 => budget.withdraw(windows),
                _ => {
                    budget.keep(windows);
                    budget.release(windows);
                }
            }
        }
        assert_eq!((budget.remaining, budget.promised), (BufferBudget::POOL, 0));
    }

    /// Returns the buffers of the first of all connections.
    fn budget_of_first() -> Windows {
        BufferBudget::new().allot()
    }
}
