//! Ends of connections, of tunnels, and of the far side.

use crate::world::{PATIENCE, World, beyond, fails, io, wait_for_end};
use socket2::SockRef;
use std::io::{ErrorKind, Read as _, Write as _};
use std::thread;
use std::time::{Duration, Instant};
use taupe_lab::host::Transport;
use taupe_lab::peers::Implementation;
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::step;
use taupe_lab::traffic::serve_echo;
use taupe_lab::{Error, Result, ensure};
use taupe_tunnel::{CONNECT_TIMEOUT, Tunnel};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// A server that has ended: a connection fails within the documented time, and so does a look-up.
pub(crate) fn dead() -> Result<()> {
    let world = World::new(Implementation::WireguardGo)?;
    let file = world
        .server
        .file("DNS = 198.51.100.1", "AllowedIPs = 198.51.100.0/24");
    let World { near, far, server } = world;
    server.end();
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder
        .enable_time()
        .build()
        .map_err(Error::io("runtime"))?;
    let _far = far;
    near.enter(|| {
        runtime.block_on(async {
            let tunnel = Tunnel::connect(&*file).await;
            let tunnel = tunnel.map_err(|error| Error::unmet(error.to_string()))?;
            let tunnel = std::sync::Arc::new(tunnel);
            let look_up = {
                let tunnel = std::sync::Arc::clone(&tunnel);
                tokio::spawn(async move { tunnel.look_up("www.example").await })
            };
            let start = Instant::now();
            let result = tunnel.connect_tcp(beyond(7)).await;
            let elapsed = start.elapsed();
            fails("connecting", result, ErrorKind::TimedOut)?;
            let slack = Duration::from_secs(10);
            ensure!(elapsed >= CONNECT_TIMEOUT, "after {elapsed:?}");
            ensure!(elapsed < CONNECT_TIMEOUT + slack, "after {elapsed:?}");
            let result = look_up.await;
            let result = result.map_err(|error| Error::unmet(error.to_string()))?;
            fails("a look-up", result, ErrorKind::TimedOut)?;
            let state = io("state", tunnel.state().await)?;
            ensure!(state.connections == 0, "{state:?}");
            ensure!(
                state
                    .peers
                    .iter()
                    .all(|peer| peer.latest_handshake.is_none()),
                "{state:?}"
            );
            Ok(())
        })
    })
}

/// Each side ends first; the other sends on. Then the far side resets a connection.
pub(crate) fn half_closed() -> Result<()> {
    let world = World::new(Implementation::WireguardGo)?;
    let listener = world.listen(9)?;
    thread::spawn(move || {
        // The first client ends first.
        let (mut stream, _) = listener.accept()?;
        let mut question = Vec::new();
        stream.read_to_end(&mut question)?;
        stream.write_all(&question.repeat(100_000))?;
        drop(stream);
        // The second client sends on after this side's end.
        let (mut stream, _) = listener.accept()?;
        stream.write_all(b"end")?;
        stream.shutdown(std::net::Shutdown::Write)?;
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest)?;
        let is_whole = rest == b"taupe".repeat(100_000);
        drop(stream);
        // The third is reset, and so is the fourth if the second was wrong.
        for _ in 0..2 {
            let (mut stream, _) = listener.accept()?;
            stream.read_exact(&mut [0])?;
            if !is_whole {
                SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
            }
            stream.write_all(b"y")?;
            stream.read_exact(&mut [0])?;
            SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
        }
        Ok::<_, std::io::Error>(())
    });
    world.run(async || {
        let tunnel = world.tunnel().await?;
        step("this side ends first");
        let mut stream = io("connecting", tunnel.connect_tcp(beyond(9)).await)?;
        io("sending", stream.write_all(b"taupe").await)?;
        io("end", stream.shutdown().await)?;
        let late = stream.write_all(b"x").await;
        fails("a write after the end", late, ErrorKind::BrokenPipe)?;
        let mut answer = Vec::new();
        io("receiving", stream.read_to_end(&mut answer).await)?;
        ensure!(answer == b"taupe".repeat(100_000), "{} bytes", answer.len());
        drop(stream);

        step("the far side ends first, and this one drops what it has written");
        let mut stream = io("connecting", tunnel.connect_tcp(beyond(9)).await)?;
        let mut answer = Vec::new();
        io("receiving", stream.read_to_end(&mut answer).await)?;
        ensure!(answer == b"end", "{answer:?}");
        io("sending", stream.write_all(&b"taupe".repeat(100_000)).await)?;
        drop(stream);

        step("the far side resets");
        for _ in 0..2 {
            let mut stream = io("connecting", tunnel.connect_tcp(beyond(9)).await)?;
            io("sending", stream.write_all(b"xx").await)?;
            let mut byte = [0];
            io(
                "a server that has received all",
                stream.read_exact(&mut byte).await,
            )?;
            let result = stream.read(&mut byte).await;
            fails("reading", result, ErrorKind::ConnectionReset)?;
            let result = stream.write_all(b"x").await;
            fails("writing", result, ErrorKind::BrokenPipe)?;
        }
        tunnel.close().await;
        Ok(())
    })
}

/// A tunnel that is closed while connections carry data.
pub(crate) fn closed() -> Result<()> {
    let world = World::new(Implementation::WireguardGo)?;
    serve_echo(&world.far, beyond(7))?;
    world.run(async || {
        let tunnel = world.tunnel().await?;
        let port = tunnel.listen_port();
        let port = port.ok_or_else(|| Error::unmet("no port"))?;
        ensure!(world.near.listens(Transport::Udp, port)?, "port {port}");
        let listener = io("listener", tunnel.listen_tcp(80).await)?;
        let mut tasks = Vec::new();
        for _ in 0..10 {
            let stream = io("connecting", tunnel.connect_tcp(beyond(7)).await)?;
            let (mut reader, mut writer) = tokio::io::split(stream);
            tasks.push(tokio::spawn(async move {
                let error = tokio::io::copy(&mut reader, &mut tokio::io::sink()).await;
                error.err().map(|error| error.kind())
            }));
            tasks.push(tokio::spawn(async move {
                let error = tokio::io::copy(&mut tokio::io::repeat(7), &mut writer).await;
                error.err().map(|error| error.kind())
            }));
        }
        tasks.push(tokio::spawn(async move {
            let error = listener.accept().await;
            error.err().map(|error| error.kind())
        }));
        let deadline = Instant::now() + PATIENCE;
        loop {
            let state = io("state", tunnel.state().await)?;
            if state
                .peers
                .iter()
                .all(|peer| peer.received_bytes > 1_000_000)
            {
                break;
            }
            ensure!(Instant::now() < deadline, "nothing moves: {state:?}");
            tokio::task::yield_now().await;
        }
        tunnel.close().await;
        ensure!(!world.near.listens(Transport::Udp, port)?, "port {port}");
        for task in tasks {
            let kind = task
                .await
                .map_err(|error| Error::unmet(error.to_string()))?;
            ensure!(kind == Some(ErrorKind::ConnectionAborted), "{kind:?}");
        }
        wait_for_end()
    })
}

/// A tunnel and sockets that are dropped in any order, and a future that is dropped while it
/// connects.
pub(crate) fn dropped() -> Result<()> {
    let world = World::new(Implementation::WireguardGo)?;
    serve_echo(&world.far, beyond(7))?;
    world.run(async || {
        let tunnel = world.tunnel().await?;
        step("an attempt that nobody waits for ends");
        let nobody = "198.51.100.9:7"
            .parse()
            .map_err(|_| Error::unmet("address"))?;
        let attempt = tunnel.connect_tcp(nobody);
        let limit = Duration::from_millis(200);
        let attempt = tokio::time::timeout(limit, attempt).await;
        ensure!(attempt.is_err(), "198.51.100.9 answers");
        let mut stream = io("connecting", tunnel.connect_tcp(beyond(7)).await)?;
        io("sending", stream.write_all(b"taupe").await)?;
        let mut answer = [0; 5];
        io("receiving", stream.read_exact(&mut answer).await)?;
        // Long before its own limit.
        let deadline = Instant::now() + CONNECT_TIMEOUT / 2;
        while io("state", tunnel.state().await)?.connections > 1 {
            ensure!(Instant::now() < deadline, "the attempt goes on");
            tokio::task::yield_now().await;
        }

        step("the tunnel, before its connection");
        let port = tunnel.listen_port();
        let port = port.ok_or_else(|| Error::unmet("no port"))?;
        drop(tunnel);
        let result = stream.read(&mut answer).await;
        fails("reading", result, ErrorKind::ConnectionAborted)?;
        let result = stream.write_all(b"x").await;
        fails("writing", result, ErrorKind::ConnectionAborted)?;
        wait_until("the end of the UDP socket", PATIENCE, || {
            Ok(!world.near.listens(Transport::Udp, port)?)
        })?;
        wait_for_end()?;
        drop(stream);

        step("a connection, before its tunnel");
        let tunnel = world.tunnel().await?;
        let stream = io("connecting", tunnel.connect_tcp(beyond(7)).await)?;
        drop(stream);
        drop(tunnel);
        wait_for_end()
    })
}
