//! A text of the cipher: the buffer from which it is read, and the buffer for the result.
#![allow(
    unsafe_code,
    reason = "both buffers may be the same, which two references cannot express"
)]

use core::marker::PhantomData;
use core::ptr;
use core::slice;

/// A text that is worked on in place, or sealed into another buffer of the same length.
///
/// It is read from its source and written to its result. In place they are one buffer, otherwise
/// they do not overlap.
pub(crate) struct Text<'a> {
    source: *const u8,
    result: *mut u8,
    /// Length of each buffer in bytes.
    len: usize,
    buffers: PhantomData<(&'a [u8], &'a mut [u8])>,
}

impl Default for Text<'_> {
    fn default() -> Self {
        Self::in_place(&mut [])
    }
}

impl<'a> Text<'a> {
    /// Returns a text that is worked on in place.
    #[inline]
    pub(crate) fn in_place(bytes: &'a mut [u8]) -> Self {
        let result = bytes.as_mut_ptr();
        Self {
            source: result,
            result,
            len: bytes.len(),
            buffers: PhantomData,
        }
    }

    /// Returns a text that is sealed from `source` into `result`. If their lengths differ, the end
    /// of the longer one is not used.
    #[inline]
    pub(crate) fn out_of_place(source: &'a [u8], result: &'a mut [u8]) -> Self {
        Self {
            source: source.as_ptr(),
            result: result.as_mut_ptr(),
            len: source.len().min(result.len()),
            buffers: PhantomData,
        }
    }

    /// Returns true if the text is sealed into another buffer.
    pub(crate) fn is_out_of_place(&self) -> bool {
        !ptr::eq(self.source, self.result)
    }

    /// Returns the length in bytes.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(crate) fn source(&self) -> &[u8] {
        // SAFETY: the source may be read for `'a`, and while `self` is borrowed nothing writes to
        // the result, which may be the same bytes.
        unsafe { slice::from_raw_parts(self.source, self.len) }
    }

    /// Returns the buffer for the result, which has its old content until the cipher writes it.
    #[inline]
    pub(crate) fn result(&self) -> &[u8] {
        // SAFETY: the result is this text's own for `'a`, and a reference to write through it
        // borrows `self` mutably.
        unsafe { slice::from_raw_parts(self.result, self.len) }
    }

    #[inline]
    pub(crate) fn result_mut(&mut self) -> &mut [u8] {
        // SAFETY: the result is this text's own for `'a`, and while `self` is borrowed mutably
        // there is no other reference, also none to the source.
        unsafe { slice::from_raw_parts_mut(self.result, self.len) }
    }

    /// Returns the part of `len` bytes from `start` on.
    ///
    /// # Panics
    ///
    /// If the text has fewer.
    #[inline]
    pub(crate) fn part(&mut self, start: usize, len: usize) -> Text<'_> {
        assert!(start <= self.len && len <= self.len - start);
        // SAFETY: the part is within both buffers, as has just been checked.
        let (source, result) = unsafe { (self.source.add(start), self.result.add(start)) };
        Text {
            source,
            result,
            len,
            buffers: PhantomData,
        }
    }
}

/// `W` blocks of `N` bytes of each of `P` texts.
///
/// Without `COPY`, each text is worked on in place. A second address for each text would make this
/// case 5 % slower.
pub(crate) struct Windows<'a, const N: usize, const W: usize, const P: usize, const COPY: bool> {
    sources: [*const [[u8; N]; W]; P],
    results: [*mut [[u8; N]; W]; P],
    buffers: PhantomData<(&'a [u8], &'a mut [u8])>,
}

impl<'a, const N: usize, const W: usize, const P: usize, const COPY: bool>
    Windows<'a, N, W, P, COPY>
{
    /// Returns blocks of spare bytes, as placeholders for texts that are not there.
    // A loop: closures over arrays would be calls.
    #[inline]
    pub(crate) fn spare<const M: usize>(spare: &'a mut [[[u8; N]; M]; P]) -> Self {
        const { assert!(W <= M) };
        let mut results = [ptr::null_mut(); P];
        for (result, spare) in results.iter_mut().zip(spare) {
            *result = spare.as_mut_ptr().cast();
        }
        Self {
            sources: results.map(<*mut _>::cast_const),
            results,
            buffers: PhantomData,
        }
    }

    /// Sets the blocks at place `index` to those of a text from block `start` on.
    ///
    /// # Safety
    ///
    /// The text has these blocks, and without `COPY` it is not
    /// [out of place](Text::is_out_of_place).
    #[inline]
    pub(crate) unsafe fn set(&mut self, index: usize, text: &'a mut Text<'_>, start: usize) {
        debug_assert!(start + W <= text.len / N && (COPY || !text.is_out_of_place()));
        let at = start * N;
        // SAFETY: by the function's contract, the blocks are within both buffers.
        let (source, result) = unsafe { (text.source.add(at), text.result.add(at)) };
        self.sources[index] = source.cast();
        self.results[index] = result.cast();
    }

    #[inline]
    pub(crate) fn source(&self, index: usize, block: usize) -> &[u8; N] {
        let source = if COPY {
            self.sources[index]
        } else {
            self.results[index]
        };
        // SAFETY: as in `Text::source`; bytes need no alignment.
        unsafe { &(&*source)[block] }
    }

    #[inline]
    pub(crate) fn result(&self, index: usize, block: usize) -> &[u8; N] {
        // SAFETY: as in `Text::result`; bytes need no alignment.
        unsafe { &(&*self.results[index])[block] }
    }

    #[inline]
    pub(crate) fn result_mut(&mut self, index: usize, block: usize) -> &mut [u8; N] {
        // SAFETY: as in `Text::result_mut`; bytes need no alignment.
        unsafe { &mut (&mut *self.results[index])[block] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Inverts the bytes of a text as a cipher would.
    fn invert(mut text: Text<'_>) {
        let half = text.len() / 2;
        for (start, len) in [(0, half), (half, text.len() - half)] {
            let mut part = text.part(start, len);
            for i in 0..len {
                let byte = part.source()[i];
                part.result_mut()[i] = !byte;
            }
            assert!(part.result().iter().all(|byte| *byte > 127));
        }
    }

    #[test]
    fn a_text_is_read_from_its_source_and_written_to_its_result() {
        for len in 0..20 {
            let plain: Vec<u8> = (0..len).collect();
            let inverted: Vec<u8> = (0..len).map(|byte| !byte).collect();
            let mut bytes = plain.clone();
            let text = Text::in_place(&mut bytes);
            assert!(!text.is_out_of_place());
            invert(text);
            assert_eq!(bytes, inverted);

            let mut other = vec![0xaa; usize::from(len) + 1];
            let text = Text::out_of_place(&plain, &mut other);
            assert!(text.is_out_of_place());
            invert(text);
            let (result, rest) = other.split_at(len.into());
            assert_eq!((result, rest), (&inverted[..], &[0xaa][..]));
        }
    }

    /// Two texts and spare bytes between them, of which blocks 1 and 2 are inverted.
    fn check_windows<const COPY: bool>(first: Text<'_>, second: Text<'_>) {
        let mut texts = [first, second];
        let mut spare = [[[1; 3]; 4]; 3];
        let mut windows = Windows::<3, 2, 3, COPY>::spare(&mut spare);
        let [first, second] = &mut texts;
        // SAFETY: both texts have ten bytes.
        unsafe {
            windows.set(0, first, 1);
            windows.set(2, second, 1);
        }
        for index in 0..3 {
            for block in 0..2 {
                let inverted = windows.source(index, block).map(|byte| !byte);
                *windows.result_mut(index, block) = inverted;
                assert_eq!(windows.result(index, block), &inverted);
            }
        }
        assert_eq!(spare[1], [[!1; 3], [!1; 3], [1; 3], [1; 3]]);
        assert_eq!(spare[0], [[1; 3]; 4]);
        let expected = |byte: u8| [[byte; 3].as_slice(), &[!byte; 6], &[byte]].concat();
        assert_eq!(texts[0].result(), expected(7));
        assert_eq!(texts[1].result(), expected(8));
    }

    #[test]
    fn blocks_of_several_texts_are_read_and_written_where_they_are() {
        let (mut first, mut second) = ([7; 10], [8; 10]);
        let (plain_first, plain_second) = (first, second);
        check_windows::<false>(Text::in_place(&mut first), Text::in_place(&mut second));
        (first, second) = (plain_first, plain_second);
        check_windows::<true>(
            Text::out_of_place(&plain_first, &mut first),
            Text::out_of_place(&plain_second, &mut second),
        );
    }

    #[test]
    #[should_panic(expected = "len")]
    fn a_part_is_within_the_text() {
        Text::in_place(&mut [0; 5]).part(3, 3);
    }
}
