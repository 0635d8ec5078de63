//! Sends a datagram through a tunnel and prints the answer: `udp_echo FILE ADDRESS:PORT [TEXT]`.

use std::error::Error;
use std::time::Duration;
use taupe_tunnel::Tunnel;
use tokio::time::timeout;

fn main() -> Result<(), Box<dyn Error>> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().build()?.block_on(echo())
}

async fn echo() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(file), Some(remote)) = (arguments.next(), arguments.next()) else {
        return Err("give a configuration file, and an address with a port".into());
    };
    let text = arguments.next().unwrap_or("taupe".to_owned());
    let tunnel = Tunnel::connect(&*std::fs::read_to_string(file)?).await?;
    let socket = tunnel.bind_udp(0).await?;
    let mut buffer = [0; 1500];
    for _ in 0..3 {
        socket.send_to(text.as_bytes(), remote.parse()?).await?;
        let answer = timeout(Duration::from_secs(5), socket.recv_from(&mut buffer)).await;
        if let Ok(answer) = answer {
            let (length, from) = answer?;
            println!("{from}: {}", String::from_utf8_lossy(&buffer[..length]));
            return Ok(());
        }
    }
    Err("no answer".into())
}
