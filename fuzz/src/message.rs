//! Datagrams for a device that shares no key with their sender.

use taupe_protocol::DropReason;
use taupe_protocol::crypto::default_provider;
use taupe_protocol::hybrid::Part;
use taupe_protocol::message::{
    DATA_HEADER_LEN, DATA_OVERHEAD, Kind, Malformed, classify, data_header,
};
use taupe_protocol::testing::write_data_header;

use crate::common::snapshot::{counts, raised};
use crate::common::{Net, stranger};
use crate::input::Input;

/// Classifies and parses `data` as a batch. The first two bytes are the segment length.
///
/// Every message has the length of its type. Writing a header that was read gives the same bytes.
/// The device counts each datagram once and answers none.
pub fn message(data: &[u8]) {
    let mut input = Input(data);
    let segment = usize::from(input.number()).max(1);
    let batch = input.0;
    let mut expected = Vec::new();
    for datagram in batch.chunks(segment) {
        let kind = classify(datagram);
        let length = datagram.len();
        match kind {
            Ok(Kind::Initiation) => assert_eq!(length, 148),
            Ok(Kind::Response) => assert_eq!(length, 92),
            Ok(Kind::CookieReply) => assert_eq!(length, 64),
            Ok(Kind::Data) => assert!(length >= DATA_OVERHEAD),
            Ok(Kind::HybridInitiation | Kind::HybridResponse) => {
                let part = datagram.first_chunk().and_then(|header| Part::of(*header));
                assert_eq!(part.map(Part::len), Some(length));
            }
            Err(_) => {}
        }
        if let Ok(kind) = kind {
            // In a part of a hybrid message, the suite and the part's number follow the type.
            let known = if matches!(kind, Kind::HybridInitiation | Kind::HybridResponse) {
                1
            } else {
                4
            };
            assert_eq!(datagram[..known], (kind as u32).to_le_bytes()[..known]);
        }
        assert_eq!(data_header(datagram).is_some(), length >= DATA_HEADER_LEN);
        if let (Ok(Kind::Data), Some((receiver, counter))) = (kind, data_header(datagram)) {
            let mut copy = datagram.to_vec();
            copy[..DATA_HEADER_LEN].fill(0);
            write_data_header(&mut copy, receiver, counter);
            assert_eq!(copy, datagram);
        }
        expected.push(match kind {
            Ok(Kind::Initiation | Kind::Response | Kind::HybridInitiation) => DropReason::Mac1,
            Ok(Kind::HybridResponse) => DropReason::UnknownHandshake,
            Ok(Kind::CookieReply) => DropReason::CookieRefused,
            Ok(Kind::Data) => DropReason::UnknownSession,
            Err(Malformed::Length) => DropReason::Length,
            Err(Malformed::Type) => DropReason::Type,
        });
    }
    if batch.is_empty() {
        expected.push(DropReason::Length);
    }

    // The seeds have mac1 for node 0, so it does not verify at node 1.
    let mut net = Net::new(default_provider(), 2);
    let before = counts(&net.nodes[1]);
    net.inject_batch(1, stranger(), batch, segment);
    expected.sort_by_key(|cause| *cause as usize);
    assert_eq!(raised(&net.nodes[1], &before), expected);
    assert_eq!(net.mark(), 0, "no answer");
}
