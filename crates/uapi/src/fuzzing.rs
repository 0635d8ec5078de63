//! Entry points for fuzzers, which panic when an invariant does not hold.

use taupe_protocol::update::{DeviceUpdate, PeerUpdate, PrivateKeyUpdate};
use zeroize::Zeroizing;

use crate::{Operation, Request, RequestReader, SetRequest, UapiError, write_set};

/// Reads `data` as a stream of UAPI requests.
///
/// Checks that nothing panics, that the split of the stream into pieces does not matter, that an
/// accepted `set` reads back the same after printing, and that the answer to an error has the sign
/// that `wg` expects.
pub fn uapi(data: &[u8]) {
    let whole = read(data.chunks(data.len().max(1)));
    let pieces = read(data.chunks(1 + data.len() % 7));
    assert_eq!(
        whole.len(),
        pieces.len(),
        "the cut changes how many requests there are"
    );
    for (a, b) in whole.iter().zip(&pieces) {
        assert!(same(a, b), "the cut changes a request");
        match a {
            Ok(Request::Get) => {}
            Ok(Request::Set(request)) => {
                let mut text = Zeroizing::new(String::new());
                write_set(&mut *text, request).expect("a String takes everything");
                match read([text.as_bytes()]).as_slice() {
                    [Ok(Request::Set(again))] => {
                        assert!(
                            same_set(request, again),
                            "print and parse change the request"
                        );
                    }
                    _ => panic!("a printed request is not one valid request"),
                }
            }
            Err(error) => {
                assert!(error.line > 0, "lines are counted from 1");
                let negative = error.status().to_string().starts_with("errno=-");
                assert_eq!(
                    negative,
                    error.operation != Some(Operation::Get),
                    "wrong sign"
                );
            }
        }
    }
}

fn read<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<Result<Request, UapiError>> {
    let mut reader = RequestReader::new();
    let mut requests = Vec::new();
    for mut piece in pieces {
        while let Some(request) = reader.push(&mut piece) {
            requests.push(request);
        }
        assert!(piece.is_empty(), "input is left over");
    }
    requests
}

fn same(a: &Result<Request, UapiError>, b: &Result<Request, UapiError>) -> bool {
    match (a, b) {
        (Ok(Request::Get), Ok(Request::Get)) => true,
        (Ok(Request::Set(a)), Ok(Request::Set(b))) => same_set(a, b),
        (Err(a), Err(b)) => a == b,
        _ => false,
    }
}

/// Compares two requests. The code names every field, so that a new one cannot be forgotten.
pub(crate) fn same_set(a: &SetRequest, b: &SetRequest) -> bool {
    let SetRequest {
        listen_port,
        fwmark,
        device,
    } = a;
    let DeviceUpdate {
        private_key,
        pq_private_key,
        replace_peers,
        peers,
    } = device;
    let same_key = match (private_key, &b.device.private_key) {
        (None, None) => true,
        (Some(a), Some(b)) => {
            let PrivateKeyUpdate {
                key,
                timestamp_floor,
            } = a;
            *key == b.key && *timestamp_floor == b.timestamp_floor
        }
        _ => false,
    };
    same_key
        && *pq_private_key == b.device.pq_private_key
        && *listen_port == b.listen_port
        && *fwmark == b.fwmark
        && *replace_peers == b.device.replace_peers
        && peers.len() == b.device.peers.len()
        && peers
            .iter()
            .zip(&b.device.peers)
            .all(|(a, b)| same_peer(a, b))
}

fn same_peer(a: &PeerUpdate, b: &PeerUpdate) -> bool {
    let PeerUpdate {
        public_key,
        remove,
        update_only,
        preshared_key,
        pq_public_key,
        post_quantum,
        pq_pinned,
        endpoint,
        endpoint_name,
        persistent_keepalive,
        keepalive_now,
        replace_allowed_ips,
        allowed_ips,
    } = a;
    *public_key == b.public_key
        && *remove == b.remove
        && *update_only == b.update_only
        && *preshared_key == b.preshared_key
        && *pq_public_key == b.pq_public_key
        && *post_quantum == b.post_quantum
        && *pq_pinned == b.pq_pinned
        && *endpoint == b.endpoint
        && *endpoint_name == b.endpoint_name
        && *persistent_keepalive == b.persistent_keepalive
        && *keepalive_now == b.keepalive_now
        && *replace_allowed_ips == b.replace_allowed_ips
        && *allowed_ips == b.allowed_ips
}
