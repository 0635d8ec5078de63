//! Published post-quantum variants of WireGuard's handshake, reproduced **for comparison only**.
//!
//! **Do not use them: they are insecure.** The lab's table `handshake-pq` measures them, and a
//! system test sends packets through a tunnel with K512+tK512 ([`device`]). No product of Taupe
//! depends on this crate.
//!
//! The source is a post of Kudelski Security on post-quantum WireGuard (2021) and its program
//! (`kudelskisecurity/pq-wireguard`). They replace every X25519 operation of WireGuard by Kyber, or
//! by Kyber and a signature:
//!
//! | variant    | authentication                   | ephemeral         | initiation, response |
//! |------------|----------------------------------|-------------------|----------------------|
//! | K+K        | [`fujioka`], Kyber-768           | Kyber-768         | 2388, 2236 B         |
//! | K+tK       | [`fujioka`], Kyber-768           | tweaked Kyber-512 | 2004, 1756 B         |
//! | K512+tK512 | [`fujioka`], Kyber-512           | tweaked Kyber-512 | 1684, 1436 B         |
//! | R+tK       | [`del_pino`], Rainbow III        | tweaked Kyber-512 | 1080, 832 B          |
//! | R1+tK512   | [`del_pino`], Rainbow I          | tweaked Kyber-512 | 982, 734 B           |
//!
//! Layouts, key schedule and sizes are those of the program. The program does not understand the
//! messages, because of the changes listed in the next section, and because long-term Kyber keys
//! are ML-KEM keys here ([`fujioka`]).
//!
//! # Weaknesses
//!
//! The design, and therefore this crate, has these weaknesses:
//!
//! - Tweaked Kyber is secure only if an attacker cannot have anything decrypted, and fails once in
//!   2.6 million handshakes; an ephemeral key must never be used twice.
//! - No secret depends on both long-term keys: an initiation proves only that its sender knows the
//!   preshared key, which is derived from public keys if none is configured.
//! - Without X25519, a break of Kyber is a break of the tunnel.
//! - Ciphertexts to long-term keys, and signatures, are not hashed into the transcript, and no
//!   label separates these handshakes from WireGuard's.
//! - With signatures, an eavesdropper learns the hash of the initiator's public key. A signature
//!   covers only an ephemeral key or a ciphertext, neither the peer nor the earlier messages: it
//!   can be replayed and used in other contexts.
//! - Rainbow is broken: key recovery in 53 hours on a laptop (Beullens 2022, eprint 2022/214).
//! - Messages exceed a packet, and rely on IP fragmentation.
//!
//! The published program has more, which are not reproduced here: its responder continues after a
//! bad signature; it logs a shared secret and the device's private key; and encapsulation uses 32 bits
//! of randomness and a hash of the private key, so that an attacker with this key can find the
//! secrets of past handshakes by trial.
//!
//! # Use
//!
//! A tunnel has two [`End`]s. [`Initiator::start`] makes an initiation, [`Responder::accept`] and
//! [`respond`](Responder::respond) answer it, and [`Initiator::finish`] processes the response:
//! both ends then have a [`Session`]. A [`device::Device`] carries packets in such sessions. The
//! crate uses no I/O, clock or randomness of its own. [`variant::VARIANTS`] lists all variants,
//! with the published figures.

#![forbid(unsafe_code)]

pub mod authentication;
pub mod del_pino;
pub mod device;
mod ephemeral;
mod error;
pub mod fujioka;
mod handshake;
pub mod pke;
#[cfg(feature = "rainbow")]
pub mod rainbow;
mod transcript;
pub mod variant;

pub use error::Error;
pub use handshake::{End, Initiator, Random, Responder, Session, published_preshared_key};
