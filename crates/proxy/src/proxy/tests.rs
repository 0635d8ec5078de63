//! Tests of client sockets' options, as the kernel shows them.

use super::Proxy;
use crate::Options;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use taupe_protocol::update::DeviceUpdate;

/// Timer code of a connection with TCP keepalive (proc_net_tcp(5): `tr`).
const KEEPALIVE_TIMER: &str = "02:";

/// Returns the timer code of the accepted side of a connection.
fn timer(ours: SocketAddr, theirs: SocketAddr) -> Option<String> {
    const ESTABLISHED: &str = "01";
    let text = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let is_port = |field: &str, at: SocketAddr| field.ends_with(&format!(":{:04X}", at.port()));
    text.lines().find_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let is_it = is_port(fields[1], ours) && is_port(fields[2], theirs);
        (is_it && fields[3] == ESTABLISHED).then(|| fields[5].to_owned())
    })
}

#[test]
fn silent_clients_are_probed_with_keepalives() {
    let proxy = Proxy::start(Options {
        device: DeviceUpdate::default(),
        listen_port: 0,
        v4: Some("10.0.0.2".parse().unwrap()),
        v6: None,
        mtu: 1420,
        dns: Vec::new(),
        socks5: vec!["127.0.0.1:0".parse().unwrap()],
        http: Vec::new(),
        forwards: Vec::new(),
        credentials: None,
        // There is no private key, so no state is read or written there.
        state_dir: Some(std::env::temp_dir()),
        notices: None,
    });
    let proxy = proxy.ok().unwrap();
    let (at, stopper) = (proxy.listening().unwrap()[0], proxy.stopper());
    let running = std::thread::spawn(move || proxy.run().is_ok());
    let client = TcpStream::connect(at).unwrap();
    let end = Instant::now() + Duration::from_secs(10);
    let mut last = None;
    while Instant::now() < end {
        last = timer(at, client.local_addr().unwrap());
        if last
            .as_ref()
            .is_some_and(|timer| timer.starts_with(KEEPALIVE_TIMER))
        {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    stopper.stop();
    assert!(running.join().unwrap());
    let last = last.unwrap();
    assert!(last.starts_with(KEEPALIVE_TIMER), "{last}");
}
