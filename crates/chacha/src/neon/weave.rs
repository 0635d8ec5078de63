//! Poly1305 of one text after the other, block by block, so that its steps can be put between the
//! rounds of ChaCha20.

use crate::poly1305::{BLOCK_LEN, Poly1305};

/// Blocks of a text, to be authenticated next.
#[derive(Clone, Copy, Default)]
pub(super) struct Segment<'a> {
    /// Index of the text's authenticator.
    pub(super) poly: usize,
    pub(super) blocks: &'a [[u8; BLOCK_LEN]],
}

/// Segments on their way through the authenticators of their texts.
pub(super) struct Weave<'a> {
    polys: &'a mut [Poly1305],
    /// Segments after the one in progress.
    segments: &'a [Segment<'a>],
    /// Blocks of the segment in progress that are still to be authenticated.
    blocks: &'a [[u8; BLOCK_LEN]],
    /// Index of the authenticator in progress, or that of none.
    poly: usize,
    /// The authenticator in progress, in registers.
    running: Poly1305,
}

impl<'a> Weave<'a> {
    pub(super) fn new(polys: &'a mut [Poly1305], segments: &'a [Segment<'a>]) -> Self {
        Self {
            polys,
            segments,
            blocks: &[],
            poly: usize::MAX,
            running: Poly1305::default(),
        }
    }

    /// The next block, if there is one, made at this place.
    // Always, or vectors would have to be saved for the call.
    #[inline(always)]
    pub(super) fn step(&mut self) {
        if self.blocks.is_empty() {
            self.advance();
        }
        if let Some((block, rest)) = self.blocks.split_first() {
            self.blocks = rest;
            self.running.pinned_block(block);
        }
    }

    /// All that is left. The authenticator is not moved, so no copy of it stays in memory.
    pub(super) fn finish(&mut self) {
        loop {
            self.step();
            if self.blocks.is_empty() && self.segments.is_empty() {
                break self.save();
            }
        }
    }

    #[inline(always)]
    fn advance(&mut self) {
        let Some((next, later)) = self.segments.split_first() else {
            return;
        };
        self.segments = later;
        self.blocks = next.blocks;
        self.save();
        self.poly = next.poly;
        if let Some(poly) = self.polys.get(next.poly) {
            self.running.resume(poly);
        }
    }

    #[inline(always)]
    fn save(&mut self) {
        if let Some(poly) = self.polys.get_mut(self.poly) {
            poly.h = self.running.h;
        }
    }
}
