//! Every implementation that this processor has, compared with AWS-LC: batches, forgeries among
//! them, and packets of every size. On an x86-64 processor without AVX2 both sides are AWS-LC, and
//! the first test prints that.
#![cfg(not(miri))]

mod common;
#[path = "common/differential.rs"]
mod differential;

use common::{BatchKey, IMPLEMENTATIONS, Implementation, Random, is_supported, with_room};
use differential::Shape;
use taupe_chacha::{Avx2Key, Avx512Key, NeonKey, Packet, TAG_LEN};

/// A million packets, or fewer: processors of other architectures are emulated in most runs.
#[test]
fn many_packets_are_sealed_and_opened_as_by_aws_lc() {
    let (avx2, avx512) = (Avx2Key::is_supported(), Avx512Key::is_supported());
    let neon = NeonKey::is_supported();
    let is_arm = cfg!(target_arch = "aarch64");
    assert_eq!(neon, is_arm, "otherwise AWS-LC is compared with itself");
    println!("AVX2 and BMI2: {avx2}; AVX-512 with IFMA and VBMI2: {avx512}; NEON: {neon}");
    let packets = match () {
        () if cfg!(target_arch = "aarch64") => 100_000,
        () if cfg!(debug_assertions) && !is_supported() => 10_000,
        () => 1_000_000,
    };
    let half = |seed| differential::run(seed, packets / 2, |_| ());
    let done = std::thread::scope(|scope| {
        let other = scope.spawn(|| half(2));
        half(1) + other.join().unwrap()
    });
    assert!(done >= packets);
}

/// A batch of packets of these lengths of text.
fn check_lengths(random: &mut Random, implementation: &Implementation, lengths: &[usize]) {
    let mut shape = Shape::default();
    for len in lengths {
        shape.push(random, *len);
    }
    differential::check(
        random,
        implementation,
        &shape,
        &format!("lengths {lengths:?}"),
    );
}

#[test]
fn every_length_up_to_2048_bytes() {
    let mut random = Random(3);
    for len in 0..=2048 {
        for implementation in IMPLEMENTATIONS {
            // Whole groups of each width, and with an idle lane.
            for count in [1, 2, 3, 4, 7, 8] {
                check_lengths(&mut random, implementation, &vec![len; count]);
            }
            // Lanes that end before others.
            let shorter = [0, 1, 15, 16, 17, 63, 64, 65].map(|less| len.saturating_sub(less));
            check_lengths(&mut random, implementation, &shorter);
        }
    }
}

#[test]
fn the_longest_packets() {
    let mut random = Random(4);
    // Jumbo frames, what UDP can carry, and what goes in no group.
    for len in [
        8_922, 8_960, 16_383, 65_507, 65_519, 65_520, 65_535, 65_536, 65_537, 100_000,
    ] {
        for implementation in IMPLEMENTATIONS {
            check_lengths(&mut random, implementation, &[len]);
            check_lengths(&mut random, implementation, &[len; 9]);
        }
    }
}

/// A change of one packet of a batch.
type Forgery = fn(&mut Vec<u8>);

const FORGERIES: [(&str, Forgery); 5] = [
    ("first bit of the text", |data| data[0] ^= 1),
    ("last bit of the text", |data| {
        let last = data.len() - TAG_LEN - 1;
        data[last] ^= 0x80;
    }),
    ("first bit of the tag", |data| {
        let tag = data.len() - TAG_LEN;
        data[tag] ^= 1;
    }),
    ("last bit of the tag", |data| {
        *data.last_mut().unwrap() ^= 0x80
    }),
    ("cut by a byte", |data| {
        data.pop();
    }),
];

#[test]
fn a_forgery_in_a_batch_is_refused_and_erased_and_its_neighbours_are_not_harmed() {
    for implementation in IMPLEMENTATIONS {
        let key = (implementation.key)(&[8; 32]);
        for len in [1, 63, 64, 130, 200, 321, 449, 700, 1440] {
            let plain: Vec<u8> = (0..len).map(|i| i as u8 | 1).collect();
            let sealed: Vec<Vec<u8>> = (0..20)
                .map(|counter| {
                    let mut data = with_room(&plain);
                    key.seal(&mut [Packet {
                        counter,
                        data: &mut data,
                    }]);
                    data
                })
                .collect();
            for position in 0..sealed.len() {
                for (name, forge) in FORGERIES {
                    let mut data = sealed.clone();
                    forge(&mut data[position]);
                    let mut alone = data[position].clone();
                    let authentic = open(&*key, &mut data);
                    let by_itself = &mut [Packet {
                        counter: position as u64,
                        data: &mut alone,
                    }];
                    let mut flag = [true];
                    key.open(by_itself, &mut flag);
                    assert_eq!((flag, &alone), ([false], &data[position]));
                    let id = format!("{}: {name}, {len} B, at {position}", implementation.name);
                    for (i, data) in data.iter().enumerate() {
                        assert_eq!(authentic[i], i != position, "{id}: packet {i}");
                        let text = &data[..data.len() - TAG_LEN];
                        if i == position {
                            assert!(text.iter().all(|byte| *byte == 0), "{id}: text released");
                        } else {
                            assert_eq!(text, plain, "{id}: packet {i}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_batch_of_forgeries_leaves_nothing() {
    for implementation in IMPLEMENTATIONS {
        let key = (implementation.key)(&[8; 32]);
        for len in [80, 150, 1000] {
            let mut data = vec![vec![0x5a; len]; 64];
            assert_eq!(open(&*key, &mut data), [false; 64]);
            let erased = |data: &Vec<u8>| data[..len - TAG_LEN].iter().all(|byte| *byte == 0);
            assert!(data.iter().all(erased), "{}: {len} B", implementation.name);
        }
    }
}

#[test]
fn batches_of_0_1_64_and_65_keepalives_and_of_packets_too_short_for_a_tag() {
    for implementation in IMPLEMENTATIONS {
        let key = (implementation.key)(&[8; 32]);
        for n in [0, 1, 2, 7, 8, 9, 64, 65, 130] {
            let mut data = vec![with_room(&[]); n];
            for (counter, data) in (0..).zip(&mut data) {
                key.seal(&mut [Packet { counter, data }]);
            }
            assert_eq!(
                open(&*key, &mut data),
                vec![true; n],
                "{}: {n}",
                implementation.name
            );

            let short: Vec<Vec<u8>> = (0..n).map(|i| vec![0x5a; i % TAG_LEN]).collect();
            let mut data = short.clone();
            assert_eq!(
                open(&*key, &mut data),
                vec![false; n],
                "{}: {n}",
                implementation.name
            );
            key.seal(&mut packets(&mut data));
            assert_eq!(data, short, "{}: {n}", implementation.name);
        }
    }
}

#[test]
fn packets_too_short_for_a_tag_do_not_disturb_others() {
    for implementation in IMPLEMENTATIONS {
        let key = (implementation.key)(&[8; 32]);
        let mut data: Vec<Vec<u8>> = (0..40)
            .map(|i| {
                if i % 3 == 0 {
                    vec![1; 5]
                } else {
                    with_room(&[i; 100])
                }
            })
            .collect();
        key.seal(&mut packets(&mut data));
        let authentic = open(&*key, &mut data);
        for (i, (data, authentic)) in (0..).zip(data.iter().zip(authentic)) {
            assert_eq!(authentic, i % 3 != 0);
            let expected = if authentic { vec![i; 100] } else { vec![1; 5] };
            assert_eq!(data[..expected.len()], expected);
        }
    }
}

fn packets(data: &mut [Vec<u8>]) -> Vec<Packet<'_>> {
    (0..)
        .zip(data)
        .map(|(counter, data)| Packet { counter, data })
        .collect()
}

fn open(key: &dyn BatchKey, data: &mut [Vec<u8>]) -> Vec<bool> {
    let mut authentic = vec![false; data.len()];
    key.open(&mut packets(data), &mut authentic);
    authentic
}
