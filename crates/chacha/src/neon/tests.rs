//! The primitives by themselves, against `reference`. Batches are tested in `tests/`.

use super::lanes::{KeyStream, LANES, LaneInputs, Lanes, ROWS};
use super::runs::{BLOCK_LEN, Plan, Run};
use super::vector::{LEN, store, zero};
use super::weave::{Segment, Weave};
use crate::key::Words;
use crate::poly1305::Poly1305;
use crate::reference::{Message, check_poly1305, check_wycheproof};
use crate::{Packet, TAG_LEN};

fn poly1305_with(key: &[u8; 32]) -> Poly1305 {
    let words = key.as_chunks().0;
    Poly1305::new(core::array::from_fn(|i| u64::from_le_bytes(words[i])))
}

#[test]
fn poly1305_block_by_block() {
    check_poly1305(&|key, message| {
        let mut poly = poly1305_with(key);
        poly.padded(message);
        poly.tag()
    });
}

/// As many blocks as possible during passes, the rest by itself, and between blocks of another
/// text, which must not show.
#[test]
fn poly1305_woven_into_rounds() {
    for at_a_time in [1, 3, 13] {
        for passes in 0..3 {
            check_poly1305(&|key, message| {
                let mut polys = [poly1305_with(&[7; 32]), poly1305_with(key)];
                let mut segments = Vec::new();
                for blocks in message.as_chunks().0.chunks(at_a_time) {
                    segments.extend([
                        Segment { poly: 1, blocks },
                        Segment {
                            poly: 0,
                            blocks: &[[0xff; 16]; 2],
                        },
                    ]);
                }
                authenticate(&mut polys, &segments, passes);
                polys[1].tag()
            });
        }
    }
}

/// Authenticates in so many passes as far as these go, and the rest by itself.
fn authenticate(polys: &mut [Poly1305], segments: &[Segment<'_>], passes: usize) {
    let mut weave = Weave::new(polys, segments);
    // SAFETY: every processor of this architecture has the instructions.
    unsafe {
        let mut lanes = Lanes::new(&[5; 8]);
        for _ in 0..passes {
            lanes.next(&LaneInputs::NONE, &mut weave, &mut zeros());
        }
    }
    weave.finish();
}

#[target_feature(enable = "neon")]
fn zeros() -> KeyStream {
    [zero(); LANES * ROWS]
}

/// Key stream of these blocks.
#[target_feature(enable = "neon")]
fn pass(key: &[u32; 8], blocks: &[(u32, [u32; 3])]) -> Vec<u8> {
    let mut input = LaneInputs::NONE;
    for (lane, (number, nonce)) in blocks.iter().enumerate() {
        input.set(lane, *number, *nonce);
    }
    let mut stream = zeros();
    let mut weave = Weave::new(&mut [], &[]);
    Lanes::new(key).next(&input, &mut weave, &mut stream);
    let mut bytes = vec![0; stream.len() * LEN];
    for (bytes, vector) in bytes.as_chunks_mut().0.iter_mut().zip(stream) {
        store(bytes, vector);
    }
    bytes.truncate(blocks.len() * BLOCK_LEN);
    bytes
}

/// The AEAD put together from the primitives, with any nonce and associated data, and so many
/// lanes at a time. The first twenty blocks are authenticated during a pass, later ones after it.
fn aead(message: &Message<'_>, lanes: usize) -> (Vec<u8>, [u8; 16]) {
    let Message {
        key,
        nonce,
        ad,
        text,
        seal,
    } = message;
    let nonce = nonce.as_chunks().0;
    let nonce = core::array::from_fn(|i| u32::from_le_bytes(nonce[i]));
    let blocks: Vec<_> = (0..=text.len().div_ceil(BLOCK_LEN))
        .map(|number| (number as u32, nonce))
        .collect();
    let key = Words::new(key);
    let stream: Vec<u8> = (blocks.chunks(lanes))
        // SAFETY: every processor of this architecture has the instructions.
        .flat_map(|blocks| unsafe { pass(&key.0, blocks) })
        .collect();
    let other: Vec<u8> = (text.iter().zip(&stream[BLOCK_LEN..]))
        .map(|(a, b)| a ^ b)
        .collect();
    let mut authenticated = Vec::new();
    for part in [*ad, if *seal { &other[..] } else { *text }] {
        authenticated.extend(part);
        authenticated.resize(authenticated.len().next_multiple_of(16), 0);
    }
    authenticated.extend((ad.len() as u64).to_le_bytes());
    authenticated.extend((text.len() as u64).to_le_bytes());
    let blocks = authenticated.as_chunks().0;
    let mut polys = [poly1305_with(stream.first_chunk().unwrap())];
    authenticate(&mut polys, &[Segment { poly: 0, blocks }], 1);
    (other, polys[0].tag())
}

#[test]
fn wycheproof_with_each_number_of_lanes() {
    for lanes in 1..=LANES {
        check_wycheproof(&|message| aead(message, lanes));
    }
}

#[test]
fn a_lane_does_not_depend_on_others() {
    let key = Words::new(&core::array::from_fn(|i| i as u8 ^ 0xa5)).0;
    let blocks: [(u32, [u32; 3]); LANES] = [
        (0, [0; 3]),
        (1, [1, 2, 3]),
        (u32::MAX, [u32::MAX; 3]),
        (1 << 31, [0, u32::MAX, 1]),
    ];
    // SAFETY: every processor of this architecture has the instructions.
    let together = unsafe { pass(&key, &blocks) };
    for (lane, block) in blocks.into_iter().enumerate() {
        // SAFETY: as above.
        let alone = unsafe { pass(&key, &[block]) };
        assert_eq!(alone, together[lane * BLOCK_LEN..][..BLOCK_LEN], "{lane}");
    }
}

/// Every byte of every text belongs to one run, with the block that has its number.
#[test]
fn runs_cover_a_batch() {
    let lengths = [
        0, 1, 63, 64, 65, 128, 448, 449, 512, 1440, 0, 0, 5000, 7, 3, 2, 1,
    ];
    let mut data: Vec<Vec<u8>> = lengths.map(|len| vec![0; len + TAG_LEN]).into();
    // Too short for a tag.
    data.insert(4, vec![0; 3]);
    data.push(vec![]);
    let mut packets: Vec<_> = (0..)
        .zip(&mut data)
        .map(|(counter, data)| Packet { counter, data })
        .collect();
    let (mut plan, mut blocks) = (Plan::default(), LaneInputs::NONE);
    let mut covered = vec![Vec::new(); packets.len()];
    let mut ended = Vec::new();
    loop {
        let runs = plan.next(&mut packets, &mut blocks);
        if runs.is_empty() {
            break;
        }
        for run in runs.iter() {
            let Run { place, first, .. } = *run;
            let len = packets[place].data.len() - TAG_LEN;
            let range = run.range(len);
            let [numbers, zeros, counters, _] = &blocks.0;
            assert_eq!(numbers[run.lane], first as u32);
            let number = numbers.get(run.text_lane()).copied().unwrap_or(u32::MAX);
            if !range.is_empty() {
                assert_eq!(number as usize, 1 + range.start / BLOCK_LEN);
            }
            assert_eq!((zeros[run.lane], counters[run.lane]), (0, place as u32));
            covered[place].extend(range);
            if run.is_last {
                ended.push(place);
            }
        }
    }
    let whole = |(place, data): (usize, &Vec<u8>)| (data.len() >= TAG_LEN).then_some(place);
    assert_eq!(
        ended,
        data.iter()
            .enumerate()
            .filter_map(whole)
            .collect::<Vec<_>>()
    );
    for (covered, data) in covered.iter().zip(&data) {
        let text: Vec<_> = (0..data.len().saturating_sub(TAG_LEN)).collect();
        assert_eq!(*covered, text);
    }
}
