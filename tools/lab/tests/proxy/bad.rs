//! Errors, and their reports to clients.

use crate::socks::{CONNECT, ask, at, connected, named};
use crate::world::{
    BEYOND, ECHO, HTTP, PORT, SOCKS, WEB, World, end, owned, serve_names, serve_web,
};
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};
use taupe_lab::peers::Keys;
use taupe_lab::sandbox::{figure, step};
use taupe_lab::traffic::serve_echo;
use taupe_lab::{Error, Result, ensure};

/// Time limit of a connection, as documented in the manual.
const CONNECTING: Duration = Duration::from_secs(15);

/// Every reply code, with its cause.
pub(crate) fn replies() -> Result<()> {
    let world = World::new()?;
    serve_names(&world.far)?;
    let everywhere = "AllowedIPs = 10.77.0.0/24, 198.51.100.0/24, 203.0.113.0/24, 2001:db8:5::/48";
    let file = world.file("DNS = 10.77.0.53", everywhere)?;
    let proxy = world.proxy(&file, &[])?;
    // Routers that send ICMP errors.
    let far = &world.far;
    far.ip(&["route", "add", "unreachable", "203.0.113.1/32"])?;
    far.ip(&["route", "add", "prohibit", "203.0.113.2/32"])?;
    far.sysctl("net/ipv4/ip_forward", "1")?;
    far.sysctl("net/ipv4/conf/all/rp_filter", "0")?;
    let address = |text: &str| {
        let parsed = text.parse::<SocketAddr>();
        parsed.map_err(|error| Error::unmet(error.to_string()))
    };
    let connect = |rest: &[u8]| [&CONNECT[..], rest].concat();
    for (what, request, code) in [
        (
            "nobody listens",
            connect(&at(address("198.51.100.1:81")?)),
            5,
        ),
        ("over IPv6", connect(&at(address("[2001:db8:5::1]:81")?)), 5),
        ("of a name", connect(&named("a.v4.example", 81)), 5),
        (
            "of a name with two addresses",
            connect(&named("a.both.example", 81)),
            5,
        ),
        (
            "a router knows no way",
            connect(&at(address("203.0.113.1:80")?)),
            4,
        ),
        (
            "a router does not want to",
            connect(&at(address("203.0.113.2:80")?)),
            4,
        ),
        (
            "not in AllowedIPs",
            connect(&at(address("192.0.2.2:51821")?)),
            3,
        ),
        (
            "not over IPv6 either",
            connect(&at(address("[2001:db8::2]:80")?)),
            3,
        ),
        ("this machine", connect(&at(address("127.0.0.1:1080")?)), 3),
        ("no such name", connect(&named("nobody.example", 80)), 4),
        (
            "a name of this machine",
            connect(&named("localhost", 1080)),
            4,
        ),
        (
            "BIND",
            [&[5, 2, 0], &at(address("198.51.100.1:80")?)[..]].concat(),
            7,
        ),
        (
            "no such command",
            [&[5, 9, 0], &at(address("198.51.100.1:80")?)[..]].concat(),
            7,
        ),
        ("no such kind of address", vec![5, 1, 0, 2, 1], 8),
        ("no name", connect(&named("a b", 80)), 8),
        (
            "SOCKS 4 in the request",
            vec![4, 1, 0, 1, 1, 2, 3, 4, 0, 80],
            1,
        ),
    ] {
        step(what);
        let start = Instant::now();
        let (found, mut stream) = ask(&world, &request)?;
        ensure!(found == code, "{what}: reply {found}, not {code}");
        ensure!(
            start.elapsed() < CONNECTING,
            "{what}: after {:?}",
            start.elapsed()
        );
        let rest = stream.read(&mut [0]);
        ensure!(matches!(rest, Ok(0)), "{what}: after the reply {rest:?}");
    }
    step("the same by HTTP");
    for (url, code) in [
        ("http://198.51.100.1:81/", "502"),
        ("http://192.0.2.2/", "502"),
        ("http://nobody.example/", "502"),
        ("https://198.51.100.1:81/", "502"),
    ] {
        let proxy = format!("http://{HTTP}");
        let command = [
            "curl",
            "-sS",
            "-i",
            "--max-time",
            "30",
            "--proxy",
            &proxy,
            url,
        ];
        let attempt = world.near.attempt(&command)?;
        let output = format!("{}{}", attempt.stdout, attempt.stderr);
        ensure!(output.contains(code), "{url}: {output}");
    }
    end(proxy)
}

/// Clients that send invalid, too long or no requests, beside a correct one.
pub(crate) fn clients() -> Result<()> {
    let world = World::new()?;
    let echo = SocketAddr::new(BEYOND[0], ECHO);
    serve_echo(&world.far, echo)?;
    let mut proxy = world.proxy(&world.full()?, &[])?;
    let mut good = connected(&world, echo)?;
    let long = vec![b'A'; 100_000];
    for (to, words, expected) in [
        (SOCKS, &b"GET / HTTP/1.1\r\n\r\n"[..], &b""[..]),
        (SOCKS, b"\x04\x01\x00\x50\xc6\x33\x64\x01\x00", b""),
        (SOCKS, b"\x05\x00", b"\x05\xff"),
        (SOCKS, b"\x05\x01\x02", b"\x05\xff"),
        (
            SOCKS,
            b"\x05\x01\x00\x05\x01\x00\x05",
            b"\x05\x00\x05\x08\x00\x01\x00\x00\x00\x00\x00\x00",
        ),
        (SOCKS, &long, b""),
        (HTTP, b"\x05\x01\x00\r\n\r\n", b"HTTP/1.1 400 "),
        (HTTP, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"HTTP/1.1 400 "),
        (
            HTTP,
            b"GET http://a/ HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
            b"HTTP/1.1 400 ",
        ),
        (
            HTTP,
            b"POST http://a/ HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"HTTP/1.1 411 ",
        ),
        (HTTP, &long, b"HTTP/1.1 431 "),
    ] {
        let mut stream = world.connect(to)?;
        // The proxy may close the connection before all is written.
        let _ = stream.write_all(words);
        let mut answer = Vec::new();
        let read = stream.read_to_end(&mut answer);
        let shown = String::from_utf8_lossy(&words[..words.len().min(40)]).into_owned();
        let is_expected = match expected {
            b"" => answer.is_empty(),
            expected => answer.starts_with(expected),
        };
        ensure!(
            is_expected,
            "{shown:?}: {:?} {read:?}",
            String::from_utf8_lossy(&answer)
        );
        let timed_out = read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
        ensure!(!timed_out, "{shown:?}: the connection stays");
    }
    step("a request byte by byte");
    let mut slow = world.connect(SOCKS)?;
    for byte in [&[5, 1, 0, 5, 1, 0][..], &at(echo)].concat() {
        slow.write_all(&[byte]).map_err(Error::io("slow client"))?;
        thread::sleep(Duration::from_millis(5));
    }
    let mut replies = [0; 12];
    slow.read_exact(&mut replies)
        .map_err(Error::io("slow client"))?;
    ensure!(replies[..4] == [5, 0, 5, 0], "{replies:?}");
    step("all at once, with what is for the host");
    let mut hasty = world.connect(SOCKS)?;
    let words = [&[5, 1, 0, 5, 1, 0][..], &at(echo), b"early"].concat();
    hasty.write_all(&words).map_err(Error::io("hasty client"))?;
    let mut replies = [0; 12 + 5];
    hasty
        .read_exact(&mut replies)
        .map_err(Error::io("hasty client"))?;
    ensure!(replies.ends_with(b"early"), "{replies:?}");
    step("many that say nothing, or go at once");
    let silent: Vec<_> = (0..100)
        .map(|_| world.connect(SOCKS))
        .collect::<Result<_>>()?;
    for _ in 0..100 {
        drop(world.connect(HTTP)?);
    }
    good.write_all(b"still there")
        .map_err(Error::io("the good client"))?;
    let mut back = [0; 11];
    good.read_exact(&mut back)
        .map_err(Error::io("the good client"))?;
    ensure!(back == *b"still there", "{back:?}");
    drop(silent);
    ensure!(proxy.runs()?, "the proxy has ended: {}", proxy.output());
    end(proxy)
}

/// With a wrong server key the server never answers.
pub(crate) fn silent_peer() -> Result<()> {
    let world = World::new()?;
    let other = Keys::new(&world.near)?;
    let everything = "AllowedIPs = 0.0.0.0/0, ::/0";
    let file = world.file_to(&other.public, PORT, "DNS = 10.77.0.53", everything)?;
    let proxy = world.proxy(&file, &[])?;
    let world = &world;
    thread::scope(|scope| {
        let tries = [
            scope.spawn(move || by_socks(world, &at(SocketAddr::new(BEYOND[0], WEB)))),
            scope.spawn(move || by_socks(world, &named("a.v4.example", WEB))),
            scope.spawn(move || {
                let http = format!("http://{HTTP}");
                let command = ["curl", "-sS", "--max-time", "60", "--proxy", &http];
                let failed = world
                    .near
                    .run(&[&command[..], &["http://198.51.100.1/"]].concat());
                let result = failed?.stdout;
                ensure!(
                    result.contains("the tunnel's peer does not answer"),
                    "{result}"
                );
                Ok(())
            }),
        ];
        let start = Instant::now();
        for one in tries {
            one.join()
                .map_err(|_| Error::unmet("a client panicked"))??;
        }
        figure("refused after", start.elapsed());
        ensure!(
            start.elapsed() < 3 * CONNECTING,
            "only after {:?}",
            start.elapsed()
        );
        Ok(())
    })?;
    let result = proxy.output();
    let silent = format!("the tunnel's peer at 192.0.2.2:{PORT} has not answered for 10 s");
    ensure!(result.matches(&silent).count() == 1, "{result}");
    ensure!(!result.contains("no handshake"), "twice: {result}");
    end(proxy)
}

fn by_socks(world: &World, to: &[u8]) -> Result<()> {
    let (code, _) = ask(world, &[&CONNECT[..], to].concat())?;
    ensure!(code == 3, "reply {code}");
    Ok(())
}

/// Authentication of the proxy's users.
pub(crate) fn passwords() -> Result<()> {
    let world = World::new()?;
    serve_web(&world.far, SocketAddr::new(BEYOND[0], WEB))?;
    let users = owned("users", "# who may\nalice:se:cret\nbob:other\n")?;
    // A listener for everybody who can reach this machine.
    let open = "192.0.2.1:1081";
    let more = ["--auth-file", &*users, "--socks5", open];
    let proxy = world.proxy(&world.full()?, &more)?;
    let url = "http://198.51.100.1/";
    for kind in ["socks5h", "http"] {
        let at = if kind == "http" { HTTP } else { SOCKS };
        for (user, is_admitted) in [
            ("alice:se:cret@", true),
            ("bob:other@", true),
            ("alice:other@", false),
            ("bob:@", false),
            ("", false),
        ] {
            // A URL must escape a colon in a password.
            let user = user.replacen(":cret", "%3Acret", 1);
            let output = world.curl(&["--proxy", &format!("{kind}://{user}{at}"), url]);
            ensure!(output.is_ok() == is_admitted, "{kind} {user:?}: {output:?}");
        }
    }
    let far = format!("socks5h://bob:other@{open}");
    let command = ["curl", "-sS", "--max-time", "30", "--proxy", &far, url];
    let output = world.far.run(&command)?.stdout;
    ensure!(
        output.starts_with("10.77.0.1\n"),
        "from another machine: {output}"
    );
    let answer =
        world
            .near
            .attempt(&["curl", "-sSi", "--proxy", &format!("http://{HTTP}"), url])?;
    ensure!(
        answer.stdout.starts_with("HTTP/1.1 407 ") && answer.stdout.contains("Proxy-Authenticate"),
        "{}",
        answer.stdout
    );
    end(proxy)
}

/// Errors before the start, and warnings.
pub(crate) fn starts() -> Result<()> {
    let world = World::new()?;
    let full = world.full()?;
    let users = owned("users", "alice\n")?;
    let refused = |arguments: &[&str], status: i32, words: &[&str]| {
        let attempt = world.attempt(arguments)?;
        ensure!(attempt.status == Some(status), "{arguments:?}: {attempt:?}");
        let missing = words.iter().find(|word| !attempt.stderr.contains(**word));
        ensure!(
            missing.is_none(),
            "{missing:?} of {arguments:?}: {attempt:?}"
        );
        Ok(())
    };
    refused(
        &[&full, "--socks5", "0.0.0.0:1080"],
        1,
        &["0.0.0.0:1080", "--auth-file"],
    )?;
    refused(
        &[&full, "--http", "[::]:8118"],
        1,
        &["[::]:8118", "--auth-file"],
    )?;
    refused(
        &[&full, "--socks5", "192.0.2.77:1080", "--auth-file", &users],
        1,
        &["users:1", "USER:PASSWORD"],
    )?;
    refused(&[&full, "--socks5", "127.0.0.1"], 2, &["--socks5"])?;
    refused(&[&full, "--forward", "80"], 2, &["8080:example.org:80"])?;
    refused(&["/run/lab/scratch/none.conf"], 1, &["none.conf"])?;
    let broken = world.file("MTU = many", "AllowedIPs = 0.0.0.0/0")?;
    refused(&[&broken], 1, &["tunnel.conf:4", "1 error"])?;
    let small = world.file("MTU = 500", "AllowedIPs = 0.0.0.0/0")?;
    refused(&[&small], 1, &["500", "576"])?;
    step("a port that is taken");
    let taken = world.file(
        "ListenPort = 51899\nTable = off\nPostUp = true",
        "AllowedIPs = 0.0.0.0/0",
    )?;
    let proxy = world.proxy(&taken, &[])?;
    let result = proxy.output();
    ensure!(
        result.contains("Table, PostUp: not used, because it has no effect for a proxy"),
        "{result}"
    );
    refused(
        &[&taken, "--socks5", "127.0.0.1:1090"],
        1,
        &["51899", "ListenPort"],
    )?;
    refused(
        &[&taken, "--socks5", "127.0.0.1:1080"],
        1,
        &["127.0.0.1:1080", "in use"],
    )?;
    step("the ordinary user's labels are in its home");
    let (_, _) = ask(
        &world,
        &[&CONNECT[..], &at(SocketAddr::new(BEYOND[0], 81))].concat(),
    )?;
    let labels = std::fs::read_dir("/run/lab/home/.local/state/taupe/labels");
    let count = labels.map_err(Error::io("labels"))?.count();
    ensure!(count == 1, "{count} labels");
    ensure!(
        !proxy.output().contains("cannot save handshake timestamps"),
        "{}",
        proxy.output()
    );
    end(proxy)
}
