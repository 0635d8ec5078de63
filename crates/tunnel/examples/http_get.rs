//! Gets a page through a tunnel: `http_get FILE HOST [PATH]`, with a `wg-quick` file.

use std::error::Error;
use taupe_tunnel::Tunnel;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

fn main() -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(get())
}

async fn get() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(file), Some(host)) = (arguments.next(), arguments.next()) else {
        return Err("give a configuration file and a host".into());
    };
    let path = arguments.next().unwrap_or("/".to_owned());
    let tunnel = Tunnel::connect(&*std::fs::read_to_string(file)?).await?;
    let mut stream = tunnel.connect_host(&host, 80).await?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    println!("{}", String::from_utf8_lossy(&answer));
    tunnel.close().await;
    Ok(())
}
