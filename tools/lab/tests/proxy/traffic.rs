//! Traffic of programs through a proxy.

use crate::socks::connected;
use crate::world::{
    BEYOND, ECHO, HTTP, NAME_SERVER, PATIENCE, PORT, SOCKS, TUNNEL, WEB, World, end, listen,
    serve_names, serve_web,
};
use rustix::process::{Resource, getrlimit, setrlimit};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use taupe_lab::capture::Capture;
use taupe_lab::host::Transport;
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::{figure, step};
use taupe_lab::traffic::serve_echo;
use taupe_lab::{Error, Result, ensure};

/// Clients by SOCKS and by HTTP, by address and by name, of both families.
pub(crate) fn curl() -> Result<()> {
    let world = World::new()?;
    for address in BEYOND {
        serve_web(&world.far, SocketAddr::new(address, WEB))?;
    }
    let queries = serve_names(&world.far)?;
    let proxy = world.proxy(&world.full()?, &[])?;
    let (socks, http) = (format!("socks5h://{SOCKS}"), format!("http://{HTTP}"));
    let urls = [
        ("http://198.51.100.1/who?is=it", TUNNEL[0]),
        ("http://[2001:db8:5::1]/who?is=it", TUNNEL[1]),
        ("http://a.v4.example/who?is=it", TUNNEL[0]),
        ("http://a.both.example/who?is=it", TUNNEL[1]),
        ("http://long.v4.example/who?is=it", TUNNEL[0]),
    ];
    for proxy in [
        &["--proxy", &*socks][..],
        &["--proxy", &http],
        &["--proxy", &http, "-p"],
    ] {
        for (url, client) in urls {
            step(&format!("{url} by {proxy:?}"));
            let output = world.curl(&[proxy, &[url]].concat())?;
            let expected = format!("{client}\nGET /who?is=it HTTP/1.1\r\n");
            ensure!(output.starts_with(&expected), "{output}");
        }
    }
    step("content");
    let content = "x".repeat(100_000);
    let post = ["--data-binary", &*content, "-H", "Expect:", urls[0].0];
    for proxy in [&socks, &http] {
        let output = world.curl(&[&["--proxy", &**proxy], &post[..]].concat())?;
        ensure!(output.ends_with(&content), "{} bytes", output.len());
        ensure!(
            !output.contains("Proxy-"),
            "the server learns of the proxy: {output}"
        );
    }
    let queries = queries.lock().map_err(|_| Error::unmet("names"))?.clone();
    let of = |name: &str, transport| {
        let times = queries
            .iter()
            .filter(|one| **one == (name.to_owned(), transport));
        times.count()
    };
    // One question for each family: the answers are cached.
    ensure!(of("a.both.example", Transport::Udp) == 2, "{queries:?}");
    ensure!(of("long.v4.example", Transport::Tcp) == 2, "{queries:?}");
    end(proxy)
}

/// Only WireGuard is on the wire, and the system's resolver gets no question.
pub(crate) fn names() -> Result<()> {
    let world = World::new()?;
    serve_web(&world.far, SocketAddr::new(BEYOND[0], WEB))?;
    let queries = serve_names(&world.far)?;
    // A default route, with the system's name server behind it, so that a leak would be possible.
    world
        .near
        .ip(&["route", "add", "default", "via", "192.0.2.2"])?;
    // The system rejects packets to a proxy that has ended with ICMP errors that quote them.
    let not_wireguard = format!(
        "not (udp port {PORT} and host 192.0.2.2) and not arp and not ip6 multicast and not icmp6 \
         and not (icmp[icmptype] == icmp-unreach and icmp[28:2] == {PORT})"
    );
    let wire = Capture::start(&world.near, "eth0", &not_wireguard)?;
    let local = Capture::start(&world.near, "lo", "udp or tcp port 53")?;
    let proxy = world.proxy(&world.full()?, &[])?;
    let (socks, http) = (format!("socks5h://{SOCKS}"), format!("http://{HTTP}"));
    for proxy in [&socks, &http] {
        let result = world.curl(&["--proxy", proxy, "http://b.v4.example/"])?;
        ensure!(result.starts_with("10.77.0.1\n"), "{result}");
        // A name that does not exist, and a forbidden destination.
        for url in [
            "http://nobody.example/",
            "http://127.0.0.1/",
            "http://localhost/",
        ] {
            let failed = world.curl(&["--proxy", proxy, url]);
            ensure!(failed.is_err(), "{url}: {failed:?}");
        }
    }
    end(proxy)?;
    step("without name servers");
    let file = world.file("", "AllowedIPs = 0.0.0.0/0, ::/0")?;
    let proxy = world.proxy(&file, &[])?;
    ensure!(
        proxy.output().contains("names cannot be looked up"),
        "{}",
        proxy.output()
    );
    let failed = world.curl(&["--proxy", &socks, "http://c.v4.example/"]);
    ensure!(failed.is_err(), "a name without a name server: {failed:?}");
    let result = world.curl(&["--proxy", &socks, "http://198.51.100.1/"])?;
    ensure!(result.starts_with("10.77.0.1\n"), "{result}");
    end(proxy)?;
    for (capture, place) in [(wire, "the uplink"), (local, "loopback")] {
        let packets = capture.stop()?;
        ensure!(packets.is_empty(), "{place}: {packets:?}");
    }
    let queries = queries.lock().map_err(|_| Error::unmet("names"))?;
    let mut names: Vec<_> = queries.iter().map(|(name, _)| &**name).collect();
    names.dedup();
    ensure!(names == ["b.v4.example", "nobody.example"], "{names:?}");
    Ok(())
}

/// A thousand simultaneous connections, each with bytes of its own.
pub(crate) fn thousand() -> Result<()> {
    const COUNT: usize = 1000;
    // This process holds clients and servers of all connections.
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).map_err(Error::io("limit of descriptors"))?;
    let world = World::new()?;
    let echo = SocketAddr::new(BEYOND[0], ECHO);
    serve_echo(&world.far, echo)?;
    let proxy = world.proxy(&world.full()?, &[])?;
    let start = Instant::now();
    let mut streams = Vec::new();
    for _ in 0..COUNT {
        streams.push(connected(&world, echo)?);
    }
    figure("a thousand connections made", start.elapsed());
    let start = Instant::now();
    let word = |number: usize| format!("{number:04}").repeat(256);
    for (number, stream) in streams.iter_mut().enumerate() {
        let written = stream.write_all(word(number).as_bytes());
        written.map_err(Error::io("writing"))?;
    }
    for (number, stream) in streams.iter_mut().enumerate() {
        let mut back = vec![0; word(number).len()];
        stream.read_exact(&mut back).map_err(Error::io("reading"))?;
        ensure!(back == word(number).as_bytes(), "connection {number}");
    }
    figure("a kilobyte to and fro on each", start.elapsed());
    drop(streams);
    let stream = connected(&world, echo)?;
    exchange(stream, 1 << 20, 9)?;
    end(proxy)
}

/// One datagram in a hundred is lost in each direction.
pub(crate) fn lossy() -> Result<()> {
    const RELAY: u16 = 51999;
    const LENGTH: usize = 2 << 20;
    let world = World::new()?;
    let lost = lose(&world, RELAY, 100)?;
    let address = SocketAddr::new(BEYOND[0], 9000);
    let listener = listen(&world.far, address)?;
    let everything = "AllowedIPs = 0.0.0.0/0";
    let file = world.file_to(&world.server.keys.public, RELAY, "", everything)?;
    let proxy = world.proxy(&file, &[])?;
    let mut bytes = vec![0; LENGTH];
    fastrand::Rng::with_seed(1).fill(&mut bytes);
    let pair = || -> Result<(TcpStream, TcpStream)> {
        // The first handshake may be lost.
        let mut client = None;
        wait_until("a connection", PATIENCE, || {
            client = connected(&world, address).ok();
            Ok(client.is_some())
        })?;
        let (server, _) = listener.accept().map_err(Error::io("accept"))?;
        let client = client.ok_or_else(|| Error::unmet("no connection"))?;
        Ok((client, server))
    };
    for way in ["up", "down"] {
        let (client, server) = pair()?;
        let (from, to) = if way == "up" {
            (client, server)
        } else {
            (server, client)
        };
        let start = Instant::now();
        carry(from, to, &bytes)?;
        figure(&format!("{LENGTH} bytes {way}"), start.elapsed());
    }
    step("both at once");
    let echo = SocketAddr::new(BEYOND[0], ECHO);
    serve_echo(&world.far, echo)?;
    let start = Instant::now();
    exchange(connected(&world, echo)?, LENGTH / 8, 1)?;
    figure(&format!("{} bytes to and fro", LENGTH / 8), start.elapsed());
    let lost = lost.load(Ordering::Relaxed);
    figure("datagrams lost", lost);
    ensure!(lost > 10, "only {lost} were lost");
    end(proxy)
}

/// Forwards datagrams between the proxy and the WireGuard server, except one of `every`.
fn lose(world: &World, port: u16, every: u64) -> Result<Arc<AtomicU64>> {
    let (outer, inner) = world.far.enter(|| {
        let outer = UdpSocket::bind(("192.0.2.2", port)).map_err(Error::io("relay"))?;
        let inner = UdpSocket::bind("127.0.0.1:0").map_err(Error::io("relay"))?;
        inner
            .connect(("127.0.0.1", PORT))
            .map_err(Error::io("relay"))?;
        Ok((Arc::new(outer), Arc::new(inner)))
    })?;
    let lost = Arc::new(AtomicU64::new(0));
    let client = Arc::new(std::sync::Mutex::new(None::<SocketAddr>));
    let (from, to, who) = (Arc::clone(&outer), Arc::clone(&inner), Arc::clone(&client));
    let carry = move |lost: Arc<AtomicU64>, back: bool| {
        let mut random = fastrand::Rng::with_seed(7 + u64::from(back));
        let mut buffer = [0; 2048];
        loop {
            let length = if back {
                to.recv(&mut buffer)
            } else {
                from.recv_from(&mut buffer).map(|(length, from)| {
                    *who.lock()
                        .unwrap_or_else(std::sync::PoisonError::into_inner) = Some(from);
                    length
                })
            };
            let Ok(length) = length else { continue };
            if random.u64(0..every) == 0 {
                lost.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let client = *who
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            let _ = match (back, client) {
                (false, _) => to.send(&buffer[..length]),
                (true, Some(client)) => from.send_to(&buffer[..length], client),
                (true, None) => continue,
            };
        }
    };
    for back in [false, true] {
        let (carry, lost) = (carry.clone(), Arc::clone(&lost));
        thread::spawn(move || carry(lost, back));
    }
    Ok(lost)
}

/// Sends bytes from one end to the other, and compares them.
fn carry(from: TcpStream, to: TcpStream, bytes: &[u8]) -> Result<()> {
    let limit = Some(Duration::from_secs(60));
    to.set_read_timeout(limit).map_err(Error::io("stream"))?;
    from.set_read_timeout(limit).map_err(Error::io("stream"))?;
    from.set_write_timeout(limit).map_err(Error::io("stream"))?;
    thread::scope(|scope| {
        let writing = scope.spawn(move || {
            (&from).write_all(bytes)?;
            from.shutdown(Shutdown::Write)?;
            // Waits until the other side closes.
            (&from).read(&mut [0])
        });
        let mut got = Vec::new();
        (&to)
            .read_to_end(&mut got)
            .map_err(Error::io("what comes"))?;
        drop(to);
        let written = writing
            .join()
            .map_err(|_| Error::unmet("the writer panicked"))?;
        written.map_err(Error::io("what is sent"))?;
        ensure!(
            got.len() == bytes.len(),
            "{} of {} bytes",
            got.len(),
            bytes.len()
        );
        ensure!(got == *bytes, "other bytes");
        Ok(())
    })
}

/// Sends bytes to an echo server while it reads them back, and compares them.
fn exchange(stream: TcpStream, length: usize, seed: u64) -> Result<()> {
    let mut sent = vec![0; length];
    fastrand::Rng::with_seed(seed).fill(&mut sent);
    let writer = stream.try_clone().map_err(Error::io("stream"))?;
    let limit = Some(Duration::from_secs(60));
    stream
        .set_read_timeout(limit)
        .map_err(Error::io("stream"))?;
    stream
        .set_write_timeout(limit)
        .map_err(Error::io("stream"))?;
    thread::scope(|scope| {
        let sent = &sent;
        let writing = scope.spawn(move || {
            (&writer).write_all(sent)?;
            writer.shutdown(Shutdown::Write)
        });
        let mut back = Vec::new();
        (&stream)
            .read_to_end(&mut back)
            .map_err(Error::io("what comes back"))?;
        let written = writing
            .join()
            .map_err(|_| Error::unmet("the writer panicked"))?;
        written.map_err(Error::io("what is sent"))?;
        ensure!(
            back.len() == sent.len(),
            "{} of {} bytes",
            back.len(),
            sent.len()
        );
        ensure!(back == *sent, "other bytes");
        Ok(())
    })
}

/// Python's own sockets, with a SOCKS client written for this test.
pub(crate) fn udp() -> Result<()> {
    const SCRIPT: &str = r#"
import socket, struct, sys
control = socket.create_connection(("127.0.0.1", 1080), timeout=30)
control.sendall(b"\5\1\0")
assert control.recv(2) == b"\5\0"
control.sendall(b"\5\3\0\1" + bytes(6))
reply = control.recv(10)
assert reply[:4] == b"\5\0\0\1", reply
relay = (socket.inet_ntoa(reply[4:8]), struct.unpack("!H", reply[8:])[0])
def client():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(2)
    return s
us, other = client(), client()
v4 = b"\1" + socket.inet_aton("198.51.100.1")
v6 = b"\4" + socket.inet_pton(socket.AF_INET6, "2001:db8:5::1")
name = b"\3\x0ca.v4.example"
def ask(header, word, s=us):
    for attempt in range(10):
        s.sendto(header + word, relay)
        try:
            answer = s.recv(65536)
        except TimeoutError:
            continue
        if answer.endswith(word):
            return answer
    raise SystemExit("no answer to %r" % word)
port = struct.pack("!H", 7)
for address, expected in (v4, v4), (v6, v6), (name, v4):
    word = b"hello " + address[:1] * 1000
    answer = ask(b"\0\0\0" + address + port, word)
    assert answer == b"\0\0\0" + expected + port + word, answer
# Fragments, other clients and what is no datagram of SOCKS are nothing.
us.sendto(b"\0\0\1" + v4 + port + b"fragment", relay)
us.sendto(b"\0\0", relay)
other.sendto(b"\0\0\0" + v4 + port + b"stranger", relay)
# Too long for the tunnel, and for nobody.
us.sendto(b"\0\0\0" + v4 + port + bytes(1500), relay)
us.sendto(b"\0\0\0\1" + bytes(4) + port + b"nobody", relay)
for s in us, other:
    try:
        raise SystemExit("an answer: %r" % s.recv(65536))
    except TimeoutError:
        pass
ask(b"\0\0\0" + v4 + port, b"last")
# It lives as long as the connection.
control.close()
us.connect(relay)
for attempt in range(100):
    try:
        us.send(b"\0\0\0" + v4 + port + b"after")
        us.settimeout(0.1)
        us.recv(65536)
    except ConnectionRefusedError:
        print("done")
        sys.exit(0)
    except TimeoutError:
        pass
raise SystemExit("the association outlives its connection")
"#;
    let world = World::new()?;
    serve_names(&world.far)?;
    let words = Arc::new(std::sync::Mutex::new(Vec::new()));
    for address in BEYOND {
        let bind = || UdpSocket::bind((address, ECHO)).map_err(Error::io("echo"));
        let socket = world.far.enter(bind)?;
        let words = Arc::clone(&words);
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                if let Ok(mut words) = words.lock() {
                    words.push(buffer[..length].to_vec());
                }
                let _ = socket.send_to(&buffer[..length], from);
            }
        });
    }
    let proxy = world.proxy(&world.full()?, &[])?;
    let output = world.near.run(&["/usr/bin/python3", "-c", SCRIPT])?;
    ensure!(output.text() == "done", "{}", output.stdout);
    let words = words.lock().map_err(|_| Error::unmet("words"))?;
    let is_forbidden = |word: &&Vec<u8>| {
        [&b"fragment"[..], b"stranger", b"nobody"].contains(&word.as_slice()) || word.len() == 1500
    };
    let forbidden = words.iter().find(is_forbidden);
    ensure!(forbidden.is_none(), "{forbidden:?} has arrived");
    end(proxy)
}

/// One side finishes sending, or resets the connection, or the proxy ends.
pub(crate) fn ends() -> Result<()> {
    let world = World::new()?;
    let address = SocketAddr::new(BEYOND[0], 9000);
    let listener = listen(&world.far, address)?;
    let proxy = world.proxy(&world.full()?, &[])?;
    let pair = || -> Result<(TcpStream, TcpStream)> {
        let client = connected(&world, address)?;
        let (server, _) = listener.accept().map_err(Error::io("accept"))?;
        let limit = Some(PATIENCE);
        server
            .set_read_timeout(limit)
            .map_err(Error::io("socket"))?;
        Ok((client, server))
    };
    let read_all = |mut stream: &TcpStream| {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).map(|_| all)
    };
    let io = || Error::io("stream");

    step("the client says all it has to say, and the server answers for a while");
    let (mut client, mut server) = pair()?;
    client.write_all(b"question").map_err(io())?;
    client.shutdown(Shutdown::Write).map_err(io())?;
    ensure!(
        read_all(&server).map_err(io())? == b"question",
        "the question"
    );
    for _ in 0..3 {
        server.write_all(b"answer").map_err(io())?;
        let mut answer = [0; 6];
        client.read_exact(&mut answer).map_err(io())?;
    }
    drop(server);
    ensure!(read_all(&client).map_err(io())?.is_empty(), "after the end");

    step("the server does");
    let (mut client, mut server) = pair()?;
    server.write_all(b"greeting").map_err(io())?;
    server.shutdown(Shutdown::Write).map_err(io())?;
    ensure!(
        read_all(&client).map_err(io())? == b"greeting",
        "the greeting"
    );
    client.write_all(b"later").map_err(io())?;
    let mut later = [0; 5];
    server.read_exact(&mut later).map_err(io())?;
    drop(client);
    ensure!(read_all(&server).map_err(io())?.is_empty(), "after the end");

    step("either breaks off: what has come must not look whole");
    let reset = |stream: &TcpStream| {
        let linger = Some(Duration::ZERO);
        rustix::net::sockopt::set_socket_linger(stream, linger).map_err(Error::io("linger"))
    };
    let is_reset = |stream: &TcpStream, who: &str| {
        let end = read_all(stream);
        let kind = end.as_ref().map_err(std::io::Error::kind).err();
        ensure!(kind == Some(ErrorKind::ConnectionReset), "{who}: {end:?}");
        Ok(())
    };
    let (client, mut server) = pair()?;
    server.write_all(b"half of it").map_err(io())?;
    let mut half = [0; 10];
    (&client).read_exact(&mut half).map_err(io())?;
    reset(&server)?;
    drop(server);
    is_reset(&client, "the client")?;
    let (client, server) = pair()?;
    reset(&client)?;
    drop(client);
    is_reset(&server, "the server")?;

    step("the proxy ends");
    let (client, server) = pair()?;
    end(proxy)?;
    is_reset(&client, "the client")?;
    is_reset(&server, "the server")
}

/// A client that does not read blocks only its own sender.
pub(crate) fn slow_reader() -> Result<()> {
    const MOST: usize = 64 << 20;
    let world = World::new()?;
    let address = SocketAddr::new(BEYOND[0], 9000);
    let listener = listen(&world.far, address)?;
    let echo = SocketAddr::new(BEYOND[0], ECHO);
    serve_echo(&world.far, echo)?;
    let proxy = world.proxy(&world.full()?, &[])?;
    let client = connected(&world, address)?;
    let (server, _) = listener.accept().map_err(Error::io("accept"))?;
    let stalled = Some(Duration::from_secs(3));
    server
        .set_write_timeout(stalled)
        .map_err(Error::io("socket"))?;
    let chunk: Vec<u8> = (0..1 << 16).map(|at| (at % 251) as u8).collect();
    let mut sent = 0;
    loop {
        match (&server).write(&chunk[sent % chunk.len()..]) {
            Ok(count) => sent += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => return Err(Error::io("writing")(error)),
        }
        ensure!(sent < MOST, "nothing holds up the sender");
    }
    figure("bytes on the way to a client that does not read", sent);
    exchange(connected(&world, echo)?, 1 << 20, 3)?;
    step("it reads, and has lost nothing");
    server
        .shutdown(Shutdown::Write)
        .map_err(Error::io("shutdown"))?;
    let mut all = Vec::new();
    (&client)
        .read_to_end(&mut all)
        .map_err(Error::io("reading"))?;
    ensure!(all.len() == sent, "{} of {sent} bytes", all.len());
    let wrong = all
        .iter()
        .enumerate()
        .find(|(at, byte)| chunk[at % chunk.len()] != **byte);
    ensure!(wrong.is_none(), "another byte at {wrong:?}");
    end(proxy)
}

/// A local port forwarded to one host, by its name.
pub(crate) fn forwarded() -> Result<()> {
    let world = World::new()?;
    serve_web(&world.far, SocketAddr::new(BEYOND[0], WEB))?;
    serve_names(&world.far)?;
    #[rustfmt::skip]
    let more = [
        "--forward", "8080:web.v4.example:80",
        "--forward", "[::1]:8081:198.51.100.1:80",
        "--forward", "8082:198.51.100.1:81",
    ];
    let proxy = world.proxy(&world.full()?, &more)?;
    for url in ["http://127.0.0.1:8080/", "http://[::1]:8081/"] {
        let result = world.curl(&[url])?;
        ensure!(result.starts_with("10.77.0.1\n"), "{url}: {result}");
    }
    let mut refused = world.connect(SocketAddr::new([127, 0, 0, 1].into(), 8082))?;
    let end_of_it = refused.read(&mut [0]);
    ensure!(
        end_of_it
            .as_ref()
            .is_err_and(|error| error.kind() == ErrorKind::ConnectionReset),
        "nobody is there: {end_of_it:?}"
    );
    let result = proxy.output();
    let expected = [
        "SOCKS 5 at 127.0.0.1:1080: curl --proxy socks5h://127.0.0.1:1080 ",
        "HTTP proxy at 127.0.0.1:8118: curl --proxy http://127.0.0.1:8118 ",
        "127.0.0.1:8080 is forwarded to web.v4.example:80",
        &format!("names are looked up by {NAME_SERVER}, through the tunnel"),
    ];
    for line in expected {
        ensure!(result.contains(line), "{line:?} is not in {result}");
    }
    end(proxy)
}
