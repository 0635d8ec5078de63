//! `taupe.exe proxy`, with a Taupe on Linux at the other end of its tunnel.

use crate::wine::{built, launcher};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;
use taupe_lab::host::{Host, Transport, add_address, neighbours};
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::{scratch, scratch_file, step};
use taupe_lab::server::Server;
use taupe_lab::{Error, Result, ensure};

/// Reachable only through the tunnel.
const BEYOND: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);

const SOCKS: u16 = 1080;

/// Time limit for Wine's start on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A file fetched through SOCKS equals the served one.
pub(crate) fn file() -> Result<()> {
    let (near, far) = neighbours()?;
    add_address(&far, "lo", &BEYOND.to_string())?;
    let server = Server::start(&near, &far)?;
    // Larger than all windows and buffers of the path, without repetitions.
    let content: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
    serve(&far, content.clone())?;

    step("start");
    let text = server.file("", "AllowedIPs = 0.0.0.0/0");
    // In the format of Notepad.
    let text = format!("\u{feff}{}", text.replace('\n', "\r\n"));
    let conf = scratch_file("tunnel.conf", &text)?;
    let program = built().join("taupe.exe").display().to_string();
    let words = launcher()?;
    let [env, prefix, wine] = words.each_ref().map(String::as_str);
    let listen = format!("127.0.0.1:{SOCKS}");
    let command = [
        env, prefix, wine, &program, "proxy", &conf, "--socks5", &listen,
    ];
    let mut proxy = near.spawn(&command)?;
    wait_until("the proxy", PATIENCE, || {
        ensure!(proxy.runs()?, "it has ended: {}", proxy.output());
        near.listens(Transport::Tcp, SOCKS)
    })?;

    step("fetch");
    let fetched = scratch("fetched").display().to_string();
    let (by, url) = (
        format!("socks5h://{listen}"),
        format!("http://{BEYOND}/file"),
    );
    let curl = [
        "curl",
        "-sS",
        "--fail",
        "--max-time",
        "60",
        "--proxy",
        &by,
        "-o",
        &fetched,
        &url,
    ];
    near.run(&curl)?;
    let found = fs::read(&fetched).map_err(Error::io(&*fetched))?;
    ensure!(
        found == content,
        "{} bytes, others than were served",
        found.len()
    );

    step("what is not in AllowedIPs");
    let elsewhere = [
        "curl",
        "-sS",
        "--max-time",
        "20",
        "--proxy",
        &by,
        "http://[2001:db8::9]/",
    ];
    let refused = near.attempt(&elsewhere)?;
    ensure!(
        refused.status != Some(0),
        "the page was fetched, bypassing the tunnel"
    );
    ensure!(proxy.runs()?, "it has ended: {}", proxy.output());
    Ok(())
}

/// Serves one file by HTTP, until the test ends.
fn serve(host: &Host, content: Vec<u8>) -> Result<()> {
    let at = SocketAddr::from((BEYOND, 80));
    let listener = host.enter(|| TcpListener::bind(at).map_err(Error::io(at.to_string())))?;
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut serve = || {
                let (mut head, mut byte) = (Vec::new(), [0]);
                while !head.ends_with(b"\r\n\r\n") {
                    stream.read_exact(&mut byte)?;
                    head.extend(byte);
                }
                let length = content.len();
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
                stream.write_all(head.as_bytes())?;
                stream.write_all(&content)
            };
            // A client may disconnect early.
            let _: std::io::Result<()> = serve();
        }
    });
    Ok(())
}
