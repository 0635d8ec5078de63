//! The server with a hostile client, for fuzzers.

mod answers;

use std::collections::BTreeMap;
use std::fs::{self, DirEntry};
use std::io::pipe;
use std::os::fd::OwnedFd;
use std::thread;

use taupe_engine::{BindRequest, Exit};
use taupe_os_linux::message_socket::{MAX_DESCRIPTORS, MAX_TEXT};

pub use self::answers::{broker_answers, broker_answers_seeds};
use crate::fakes::{SLOW, ServedClient, UNREADABLE};
use crate::message::{FromPacketProcess, Request};
use crate::server::MAX_LOOKUPS;

/// Messages of one run. More find nothing new and take long.
const MAX_MESSAGES: usize = 64;

/// Lets a server handle the lines of `data` as messages, until one is invalid. Each `+` at the beginning
/// of a line is a descriptor that comes along.
///
/// Each request gets one answer with its number, and a few look-ups at most run at one time.
///
/// # Panics
///
/// If the server has a defect, or this process has no descriptors left.
pub fn broker(data: &[u8]) {
    let mut client = ServedClient::new().expect("sockets");
    // Slow look-ups end at once.
    client.resolver.release();
    // Numbers of requests without an answer yet.
    let mut waiting = BTreeMap::<u64, usize>::new();
    let mut had_look_up = false;
    let lines = data.split(|byte| *byte == b'\n').take(MAX_MESSAGES);
    for line in lines {
        let text: Vec<u8> = line.iter().copied().skip_while(|it| *it == b'+').collect();
        let count = (line.len() - text.len()).min(MAX_DESCRIPTORS);
        let descriptors = descriptors(count);
        let message = serde_json::from_slice(&text);
        // The socket delivers no such message.
        if text.is_empty() || text.len() > MAX_TEXT {
            continue;
        }
        if client.handle(text, descriptors).is_err() {
            break;
        }
        let message = message.expect("a valid message");
        let FromPacketProcess::Request { id, request } = message else {
            continue;
        };
        *waiting.entry(id).or_default() += 1;
        // Another thread answers a look-up, later.
        let is_look_up = matches!(request, Request::LookUp { .. });
        had_look_up |= is_look_up;
        while !is_look_up && waiting.contains_key(&id) {
            answered(&client, &mut waiting);
        }
        while waiting.values().sum::<usize>() > MAX_LOOKUPS {
            answered(&client, &mut waiting);
        }
    }
    while !waiting.is_empty() {
        answered(&client, &mut waiting);
    }
    assert!(client.resolver.most() <= MAX_LOOKUPS);
    assert!(client.has_sent_no_more());
    if had_look_up {
        await_look_ups();
    }
}

/// Waits until the threads of look-ups have ended. A fuzzer would take the memory of one that is about
/// to end for a leak.
fn await_look_ups() {
    let is_look_up =
        |task: DirEntry| fs::read(task.path().join("comm")).is_ok_and(|name| name == b"names\n");
    loop {
        let tasks = fs::read_dir("/proc/self/task").expect("a list of threads");
        if !tasks.flatten().any(is_look_up) {
            return;
        }
        thread::yield_now();
    }
}

/// Receives an answer, which must be to a request.
fn answered(client: &ServedClient, waiting: &mut BTreeMap<u64, usize>) {
    let (id, _, _) = client.answer().expect("an answer");
    let count = waiting.get_mut(&id).expect("an answer to a request");
    *count -= 1;
    if *count == 0 {
        waiting.remove(&id);
    }
}

fn descriptors(count: usize) -> Vec<OwnedFd> {
    if count == 0 {
        return Vec::new();
    }
    let (reader, _) = pipe().expect("a pipe");
    let copies = (0..count).map(|_| reader.try_clone().expect("a copy"));
    copies.map(OwnedFd::from).collect()
}

/// Returns inputs with every message.
///
/// # Panics
///
/// Never: the messages can be written.
#[must_use]
pub fn broker_seeds() -> Vec<Vec<u8>> {
    let key = [1; 32];
    let bind = |port, lanes| {
        Request::Bind(BindRequest {
            port,
            mark: 1 << 24,
            gso: true,
            gro: false,
            lanes,
            multiplier: 1,
        })
    };
    let look_up = |host: &str| Request::LookUp {
        host: host.into(),
        port: 51820,
        mark: 0,
    };
    let requests = [
        (bind(0, 1), 0),
        (bind(0, 16), 0),
        (bind(53, usize::MAX), 0),
        (Request::SetMark { mark: 7 }, 3),
        (Request::SetMark { mark: 0 }, 0),
        (Request::LoadFilter, 0),
        (Request::AttachFilter { on: true }, 2),
        (Request::AttachFilter { on: false }, 0),
        (Request::LinkState, 0),
        (Request::LinkState, 1),
        (Request::CountDropped, 0),
        (Request::PrepareLookUp, 0),
        (look_up("vpn.example"), 0),
        (look_up(SLOW), 0),
        (look_up(&"x".repeat(300)), 0),
        (Request::Timestamp { key }, 0),
        (
            Request::SaveTimestamp {
                key,
                timestamp: [9; 12],
            },
            0,
        ),
        (Request::Pinned { key, after: None }, 0),
        (
            Request::Pinned {
                key: UNREADABLE,
                after: Some(key),
            },
            0,
        ),
        (
            Request::SavePin {
                key,
                peer: [2; 32],
                pinned: true,
            },
            0,
        ),
        (
            Request::SavePin {
                key,
                peer: [2; 32],
                pinned: false,
            },
            0,
        ),
    ];
    let requests = (0..).zip(requests).map(|(id, (request, count))| {
        let message = FromPacketProcess::Request { id, request };
        (message, count)
    });
    let reports = [
        FromPacketProcess::Failed {
            reason: "no TUN".into(),
        },
        FromPacketProcess::ExpectAnswer { index: 4711 },
        FromPacketProcess::Forgotten,
        FromPacketProcess::Ended {
            exit: Exit::InterfaceDeleted,
        },
        FromPacketProcess::Ended {
            exit: Exit::Failed("\x1b[2J".into()),
        },
    ];
    let reports = reports.into_iter().map(|report| (report, 0));
    let reports = reports.chain([(FromPacketProcess::Started, 1)]);
    let mut seeds: Vec<Vec<u8>> = requests
        .chain(reports)
        .map(|(message, count)| {
            let text = serde_json::to_vec(&message).expect("a message");
            [vec![b'+'; count], text].concat()
        })
        .collect();
    // All at once, without the line ends of a file.
    let all = seeds.join(&b'\n');
    let names = seeds
        .iter()
        .filter(|it| it.windows(6).any(|it| it == b"LookUp"));
    let names: Vec<_> = names.cloned().collect();
    seeds.push([names.join(&b'\n'), b"\n".to_vec()].concat().repeat(8));
    seeds.push(all);
    seeds.push(b"++++{\"Request\":{\"id\":1,\"request\":\"Reboot\"}}".to_vec());
    seeds
}

#[cfg(test)]
mod tests {
    use super::{broker, broker_seeds};

    #[test]
    fn seeds_find_no_defect() {
        broker_seeds().iter().for_each(|seed| broker(seed));
    }
}
