//! Tests of functions that exist only on Windows; they run there or under Wine.

#![cfg(windows)]

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process;
use std::thread;
use std::time::{Duration, Instant};
use taupe_os_windows::connections::connections;
use taupe_os_windows::event_log::{self, EventLog, Level};
use taupe_os_windows::pipe::{self, Listener, Stream};
use taupe_os_windows::processes::{self, Protocol, Socket};
use taupe_os_windows::routes;
use taupe_os_windows::service;
use taupe_os_windows::udp;
use taupe_os_windows::wintun::{Adapter, CreateError};
use taupe_packet::ip::Family;

const PATIENCE: Duration = Duration::from_secs(10);

/// Returns the socket with these ends if it belongs to this process.
fn own(sockets: &[Socket], local: SocketAddr, remote: Option<SocketAddr>) -> Option<&Socket> {
    let is_it = |socket: &&Socket| (socket.local, socket.remote) == (local, remote);
    let row = sockets.iter().find(is_it)?;
    assert_eq!(row.pid, process::id(), "{sockets:?}");
    Some(row)
}

#[test]
fn a_tcp_connection_is_found_with_both_ends_and_its_process() {
    for any in [
        SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        SocketAddr::from((Ipv6Addr::LOCALHOST, 0)),
    ] {
        let listener = TcpListener::bind(any).expect("a listener");
        let at = listener.local_addr().expect("an address");
        let mut client = TcpStream::connect(at).expect("a connection");
        let (_server, client_at) = listener.accept().expect("a connection");
        // Wine knows the owner of a connection only after the first data, and never that of an
        // accepted or IPv6 connection.
        client.write_all(b"x").expect("sent");
        let found = processes::tcp().expect("a table");
        if at.is_ipv4() {
            let row = own(&found, client_at, Some(at)).unwrap_or_else(|| panic!("{found:?}"));
            assert_eq!(row.protocol, Protocol::Tcp);
        }
        for ends in [(client_at, Some(at)), (at, Some(client_at))] {
            let is_it = |row: &Socket| (row.local, row.remote) == ends;
            assert!(found.iter().any(is_it), "{ends:?}: {found:?}");
        }
        let listens = |socket: &Socket| socket.local == at && socket.remote.is_none();
        assert!(found.iter().any(listens), "{at}: {found:?}");
        drop(listener);
        let found = processes::tcp().expect("a table");
        assert!(!found.iter().any(listens), "it is closed: {found:?}");
    }
}

#[test]
fn a_udp_socket_is_found_by_its_own_end() {
    for at in [
        SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::from((Ipv6Addr::LOCALHOST, 0)),
    ] {
        let socket = UdpSocket::bind(at).expect("a socket");
        let at = socket.local_addr().expect("an address");
        let to = match at {
            SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::LOCALHOST, at.port())),
            SocketAddr::V6(_) => at,
        };
        socket.send_to(b"x", to).expect("sent");
        let found = processes::udp().expect("a table");
        let row = own(&found, at, None).unwrap_or_else(|| panic!("{at}: {found:?}"));
        assert_eq!(row.protocol, Protocol::Udp);
    }
}

#[test]
fn a_udp_port_is_had_alone_and_without_waiting() {
    for any in [
        SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    ] {
        let socket = udp::bind(any).expect("a socket");
        let at = socket.local_addr().expect("an address");
        let silent = socket.recv_from(&mut [0; 16]).expect_err("nothing comes");
        assert_eq!(silent.kind(), io::ErrorKind::WouldBlock);
        let second = udp::bind(at).map(drop).expect_err("it is taken");
        assert_eq!(second.kind(), io::ErrorKind::AddrInUse, "{second}");
        // A socket that shares the port, on a single address of the machine.
        let own = match any {
            SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::LOCALHOST, at.port())),
            SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::LOCALHOST, at.port())),
        };
        let domain = socket2::Domain::for_address(any);
        let thief = socket2::Socket::new(domain, socket2::Type::DGRAM, None).expect("a socket");
        thief.set_reuse_address(true).expect("set");
        thief.bind(&own.into()).expect_err("it is not shared");
    }
}

#[test]
fn connections_have_their_addresses() {
    let found = connections().expect("a list");
    let own = "127.0.0.1/8".parse().expect("an address");
    let loopback = found.iter().find(|it| it.addresses.contains(&own));
    let loopback = loopback.unwrap_or_else(|| panic!("{found:?}"));
    assert!(!loopback.has_gateway, "{loopback:?}");
    for connection in &found {
        assert!(connection.guid.starts_with('{'), "{connection:?}");
        assert!(!connection.name.is_empty(), "{connection:?}");
        assert_ne!(connection.index, 0, "{connection:?}");
    }
}

#[test]
fn more_sockets_than_fit_at_first_are_all_found() {
    // A row has at least 160 bytes, and the first buffer 64 KiB.
    let sockets: Vec<_> = (0..500)
        .map(|_| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket"))
        .collect();
    let found = processes::udp().expect("a table");
    for socket in &sockets {
        let at = socket.local_addr().expect("an address");
        assert!(found.iter().any(|row| row.local == at), "{at}");
    }
}

#[test]
fn a_process_has_a_program_and_a_beginning() {
    let own = processes::process(process::id()).expect("this process");
    let exe = std::env::current_exe().expect("a path");
    assert_eq!(own.path, exe);
    assert_eq!(own, processes::process(process::id()).expect("again"));
    // 1 January 2020, in 100 ns since 1601.
    assert!(own.created > 132_223_104_000_000_000, "{}", own.created);
    // Process ids are multiples of four.
    assert!(processes::process(u32::MAX - 4).is_err());
}

fn path(name: &str) -> std::ffi::OsString {
    pipe::path_of_tunnel(&format!("taupe-test-{name}-{}", process::id()))
}

#[test]
fn a_pipe_serves_clients_one_after_the_other_until_it_is_stopped() {
    let path = path("turns");
    assert!(
        Stream::connect(&path, PATIENCE)
            .expect("an answer")
            .is_none()
    );
    let mut listener = Listener::bind(&path).expect("a pipe");
    let taken = Listener::bind(&path).map(drop).expect_err("it is taken");
    assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
    let stopper = listener.stopper();
    let server = thread::spawn(move || {
        let mut served = 0;
        while let Some(mut stream) = listener.accept(PATIENCE).expect("a client") {
            let mut question = [0; 5];
            stream.read_exact(&mut question).expect("a question");
            // More than the system buffers, so the writer has to wait.
            stream.write_all(&question.repeat(1 << 17)).expect("said");
            served += 1;
        }
        served
    });
    for question in [b"first", b"other"] {
        let mut stream = Stream::connect(&path, PATIENCE)
            .expect("a way")
            .expect("a pipe");
        stream.write_all(question).expect("said");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an answer");
        assert_eq!(answer, question.repeat(1 << 17));
    }
    stopper.stop();
    assert_eq!(server.join().expect("ended"), 2);
    assert!(
        Stream::connect(&path, PATIENCE)
            .expect("an answer")
            .is_none()
    );
}

#[test]
fn who_is_silent_is_let_go() {
    let path = path("silence");
    let mut listener = Listener::bind(&path).expect("a pipe");
    let mut client = Stream::connect(&path, PATIENCE)
        .expect("a way")
        .expect("a pipe");
    let patience = Duration::from_millis(100);
    let mut server = listener.accept(patience).expect("one").expect("a client");
    let began = Instant::now();
    let error = server.read(&mut [0; 1]).expect_err("nothing comes");
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    assert!(began.elapsed() >= patience);
    // A read that timed out leaves nothing behind: the next one gets all data.
    client.write_all(b"late").expect("said");
    let mut said = [0; 4];
    server.read_exact(&mut said).expect("said");
    assert_eq!(&said, b"late");
    drop(client);
    assert_eq!(server.read(&mut [0; 1]).expect("the end"), 0);
}

#[test]
fn a_wait_for_clients_can_be_stopped() {
    let mut listener = Listener::bind(&path("stop")).expect("a pipe");
    let stopper = listener.stopper();
    let waiting = thread::spawn(move || listener.accept(PATIENCE).map(|client| client.is_some()));
    thread::sleep(Duration::from_millis(50));
    assert!(!waiting.is_finished());
    stopper.stop();
    assert!(!waiting.join().expect("ended").expect("stopped"));
}

#[test]
fn a_pipe_is_known_for_an_administrators() {
    let path = path("owner");
    let _listener = Listener::bind(&path).expect("a pipe");
    let client = Stream::connect(&path, PATIENCE)
        .expect("a way")
        .expect("a pipe");
    assert!(client.is_owned_by_administrators().expect("an owner"));
}

#[test]
fn an_event_source_is_made_known_and_forgotten() {
    let source = format!("TaupeTest{}", process::id());
    event_log::unregister(&source).expect("none is no error");
    event_log::register(&source).expect("known");
    event_log::register(&source).expect("known already");
    let log = EventLog::open(&source).expect("the log");
    for level in [Level::Information, Level::Warning, Level::Error] {
        log.report(level, "a line").expect("written");
    }
    log.report(Level::Error, &"x".repeat(100_000)).expect("cut");
    log.report(Level::Error, "a\0b").expect("written");
    event_log::unregister(&source).expect("forgotten");
}

fn definition(name: &str) -> service::Definition {
    service::Definition {
        name: name.to_owned(),
        display_name: format!("Test {name}"),
        description: "Nothing".to_owned(),
        program: Path::new(r"C:\no\such\program.exe").to_owned(),
        arguments: vec!["one word".into(), "--other".into()],
    }
}

#[test]
fn a_service_is_there_once_installed_and_gone_once_removed() {
    let name = format!("TaupeTest{}", process::id());
    assert_eq!(service::state(&name).expect("known"), None);
    let missing = service::uninstall(&name).expect_err("there is none");
    assert!(
        matches!(missing, service::ServiceError::Missing(_)),
        "{missing}"
    );
    service::install(&definition(&name)).expect("installed");
    assert_eq!(
        service::state(&name).expect("known"),
        Some(service::State::Stopped)
    );
    let exists = service::install(&definition(&name)).expect_err("there is one");
    assert!(
        matches!(exists, service::ServiceError::Exists(_)),
        "{exists}"
    );
    let stopped = service::stop(&name).expect_err("it does not run");
    assert!(
        matches!(stopped, service::ServiceError::NotRunning(_)),
        "{stopped}"
    );
    service::start(&name).expect_err("there is no such program");
    service::uninstall(&name).expect("removed");
    assert_eq!(service::state(&name).expect("known"), None);
}

#[test]
fn who_is_no_service_is_told() {
    let ran = service::run("TaupeTest", |_, _| 0).expect_err("no service");
    assert!(matches!(ran, service::ServiceError::NotAService), "{ran}");
}

#[test]
fn the_library_of_adapters_is_taken_from_beside_the_program_alone() {
    let folder = std::env::temp_dir().join(format!("taupe-wintun-{}", process::id()));
    std::fs::create_dir_all(&folder).expect("made");
    std::fs::write(folder.join("wintun.dll"), "planted").expect("written");
    std::env::set_current_dir(&folder).expect("moved");
    let planted = Adapter::create("taupe-test", 1).err();
    std::env::set_current_dir(std::env::temp_dir()).expect("moved");
    std::fs::remove_dir_all(&folder).expect("removed");
    assert!(matches!(planted, Some(CreateError::Missing)), "{planted:?}");

    let program = std::env::current_exe().expect("a path");
    let beside = program.with_file_name("wintun.dll");
    std::fs::write(&beside, "none").expect("written");
    let none = Adapter::create("taupe-test", 1).err();
    std::fs::remove_file(&beside).expect("removed");
    assert!(matches!(none, Some(CreateError::Library(_))), "{none:?}");
}

#[test]
fn datagrams_leave_by_the_interface_that_is_said() {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a socket");
    let other = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
    other.set_read_timeout(Some(PATIENCE)).expect("set");
    let to = other.local_addr().expect("an address");
    // The loopback interface has index 1.
    for index in [1, 0] {
        routes::set_unicast_interface(&socket, Family::V4, index).expect("set");
        socket.send_to(b"x", to).expect("sent");
        let (length, _) = other.recv_from(&mut [0; 8]).expect("received");
        assert_eq!(length, 1);
    }
    let v6 = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).expect("a socket");
    routes::set_unicast_interface(&v6, Family::V6, 0).expect("set");
}
