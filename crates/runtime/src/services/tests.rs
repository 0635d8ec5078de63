use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use super::*;
use taupe_protocol::key::PrivateKey;
use taupe_protocol::time::Tai64N;
use taupe_protocol::update::{EndpointName, PrivateKeyUpdate};

/// Folder that is removed with its content.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("taupe-services-{name}-{}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Answers look-ups with addresses, in order; afterwards with an error.
struct Scripted(Mutex<Vec<SocketAddr>>);

impl Resolver for Scripted {
    fn resolve(&self, _: &EndpointName, _: u32) -> io::Result<Vec<SocketAddr>> {
        let next = self.0.lock().expect("one look-up at a time").pop();
        next.map(|address| vec![address])
            .ok_or_else(|| io::Error::other("no such name"))
    }
}

const PEER: PublicKey = PublicKey([9; 32]);

fn device() -> Device {
    let random = |bytes: &mut [u8]| bytes.fill(7);
    Device::new(default_provider(), Box::new(random), Arc::new(|| {}))
}

fn services(folder: &Folder, addresses: &[SocketAddr]) -> Services {
    let resolver = Arc::new(Scripted(Mutex::new(addresses.to_vec())));
    Services::new(Some(&folder.0), resolver, Arc::new(|| {}))
}

fn update() -> DeviceUpdate {
    let key = PrivateKey::new([3; 32]).expect("a key");
    DeviceUpdate {
        private_key: Some(PrivateKeyUpdate::new(key)),
        peers: vec![PeerUpdate {
            post_quantum: Some(Some(PostQuantum::Prefer)),
            ..PeerUpdate::new(PEER)
        }],
        ..DeviceUpdate::default()
    }
}

fn name() -> EndpointName {
    EndpointName::new("one.example", 7).expect("a name")
}

/// Handles answers until `is_done` returns true.
fn wait(services: &mut Services, device: &mut Device, is_done: fn(&Services) -> bool) {
    let end = std::time::Instant::now() + Duration::from_secs(10);
    services.handle_answers(device);
    while !is_done(services) {
        assert!(std::time::Instant::now() < end, "no answer");
        std::thread::sleep(Duration::from_millis(1));
        services.handle_answers(device);
    }
}

#[test]
fn an_update_includes_what_was_saved_for_its_keys() {
    let folder = Folder::new("saved");
    let mut device = device();
    let own = PublicKey(default_provider().dh.public(&[3; 32]));
    let label = Tai64N::from_wall(Duration::from_secs(1_700_000_000));
    let mut before = services(&folder, &[]);
    for output in [
        Output::ReserveTimestamps {
            public_key: own,
            up_to: label,
        },
        Output::PinPostQuantum {
            public_key: own,
            peer: PEER,
            pinned: true,
        },
    ] {
        assert!(before.handle_output(&mut device, output).is_none());
    }
    let mut after = services(&folder, &[]);
    let PreparedUpdate(update) = after.prepare(&device, update()).expect("prepared");
    let floor = update.private_key.map(|private| private.timestamp_floor);
    assert_eq!(floor, Some(label));
    assert!(update.peers[0].pq_pinned);
}

#[test]
fn transmits_and_notices_are_returned_to_the_caller() {
    let folder = Folder::new("events");
    let (mut device, mut services) = (device(), services(&folder, &[]));
    let to = SocketAddr::from(([192, 0, 2, 1], 7));
    let transmit = Output::Transmit {
        endpoint: to.into(),
        tos: 1,
        datagram: vec![1],
    };
    let event = services.handle_output(&mut device, transmit);
    assert!(matches!(event, Some(Event::Transmit { tos: 1, .. })));
    let notice = Notice::PeerRecovered { public_key: PEER };
    let event = services.handle_output(&mut device, Output::Notice(notice));
    assert!(matches!(event, Some(Event::Notice(it)) if it == notice));
}

#[test]
fn an_endpoint_without_an_address_gets_its_first_one() {
    let folder = Folder::new("first");
    let address = SocketAddr::from(([127, 0, 0, 1], 7));
    let mut device = device();
    let question = Question {
        public_key: PEER,
        name: name(),
    };
    let unresolved = UnresolvedEndpoints::new(std::iter::once((question, 5)));
    let services = services(&folder, &[address]);
    let mut services = services.with_unresolved(unresolved, "traffic waits");
    let update = services.prepare(&device, update()).expect("prepared");
    update.apply(&mut device).expect("applied");
    assert!(!services.has_endpoints());
    services.handle_answers(&mut device);
    assert!(services.hosts_being_resolved().eq(["one.example"]));
    wait(&mut services, &mut device, Services::has_endpoints);
    assert_eq!(services.hosts_being_resolved().next(), None);
    let status = device.status();
    assert_eq!(status.peers[0].endpoint, Some(address));
    // The update contains no other peer.
    assert_eq!(status.peers.len(), 1);
}

/// Log in memory.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("a log").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn an_unresolved_endpoint_is_warned_of_with_its_consequence() {
    let folder = Folder::new("meanwhile");
    let mut device = device();
    let question = Question {
        public_key: PEER,
        name: name(),
    };
    let unresolved = UnresolvedEndpoints::new(std::iter::once((question.clone(), 5)));
    let services = services(&folder, &[]);
    let mut services = services.with_unresolved(unresolved, "traffic waits until then");
    let update = services.prepare(&device, update()).expect("prepared");
    update.apply(&mut device).expect("applied");
    let log = Log::default();
    let write = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || write.clone());
    tracing::subscriber::with_default(subscriber.finish(), || {
        let none = io::Error::other("no such host");
        services.handle_answer(&mut device, &question, Err(none));
        let none = io::Error::other("no such host");
        services.handle_answer(&mut device, &question, Err(none));
    });
    let log = String::from_utf8(log.0.lock().expect("a log").clone()).expect("text");
    assert_eq!(log.matches("traffic waits until then").count(), 1, "{log}");
    assert!(log.contains("line=5"), "{log}");
}

#[test]
fn a_failed_look_up_leaves_the_endpoint_and_is_repeated_later() {
    let folder = Folder::new("failed");
    let (mut device, mut services) = (device(), services(&folder, &[]));
    let update = services.prepare(&device, update()).expect("prepared");
    update.apply(&mut device).expect("applied");
    let resolve = Output::Resolve {
        public_key: PEER,
        name: name(),
    };
    assert!(services.handle_output(&mut device, resolve).is_none());
    assert!(services.hosts_being_resolved().eq(["one.example"]));
    let is_idle = |services: &Services| services.hosts_being_resolved().next().is_none();
    wait(&mut services, &mut device, is_idle);
    assert_eq!(device.status().peers[0].endpoint, None);
}
