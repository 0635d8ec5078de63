//! Request fields that only some devices support.

use taupe_protocol::update::PostQuantum;
use taupe_uapi::SetRequest;

use crate::error::Error;

/// Extensions that a device supports.
#[derive(Clone, Copy, Default)]
pub(crate) struct Extensions {
    pub(crate) endpoint_names: bool,
    pub(crate) keepalive_now: bool,
    pub(crate) post_quantum: bool,
}

/// Returns true if a request uses an extension.
pub(crate) fn uses_extensions(request: &SetRequest) -> bool {
    let device = &request.device;
    let mut peers = device.peers.iter();
    device.pq_private_key.is_some()
        || peers.any(|peer| {
            peer.endpoint_name.is_some()
                || peer.keepalive_now
                || peer.pq_public_key.is_some()
                || peer.post_quantum.is_some()
        })
}

/// Removes the fields that a device does not support: endpoint names, empty packets on request, and
/// the removal of post-quantum keys that it cannot have.
///
/// # Errors
/// Returns [`Error::NoPostQuantum`] if the removal would weaken the requested handshakes.
pub(crate) fn restrict(request: &mut SetRequest, supported: Extensions) -> Result<(), Error> {
    let device = &mut request.device;
    if !supported.post_quantum {
        let is_ordinary = |mode: Option<PostQuantum>| mode.is_none_or(|it| it == PostQuantum::Off);
        let is_hybrid = device.pq_private_key.as_ref().is_some_and(Option::is_some)
            || device.peers.iter().any(|peer| {
                !is_ordinary(peer.post_quantum.flatten())
                    || peer.pq_public_key.as_ref().is_some_and(Option::is_some)
            });
        if is_hybrid {
            return Err(Error::NoPostQuantum);
        }
        device.pq_private_key = None;
    }
    for peer in &mut device.peers {
        if !supported.endpoint_names {
            peer.endpoint_name = None;
        }
        peer.keepalive_now &= supported.keepalive_now;
        if !supported.post_quantum {
            peer.pq_public_key = None;
            peer.post_quantum = None;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use taupe_protocol::crypto::Secret;
    use taupe_protocol::key::{PqPrivateKey, PublicKey};
    use taupe_protocol::update::{EndpointName, PeerUpdate};

    fn request(change: impl FnOnce(&mut SetRequest, &mut PeerUpdate)) -> SetRequest {
        let mut request = SetRequest::default();
        let mut peer = PeerUpdate::new(PublicKey([1; 32]));
        change(&mut request, &mut peer);
        request.device.peers.push(peer);
        request
    }

    #[test]
    fn what_weakens_is_refused_and_what_takes_away_is_left_out() {
        let other = Extensions::default();
        let seed = PqPrivateKey::new(Secret::new([1; 64]));
        for mut request in [
            request(|request, _| request.device.pq_private_key = Some(seed)),
            request(|_, peer| peer.post_quantum = Some(Some(PostQuantum::Prefer))),
            request(|_, peer| peer.post_quantum = Some(Some(PostQuantum::Require))),
        ] {
            assert!(uses_extensions(&request));
            assert!(matches!(
                restrict(&mut request, other),
                Err(Error::NoPostQuantum)
            ));
            let taupe = Extensions {
                endpoint_names: true,
                keepalive_now: true,
                post_quantum: true,
            };
            assert!(restrict(&mut request, taupe).is_ok() && uses_extensions(&request));
        }
        for mut request in [
            request(|request, _| request.device.pq_private_key = Some(None)),
            request(|_, peer| peer.post_quantum = Some(Some(PostQuantum::Off))),
            request(|_, peer| peer.post_quantum = Some(None)),
            request(|_, peer| peer.pq_public_key = Some(None)),
            request(|_, peer| peer.endpoint_name = Some(EndpointName::new("a", 1))),
            request(|_, peer| peer.keepalive_now = true),
        ] {
            assert!(uses_extensions(&request));
            assert!(restrict(&mut request, other).is_ok());
            assert!(!uses_extensions(&request));
        }
        assert!(!uses_extensions(&request(|_, _| {})));
    }
}
