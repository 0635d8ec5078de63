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
}

impl BufferBudget {
    /// Bytes of each connection in each direction: enough for 10 Mbit/s at 25 ms.
    const MIN_BUFFER: usize = 32 << 10;
    /// Bytes beyond that for all connections together.
    const POOL: usize = 256 << 20;
    /// Most of these bytes for one connection: 160 Mbit/s at 75 ms.
    const MAX_EXTRA: usize = 2 << 20;

    pub(crate) fn new() -> Self {
        Self {
            remaining: Self::POOL,
        }
    }

    /// Allots buffer sizes to a connection: a sixteenth of the remaining pool, so each further
    /// connection gets less.
    pub(crate) fn allot(&mut self) -> Windows {
        let extra = (self.remaining / 16).min(Self::MAX_EXTRA);
        self.remaining -= extra;
        let send = extra / 4;
        Windows {
            receive: Self::MIN_BUFFER + extra - send,
            send: Self::MIN_BUFFER + send,
        }
    }

    pub(crate) fn release(&mut self, windows: Windows) {
        self.remaining += windows.receive + windows.send - 2 * Self::MIN_BUFFER;
    }
}

#[cfg(test)]
mod tests {
    use super::BufferBudget;

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
}
