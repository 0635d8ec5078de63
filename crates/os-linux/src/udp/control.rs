//! Control messages (`cmsg(3)`): ancillary data beside the payload of a message.
//!
//! The kernel's ABI defines the layout: length, level and type, then data, each message aligned
//! like a `size_t`.

use std::ffi::c_int;

const ALIGN: usize = size_of::<usize>();
const HEADER: usize = (size_of::<usize>() + 2 * size_of::<c_int>()).next_multiple_of(ALIGN);

/// Buffer for the control messages of one message.
#[derive(Debug)]
#[repr(C, align(8))]
pub(super) struct Control {
    bytes: [u8; Self::CAPACITY],
    len: usize,
}

impl Control {
    /// Bytes of the buffer. Packet information, traffic class, hop limit and segment size need 112.
    pub(super) const CAPACITY: usize = 128;

    pub(super) fn new() -> Self {
        Self {
            bytes: [0; Self::CAPACITY],
            len: 0,
        }
    }

    /// Appends a message. The buffer is large enough for all messages that this crate sends.
    pub(super) fn push(&mut self, level: c_int, kind: c_int, data: &[u8]) {
        let start = self.len;
        let end = start + HEADER + data.len();
        let header = &mut self.bytes[start..end];
        let (length, rest) = header.split_at_mut(size_of::<usize>());
        length.copy_from_slice(&(HEADER + data.len()).to_ne_bytes());
        rest[..4].copy_from_slice(&level.to_ne_bytes());
        rest[4..8].copy_from_slice(&kind.to_ne_bytes());
        self.bytes[start + HEADER..end].copy_from_slice(data);
        self.len = end.next_multiple_of(ALIGN);
    }

    /// The messages that were pushed or received.
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The whole buffer, for the kernel to fill.
    pub(super) fn room(&mut self) -> &mut [u8; Self::CAPACITY] {
        &mut self.bytes
    }

    /// Sets how many bytes of [`Control::room`] the kernel filled.
    pub(super) fn set_len(&mut self, len: usize) {
        self.len = len.min(Self::CAPACITY);
    }

    /// Iterates over the messages as level, type and data. Ends at the first message whose length
    /// exceeds the buffer.
    pub(super) fn iter(&self) -> Messages<'_> {
        Messages(self.as_bytes())
    }
}

/// Iterator of [`Control::iter`].
pub(super) struct Messages<'a>(&'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = (c_int, c_int, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (length, rest) = self.0.split_first_chunk()?;
        let (level, rest) = rest.split_first_chunk()?;
        let (kind, _) = rest.split_first_chunk()?;
        let length = usize::from_ne_bytes(*length);
        let data = self.0.get(HEADER..length)?;
        let next = length.next_multiple_of(ALIGN).min(self.0.len());
        self.0 = &self.0[next..];
        Some((
            c_int::from_ne_bytes(*level),
            c_int::from_ne_bytes(*kind),
            data,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_pushed_is_read() {
        let mut control = Control::new();
        control.push(1, 2, &[3]);
        control.push(4, 5, &[6; 20]);
        control.push(7, 8, &[]);
        let messages: Vec<_> = control.iter().collect();
        assert_eq!(
            messages,
            [(1, 2, [3].as_slice()), (4, 5, &[6; 20]), (7, 8, &[])]
        );
    }

    #[test]
    fn the_layout_is_the_c_librarys() {
        // SAFETY: these compute sizes and touch no memory.
        let (space, length) = unsafe { (libc::CMSG_SPACE(5), libc::CMSG_LEN(5)) };
        let mut control = Control::new();
        control.push(1, 2, &[3; 5]);
        assert_eq!(control.as_bytes().len(), space as usize);
        assert_eq!(control.as_bytes()[..ALIGN], (length as usize).to_ne_bytes());
    }

    #[test]
    fn lengths_that_lie_end_the_list() {
        for length in [0, 1, HEADER - 1, HEADER + 9, usize::MAX - 7, usize::MAX] {
            let mut control = Control::new();
            control.push(1, 2, &[3; 8]);
            control.bytes[..ALIGN].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(control.iter().count(), 0, "{length}");
        }
        for length in 0..HEADER + 8 {
            let mut control = Control::new();
            control.push(1, 2, &[3; 8]);
            control.set_len(length);
            assert_eq!(control.iter().count(), 0, "{length}");
        }
    }
}
