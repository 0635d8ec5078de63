//! Sockets that a selected application inherits, receives from another process, or connects without
//! an address hook.

use crate::application::{Application, install};
use crate::client::{WORD, answer, bound, echo, inherited};
use crate::scene::{REMOTE, Scene, at, nothing, unmet};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketType, ipproto, recvmsg, send, sendmsg, socket as make,
};
use std::io::{self, BufRead as _, Write as _};
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;
use taupe_lab::sandbox::{SystemTest, step};
use taupe_lab::{Result, ensure};
use taupe_transparent::programs::MissingFeature;
use taupe_transparent::state::{Lock, Reason};

pub(crate) fn tests() -> Vec<SystemTest> {
    vec![
        SystemTest::new(
            "datagrams_by_inherited_sockets",
            datagrams_by_inherited_sockets,
        ),
        SystemTest::new("inherited_connections", inherited_connections).fixture(),
        SystemTest::new("datagrams_in_nfqueue", datagrams_in_nfqueue),
        SystemTest::new("sockets_with_unknown_owner", sockets_with_unknown_owner),
    ]
}

/// All packets to the remote addresses.
const ANY: &str = "host 198.51.100.1 or host 2001:db8:9::1";

fn datagrams_by_inherited_sockets() -> Result<()> {
    let scene = Scene::with(&["chosen"], &[])?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    let kinds = [
        ("connected-udp", "beyond"),
        ("raw", "answered"),
        ("connected-raw", "answered"),
        ("ping", "answered"),
        ("connected-ping", "answered"),
    ];
    let each = || {
        kinds
            .into_iter()
            .flat_map(|kind| REMOTE.map(|at| (kind, at)))
    };
    // Unselected applications come first, since raw packets of any application follow a flow that
    // is in the tunnel.
    for ((kind, said), remote) in each() {
        step(&format!("{kind} {remote}, by an unselected application"));
        let to = at(remote, 80);
        let capture = scene.capture(ANY)?;
        let said = said.replace("beyond", "far");
        scene.expect(&other, &["give", kind, &other, &to], &said)?;
        capture.stop_once("a packet in the clear", |packets| !packets.is_empty())?;
    }
    for ((kind, said), remote) in each() {
        step(&format!("{kind} {remote}, by a selected application"));
        let capture = scene.capture(ANY)?;
        scene.expect(&other, &["give", kind, &chosen, &at(remote, 80)], said)?;
        nothing(&scene, capture)?;
    }
    for remote in REMOTE {
        step(&format!(
            "{remote}, after an unselected application has used the socket"
        ));
        let to = at(remote, 80);
        scene.expect(&other, &["give", "used-udp", &other, &to], "far")?;
        scene.expect(&other, &["give", "used-udp", &chosen, &to], "beyond")?;
    }
    Ok(())
}

fn inherited_connections() -> Result<()> {
    let mut scene = Scene::with(&["chosen"], &[])?;
    if scene
        .programs()?
        .missing_features()
        .contains(&MissingFeature::SocketHandover)
    {
        return Err(unmet(MissingFeature::SocketHandover));
    }
    let (chosen, other) = (install("chosen")?, install("other")?);
    let _listener = scene.far.enter(|| {
        std::net::TcpListener::bind((REMOTE[0], 7003)).map_err(taupe_lab::Error::io("listener"))
    })?;
    let to = at(REMOTE[0], 7003);
    let mut giver = scene.start(&other, &["later", "give", "tcp", &chosen, &to])?;
    let capture = scene.capture("dst port 7003 and tcp[tcpflags] & tcp-push != 0")?;
    let said = giver.go()?;
    ensure!(said == "sent", "{said}");
    nothing(&scene, capture)
}

/// Accepts each packet in the queue, as an application firewall does, with nfnetlink_queue
/// messages.
const QUEUE: &str = r"
import socket, struct
queue = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)
queue.bind((0, 0))
def attribute(kind, data):
    return struct.pack('=HH', len(data) + 4, kind) + data + bytes(-len(data) % 4)
def tell(kind, attributes):
    body = struct.pack('>BBH', 0, 0, 5) + attributes
    queue.send(struct.pack('=IHHII', 16 + len(body), 3 << 8 | kind, 1, 0, 0) + body)
tell(2, attribute(1, struct.pack('>BBH', 1, 0, 0)))
tell(2, attribute(2, struct.pack('>IB', 0, 1)))
print('ready', flush=True)
while True:
    packet = queue.recv(65536)
    if packet[4:6] == struct.pack('=H', 3 << 8):
        number = packet[24:28]
        tell(1, attribute(2, struct.pack('>I', 1) + number))
";

/// Packets leave while the program runs that decides on them. They are not counted as its own.
fn datagrams_in_nfqueue() -> Result<()> {
    let mut scene = Scene::with(&[], &["dog"])?;
    let dog = install("dog")?;
    let home = scene.home.clone();
    let mut queue = Command::new("ip");
    queue.args(["netns", "exec", home.name(), "python3", "-c", QUEUE]);
    let _queue = Application::start(queue)?;
    for tables in ["iptables", "ip6tables"] {
        let rule = "-A OUTPUT -p udp --dport 80 -j NFQUEUE --queue-num 5";
        let words: Vec<&str> = std::iter::once(tables).chain(rule.split(' ')).collect();
        home.run(&words)?;
    }
    step("the tunnel's own");
    for remote in REMOTE {
        let to = at(remote, 80).parse().map_err(unmet)?;
        let said = home.enter(|| {
            let socket = bound(to).map_err(unmet)?;
            socket.connect(to).map_err(unmet)?;
            socket.send(b"who?").map_err(unmet)?;
            answer(&socket).map_err(unmet)
        })?;
        ensure!(said == "far", "{remote}: {said}");
    }
    step("an unselected application's");
    let programs = scene.programs()?;
    home.enter(|| programs.detect_nfqueue().map_err(unmet))?;
    let missing_features = programs.missing_features();
    ensure!(
        missing_features.contains(&MissingFeature::Nfqueue)
            == missing_features.contains(&MissingFeature::SocketHandover),
        "{missing_features:?}"
    );
    for remote in REMOTE {
        for way in ["connected-udp", "udp"] {
            scene.expect(&dog, &[way, &at(remote, 80)], "far")?;
        }
    }
    Ok(())
}

/// A descriptor in a message in transit belongs to no process that could be listed.
fn sockets_with_unknown_owner() -> Result<()> {
    let mut scene = Scene::with(&["chosen"], &[])?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    let is_traced = !scene
        .programs()?
        .missing_features()
        .contains(&MissingFeature::SocketHandover);
    let _listener = scene.far.enter(|| {
        std::net::TcpListener::bind((REMOTE[0], 7004)).map_err(taupe_lab::Error::io("listener"))
    })?;
    let to = at(REMOTE[0], 7004);
    scene.programs.take();
    scene
        .home
        .enter(|| taupe_transparent::capture::release(crate::scene::TUNNEL).map_err(unmet))?;
    let mut sender = scene.start(&chosen, &["in-a-message", &to])?;
    scene.set_up(
        &crate::scene::rules(&["chosen"], &[]),
        &crate::scene::everything_but(&[]),
    )?;
    let home = scene.home.clone();
    let programs = scene.programs()?;
    home.enter(|| programs.set_lock(Lock::All).map_err(unmet))?;
    let capture = scene.capture("dst port 7004")?;
    let said = sender.go()?;
    ensure!(said == "sent", "{said}");
    nothing(&scene, capture)?;
    let counts = scene.programs()?.counts().map_err(unmet)?;
    let unknown = counts
        .iter()
        .any(|(reason, count)| *reason == Reason::OwnerUnknown && *count > 0);
    ensure!(is_traced || unknown, "{counts:?}");
    step("others are as before");
    scene.expect(&other, &["tcp", &at(REMOTE[0], 80)], "far")?;
    scene.expect(&other, &["raw", REMOTE[0]], "answered")?;
    scene
        .home
        .run(&["ping", "-c", "1", "-W", "2", "192.0.2.1"])?;
    step("what the kernel answers by itself");
    scene
        .far
        .run(&["ping", "-c", "1", "-W", "2", "192.0.2.2"])?;
    Ok(())
}

/// Runs an application of these tests. Returns `None` if the words are for another module.
pub(crate) fn act(words: &[&str]) -> Option<io::Result<String>> {
    match words {
        ["give", kind, program, to] => Some(give(kind, program, to)),
        ["given", kind, to] => Some(given(kind, to)),
        ["in-a-message", to] => Some(in_a_message(to)),
        _ => None,
    }
}

fn address(text: &str) -> io::Result<SocketAddr> {
    text.parse().map_err(io::Error::other)
}

fn icmp(to: SocketAddr, kind: SocketType) -> io::Result<OwnedFd> {
    let (family, protocol) = match to {
        SocketAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP),
        SocketAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6),
    };
    Ok(make(family, kind, Some(protocol))?)
}

/// Starts a program with a new socket as its standard input, and returns its output.
fn give(kind: &str, program: &str, to: &str) -> io::Result<String> {
    let remote = address(to)?;
    let socket: OwnedFd = match kind {
        "connected-udp" => {
            let socket = bound(remote)?;
            socket.connect(remote)?;
            socket.into()
        }
        // The verdict on this program is stored with the socket.
        "used-udp" => {
            let socket = bound(remote)?;
            socket.connect(remote)?;
            socket.send(b"who?")?;
            answer(&socket)?;
            socket.into()
        }
        "raw" | "connected-raw" => icmp(remote, SocketType::RAW)?,
        "ping" | "connected-ping" => icmp(remote, SocketType::DGRAM)?,
        "tcp" => TcpStream::connect(remote)?.into(),
        _ => return Err(io::Error::other(kind.to_owned())),
    };
    if kind == "connected-ping" {
        rustix::net::connect(&socket, &SocketAddr::new(remote.ip(), 0))?;
    }
    let output = Command::new(program)
        .args([WORD, "given", kind, to])
        .stdin(socket)
        .output()?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn given(kind: &str, to: &str) -> io::Result<String> {
    let remote = address(to)?;
    let socket = inherited()?;
    let question = match remote.ip() {
        IpAddr::V4(_) => 8,
        IpAddr::V6(_) => 128,
    };
    match kind {
        "connected-udp" | "used-udp" => {
            let socket = UdpSocket::from(socket);
            send(&socket, b"who?", SendFlags::empty())?;
            answer(&socket)
        }
        "connected-raw" => {
            // The program binds and connects the socket itself.
            let any = match remote {
                SocketAddr::V4(_) => SocketAddr::from(([0, 0, 0, 0], 0)),
                SocketAddr::V6(_) => SocketAddr::from(([0; 16], 0)),
            };
            rustix::net::bind(&socket, &any)?;
            rustix::net::connect(&socket, &SocketAddr::new(remote.ip(), 0))?;
            echo(&socket, remote.ip(), question)
        }
        "raw" | "ping" | "connected-ping" => echo(&socket, remote.ip(), question),
        "tcp" => {
            TcpStream::from(socket).write_all(b"chosen-payload")?;
            std::thread::sleep(Duration::from_millis(300));
            Ok("sent".to_owned())
        }
        _ => Err(io::Error::other(kind.to_owned())),
    }
}

/// Connects, and keeps the connection in a message to itself until told to continue. Then sends by
/// it.
fn in_a_message(to: &str) -> io::Result<String> {
    let stream = TcpStream::connect(address(to)?)?;
    let (here, there) = UnixStream::pair()?;
    {
        let fds = [stream.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&fds));
        let words = [io::IoSlice::new(b"!")];
        sendmsg(&here, &words, &mut control, SendFlags::empty())?;
    }
    drop(stream);
    println!("ready");
    io::stdout().flush()?;
    io::stdin().lock().read_line(&mut String::new())?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut words = [io::IoSliceMut::new(&mut byte)];
    recvmsg(&there, &mut words, &mut control, RecvFlags::empty())?;
    let mut messages = control.drain();
    let Some(RecvAncillaryMessage::ScmRights(mut fds)) = messages.next() else {
        return Err(io::Error::other("no descriptor"));
    };
    let stream = fds.next().ok_or(io::ErrorKind::NotFound)?;
    TcpStream::from(stream).write_all(b"chosen-payload")?;
    println!("sent");
    std::thread::sleep(Duration::from_secs(60));
    Ok(String::new())
}
