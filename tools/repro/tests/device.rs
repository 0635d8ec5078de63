//! The small device: packets pass, and none is accepted twice.

use std::time::Duration;

use taupe_crypto::AWS_LC;
use taupe_repro::device::{Device, Received};
use taupe_repro::variant::VARIANTS;
use taupe_repro::{End, Error};

const NOW: Duration = Duration::from_secs(1_800_000_000);

fn devices() -> [Device; 2] {
    let variant = VARIANTS.iter().find(|it| it.name == "K512+tK512").unwrap();
    let ends: [End; 2] = variant.ends(&AWS_LC, &mut fastrand::fill).unwrap();
    ends.map(|end| Device::new(&AWS_LC, end))
}

/// Returns two devices with a session, and the initiation that led to it.
fn connected() -> ([Device; 2], Vec<u8>) {
    let [mut one, mut other] = devices();
    let initiation = one.send(NOW, b"first", &mut fastrand::fill).unwrap();
    let Ok(Received::Send(response)) = other.receive(NOW, &initiation, &mut fastrand::fill) else {
        panic!("no response");
    };
    assert_eq!([initiation.len(), response[0].len()], [1684, 1436]);
    let Ok(Received::Send(data)) = one.receive(NOW, &response[0], &mut fastrand::fill) else {
        panic!("no session");
    };
    let packet = other.receive(NOW, &data[0], &mut fastrand::fill).unwrap();
    assert_eq!(packet, Received::Packet(b"first".to_vec()));
    ([one, other], initiation)
}

#[test]
fn packets_pass_both_ways_and_once() {
    let ([mut one, mut other], _) = connected();
    for text in [&b"there"[..], b"", b"and"] {
        let datagram = one.send(NOW, text, &mut fastrand::fill).unwrap();
        assert_eq!(datagram.len(), text.len() + 32);
        let packet = other.receive(NOW, &datagram, &mut fastrand::fill).unwrap();
        assert_eq!(packet, Received::Packet(text.to_vec()));
        let again = other.receive(NOW, &datagram, &mut fastrand::fill);
        assert_eq!(again, Err(Error::NotAuthentic));
    }
    let datagram = other.send(NOW, b"back", &mut fastrand::fill).unwrap();
    let mut forged = datagram.clone();
    forged[18] ^= 1;
    let refused = one.receive(NOW, &forged, &mut fastrand::fill);
    assert_eq!(refused, Err(Error::NotAuthentic));
    let packet = one.receive(NOW, &datagram, &mut fastrand::fill).unwrap();
    assert_eq!(packet, Received::Packet(b"back".to_vec()));
}

#[test]
fn an_initiation_is_accepted_once() {
    let ([_, mut other], initiation) = connected();
    let again = other.receive(NOW, &initiation, &mut fastrand::fill);
    assert_eq!(again, Err(Error::Repeated));
}

#[test]
fn a_lost_initiation_is_repeated_and_an_old_session_replaced() {
    let [mut one, _] = devices();
    let after = |seconds| NOW + Duration::from_secs(seconds);
    assert!(one.send(NOW, b"a", &mut fastrand::fill).is_some());
    assert!(one.send(after(4), b"b", &mut fastrand::fill).is_none());
    let again = one.send(after(5), b"c", &mut fastrand::fill).unwrap();
    assert_eq!(again.len(), 1684);

    let ([mut one, _], _) = connected();
    let last = one.send(after(119), b"data", &mut fastrand::fill).unwrap();
    assert_eq!(last.len(), 36);
    let renewal = one.send(after(120), b"data", &mut fastrand::fill).unwrap();
    assert_eq!(renewal.len(), 1684);
}
