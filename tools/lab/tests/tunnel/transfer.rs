//! Many bytes, and many connections.

use crate::world::{World, beyond, io};
use fastrand::Rng;
use std::time::Instant;
use taupe_lab::peers::Implementation;
use taupe_lab::sandbox::figure;
use taupe_lab::traffic::serve_echo;
use taupe_lab::{Error, Result, ensure};
use taupe_tunnel::TcpStream;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// 64 MB to an echo server and back, both at once.
pub(crate) fn both_ways() -> Result<()> {
    const LENGTH: usize = 64_000_000;
    let world = World::new(Implementation::WireguardGo)?;
    serve_echo(&world.far, beyond(7))?;
    world.run(async || {
        let tunnel = world.tunnel().await?;
        let stream = io("connecting", tunnel.connect_tcp(beyond(7)).await)?;
        let start = Instant::now();
        echo(stream, LENGTH, 1).await?;
        figure("64 MB in each direction", start.elapsed());
        tunnel.close().await;
        Ok(())
    })
}

/// 100 connections at once, each with content of its own.
pub(crate) fn hundred() -> Result<()> {
    let world = World::new(Implementation::WireguardGo)?;
    serve_echo(&world.far, beyond(7))?;
    world.run(async || {
        let tunnel = world.tunnel().await?;
        // All are open before the first carries data.
        let mut streams = Vec::new();
        for _ in 0..100 {
            streams.push(io("connecting", tunnel.connect_tcp(beyond(7)).await)?);
        }
        let state = io("state", tunnel.state().await)?;
        ensure!(state.connections == 100, "{}", state.connections);
        let streams = streams.into_iter().zip(1..);
        let tasks: Vec<_> = streams
            .map(|(stream, seed)| tokio::spawn(echo(stream, 200_000, seed)))
            .collect();
        for task in tasks {
            let joined = task.await;
            joined.map_err(|error| Error::unmet(error.to_string()))??;
        }
        tunnel.close().await;
        Ok(())
    })
}

/// Sends `length` bytes and then the end, and checks that the same bytes and the end come back.
async fn echo(stream: TcpStream, length: usize, seed: u64) -> Result<()> {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let send = tokio::spawn(async move {
        let mut random = Rng::with_seed(seed);
        let mut left = length;
        let mut block = vec![0; 32 << 10];
        while left > 0 {
            random.fill(&mut block);
            let part = left.min(block.len());
            io("sending", writer.write_all(&block[..part]).await)?;
            left -= part;
        }
        io("end", writer.shutdown().await)
    });
    let mut random = Rng::with_seed(seed);
    let mut left = length;
    let mut expected = vec![0; 32 << 10];
    let mut block = expected.clone();
    while left > 0 {
        random.fill(&mut expected);
        let part = left.min(block.len());
        io("receiving", reader.read_exact(&mut block[..part]).await)?;
        ensure!(
            block[..part] == expected[..part],
            "{left} bytes before the end"
        );
        left -= part;
    }
    let rest = io("receiving the end", reader.read(&mut block).await)?;
    ensure!(rest == 0, "{rest} bytes after the end");
    let sent = send.await;
    sent.map_err(|error| Error::unmet(error.to_string()))?
}
