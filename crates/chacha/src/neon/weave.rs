//! Poly1305 of one text after the other, block by block, so that its steps can be put between the
//! rounds of ChaCha20.

use crate::poly1305::{Accumulator, BLOCK_LEN, Poly1305};
use zeroize::Zeroize as _;

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
    /// The accumulator in progress, while no loop has it.
    waiting: Accumulator,
}

impl<'a> Weave<'a> {
    pub(super) fn new(polys: &'a mut [Poly1305], segments: &'a [Segment<'a>]) -> Self {
        Self {
            polys,
            segments,
            blocks: &[],
            poly: usize::MAX,
            waiting: Accumulator::default(),
        }
    }

    /// Begins a loop of steps and returns the accumulator in progress, which the loop's steps take. As a
    /// variable of the loop it is in registers: each block needs the one before it, and through memory
    /// it would come some cycles later.
    #[inline(always)]
    pub(super) fn take_up(&self) -> Accumulator {
        self.waiting
    }

    /// Ends a loop of steps.
    #[inline(always)]
    pub(super) fn put_down(&mut self, running: Accumulator) {
        self.waiting = running;
    }

    /// The next block, if there is one, made at this place.
    // Always, or vectors would have to be saved for the call.
    #[inline(always)]
    pub(super) fn step(&mut self, running: &mut Accumulator) {
        if self.blocks.is_empty() {
            self.advance(running);
        }
        if let Some((block, rest)) = self.blocks.split_first() {
            self.blocks = rest;
            running.pinned_block(block);
        }
    }

    /// All that is left.
    pub(super) fn finish(&mut self) {
        let mut running = self.take_up();
        loop {
            self.step(&mut running);
            if self.blocks.is_empty() && self.segments.is_empty() {
                break self.save(&running);
            }
        }
    }

    #[inline(always)]
    fn advance(&mut self, running: &mut Accumulator) {
        let Some((next, later)) = self.segments.split_first() else {
            return;
        };
        self.segments = later;
        self.blocks = next.blocks;
        self.save(running);
        self.poly = next.poly;
        if let Some(poly) = self.polys.get(next.poly) {
            *running = poly.accumulator;
        }
    }

    #[inline(always)]
    fn save(&mut self, running: &Accumulator) {
        if let Some(poly) = self.polys.get_mut(self.poly) {
            poly.accumulator.h = running.h;
        }
    }
}

impl Drop for Weave<'_> {
    fn drop(&mut self) {
        self.waiting.zeroize();
    }
}
