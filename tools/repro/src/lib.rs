//! Published post-quantum variants of WireGuard's handshake, reproduced **for
//! comparison only**.
//!
//! **Do not use them: they are insecure.** The laboratory's table `handshake-pq` measures
//! them, and a system test sends packets through a tunnel with K512+tK512 ([`device`]). No
//! product of Taupe depends on this crate.
//!
//! The source is a post of Kudelski Security on post-quantum WireGuard (2021) and its
//! program (`kudelskisecurity/pq-wireguard`). They replace every X25519 of WireGuard
//! by Kyber, or by Kyber and a signature:
//!
//! | variant    | authentication                   | ephemeral         | initiation, response |
//! |------------|----------------------------------|-------------------|----------------------|
//! | K+K        | [`fujioka`], Kyber-768           | Kyber-768         | 2388, 2236 B         |
//! | K+tK       | [`fujioka`], Kyber-768           | tweaked Kyber-512 | 2004, 1756 B         |
//! | K512+tK512 | [`fujioka`], Kyber-512           | tweaked Kyber-512 | 1684, 1436 B         |
//! | R+tK       | [`del_pino`], Rainbow III        | tweaked Kyber-512 | 1080, 832 B          |
//! | R1+tK512   | [`del_pino`], Rainbow I          | tweaked Kyber-512 | 982, 734 B           |
//!
//! Layouts, key schedule and sizes are those of the program; messages are not
//! understood by it, because of what is in the next section, and because long-term
//! Kyber keys are ML-KEM's ([`fujioka`]).
//!
//! # What is wrong with them
//!
//! Of the design, and so of this crate:
//!
//! - Tweaked Kyber withstands only who never has anything decrypted, and fails once in
//!   2.6 million handshakes; an ephemeral key must never be used twice.
//! - There is no secret that both long-term keys have part in: an initiation proves
//!   nothing of its sender but that it knows the preshared key, and that is made of
//!   public keys where none is configured.
//! - Without X25519, a break of Kyber is a break of the tunnel.
//! - Ciphertexts to long-term keys, and signatures, are not hashed into the
//!   transcript, and labels do not separate these handshakes from WireGuard's.
//! - With signatures, who listens learns the hash of the initiator's public key, and a
//!   signature covers an ephemeral key or a ciphertext alone, neither the peer nor what
//!   was said before: it can be replayed and put to other uses.
//! - Rainbow is broken: key recovery in 53 hours on a laptop (Beullens 2022, eprint
//!   2022/214).
//! - Messages are longer than a packet, and rely on IP to cut them.
//!
//! Of the published program alone, and not reproduced: its responder goes on after a
//! bad signature; a shared secret, and the device's private key, are logged; and
//! encapsulation is fed with 32 bits of randomness and a hash of the private key, so
//! that who has that key can find the secrets of past handshakes by trial.
//!
//! # Use
//!
//! A tunnel has two [`End`]s. [`Initiator::start`] gives an initiation, which
//! [`Responder::accept`] and [`respond`](Responder::respond) answer, and
//! [`Initiator::finish`] takes the response: both have a [`Session`]. A
//! [`device::Device`] carries packets by such sessions. There is no
//! I/O, clock or randomness in here. [`variant::VARIANTS`] has them all, with the
//! published figures.

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
