//! Echoes the data of all connections from a tunnel to a port: `listener FILE PORT`.

use std::error::Error;
use taupe_tunnel::Tunnel;
use tokio::io::{AsyncWriteExt as _, copy, split};

fn main() -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(listen())
}

async fn listen() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(file), Some(port)) = (arguments.next(), arguments.next()) else {
        return Err("give a configuration file and a port".into());
    };
    let tunnel = Tunnel::connect(&*std::fs::read_to_string(file)?).await?;
    let listener = tunnel.listen_tcp(port.parse()?).await?;
    let addresses: Vec<_> = tunnel.addresses().collect();
    println!("listening at {addresses:?}, port {port}");
    loop {
        let (stream, from) = listener.accept().await?;
        println!("{from} connected");
        tokio::spawn(async move {
            let (mut reader, mut writer) = split(stream);
            let copied = copy(&mut reader, &mut writer).await?;
            println!("{from}: {copied} bytes");
            writer.shutdown().await
        });
    }
}
