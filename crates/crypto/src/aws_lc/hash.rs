//! BLAKE2s, which AWS-LC lacks: vector code with AVX-512, otherwise the `blake2` crate.

use super::AwsLc;
use crate::hash::{Blake2s, Hash};
use crate::{Secret, blake2s::VectorBlake2s};

impl AwsLc {
    fn vector_hash(&self) -> Option<VectorBlake2s> {
        self.batches.avx512().and_then(|_| VectorBlake2s::detect())
    }
}

impl Hash for AwsLc {
    fn hash(&self, parts: &[&[u8]]) -> [u8; 32] {
        match self.vector_hash() {
            Some(vectors) => vectors.hash(parts),
            None => Blake2s.hash(parts),
        }
    }

    fn mac(&self, key: &[u8], parts: &[&[u8]]) -> [u8; 16] {
        match self.vector_hash() {
            Some(vectors) => vectors.mac(key, parts),
            None => Blake2s.mac(key, parts),
        }
    }

    fn hmac(&self, key: &[u8], parts: &[&[u8]]) -> Secret<32> {
        match self.vector_hash() {
            Some(vectors) => vectors.hmac(key, parts),
            None => Blake2s.hmac(key, parts),
        }
    }

    fn kdf(&self, key: &[u8; 32], input: &[u8], outputs: &mut [Secret<32>]) {
        match self.vector_hash() {
            Some(vectors) => vectors.kdf(key, input, outputs),
            None => Blake2s.kdf(key, input, outputs),
        }
    }
}
