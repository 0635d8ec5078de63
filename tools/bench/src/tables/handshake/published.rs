//! The published handshakes from [`taupe_repro`]: for comparison only, and insecure.

use super::CRYPTO;
use super::exchange::{Exchange, Handshake, processor_time};
use std::time::{Duration, Instant};
use taupe_lab::ensure;
use taupe_lab::error::{Error, Result};
use taupe_repro::variant::VARIANTS;
use taupe_repro::{End, Initiator, Responder};

/// Two ends that perform a published handshake, without sockets or devices.
struct Ends {
    client: End,
    server: End,
    /// Number of handshakes so far.
    performed: u32,
}

/// Creates two ends of the variant with this published name.
pub(super) fn begin(name: &str) -> Result<Box<dyn Handshake>> {
    let variant = VARIANTS.iter().find(|variant| variant.name == name);
    let ends = variant.and_then(|variant| variant.ends(CRYPTO, &mut fill));
    let [client, server] =
        ends.ok_or_else(|| Error::unmet(format!("no keys for the handshake {name}")))?;
    Ok(Box::new(Ends {
        client,
        server,
        performed: 0,
    }))
}

fn fill(bytes: &mut [u8]) {
    taupe_runtime::random::fill(bytes);
}

impl Handshake for Ends {
    fn perform(&mut self) -> Result<Exchange> {
        self.performed += 1;
        let mut timestamp = [0; 12];
        timestamp[8..].copy_from_slice(&self.performed.to_be_bytes());
        let refused = |error: taupe_repro::Error| Error::unmet(format!("a message: {error}"));

        let (started, initiating) =
            timed(|| Initiator::start(&self.client, 1, timestamp, &mut fill));
        let (initiator, initiation) = started;
        let ((answered, responding), server_cpu) = processor_time(|| {
            timed(|| {
                let responder = Responder::accept(&self.server, &initiation)?;
                Ok(responder.respond(2, &mut fill))
            })
        });
        let (response, theirs) = answered.map_err(refused)?;
        let (finished, finishing) = timed(|| initiator.finish(&self.client, &response));
        let ours = finished.map_err(refused)?;

        let agreed = ours.send == theirs.receive && ours.receive == theirs.send;
        ensure!(agreed, "the two ends do not have the same keys");
        Ok(Exchange {
            messages: vec![initiation.len(), response.len()],
            client: initiating + finishing,
            server: responding,
            server_cpu,
        })
    }
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let done = work();
    (done, start.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_as_long_as_published() -> Result<()> {
        let mut measured = 0;
        for variant in VARIANTS {
            // Skips Rainbow, whose keys take seconds.
            if variant.warning.is_some() {
                continue;
            }
            let mut ends = begin(variant.name)?;
            for _ in 0..3 {
                assert_eq!(ends.perform()?.messages, variant.published.messages);
            }
            measured += 1;
        }
        assert_eq!(measured, 3);
        assert!(begin("K+R").is_err());
        Ok(())
    }
}
