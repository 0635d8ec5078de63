//! Numbers at offsets of byte strings. Nothing here panics.

/// Returns the `N` bytes at an offset, or `None` if there are fewer.
pub(crate) fn array<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..)?.first_chunk().copied()
}

/// Returns the byte at an offset.
pub(crate) fn u8_at(bytes: &[u8], offset: usize) -> Option<u8> {
    bytes.get(offset).copied()
}

/// Returns the little-endian number of two bytes at an offset.
pub(crate) fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    array(bytes, offset).map(u16::from_le_bytes)
}

/// Returns the little-endian number of four bytes at an offset.
pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    array(bytes, offset).map(u32::from_le_bytes)
}

/// Writes `value` at an offset. Bytes that do not fit are omitted.
pub(crate) fn put(bytes: &mut [u8], offset: usize, value: &[u8]) {
    let room = bytes.get_mut(offset..).unwrap_or_default();
    for (place, byte) in room.iter_mut().zip(value) {
        *place = *byte;
    }
}

/// Returns the text in front of the first NUL byte. Bytes that are not UTF-8 are replaced.
pub(crate) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0);
    let bytes = bytes.get(..end.unwrap_or(bytes.len()));
    String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned()
}
