//! A batch as the pipeline makes one: 44 packets of 1,440 bytes.

use divan::{Bencher, counter::BytesCount};
use taupe_crypto::{AeadKey, Packet, Provider, Secret, TAG_LEN};

const PACKETS: usize = 44;
const PACKET_LEN: usize = 1440;
const SIZE: usize = PACKET_LEN + TAG_LEN;

fn main() {
    divan::main();
}

fn providers() -> Vec<&'static str> {
    all().iter().map(|provider| provider.name).collect()
}

fn all() -> Vec<&'static Provider> {
    vec![
        #[cfg(feature = "aws-lc")]
        &taupe_crypto::AWS_LC,
        #[cfg(feature = "portable")]
        &taupe_crypto::PORTABLE,
    ]
}

#[divan::bench(args = providers())]
fn seal(bencher: Bencher<'_, '_>, provider: &str) {
    let key = key(provider);
    let mut buffer = vec![0; PACKETS * SIZE];
    bencher
        .counter(BytesCount::new(PACKETS * PACKET_LEN))
        .bench_local(|| key.seal(&mut batch(&mut buffer)));
}

#[divan::bench(args = providers())]
fn open(bencher: Bencher<'_, '_>, provider: &str) {
    let key = key(provider);
    let mut sealed = vec![0; PACKETS * SIZE];
    key.seal(&mut batch(&mut sealed));
    let mut authentic = [false; PACKETS];
    bencher
        .counter(BytesCount::new(PACKETS * PACKET_LEN))
        .with_inputs(|| sealed.clone())
        .bench_local_refs(|buffer| {
            key.open(&mut batch(buffer), &mut authentic);
            assert_eq!(authentic, [true; PACKETS]);
        });
}

fn key(provider: &str) -> Box<dyn AeadKey> {
    let provider = all().into_iter().find(|p| p.name == provider);
    provider.unwrap().aead.key(&Secret::new([7; 32]))
}

fn batch(buffer: &mut [u8]) -> [Packet<'_>; PACKETS] {
    let mut chunks = buffer.chunks_exact_mut(SIZE);
    std::array::from_fn(|i| Packet {
        counter: i as u64,
        data: chunks.next().unwrap(),
    })
}
