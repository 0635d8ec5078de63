//! A device whose resolver is slow. The test starts itself again in a new network namespace, which
//! takes root.

#![cfg(target_os = "linux")]

use std::io::{self, Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use taupe_engine::{Engine, Exit, Offloads, Options, Resolver, TunSource, UapiSource, Underlay};
use taupe_protocol::limits::NETWORK_CHANGE_REKEY_TIMEOUT;
use taupe_protocol::update::EndpointName;

/// Environment variable that is set for the process in the namespace.
const INSIDE: &str = "TAUPE_TEST_INSIDE";

/// Time limit that suffices on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A resolver that reports each question and answers when the test says so.
struct Slow {
    asked: Sender<EndpointName>,
    go: Mutex<Receiver<()>>,
}

impl Resolver for Slow {
    fn resolve(&self, name: &EndpointName, _: u32) -> io::Result<Vec<SocketAddr>> {
        let _ = self.asked.send(name.clone());
        let _ = self.go.lock().expect("one look-up at a time").recv();
        Err(io::Error::other("let go"))
    }
}

/// Two peers have endpoint names. The device looks up the name of the silent peer and not of the
/// idle one. Meanwhile it answers requests, and it ends without waiting for the look-up.
#[test]
fn nothing_waits_for_a_look_up() {
    if std::env::var_os(INSIDE).is_none() {
        let inside = Command::new("unshare")
            .arg("--net")
            .arg(std::env::current_exe().expect("this executable"))
            .args(["nothing_waits_for_a_look_up", "--exact", "--nocapture"])
            // This process reports the result; panics go to standard error.
            .stdout(Stdio::null())
            .env(INSIDE, "1")
            .status();
        assert!(inside.expect("unshare(1)").success(), "in the sandbox");
        return;
    }
    let (asked, questions) = mpsc::channel();
    let (go, wait) = mpsc::channel();
    let resolver = Slow {
        asked,
        go: Mutex::new(wait),
    };
    let folder = Folder::new();
    let socket = folder.0.join("socket");
    let listener = UnixListener::bind(&socket).expect("a socket");
    let options = Options {
        interface: "wg0".into(),
        tun: TunSource::Create { lanes: None },
        underlay: Underlay::Here,
        outer_mark: None,
        tap: None,
        uapi: UapiSource::Fd(listener.into()),
        offloads: Offloads::default(),
        state_dir: Some(folder.0.clone()),
        notices: None,
    };
    let engine = Engine::start_with(options, Arc::new(resolver)).expect("started");
    for interface in ["lo", "wg0"] {
        let up = Command::new("ip")
            .args(["link", "set", interface, "up"])
            .status();
        assert!(up.expect("ip(8)").success());
    }
    let peer = UdpSocket::bind("127.0.0.3:9").expect("a socket");
    peer.set_read_timeout(Some(PATIENCE)).expect("set");
    let receive_initiation = || {
        let mut buffer = [0; 2048];
        let (length, _) = peer.recv_from(&mut buffer).expect("an initiation");
        assert_eq!((length, buffer[0]), (148, 1));
    };
    let [own, silent, idle] = [0x41, 0x42, 0x43].map(|byte: u8| format!("{byte:02x}").repeat(32));
    let begun = Instant::now();
    let set = ask(
        &socket,
        &format!(
            "set=1\nprivate_key={own}\n\
             public_key={idle}\nendpoint=127.0.0.2:9\nendpoint_name=idle.example.org:9\n\
             public_key={silent}\nendpoint=127.0.0.3:9\nendpoint_name=silent.example.org:9\n\
             persistent_keepalive_interval=1\n\n"
        ),
    );
    assert_eq!(set, "errno=0\n\n");
    assert_eq!(look_ups(), 0);

    let name = questions.recv_timeout(PATIENCE).expect("a question");
    // Before the first handshake, the second initiation triggers a look-up. It comes earlier than
    // after REKEY_TIMEOUT if the kernel reports a route of the new interfaces only now.
    assert!(
        begun.elapsed() >= NETWORK_CHANGE_REKEY_TIMEOUT,
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(name.to_string(), "silent.example.org:9");
    // The control loop answers.
    let status = ask(&socket, "get=1\n\n");
    assert!(
        status.contains("endpoint=127.0.0.3:9\nendpoint_name=silent.example.org:9\n"),
        "{status}"
    );
    assert_eq!(look_ups(), 1);
    // Two more initiations are sent. The third triggers no other look-up before the fourth is sent.
    for _ in 0..4 {
        receive_initiation();
    }
    assert_eq!(questions.try_recv(), Err(mpsc::TryRecvError::Empty));

    engine.stopper().stop();
    assert!(matches!(engine.run(), Exit::Stopped));
    assert_eq!(look_ups(), 1, "it still waits");
    go.send(()).expect("it waits");
    let end = Instant::now() + PATIENCE;
    while look_ups() > 0 {
        assert!(Instant::now() < end, "the thread stays");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns the number of threads of this process that look names up.
fn look_ups() -> usize {
    let threads = std::fs::read_dir("/proc/self/task").expect("this process");
    let names = threads.flatten().map(|thread| thread.path().join("comm"));
    // A thread that has just ended has no name.
    names
        .filter(|path| std::fs::read_to_string(path).is_ok_and(|name| name == "names\n"))
        .count()
}

/// A temporary folder, removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let name = format!("taupe-names-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).expect("a folder");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Sends a request on a new connection and returns the answer.
fn ask(socket: &Path, request: &str) -> String {
    let mut stream = UnixStream::connect(socket).expect("connected");
    stream.set_read_timeout(Some(PATIENCE)).expect("set");
    stream.write_all(request.as_bytes()).expect("written");
    stream
        .shutdown(std::net::Shutdown::Write)
        .expect("shut down");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}
