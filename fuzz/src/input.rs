//! Decisions read from the fuzzer's bytes. At the end of the bytes, every decision is zero.

#[derive(Clone)]
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    pub(crate) fn number(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    pub(crate) fn long(&mut self) -> u64 {
        (0..8).fold(0, |number, _| number << 8 | u64::from(self.byte()))
    }

    /// Returns up to `count` bytes.
    pub(crate) fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Changes up to 15 bytes of `message` at any position, and its length.
    pub(crate) fn mutate(&mut self, message: &mut Vec<u8>) {
        let control = self.byte();
        for _ in 0..control & 0x0f {
            let (at, mask) = (usize::from(self.number()), self.byte());
            let length = message.len().max(1);
            if let Some(byte) = message.get_mut(at % length) {
                *byte ^= mask;
            }
        }
        match control >> 4 {
            1 => message.truncate(usize::from(self.number())),
            2 => message.extend_from_slice(self.take(64)),
            3 => message.resize(message.len() + usize::from(self.byte()), 0),
            _ => {}
        }
    }
}
