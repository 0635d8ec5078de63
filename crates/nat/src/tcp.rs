//! TCP flags, and the maximum segment size option.

use taupe_packet::checksum;

/// Offset of the flags in the header, in bytes.
pub const FLAGS: usize = 13;
/// The sender has no more data.
pub const FIN: u8 = 1;
/// Opens a connection.
pub const SYN: u8 = 2;
/// Ends a connection at once.
pub const RST: u8 = 4;
/// The acknowledgement number is valid.
pub const ACK: u8 = 16;

/// Offset of the checksum in the header, in bytes.
pub(crate) const CHECKSUM: usize = 16;

/// Lowers the maximum segment size in a SYN to `most` bytes. Without the option the size is 536 or
/// 1,220 bytes (RFC 9293 section 3.7.1), less than any tunnel's. `partial` means that the checksum
/// does not cover the segment yet.
pub(crate) fn clamp_mss(segment: &mut [u8], most: u16, partial: bool) {
    const END: u8 = 0;
    const NOP: u8 = 1;
    const MSS: u8 = 2;
    let Some(&offset) = segment.get(12) else {
        return;
    };
    let end = segment.len().min(usize::from(offset >> 4) * 4);
    let mut at = 20;
    while at < end {
        let length = match (segment[at], segment.get(at + 1)) {
            (END, _) => return,
            (NOP, _) => 1,
            (MSS, Some(4)) if at + 4 <= end => return lower(segment, at + 2, most, partial),
            (_, Some(&length)) if length >= 2 => usize::from(length),
            _ => return,
        };
        at += length;
    }
}

/// Lowers the big-endian number at `at`, which may be odd.
fn lower(segment: &mut [u8], at: usize, most: u16, partial: bool) {
    let [a, b] = [segment[at], segment[at + 1]];
    let advertised = u16::from_be_bytes([a, b]);
    if advertised <= most {
        return;
    }
    segment[at..at + 2].copy_from_slice(&most.to_be_bytes());
    if partial {
        return;
    }
    // Across two words, bytes have swapped weights: RFC 1071 section 2, B.
    let (old, new) = match at % 2 {
        0 => (advertised, most),
        _ => (advertised.swap_bytes(), most.swap_bytes()),
    };
    let sum = u16::from_be_bytes([segment[CHECKSUM], segment[CHECKSUM + 1]]);
    let sum = checksum::update(sum, old, new);
    segment[CHECKSUM..CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use taupe_packet::checksum::Sum;

    /// Builds a SYN with these options and a checksum without pseudo-header.
    fn syn(options: &[u8]) -> Vec<u8> {
        let mut segment = vec![0; 20];
        segment.extend(options);
        segment.resize(segment.len().next_multiple_of(4), 0);
        segment[12] = (segment.len() / 4 * 16) as u8;
        segment[FLAGS] = SYN;
        let sum = Sum::ZERO.bytes(&segment).checksum();
        segment[CHECKSUM..CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
        segment
    }

    #[test]
    fn lowered_wherever_it_is() {
        for (options, at) in [
            (&[2, 4, 5, 180][..], 22),
            (&[1, 2, 4, 5, 180], 23),
            (&[1, 1, 8, 10, 0, 0, 0, 0, 0, 0, 0, 0, 2, 4, 5, 180], 34),
            (&[3, 3, 7, 2, 4, 5, 180], 25),
        ] {
            let mut segment = syn(options);
            clamp_mss(&mut segment, 1380, false);
            assert_eq!(segment[at..at + 2], 1380u16.to_be_bytes(), "{options:?}");
            assert_eq!(Sum::ZERO.bytes(&segment).folded(), 0xffff, "{options:?}");
            let mut partial = syn(options);
            let sum = partial[CHECKSUM..CHECKSUM + 2].to_vec();
            clamp_mss(&mut partial, 1380, true);
            assert_eq!(partial[at..at + 2], 1380u16.to_be_bytes());
            assert_eq!(partial[CHECKSUM..CHECKSUM + 2], sum);
        }
    }

    #[test]
    fn never_raised_and_nothing_else_touched() {
        for options in [
            &[2, 4, 5, 100][..],        // exactly 1,380
            &[2, 4, 2, 24],             // 536
            &[],                        // none
            &[0, 2, 4, 5, 180],         // after the end of options
            &[2, 3, 5, 180],            // a wrong length
            &[2, 4, 5],                 // cut; its value is 0 by padding
            &[9, 0, 2, 4, 5, 180],      // after an option of length 0
            &[9, 200, 2, 4, 5, 180, 1], // after an option that extends too far
        ] {
            let before = syn(options);
            let mut segment = before.clone();
            clamp_mss(&mut segment, 1380, false);
            assert_eq!(segment, before, "{options:?}");
        }
    }

    #[test]
    fn headers_cut_anywhere_are_left_alone() {
        let whole = syn(&[1, 2, 4, 5, 180]);
        for length in 0..25 {
            let mut cut = whole[..length].to_vec();
            clamp_mss(&mut cut, 1380, false);
            assert_eq!(cut, whole[..length], "{length}");
        }
    }
}
