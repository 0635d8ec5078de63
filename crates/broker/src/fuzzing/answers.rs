//! The packet process with a hostile broker, for fuzzers.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use rustix::net::{Shutdown, shutdown};
use taupe_engine::{BindRequest, Environment, Offloads, Options, TunSource, UapiSource, Underlay};
use taupe_os_linux::message_socket::{self, MAX_DESCRIPTORS, MAX_TEXT};
use taupe_protocol::key::PublicKey;
use taupe_protocol::time::Tai64N;
use taupe_protocol::update::EndpointName;

use super::{MAX_MESSAGES, descriptors};
use crate::client::Broker;
use crate::message::{
    Answer, BindFailure, FromBroker, FromPacketProcess, GroupRecord, LinkRecord, MAX_PINNED,
    SocketRecord,
};
use crate::start::{Start, borrowed};

/// Operations that a packet process asks its broker for.
const OPERATIONS: u8 = 8;

/// Bit of the first byte: the first line is the [`Start`].
const STARTS: u8 = 0x80;

const KEY: PublicKey = PublicKey([1; 32]);

/// Lets a packet process with a broker that sends the lines of `data` carry out each operation once.
/// The first byte selects the first operation.
///
/// Each `+` at the beginning of a line is a descriptor that comes along. The rest of a line after `=`
/// is an [`Answer`] to the current request, and otherwise a message. After an answer the broker waits
/// for the next request; after the last line it ends.
///
/// Every operation ends, with a result or an error.
///
/// # Panics
///
/// If the packet process has a defect, or this process has no descriptors left.
pub fn broker_answers(data: &[u8]) {
    run(data);
}

/// Returns the number of operations that had a result.
fn run(data: &[u8]) -> usize {
    let Some((control, data)) = data.split_first() else {
        return 0;
    };
    let mut lines = data.split(|byte| *byte == b'\n').take(MAX_MESSAGES);
    let (broker, client) = message_socket::pair().expect("sockets");
    let start = match control & STARTS {
        0 => serde_json::to_vec(&start()).expect("a message"),
        _ => lines.next().unwrap_or_default().to_vec(),
    };
    if send(&broker, &start, 0).is_none() {
        return 0;
    }
    let Ok((client, _options)) = Broker::accept(client) else {
        return 0;
    };
    let commands = AtomicUsize::new(0);
    let results = thread::scope(|scope| {
        scope.spawn(|| {
            // The process would end now, also by a panic.
            let _end = OnDrop(|| client.end());
            client.run(|_| {
                commands.fetch_add(1, Ordering::Relaxed);
            });
        });
        scope.spawn(|| {
            let _end = OnDrop(|| {
                // It fails only if the other end is closed.
                let _ = shutdown(&broker, Shutdown::Both);
            });
            answer(&broker, lines);
        });
        let _end = OnDrop(|| client.end());
        let mut environment = client.environment();
        let operations = (0..OPERATIONS).map(|step| (control.wrapping_add(step)) % OPERATIONS);
        let results = operations.filter(|operation| has_result(&mut environment, *operation));
        results.count()
    });
    assert!(commands.into_inner() <= MAX_MESSAGES);
    results
}

/// Calls a function when it is dropped.
struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Plays the broker until the lines or the packet process end.
fn answer<'a>(broker: &OwnedFd, mut lines: impl Iterator<Item = &'a [u8]>) {
    while let Ok(Some(message)) = message_socket::receive_any(broker.as_fd()) {
        let message = serde_json::from_slice(&message.text).expect("a valid message");
        let FromPacketProcess::Request { id, .. } = message else {
            continue;
        };
        loop {
            let Some(line) = lines.next() else {
                return;
            };
            if send(broker, line, id) == Some(Line::Answer) {
                break;
            }
        }
    }
}

/// A line that was sent.
#[derive(PartialEq)]
enum Line {
    /// An answer to the current request.
    Answer,
    Message,
}

/// Sends a line to a packet process whose current request has this number. Returns `None` if the socket
/// sends no such message.
fn send(broker: &OwnedFd, line: &[u8], id: u64) -> Option<Line> {
    let text: Vec<u8> = line.iter().copied().skip_while(|it| *it == b'+').collect();
    let count = (line.len() - text.len()).min(MAX_DESCRIPTORS);
    let (text, line) = match text.strip_prefix(b"=") {
        Some(answer) => {
            let before = format!(r#"{{"Answer":{{"id":{id},"answer":"#);
            ([before.as_bytes(), answer, b"}}"].concat(), Line::Answer)
        }
        None => (text, Line::Message),
    };
    if text.is_empty() || text.len() > MAX_TEXT {
        return None;
    }
    // It fails if the packet process has ended.
    let _ = message_socket::send(broker.as_fd(), &text, &borrowed(&descriptors(count)));
    Some(line)
}

/// Carries out an operation. Returns true if it has a result.
fn has_result(environment: &mut Environment, operation: u8) -> bool {
    let Environment {
        system,
        resolver,
        saved,
    } = environment;
    match operation {
        0 => {
            let request = BindRequest {
                port: 0,
                mark: 0,
                gso: true,
                gro: true,
                lanes: 1,
                multiplier: 1,
            };
            let bound = system.bind(&request);
            let groups = bound.as_ref().ok().map(|it| [&it.v4, &it.v6]);
            let sockets = groups.into_iter().flatten().flatten();
            let count: usize = sockets.map(|group| group.data.len() + 1).sum();
            assert!(count <= MAX_DESCRIPTORS);
            bound.is_ok()
        }
        1 => system.set_mark(&[], 7).is_ok(),
        2 => system.load_flood_filter().is_ok_and(|mut filter| {
            filter.expect_answer(4711);
            filter.attach(&[], true).is_ok() && filter.dropped().is_some()
        }),
        3 => {
            resolver.prepare();
            true
        }
        4 => {
            let name = EndpointName::new("vpn.example", 51820).expect("a name");
            resolver.resolve(&name, 0).is_ok()
        }
        5 => saved.timestamp(&KEY) != Tai64N::ZERO,
        6 => saved.pinned_peers(&KEY).is_ok(),
        _ => {
            saved.save_timestamp(&KEY, Tai64N([9; 12]));
            saved.save_pin(&KEY, KEY, true);
            true
        }
    }
}

fn start() -> Start {
    let options = Options {
        interface: "t0".into(),
        tun: TunSource::Create { lanes: None },
        underlay: Underlay::Here,
        outer_mark: None,
        tap: None,
        uapi: UapiSource::Bind,
        offloads: Offloads::default(),
        state_dir: None,
        notices: None,
    };
    Start::new(options, None, "info".into()).0
}

/// Returns inputs with every answer and command.
///
/// # Panics
///
/// Never: the messages can be written.
#[must_use]
pub fn broker_answers_seeds() -> Vec<Vec<u8>> {
    let text = |answer: &Answer| serde_json::to_vec(answer).expect("a message");
    let line = |answer: &Answer| [b"=".to_vec(), text(answer)].concat();
    let input = |control: u8, lines: &[Vec<u8>]| [vec![control], lines.join(&b'\n')].concat();
    let socket = |port| SocketRecord {
        port,
        gro: true,
        gso: false,
    };
    let group = |others| {
        Some(GroupRecord {
            data: vec![socket(4), socket(4)],
            others,
        })
    };
    let both = Answer::Bound {
        v4: group(Ok(socket(4))),
        v6: group(Err("no socket".into())),
    };
    let bound = [b"+++++".to_vec(), line(&both)].concat();
    let address = "[2001:db8::1]:51820".parse().expect("an address");
    let pinned = |count| Answer::Pinned(vec![[2; 32]; count]);
    let good = [
        bound.clone(),
        line(&Answer::Done),
        line(&Answer::Done),
        line(&Answer::Done),
        line(&Answer::Dropped(Some(5))),
        line(&Answer::Done),
        line(&Answer::Addresses(vec![address; 3])),
        line(&Answer::Timestamp([9; 12])),
        line(&pinned(2)),
        line(&Answer::Done),
        line(&Answer::Done),
    ];
    let failures = [
        BindFailure::NoFamily,
        BindFailure::PortInUse(53),
        BindFailure::Mark(7),
        BindFailure::Other {
            what: "binding".into(),
            reason: "no".into(),
        },
    ];
    let mut seeds = vec![input(0, &good), input(0, &[]), vec![]];
    seeds.extend(failures.map(|failure| input(0, &[line(&Answer::NotBound(failure))])));
    // Too few descriptors, and none.
    seeds.push(input(0, &[bound[2..].to_vec()]));
    seeds.push(input(0, &[line(&both)]));
    // From another operation on: an answer of another kind, a refusal, and the right one.
    for (first, right) in [(1, 1), (2, 2), (4, 6), (5, 7), (6, 8), (7, 9)] {
        let refused = line(&Answer::Refused("no".into()));
        seeds.push(input(first, &[line(&Answer::Link(None)), refused.clone()]));
        seeds.push(input(first, &[refused, good[right].clone()]));
        seeds.push(input(first, &good[right..]));
    }
    seeds.push(input(1, &[line(&Answer::OuterRefused("no".into()))]));
    let link = LinkRecord {
        up: true,
        mtu: 1420,
    };
    seeds.push(input(1, &[line(&Answer::Link(Some(link)))]));
    let unreadable = Answer::PinnedUnreadable {
        folder: "/nowhere".into(),
        reason: "no".into(),
    };
    seeds.push(input(6, &[line(&unreadable)]));
    // A full list is followed by another.
    let full = line(&pinned(MAX_PINNED));
    seeds.push(input(6, &[full.clone(), full, line(&pinned(0))]));
    let command = |message: &FromBroker| serde_json::to_vec(message).expect("a message");
    let flows = taupe_nat::flows::ExpiringFlows(Vec::new());
    let commands = [
        command(&FromBroker::SetMainUplink {
            v4: Some([192, 0, 2, 1].into()),
            v6: None,
        }),
        command(&FromBroker::Forget { flows }),
        command(&FromBroker::Report),
        [b"+".to_vec(), command(&FromBroker::Report)].concat(),
        command(&FromBroker::Stop),
        br#"{"Answer":{"id":99,"answer":"Done"}}"#.to_vec(),
        b"{}".to_vec(),
    ];
    seeds.push(input(3, &commands));
    seeds.push(input(3, &[&commands[..6], &good[5..]].concat()));
    // The first message, with each source of the TUN.
    let begin = serde_json::to_string(&start()).expect("a message");
    let create = r#"{"Create":{"lanes":null}}"#;
    assert!(begin.contains(create));
    for (tun, count) in [
        (create, 0),
        (r#""Passed""#, 1),
        (r#""Elsewhere""#, 3),
        (r#""Passed""#, 0),
    ] {
        let first = [vec![b'+'; count], begin.replace(create, tun).into_bytes()].concat();
        seeds.push(input(STARTS, &[&[first][..], &good].concat()));
    }
    let other = begin.replacen(r#""version":"#, r#""version":9"#, 1);
    seeds.push(input(STARTS, &[other.into_bytes()]));
    seeds.push(input(
        STARTS,
        &[begin.as_bytes()[..begin.len() / 2].to_vec()],
    ));
    seeds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_a_result_by_the_right_answers() {
        let seeds = broker_answers_seeds();
        assert_eq!(run(&seeds[0]), usize::from(OPERATIONS));
        // Without any, those that have no result of their own.
        assert_eq!(run(&seeds[1]), 2);
        seeds.iter().for_each(|seed| broker_answers(seed));
    }
}
