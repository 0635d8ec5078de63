//! Connections, datagrams and listeners.

use crate::world::{OWN, PATIENCE, World, beyond, fails, io, serve_names};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::thread;
use std::time::Instant;
use taupe_lab::peers::Implementation;
use taupe_lab::sandbox::step;
use taupe_lab::traffic::serve_echo;
use taupe_lab::{Error, Result, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Pages by address and by name, from a server that reports the client's address; and the state.
pub(crate) fn get() -> Result<()> {
    let world = World::new(Implementation::WireguardGo)?;
    serve_names(&world.far)?;
    let listener = world.listen(80)?;
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && stream.read_exact(&mut byte).is_ok() {
                head.extend(byte);
            }
            let client = stream.peer_addr().map(|client| client.ip().to_string());
            let body = client.unwrap_or_default();
            let _ = write!(stream, "HTTP/1.0 200 OK\r\n\r\n{body}");
        }
    });
    world.run(async || {
        let tunnel = world.tunnel().await?;
        ensure!(
            tunnel.name_servers().len() == 1,
            "{:?}",
            tunnel.name_servers()
        );
        for host in ["198.51.100.1", "www.example"] {
            step(host);
            let mut stream = io(host, tunnel.connect_host(host, 80).await)?;
            io("request", stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await)?;
            let mut answer = String::new();
            io("answer", stream.read_to_string(&mut answer).await)?;
            ensure!(answer.ends_with("\r\n\r\n10.77.0.1"), "{answer}");
        }
        step("failures");
        let nobody = tunnel.connect_host("nobody.example", 80).await;
        fails("no such name", nobody, ErrorKind::NotFound)?;
        let local = tunnel.look_up("localhost").await;
        fails("a name of this machine", local, ErrorKind::NotFound)?;
        let invalid = tunnel.look_up("a b").await;
        fails("no name", invalid, ErrorKind::InvalidInput)?;
        let refused = tunnel.connect_tcp(beyond(81)).await;
        fails("a closed port", refused, ErrorKind::ConnectionRefused)?;
        for address in ["192.0.2.2:80", "[2001:db8::2]:80"] {
            let remote = parse(address)?;
            let result = tunnel.connect_tcp(remote).await;
            fails(address, result, ErrorKind::NetworkUnreachable)?;
        }
        step("state");
        let state = io("state", tunnel.state().await)?;
        let [peer] = &*state.peers else {
            return Err(Error::unmet(format!("{state:?}")));
        };
        let age = peer.latest_handshake.and_then(|at| at.elapsed().ok());
        ensure!(age.is_some_and(|age| age < PATIENCE), "{state:?}");
        ensure!(peer.sent_bytes > 0 && peer.received_bytes > 0, "{state:?}");
        ensure!(peer.handshake == Some("ordinary"), "{state:?}");
        tunnel.close().await;
        Ok(())
    })
}

/// Datagrams to an echo server, and sockets' errors.
pub(crate) fn udp() -> Result<()> {
    let world = World::new(Implementation::WireguardGo)?;
    let echo = || UdpSocket::bind(beyond(7)).map_err(Error::io("echo"));
    let echo = world.far.enter(echo)?;
    thread::spawn(move || {
        let mut buffer = [0; 2000];
        while let Ok((length, from)) = echo.recv_from(&mut buffer) {
            let _ = echo.send_to(&buffer[..length], from);
        }
    });
    world.run(async || {
        let tunnel = world.tunnel().await?;
        let socket = io("socket", tunnel.bind_udp(5353).await)?;
        let mut buffer = [0; 2000];
        for length in [0, 1, 1000, 1420 - 28] {
            let sent = vec![length as u8; length];
            io("sending", socket.send_to(&sent, beyond(7)).await)?;
            let received = tokio::time::timeout(PATIENCE, socket.recv_from(&mut buffer)).await;
            let received = received.map_err(|_| Error::unmet("no answer"))?;
            let (count, from) = io("receiving", received)?;
            ensure!(from == beyond(7), "{from}");
            ensure!(buffer[..count] == sent, "{count} bytes of {length}");
        }
        let long = socket.send_to(&[0; 1420 - 27], beyond(7)).await;
        fails("a datagram that is too long", long, ErrorKind::InvalidInput)?;
        let nowhere = socket.send_to(b"x", parse("192.0.2.2:7")?).await;
        fails("no route", nowhere, ErrorKind::NetworkUnreachable)?;
        let taken = tunnel.bind_udp(5353).await;
        fails("a port that is taken", taken, ErrorKind::AddrInUse)?;
        drop(socket);
        let again = io("the same port again", tunnel.bind_udp(5353).await)?;
        ensure!(again.port() == 5353, "{}", again.port());
        let any = io("any port", tunnel.bind_udp(0).await)?;
        ensure!(any.port() >= 32768, "{}", any.port());

        step("a receiver that does not read");
        let to = SocketAddr::new(OWN, any.port());
        let flood = UdpSocket::bind;
        let sender = world
            .far
            .enter(|| flood("10.77.0.2:0").map_err(Error::io("sender")))?;
        let deadline = Instant::now() + PATIENCE;
        while any.dropped() == 0 {
            ensure!(Instant::now() < deadline, "no datagram was dropped");
            let _ = sender.send_to(&[7; 1000], to);
        }
        let (count, _) = io("receiving", any.recv_from(&mut buffer).await)?;
        ensure!(buffer[..count] == [7; 1000], "{count}");
        tunnel.close().await;
        let after = any.send_to(b"x", beyond(7)).await;
        fails("a closed tunnel", after, ErrorKind::ConnectionAborted)
    })
}

/// Connections from the far side.
pub(crate) fn listener() -> Result<()> {
    let world = World::new(Implementation::WireguardGo)?;
    let far = world.far.clone();
    world.run(async || {
        // The server learns the endpoint from the keepalive.
        let tunnel = world.tunnel_and("", "PersistentKeepalive = 25").await?;
        let listener = io("listener", tunnel.listen_tcp(8080).await)?;
        let taken = tunnel.listen_tcp(8080).await;
        fails("a port that is taken", taken, ErrorKind::AddrInUse)?;
        let client = tokio::task::spawn_blocking(move || -> Result<()> {
            let connect = |port| {
                far.enter(|| {
                    let at = SocketAddr::new(OWN, port);
                    io("connecting", TcpStream::connect_timeout(&at, PATIENCE))
                })
            };
            let mut stream = connect(8080)?;
            io("limit", stream.set_read_timeout(Some(PATIENCE)))?;
            io("sending", stream.write_all(b"from the far side"))?;
            io("end", stream.shutdown(Shutdown::Write))?;
            let mut answer = String::new();
            io("receiving", stream.read_to_string(&mut answer))?;
            ensure!(answer == "edis raf eht morf", "{answer}");
            let start = Instant::now();
            ensure!(connect(8081).is_err(), "nobody listens at 8081");
            ensure!(start.elapsed() < PATIENCE / 2, "no reset");
            Ok(())
        });
        let (mut stream, from) = io("accepting", listener.accept().await)?;
        ensure!(from.ip().to_string() == "10.77.0.2", "{from}");
        ensure!(
            stream.local_addr().port() == 8080,
            "{}",
            stream.local_addr()
        );
        let mut question = Vec::new();
        io("receiving", stream.read_to_end(&mut question).await)?;
        question.reverse();
        io("sending", stream.write_all(&question).await)?;
        io("end", stream.shutdown().await)?;
        let joined = client.await;
        joined.map_err(|error| Error::unmet(error.to_string()))??;
        drop(listener);
        io("the same port again", tunnel.listen_tcp(8080).await).map(drop)
    })
}

/// A hybrid post-quantum handshake, with Taupe as the server.
pub(crate) fn hybrid() -> Result<()> {
    let world = World::new(Implementation::Taupe)?;
    serve_echo(&world.far, beyond(7))?;
    let hybrid = world.server.begin_hybrid()?;
    world.run(async || {
        let peer = hybrid.peer("require");
        let tunnel = world.tunnel_and(&hybrid.interface(), &peer).await?;
        let mut stream = io("connecting", tunnel.connect_tcp(beyond(7)).await)?;
        io("sending", stream.write_all(b"taupe").await)?;
        let mut answer = [0; 5];
        io("receiving", stream.read_exact(&mut answer).await)?;
        ensure!(&answer == b"taupe", "{answer:?}");
        let state = io("state", tunnel.state().await)?;
        let suite = state.peers.first().and_then(|peer| peer.handshake);
        ensure!(suite == Some("hybrid-768"), "{state:?}");
        Ok(())
    })
}

fn parse(address: &str) -> Result<SocketAddr> {
    let parsed = address.parse::<SocketAddr>();
    parsed.map_err(|error| Error::unmet(error.to_string()))
}
