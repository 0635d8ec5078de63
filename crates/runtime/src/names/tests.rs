use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use super::*;
use crate::resolver::SystemResolver;

const PATIENCE: Duration = Duration::from_secs(10);

/// A resolver that reports each question and gives the answers of the test.
struct Scripted {
    asked: Sender<(String, u32)>,
    answers: Mutex<Receiver<io::Result<Vec<SocketAddr>>>>,
}

impl Resolver for Scripted {
    fn resolve(&self, name: &EndpointName, mark: u32) -> io::Result<Vec<SocketAddr>> {
        let _ = self.asked.send((name.to_string(), mark));
        let answers = self.answers.lock().expect("one look-up at a time");
        answers
            .recv()
            .unwrap_or_else(|gone| Err(io::Error::other(gone)))
    }
}

struct Script {
    lookups: Lookups,
    asked: Receiver<(String, u32)>,
    answers: Sender<io::Result<Vec<SocketAddr>>>,
    reports: Receiver<Answer>,
    resolver: Arc<Scripted>,
}

fn script() -> Script {
    let (tell, asked) = mpsc::channel();
    let (answers, told) = mpsc::channel();
    let (report, reports) = mpsc::channel();
    let resolver = Arc::new(Scripted {
        asked: tell,
        answers: Mutex::new(told),
    });
    let report = move |answer| {
        let _ = report.send(answer);
    };
    Script {
        lookups: Lookups::new(resolver.clone(), report),
        asked,
        answers,
        reports,
        resolver,
    }
}

fn question(host: &str) -> Question {
    Question {
        public_key: PublicKey([1; 32]),
        name: EndpointName::new(host, 7).expect("a name"),
    }
}

#[test]
fn look_ups_run_one_at_a_time_in_order() {
    let mut script = script();
    for host in ["a", "b", "c"] {
        script.lookups.ask(question(host), 5).expect("room");
    }
    for host in ["a", "b", "c"] {
        let asked = script.asked.recv_timeout(PATIENCE).expect("a question");
        assert_eq!(asked, (format!("{host}:7"), 5));
        let others = script.asked.recv_timeout(Duration::from_millis(50));
        assert!(others.is_err(), "two at once");
        let address = SocketAddr::from(([127, 0, 0, 1], 7));
        script.answers.send(Ok(vec![address])).expect("it waits");
        let answer = script.reports.recv_timeout(PATIENCE).expect("an answer");
        assert_eq!(answer.question, question(host));
        assert_eq!(answer.addresses.expect("addresses"), [address]);
        script.lookups.proceed(5);
    }
    assert!(script.asked.try_recv().is_err());
}

#[test]
fn a_failed_look_up_is_reported_and_the_next_starts() {
    let mut script = script();
    script.lookups.ask(question("a"), 0).expect("room");
    script.lookups.ask(question("b"), 0).expect("room");
    let failed = Err(io::Error::other("no such name"));
    script.answers.send(failed).expect("it waits");
    let answer = script.reports.recv_timeout(PATIENCE).expect("an answer");
    let error = answer.addresses.expect_err("a failure");
    assert_eq!(error.to_string(), "no such name");
    script.lookups.proceed(0);
    script.answers.send(Ok(Vec::new())).expect("it waits");
    let answer = script.reports.recv_timeout(PATIENCE).expect("an answer");
    assert_eq!(answer.question, question("b"));
}

#[test]
fn waiting_look_ups_are_bounded() {
    let mut script = script();
    for _ in 0..=MAX_WAITING {
        script.lookups.ask(question("a"), 0).expect("room");
    }
    let back = script.lookups.ask(question("b"), 0);
    assert_eq!(back, Err(question("b")));
    script.answers.send(Ok(Vec::new())).expect("it waits");
    script.reports.recv_timeout(PATIENCE).expect("an answer");
    script.lookups.proceed(0);
    script.lookups.ask(question("b"), 0).expect("room again");
}

#[test]
fn a_look_up_thread_ends_after_its_device() {
    let Script {
        mut lookups,
        asked,
        answers,
        reports,
        resolver,
    } = script();
    lookups.ask(question("a"), 0).expect("room");
    lookups.ask(question("b"), 0).expect("room");
    asked.recv_timeout(PATIENCE).expect("a question");
    drop((lookups, reports));
    assert_eq!(Arc::strong_count(&resolver), 2, "the thread's");
    answers.send(Ok(Vec::new())).expect("it waits");
    let end = std::time::Instant::now() + PATIENCE;
    while Arc::strong_count(&resolver) > 1 {
        assert!(std::time::Instant::now() < end, "the thread stays");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(asked.try_recv().is_err(), "what waited is forgotten");
}

#[test]
fn usable_addresses() {
    let parse = |text: &&str| text.parse().expect("an address");
    let all = [
        "0.0.0.0:7",
        "[::]:7",
        "224.0.0.1:7",
        "[ff02::1]:7",
        "255.255.255.255:7",
        "[::ffff:127.0.0.1]:7",
        "127.0.0.2:7",
    ];
    let all: Vec<SocketAddr> = all.iter().map(parse).collect();
    let expected: Vec<SocketAddr> = ["127.0.0.1:7", "127.0.0.2:7"].iter().map(parse).collect();
    assert_eq!(usable(&SystemResolver::default(), &all, 0), expected);
    let many = vec![expected[0]; MAX_ADDRESSES + 1];
    assert_eq!(
        usable(&SystemResolver::default(), &many, 0).len(),
        MAX_ADDRESSES
    );
}
