//! Two tunnels in this process, to each other over the loopback interface. They need no rights.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use taupe_tunnel::{OpenError, Tunnel, TunnelError};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

/// Private and public keys of the tunnels.
const KEYS: [[&str; 2]; 2] = [
    [
        "8OHQkKGHAWVSNtP5+c2njO6w62+hDDNO8xEjYosYlk4=",
        "8uyrGhxFEVdQN9iXuD/P65ELwPy0g8jg3tNzzs+r7Qw=",
    ],
    [
        "mIX0lw0gyagO/hLp6Vm+KGZw68adW5vCJDkqWyLenlY=",
        "huQeMuAJwh6WtmhP3X23ReLesVHO2MRrWByccUSN3QQ=",
    ],
];

const PATIENCE: Duration = Duration::from_secs(60);

/// Connections that a listener holds until they are accepted, as documented.
const BACKLOG: usize = 128;

fn address(host: u8, port: u16) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::new(10, 0, 0, host).into(), port)
}

/// Opens tunnels 10.0.0.1 and 10.0.0.2; the second knows the first one's endpoint.
async fn tunnels() -> (Tunnel, Tunnel) {
    let open = async |own: usize, endpoint: Option<u16>| {
        let [[private, _], [_, public]] = [KEYS[own], KEYS[1 - own]];
        let (us, them) = (own + 1, 2 - own);
        let endpoint = endpoint.map(|port| format!("Endpoint = 127.0.0.1:{port}"));
        let text = format!(
            "[Interface]\nPrivateKey = {private}\nAddress = 10.0.0.{us}/32\n[Peer]\n\
             PublicKey = {public}\nAllowedIPs = 10.0.0.{them}/32\n{}\n",
            endpoint.unwrap_or_default()
        );
        Tunnel::connect(&*text).await.unwrap()
    };
    let first = open(0, None).await;
    let second = open(1, first.listen_port()).await;
    (first, second)
}

fn run(test: impl AsyncFnOnce() -> io::Result<()>) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().build().unwrap();
    let result = runtime.block_on(async { timeout(PATIENCE, test()).await });
    result.expect("in time").unwrap();
}

#[test]
fn bytes_and_datagrams_go_both_ways() {
    run(async || {
        let (first, second) = tunnels().await;
        let listener = first.listen_tcp(80).await?;
        let mut near = second.connect_tcp(address(1, 80)).await?;
        let (mut far, from) = listener.accept().await?;
        assert_eq!(from, near.local_addr());
        assert_eq!(
            (near.peer_addr(), far.local_addr()),
            (address(1, 80), address(1, 80))
        );
        let mut buffer = [0; 4];
        for _ in 0..3 {
            near.write_all(b"ping").await?;
            far.read_exact(&mut buffer).await?;
            assert_eq!(&buffer, b"ping");
            far.write_all(b"pong").await?;
            near.read_exact(&mut buffer).await?;
            assert_eq!(&buffer, b"pong");
        }
        let (here, there) = (second.bind_udp(0).await?, first.bind_udp(7).await?);
        here.send_to(b"ping", address(1, 7)).await?;
        let (length, from) = there.recv_from(&mut buffer).await?;
        assert_eq!((length, from), (4, address(2, here.port())));
        // Bytes that the buffer has no room for are lost.
        there.send_to(b"longer", from).await?;
        assert_eq!(here.recv_from(&mut buffer).await?, (4, address(1, 7)));
        assert_eq!(&buffer, b"long");
        for tunnel in [&first, &second] {
            let state = tunnel.state().await?;
            let peer = &state.peers[0];
            assert!(peer.latest_handshake.is_some() && peer.endpoint.is_some());
            assert!(peer.sent_bytes > 0 && peer.received_bytes > 0);
        }
        Ok(())
    });
}

#[test]
fn a_dropped_connection_sends_its_data_or_resets() {
    run(async || {
        let (first, second) = tunnels().await;
        let listener = first.listen_tcp(80).await?;
        for has_unread in [false, true] {
            let mut near = second.connect_tcp(address(1, 80)).await?;
            let (mut far, _) = listener.accept().await?;
            if has_unread {
                // It has arrived when the answer to it has.
                far.write_all(b"unread").await?;
                near.read_exact(&mut [0]).await?;
            }
            near.write_all(&[7; 30_000]).await?;
            drop(near);
            let mut received = Vec::new();
            let result = far.read_to_end(&mut received).await;
            match has_unread {
                false => assert_eq!((result?, received), (30_000, vec![7; 30_000])),
                true => assert_eq!(result.unwrap_err().kind(), ErrorKind::ConnectionReset),
            }
        }
        Ok(())
    });
}

#[test]
fn a_listener_holds_a_limited_number_of_connections() {
    run(async || {
        let (first, second) = tunnels().await;
        let listener = first.listen_tcp(80).await?;
        let mut streams = Vec::new();
        for _ in 0..BACKLOG {
            streams.push(second.connect_tcp(address(1, 80)).await?);
        }
        let mut next = Box::pin(second.connect_tcp(address(1, 80)));
        let early = timeout(Duration::from_millis(500), &mut next).await;
        assert!(early.is_err(), "one more was accepted");
        assert_eq!(first.state().await?.connections, BACKLOG);
        // Its SYN is repeated, and there is room now.
        let (_stream, from) = listener.accept().await?;
        assert_eq!(from, streams[0].local_addr());
        next.await?;
        // Those that nobody accepts end with the listener.
        drop(listener);
        let result = streams[BACKLOG - 1].read(&mut [0]).await;
        assert!(matches!(result, Ok(0)), "{result:?}");
        let refused = second.connect_tcp(address(1, 80)).await;
        assert_eq!(
            refused.err().map(|error| error.kind()),
            Some(ErrorKind::ConnectionRefused)
        );
        Ok(())
    });
}

#[test]
fn a_reader_that_waits_limits_the_writer() {
    run(async || {
        let (first, second) = tunnels().await;
        let listener = first.listen_tcp(80).await?;
        let mut near = second.connect_tcp(address(1, 80)).await?;
        let (mut far, _) = listener.accept().await?;
        // More than both buffers take: the writer waits until the reader reads.
        let block = vec![7; 1 << 20];
        let mut written = 0;
        while let Ok(result) = timeout(Duration::from_millis(500), near.write(&block)).await {
            written += result?;
        }
        // Documented: at most 2112 KiB for both directions of a connection.
        assert!((64 << 10..2 * (2112 << 10)).contains(&written), "{written}");
        drop(near);
        let mut received = Vec::new();
        assert_eq!(far.read_to_end(&mut received).await?, written);
        Ok(())
    });
}

#[test]
fn a_reader_that_goes_on_lets_the_writer_go_on_at_once() {
    run(async || {
        let (first, second) = tunnels().await;
        let listener = first.listen_tcp(80).await?;
        let mut near = second.connect_tcp(address(1, 80)).await?;
        let (mut far, _) = listener.accept().await?;
        let block = vec![7; 1 << 20];
        let mut buffer = vec![0; 1 << 20];
        let mut waits = Vec::new();
        for _ in 0..5 {
            while let Ok(result) = timeout(Duration::from_millis(300), near.write(&block)).await {
                result?;
            }
            far.read_exact(&mut buffer).await?;
            let start = Instant::now();
            near.write_all(&block[..1000]).await?;
            waits.push(start.elapsed());
        }
        // A probe of the closed window would take longer. One wait may be long on a busy machine.
        let least = waits.iter().min();
        assert!(least < Some(&Duration::from_millis(100)), "{waits:?}");
        Ok(())
    });
}

#[test]
fn a_full_queue_of_datagrams_makes_the_sender_wait() {
    run(async || {
        let (first, second) = tunnels().await;
        let (here, there) = (second.bind_udp(0).await?, first.bind_udp(7).await?);
        // Until there is a session, the protocol holds a limited number of packets.
        let mut buffer = [0; 1000];
        here.send_to(b"first", address(1, 7)).await?;
        assert_eq!(there.recv_from(&mut buffer).await?.0, 5);
        // More than the 64 KiB that wait for the thread, less than the 256 KiB that wait for a task.
        for number in 0..200 {
            let count = here.send_to(&[number; 1000], address(1, 7)).await?;
            assert_eq!(count, 1000);
        }
        for number in 0..100 {
            assert_eq!(there.recv_from(&mut buffer).await?.0, 1000);
            assert_eq!(buffer, [number; 1000]);
        }
        Ok(())
    });
}

#[test]
fn sockets_fail_when_the_tunnel_is_closed() {
    run(async || {
        let (first, second) = tunnels().await;
        let listener = first.listen_tcp(80).await?;
        let udp = first.bind_udp(7).await?;
        let mut near = second.connect_tcp(address(1, 80)).await?;
        let (mut far, _) = listener.accept().await?;
        first.close().await;
        let aborted = Some(ErrorKind::ConnectionAborted);
        let kind = |error: io::Error| error.kind();
        assert_eq!(listener.accept().await.err().map(kind), aborted);
        assert_eq!(udp.recv_from(&mut [0]).await.err().map(kind), aborted);
        assert_eq!(
            udp.send_to(b"x", address(2, 7)).await.err().map(kind),
            aborted
        );
        assert_eq!(far.read(&mut [0]).await.err().map(kind), aborted);
        assert_eq!(far.write(b"x").await.err().map(kind), aborted);
        assert_eq!(far.shutdown().await.err().map(kind), aborted);
        // The other side has been told.
        let reset = Some(ErrorKind::ConnectionReset);
        assert_eq!(near.read(&mut [0]).await.err().map(kind), reset);
        Ok(())
    });
}

#[test]
fn configurations_that_cannot_work_are_refused() {
    run(async || {
        let [[private, _], [_, public]] = KEYS;
        let open = async |interface: &str| {
            let text = format!(
                "[Interface]\nPrivateKey = {private}\n{interface}\n[Peer]\nPublicKey = {public}\n"
            );
            Tunnel::connect(&*text).await.err()
        };
        let error = open("").await;
        assert!(
            matches!(error, Some(TunnelError::Open(OpenError::NoAddress))),
            "{error:?}"
        );
        let error = open("Address = 10.0.0.1\nMTU = 500").await;
        assert!(
            matches!(error, Some(TunnelError::Open(OpenError::Mtu(500)))),
            "{error:?}"
        );
        let error = open("Address = 10.0.0.x\nListenPort = -1").await;
        let Some(TunnelError::Config(all)) = error else {
            panic!("{error:?}");
        };
        let text = all.to_string();
        assert!(text.contains("line 3") && text.contains("line 4"), "{text}");

        let taken = std::net::UdpSocket::bind("0.0.0.0:0")?;
        let port = taken.local_addr()?.port();
        let error = open(&format!("Address = 10.0.0.1\nListenPort = {port}")).await;
        let is_taken =
            matches!(error, Some(TunnelError::Open(OpenError::PortTaken(it))) if it == port);
        assert!(is_taken, "{error:?}");
        Ok(())
    });
}

#[test]
fn addresses_and_name_servers_follow_from_the_configuration() {
    run(async || {
        let [[private, _], [_, public]] = KEYS;
        let text = format!(
            "[Interface]\nPrivateKey = {private}\nAddress = 10.0.0.1, 10.0.0.9, fd00::1\n\
             DNS = 10.0.0.3, 192.0.2.1\n[Peer]\nPublicKey = {public}\nAllowedIPs = 10.0.0.0/24\n"
        );
        let tunnel = Tunnel::connect(&*text).await.unwrap();
        let addresses: Vec<_> = tunnel.addresses().collect();
        let expected: [IpAddr; 2] = ["10.0.0.1", "fd00::1"].map(|one| one.parse().unwrap());
        assert_eq!(addresses, expected);
        assert_eq!(tunnel.name_servers(), [IpAddr::from([10, 0, 0, 3])]);
        let found = tunnel.look_up("192.0.2.7").await?;
        assert_eq!(found, [IpAddr::from([192, 0, 2, 7])]);
        // No peer routes there.
        let result = tunnel.connect_tcp("192.0.2.7:80".parse().unwrap()).await;
        let kind = result.err().map(|error| error.kind());
        assert_eq!(kind, Some(ErrorKind::NetworkUnreachable));
        let result = tunnel.connect_tcp(address(2, 0)).await;
        let kind = result.err().map(|error| error.kind());
        assert_eq!(kind, Some(ErrorKind::InvalidInput));
        Ok(())
    });
}
