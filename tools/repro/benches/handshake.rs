//! Benchmark of the published handshakes: the cost of each side, beside the published figures and
//! WireGuard's own handshake.
//!
//! As in the post, the client's time covers making the initiation and processing the response, the
//! server's time processing the initiation and making the response; there are no sockets.
//! Handshakes of all variants alternate, times are processor time, and the output is medians, so
//! that other load affects them little and equally. `cargo bench -p taupe-repro [--features
//! rainbow] [-- ROUNDS]`.
//!
//! The published figures come from another machine.

use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;
use std::time::Duration;
use taupe_crypto::{AWS_LC, Provider, Secret};
use taupe_protocol::key::{PresharedKey, PrivateKey};
use taupe_protocol::testing::noise::{self, Claim, Precomputed, StaticKeys};
use taupe_protocol::time::Tai64N;
use taupe_repro::variant::VARIANTS;
use taupe_repro::{End, Initiator, Responder};

const CRYPTO: &Provider = &AWS_LC;

/// Handshakes with Rainbow are rarer by this factor, because they take so long.
const FEWER_OF_RAINBOW: usize = 50;

fn main() {
    let rounds = std::env::args()
        .find_map(|word| word.parse().ok())
        .unwrap_or(2_000);
    let mut contestants = contestants();
    let mut samples = vec![Vec::new(); contestants.len()];
    for round in 0..rounds {
        for (contestant, samples) in contestants.iter_mut().zip(&mut samples) {
            if round % contestant.once_in == 0 {
                samples.push((contestant.shake)());
            }
        }
    }

    println!("COMPARISON ONLY: the published variants are insecure. Medians, in ms.");
    println!(
        "{:20} {:>11} {:>9}   {:>17} {:>9}   {:>17}",
        "", "payload, B", "client", "(published)", "server", "(published)"
    );
    for (contestant, samples) in contestants.iter().zip(&samples) {
        let side = |side: fn(&Times) -> Duration| {
            let mut times: Vec<_> = samples.iter().map(side).collect();
            times.sort_unstable();
            format!("{:9.3}", times[times.len() / 2].as_secs_f64() * 1e3)
        };
        let [client, server] = [side(|times| times.client), side(|times| times.server)];
        contestant.print(&client, &server);
    }
    if !cfg!(feature = "rainbow") {
        println!("Variants with Rainbow are built with `--features rainbow`.");
    }
}

/// Cost of one handshake.
#[derive(Clone)]
struct Times {
    client: Duration,
    server: Duration,
}

struct Contestant {
    name: &'static str,
    messages: [usize; 2],
    /// Milliseconds of the client and the server.
    published: Option<[f64; 2]>,
    warning: Option<&'static str>,
    once_in: usize,
    shake: Box<dyn FnMut() -> Times>,
}

impl Contestant {
    fn print(&self, client: &str, server: &str) {
        let [initiation, response] = self.messages;
        let published = |side: usize| {
            let published = self.published.map(|published| published[side]);
            published.map_or_else(String::new, |published| format!("({published:.2})"))
        };
        println!(
            "{:20} {initiation:>5}+{response:<5} {client}   {:>17} {server}   {:>17}",
            self.name,
            published(0),
            published(1),
        );
        if let Some(warning) = self.warning {
            println!("    {warning}");
        }
    }
}

/// Returns the processor time of this thread.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).expect("a time since the thread began")
}

fn contestants() -> Vec<Contestant> {
    let mut contestants = vec![ordinary()];
    for variant in VARIANTS {
        let mut random = |bytes: &mut [u8]| fastrand::fill(bytes);
        let Some(ends) = variant.ends(CRYPTO, &mut random) else {
            continue;
        };
        let published = &variant.published;
        contestants.push(Contestant {
            name: variant.name,
            messages: published.messages,
            published: Some([published.client, published.server]),
            warning: variant.warning,
            once_in: variant.warning.map_or(1, |_| FEWER_OF_RAINBOW),
            shake: Box::new(move || shake(&ends)),
        });
    }
    contestants
}

/// Performs a handshake of a published variant.
fn shake([one, other]: &[End; 2]) -> Times {
    let mut random = |bytes: &mut [u8]| fastrand::fill(bytes);
    let began = processor_time();
    let (initiator, initiation) = Initiator::start(one, 1, [1; 12], &mut random);
    let initiated = processor_time();
    let responder = Responder::accept(other, &initiation).expect("an initiation just made");
    let (response, theirs) = responder.respond(2, &mut random);
    let responded = processor_time();
    let ours = initiator.finish(one, &response);
    let finished = processor_time();
    // Tweaked Kyber may fail, once in 2.6 million times.
    let _ = black_box((ours, theirs));
    Times {
        client: (initiated - began) + (finished - responded),
        server: responded - initiated,
    }
}

/// Returns WireGuard's own handshake, by Taupe's protocol. The benchmark adds the MACs, which the
/// protocol's device computes separately.
fn ordinary() -> Contestant {
    let keys = |byte| {
        let private = PrivateKey::new([byte; 32]).expect("a key that is not zero");
        StaticKeys::new(CRYPTO, private)
    };
    let (initiator, responder) = (keys(1), keys(2));
    let precomputed =
        [(&initiator, &responder), (&responder, &initiator)].map(|(local, remote)| {
            Precomputed::new(CRYPTO, local, &remote.public).expect("no point of low order")
        });
    Contestant {
        name: "WireGuard, X25519",
        messages: [148, 92],
        published: None,
        warning: None,
        once_in: 1,
        shake: Box::new(move || shake_ordinarily(&initiator, &responder, &precomputed)),
    }
}

fn shake_ordinarily(
    local: &StaticKeys,
    remote: &StaticKeys,
    [here, there]: &[Precomputed; 2],
) -> Times {
    /// Bytes of an initiation and of a response that mac1 covers.
    const COVERED: [usize; 2] = [116, 60];
    let mac = |message: usize| {
        let covered = [0; COVERED[0]];
        let covered = &covered[..COVERED[message]];
        black_box(CRYPTO.hash.mac(&[1; 32], &[black_box(covered)]));
    };
    let ephemeral = || {
        let mut secret = Secret::zeroed();
        fastrand::fill(secret.expose_mut());
        secret
    };
    let psk = PresharedKey::NONE;

    let began = processor_time();
    let label = Tai64N([4; 12]);
    let (initiator, initiation) =
        noise::Initiator::start(CRYPTO, local, &remote.public, here, ephemeral(), label)
            .expect("no point of low order");
    mac(0);
    let initiated = processor_time();
    mac(0);
    let claim =
        Claim::open(CRYPTO, remote, initiation, ephemeral()).expect("an initiation just made");
    let responder = claim.verify(CRYPTO, there).expect("one of its own");
    let (response, theirs) = responder
        .respond(CRYPTO, &psk)
        .expect("no point of low order");
    mac(1);
    let responded = processor_time();
    mac(1);
    let ours = initiator.finish(CRYPTO, local, &psk, &response);
    let finished = processor_time();
    let _ = black_box((ours.is_ok(), theirs));
    Times {
        client: (initiated - began) + (finished - responded),
        server: responded - initiated,
    }
}
