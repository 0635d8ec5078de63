use super::*;
use taupe_client::{PresharedKey, PrivateKey};
use taupe_config::file::File;

/// Returns a device whose private key and peers' public keys consist of these bytes.
fn device(private: Option<u8>, peers: &[u8]) -> Device {
    let peers = peers.iter().map(|&byte| PeerStatus {
        public_key: PublicKey([byte; 32]),
        preshared_key: PresharedKey::NONE,
        pq_public_key: None,
        post_quantum: None,
        pq_pinned: false,
        session: None,
        lanes: None,
        endpoint: "192.0.2.1:51820".parse().ok(),
        endpoint_name: None,
        latest_handshake: None,
        unanswered: None,
        tx_bytes: 0,
        rx_bytes: 0,
        persistent_keepalive: 0,
        allowed_ips: Vec::new(),
    });
    Device {
        status: DeviceStatus {
            private_key: private.and_then(|byte| PrivateKey::new([byte; 32])),
            pq_private_key: None,
            peers: peers.collect(),
        },
        ..Device::new("wg0")
    }
}

/// Returns the findings about the first of two devices.
fn shared(one: Device, other: Device, file: Option<&File>) -> Vec<Finding> {
    let devices = Devices(vec![("home".into(), one), ("work".into(), other)]);
    devices.sharing_key("home", &FilePeers::of(file))
}

#[test]
fn a_private_key_and_a_peer_in_common_are_one_finding() {
    let found = shared(device(Some(1), &[7, 8]), device(Some(1), &[8, 7, 9]), None);
    let [Finding { code, text, .. }] = found.as_slice() else {
        panic!("{found:?}");
    };
    assert_eq!(code.name(), "key-shared");
    assert!(text.starts_with("work has the same PrivateKey"), "{text}");
    assert_eq!(text.lines().count(), 1);
}

#[test]
fn one_of_the_two_in_common_is_no_fault() {
    for (one, other) in [
        (device(Some(1), &[7]), device(Some(1), &[8])),
        (device(Some(1), &[7]), device(Some(2), &[7])),
        (device(None, &[7]), device(None, &[7])),
    ] {
        assert_eq!(shared(one, other, None), []);
    }
}

/// A gateway listens on two ports, and its clients select one.
#[test]
fn a_peer_that_calls_is_no_fault() {
    let text = "[Interface]\nPrivateKey = AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=\n\
                [Peer]\nPublicKey = BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=\n";
    let parsed = taupe_config::file::parse(text.as_bytes(), taupe_config::file::Dialect::Taupe);
    let file = parsed.file.expect("a file");
    let of_gateway = || device(Some(1), &[7]);
    assert_eq!(shared(of_gateway(), of_gateway(), Some(&file)), []);
    assert_eq!(shared(of_gateway(), of_gateway(), None).len(), 1);
}
