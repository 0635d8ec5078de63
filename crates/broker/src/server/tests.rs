use std::io::pipe;
use std::os::fd::OwnedFd;

use taupe_engine::{BindRequest, Exit};

use crate::fakes::{SLOW, ServedClient, TAKEN, UNREADABLE};
use crate::message::{Answer, BindFailure, FromPacketProcess, MAX_PINNED, Request};
use crate::server::{MAX_LOOKUPS, MAX_REASON, Report};

fn client() -> ServedClient {
    ServedClient::new().expect("sockets")
}

/// Sends a request, and returns the answer.
fn ask(client: &mut ServedClient, request: Request, descriptors: Vec<OwnedFd>) -> Answer {
    let request = FromPacketProcess::Request { id: 7, request };
    let report = client.handle_message(&request, descriptors);
    assert!(matches!(report, Ok(None)), "{report:?}");
    let (id, answer, _) = client.answer().expect("an answer");
    assert_eq!(id, 7);
    answer
}

fn descriptor() -> Vec<OwnedFd> {
    vec![pipe().expect("a pipe").0.into()]
}

fn bind(port: u16, lanes: usize) -> Request {
    Request::Bind(BindRequest {
        port,
        mark: 0,
        gso: true,
        gro: true,
        lanes,
        multiplier: 4711,
    })
}

#[test]
fn each_request_has_one_answer() {
    let mut client = client();
    let key = [1; 32];
    let look_up = |host: &str| Request::LookUp {
        host: host.into(),
        port: 51820,
        mark: 0,
    };
    let timestamp = [5; 12];
    type Expected = fn(&Answer) -> bool;
    let requests: [(Request, bool, Expected); 17] = [
        (bind(TAKEN, 1), false, |it| {
            matches!(it, Answer::NotBound(BindFailure::PortInUse(TAKEN)))
        }),
        (Request::SetMark { mark: 1 }, true, |it| {
            matches!(it, Answer::Done)
        }),
        (Request::SetMark { mark: 1 }, false, |it| {
            matches!(it, Answer::Refused(_))
        }),
        (Request::SetMark { mark: 0 }, true, |it| {
            matches!(it, Answer::OuterRefused(_))
        }),
        (Request::AttachFilter { on: true }, true, |it| {
            matches!(it, Answer::Refused(_))
        }),
        (Request::CountDropped, false, |it| {
            matches!(it, Answer::Dropped(None))
        }),
        (Request::LoadFilter, false, |it| matches!(it, Answer::Done)),
        (Request::AttachFilter { on: true }, true, |it| {
            matches!(it, Answer::Done)
        }),
        (Request::CountDropped, false, |it| {
            matches!(it, Answer::Dropped(Some(0)))
        }),
        (Request::PrepareLookUp, false, |it| {
            matches!(it, Answer::Done)
        }),
        (look_up("vpn.example"), false, |it| {
            // The addresses of a name are limited.
            matches!(it, Answer::Addresses(all) if all.len() == 16)
        }),
        (look_up(""), false, |it| matches!(it, Answer::Refused(_))),
        (Request::Timestamp { key }, false, |it| {
            matches!(it, Answer::Timestamp([0, ..]))
        }),
        (Request::SaveTimestamp { key, timestamp }, false, |it| {
            matches!(it, Answer::Done)
        }),
        (Request::Timestamp { key }, false, |it| {
            matches!(it, Answer::Timestamp([5, ..]))
        }),
        (
            Request::Pinned { key, after: None },
            false,
            |it| matches!(it, Answer::Pinned(all) if all.is_empty()),
        ),
        (
            Request::Pinned {
                key: UNREADABLE,
                after: None,
            },
            false,
            |it| matches!(it, Answer::PinnedUnreadable { .. }),
        ),
    ];
    for (request, with_descriptor, expected) in requests {
        let shown = format!("{request:?}");
        let descriptors = if with_descriptor {
            descriptor()
        } else {
            Vec::new()
        };
        let answer = ask(&mut client, request, descriptors);
        assert!(expected(&answer), "{shown}: {answer:?}");
    }
    assert!(client.has_sent_no_more());
}

#[test]
fn sockets_come_with_their_records_and_are_limited() {
    for (lanes, most) in [(1, 1), (4, 4), (usize::MAX, 16)] {
        let mut client = client();
        let request = FromPacketProcess::Request {
            id: 1,
            request: bind(0, lanes),
        };
        assert!(matches!(
            client.handle_message(&request, Vec::new()),
            Ok(None)
        ));
        let (_, answer, sockets) = client.answer().expect("an answer");
        let Answer::Bound { v4, v6 } = answer else {
            panic!("{answer:?}");
        };
        let groups: Vec<_> = v4.into_iter().chain(v6).collect();
        let count = |others: bool| usize::from(others);
        let records = groups
            .iter()
            .map(|it| it.data.len() + count(it.others.is_ok()));
        assert_eq!(records.sum::<usize>(), sockets.len());
        assert!(
            groups.iter().all(|it| (1..=most).contains(&it.data.len())),
            "{groups:?}"
        );
    }
}

#[test]
fn pinned_peers_come_in_pages() {
    let (mut client, key) = (client(), [1; 32]);
    let peers: Vec<[u8; 32]> = (0..2 * MAX_PINNED as u32 + 3)
        .map(|number| {
            let mut peer = [0; 32];
            peer[..4].copy_from_slice(&number.to_be_bytes());
            peer
        })
        .collect();
    for peer in peers.iter().rev().copied() {
        let pin = Request::SavePin {
            key,
            peer,
            pinned: true,
        };
        assert!(matches!(ask(&mut client, pin, Vec::new()), Answer::Done));
    }
    let (mut found, mut after) = (Vec::<[u8; 32]>::new(), None);
    loop {
        let answer = ask(&mut client, Request::Pinned { key, after }, Vec::new());
        let Answer::Pinned(page) = answer else {
            panic!("{answer:?}");
        };
        found.extend(&page);
        after = page.last().copied();
        if page.len() < MAX_PINNED {
            break;
        }
    }
    assert_eq!(found, peers);
    let peer = peers[0];
    let unpin = Request::SavePin {
        key,
        peer,
        pinned: false,
    };
    assert!(matches!(ask(&mut client, unpin, Vec::new()), Answer::Done));
    let first = ask(
        &mut client,
        Request::Pinned { key, after: None },
        Vec::new(),
    );
    assert!(matches!(first, Answer::Pinned(page) if page[0] == peers[1]));
}

#[test]
fn few_names_are_looked_up_at_once() {
    let mut client = client();
    let slow = || Request::LookUp {
        host: SLOW.into(),
        port: 1,
        mark: 0,
    };
    for id in 0..MAX_LOOKUPS as u64 {
        let request = FromPacketProcess::Request {
            id,
            request: slow(),
        };
        assert!(matches!(
            client.handle_message(&request, Vec::new()),
            Ok(None)
        ));
    }
    // A further one is refused at once, and other requests are answered.
    assert!(matches!(
        ask(&mut client, slow(), Vec::new()),
        Answer::Refused(_)
    ));
    let dropped = ask(&mut client, Request::CountDropped, Vec::new());
    assert!(matches!(dropped, Answer::Dropped(None)));
    client.resolver.release();
    let ids = (0..MAX_LOOKUPS).map(|_| client.answer().expect("an answer").0);
    let mut ids: Vec<u64> = ids.collect();
    ids.sort_unstable();
    assert_eq!(ids, [0, 1, 2, 3]);
    assert!(client.resolver.most() <= MAX_LOOKUPS);
    // There is room again.
    assert!(matches!(
        ask(&mut client, slow(), Vec::new()),
        Answer::Addresses(_)
    ));
}

#[test]
fn messages_of_another_form_are_invalid() {
    let mut client = client();
    for text in [
        "",
        "null",
        "\"Stopped\"",
        "{\"Started\":null,\"Ended\":{\"exit\":\"Stopped\"}}",
        "{\"Request\":{\"id\":1,\"request\":\"Reboot\"}}",
        "{\"Request\":{\"id\":-1,\"request\":\"CountDropped\"}}",
        "{\"Request\":{\"id\":1,\"request\":\"CountDropped\",\"path\":\"/etc/shadow\"}}",
        "{\"Request\":{\"id\":1,\"request\":{\"SetMark\":{\"mark\":4294967296}}}}",
        "{\"Request\":{\"id\":1,\"request\":{\"SetMark\":{\"mark\":1,\"path\":\"/\"}}}}",
        "{\"Request\":{\"id\":1,\"request\":{\"Timestamp\":{\"key\":[1,2,3]}}}}",
        "{\"ExpectAnswer\":{\"index\":1}} ",
        "{\"ExpectAnswer\":{\"index\":1}}{}",
    ] {
        let handled = client.handle(text.into(), descriptor());
        let is_padded = text.ends_with(' ');
        assert_eq!(handled.is_ok(), is_padded, "{text}: {handled:?}");
    }
    let deep = [vec![b'['; 60_000], vec![b']'; 4]].concat();
    assert!(client.handle(deep, Vec::new()).is_err());
    assert!(client.has_sent_no_more());
}

#[test]
fn reasons_are_short_and_control_no_terminal() {
    let mut client = client();
    let reason = format!("\x1b[31mred\r\n{}", "x".repeat(60_000));
    for message in [
        FromPacketProcess::Failed {
            reason: reason.clone(),
        },
        FromPacketProcess::Ended {
            exit: Exit::Failed(reason),
        },
    ] {
        let report = client.handle_message(&message, Vec::new()).expect("valid");
        let (Some(Report::Failed(reason)) | Some(Report::Ended(Exit::Failed(reason)))) = report
        else {
            panic!("{report:?}");
        };
        assert!(reason.starts_with(" [31mred  x"), "{reason:?}");
        assert_eq!(reason.chars().count(), MAX_REASON);
    }
}
