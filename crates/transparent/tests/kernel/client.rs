//! The applications of these tests: this program under another name.
//!
//! Each prints one line with its result. Further arguments choose what it does.

mod actions;
mod io_uring;

pub(crate) use actions::{answer, bound, echo, inherited};
use actions::{
    connect, connects, flood, pass, ping, raw, read, resolve, serve, stream_socket, tcp, udp,
    unix_without_end, uring, word,
};
use rustix::net::{
    AddressFamily, Protocol, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags,
    SocketType, ipproto, recvmsg, sendto, socket as make,
};
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;
use std::io::{self, BufRead as _, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::num::NonZeroU32;
use std::process::{Command, exit};
use std::time::{Duration, Instant};

/// The first argument of this program when it acts as an application.
pub(crate) const WORD: &str = "--client";

/// Time after which a reply counts as missing.
const PATIENCE: Duration = Duration::from_millis(1500);

pub(crate) fn main(words: &[&str]) -> ! {
    let began = Instant::now();
    match act(words) {
        Ok(said) => println!("{said}"),
        Err(error) => {
            // Only an eBPF program makes a call fail with EPERM, no timer of the kernel. On a busy
            // machine even such a call can take long.
            let is_refused = error.kind() == io::ErrorKind::PermissionDenied;
            let quick = match is_refused || began.elapsed() < PATIENCE / 3 {
                true => "at once",
                false => "late",
            };
            let number = error.raw_os_error();
            let what = number.map_or_else(|| format!("{:?}", error.kind()), |n| n.to_string());
            println!("failed {what} {quick}");
        }
    }
    exit(0)
}

fn act(words: &[&str]) -> io::Result<String> {
    match words {
        ["tcp", to] => tcp(address(to)),
        ["udp", to] => udp(&bound(address(to))?, address(to)),
        ["connected-udp", to] => {
            let socket = bound(address(to))?;
            socket.connect(address(to))?;
            socket.send(b"who?")?;
            answer(&socket)
        }
        // Sends from a given port.
        ["from", port, to] => {
            let mut own = bound(address(to))?.local_addr()?;
            own.set_port(port.parse().map_err(io::Error::other)?);
            let socket = UdpSocket::bind(own)?;
            socket.set_read_timeout(Some(PATIENCE))?;
            socket.set_broadcast(true)?;
            udp(&socket, address(to))
        }
        // Sends a datagram that needs several packets.
        ["long-udp", to] => {
            let socket = bound(address(to))?;
            socket.send_to(&[b'?'; 3000], address(to))?;
            answer(&socket)
        }
        // Prints the peer's address, the sender of the reply, and the reply.
        ["resolve", how, to] => resolve(how, address(to)),
        // Queries all addresses with one socket, and prints the sender of each reply.
        ["resolve-all", all @ ..] => {
            let socket = bound(address(all.first().unwrap_or(&"")))?;
            for to in all {
                socket.send_to(b"who?", address(to))?;
            }
            let mut said = Vec::new();
            for _ in all {
                let mut buffer = [0; 64];
                let (length, from) = socket.recv_from(&mut buffer)?;
                let answer = String::from_utf8_lossy(&buffer[..length]).into_owned();
                said.push(format!("{from}={answer}"));
            }
            said.sort();
            Ok(said.join(" "))
        }
        // Connects at once, and sends when told to.
        ["ask-later", to] => {
            let socket = bound(address(to))?;
            socket.connect(address(to))?;
            wait()?;
            let asked = socket.send(b"who?").and_then(|_| answer(&socket));
            Ok(asked.unwrap_or_else(|error| {
                format!("failed {}", error.raw_os_error().unwrap_or_default())
            }))
        }
        // Asks at once, and with the same socket when told to.
        ["ask-again", to] => {
            let socket = bound(address(to))?;
            let first = word(udp(&socket, address(to)));
            wait()?;
            Ok(format!("{first} {}", word(udp(&socket, address(to)))))
        }
        // Sends a datagram each millisecond, until the socket is ended.
        ["until-aborted", to] => {
            let (socket, began) = (bound(address(to))?, Instant::now());
            println!("ready");
            while began.elapsed() < PATIENCE * 10 {
                let sent = socket.send_to(b"chosen-payload", address(to));
                if sent.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionAborted) {
                    return Ok("aborted".to_owned());
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok("never aborted".to_owned())
        }
        ["unix", path] => {
            std::os::unix::net::UnixStream::connect(path)?;
            Ok("connected".to_owned())
        }
        // The address length excludes the terminating zero of the path.
        ["unix-without-end", path] => {
            let socket = make(AddressFamily::UNIX, SocketType::STREAM, None)?;
            unix_without_end(&socket, path)?;
            Ok("connected".to_owned())
        }
        ["ping", to] => ping(to.parse().map_err(io::Error::other)?),
        ["raw", to] => raw(to.parse().map_err(io::Error::other)?),
        // An ICMPv6 message of a type that neighbour discovery uses.
        ["icmp6", kind, to] => {
            let kind: u8 = kind.parse().map_err(io::Error::other)?;
            let to: IpAddr = to.parse().map_err(io::Error::other)?;
            let socket = make(family(to), SocketType::RAW, Some(ipproto::ICMPV6))?;
            rustix::net::sockopt::set_ipv6_unicast_hops(&socket, Some(255))?;
            let mut message = [b'!'; 24];
            message[0] = kind;
            sendto(
                &socket,
                &message,
                SendFlags::empty(),
                &SocketAddr::new(to, 0),
            )?;
            Ok("sent".to_owned())
        }
        ["mptcp", to] => {
            make(family(address(to).ip()), SocketType::STREAM, mptcp())?;
            Ok("made".to_owned())
        }
        // Connects by MPTCP and sends something, and more when told to.
        ["stay-mptcp", to] => {
            let to = address(to);
            let socket = make(family(to.ip()), SocketType::STREAM, mptcp())?;
            let mut stream = connect(socket, to)?;
            stream.write_all(b"early")?;
            wait()?;
            stream.write_all(b"later")?;
            println!("sent");
            std::thread::sleep(Duration::from_secs(60));
            Ok(String::new())
        }
        // Prints for each input line whether it is selected. Unselected applications get MPTCP
        // sockets.
        ["oracle"] => {
            println!("ready\n{}", std::process::id());
            for _ in io::stdin().lines() {
                match make(AddressFamily::INET, SocketType::STREAM, mptcp()) {
                    Ok(_) => println!("bypass"),
                    Err(rustix::io::Errno::PROTONOSUPPORT) => println!("tunnel"),
                    Err(error) => return Err(error.into()),
                }
            }
            Ok("the end".to_owned())
        }
        ["family", number] => {
            let family = AddressFamily::from_raw(number.parse().map_err(io::Error::other)?);
            make(family, SocketType::RAW, None)?;
            Ok("made".to_owned())
        }
        ["uring", to] => uring(address(to)),
        // Runs the remaining words when told to.
        ["later", rest @ ..] => {
            wait()?;
            act(rest)
        }
        // Starts another program that inherits a socket and uses it.
        ["pass", kind, program, to] => pass(kind, program, address(to)),
        ["use", "tcp" | "mptcp", to] => connect(inherited()?, address(to)).and_then(read),
        ["use", "udp", to] => udp(&UdpSocket::from(inherited()?), address(to)),
        ["use", "listener", _] => {
            let (mut stream, _) = TcpListener::from(inherited()?).accept()?;
            stream.write_all(b"chosen-payload")?;
            println!("accepted");
            std::thread::sleep(Duration::from_secs(60));
            Ok(String::new())
        }
        // Receives a connection in a message.
        ["use", "message", _] => {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut byte = [0];
            let pipe = inherited()?;
            recvmsg(
                &pipe,
                &mut [io::IoSliceMut::new(&mut byte)],
                &mut control,
                RecvFlags::empty(),
            )?;
            let mut messages = control.drain();
            let Some(RecvAncillaryMessage::ScmRights(mut fds)) = messages.next() else {
                return Err(io::Error::other("no descriptor"));
            };
            let stream = fds.next().ok_or(io::ErrorKind::NotFound)?;
            TcpStream::from(stream).write_all(b"chosen-payload")?;
            println!("sent");
            std::thread::sleep(Duration::from_secs(60));
            Ok(String::new())
        }
        ["thread", rest @ ..] => std::thread::scope(|scope| {
            let thread = scope.spawn(|| act(rest));
            thread
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("panic")))
        }),
        ["child", program, rest @ ..] => {
            let output = Command::new(program).arg(WORD).args(rest).output()?;
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        }
        // Starts another program, which inherits the standard streams, and waits for it.
        ["launch", program, rest @ ..] => {
            Command::new(program).arg(WORD).args(rest).status()?;
            exit(0)
        }
        // Starts another program and ends at once.
        ["leave", program, rest @ ..] => {
            Command::new(program).arg(WORD).args(rest).spawn()?;
            exit(0)
        }
        // Goes on as another user.
        ["user", id, rest @ ..] => {
            become_user(id)?;
            act(rest)
        }
        // Asks as one user after another, each time with a new socket and with a common one.
        ["users", to, ids @ ..] => {
            let common = bound(address(to))?;
            let mut said = Vec::new();
            for id in ids {
                become_user(id)?;
                let own = bound(address(to))?;
                for socket in [&own, &common] {
                    said.push(word(udp(socket, address(to))));
                }
            }
            Ok(said.join(" "))
        }
        // Executes another program in this process.
        ["become", program, rest @ ..] => {
            use std::os::unix::process::CommandExt as _;
            Err(Command::new(program).arg(WORD).args(rest).exec())
        }
        // Creates the sockets, then waits to be told what to do with them.
        ["hold", to] => {
            let to = address(to);
            let stream = stream_socket(to)?;
            let datagrams = bound(to)?;
            wait()?;
            let by_tcp = connect(stream, to).and_then(read);
            let by_udp = udp(&datagrams, to);
            Ok(format!("{} {}", word(by_tcp), word(by_udp)))
        }
        ["serve", port] => serve(port.parse().map_err(io::Error::other)?),
        // Listens, and accepts one connection when told to.
        ["serve-late", own] => {
            let listener = TcpListener::bind(address(own))?;
            wait()?;
            let (mut stream, _) = listener.accept()?;
            stream.write_all(b"chosen-payload")?;
            println!("accepted");
            std::thread::sleep(Duration::from_secs(60));
            Ok(String::new())
        }
        ["serve-udp", port] => {
            let port: u16 = port.parse().map_err(io::Error::other)?;
            let socket = UdpSocket::bind(("::", port))?;
            println!("ready");
            loop {
                let mut buffer = [0; 2048];
                let (_, from) = socket.recv_from(&mut buffer)?;
                let _ = socket.send_to(b"served", from);
            }
        }
        // Shares a port with others, of any address unless one is given, and on one interface only if
        // a third word names it. When told to, prints the number of datagrams received.
        ["share", port, interface @ ..] => {
            let any = |port: u16| SocketAddr::from(([0, 0, 0, 0], port));
            let own = port.parse().map_or_else(|_| address(port), any);
            let socket = make(AddressFamily::INET, SocketType::DGRAM, None)?;
            let settings = socket2::SockRef::from(&socket);
            settings.set_reuse_port(true)?;
            if let [interface] = interface {
                settings.bind_device(Some(interface.as_bytes()))?;
            }
            settings.bind(&own.into())?;
            let socket = UdpSocket::from(socket);
            let other = socket.try_clone()?;
            let count = std::sync::atomic::AtomicU32::new(0);
            std::thread::scope(|scope| {
                let count = &count;
                scope.spawn(move || {
                    while let Ok((length, from)) = other.recv_from(&mut [0; 2048]) {
                        if length > 0 {
                            count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                            let _ = other.send_to(b"served", from);
                        }
                    }
                });
                let waited = wait();
                println!("{}", count.load(std::sync::atomic::Ordering::Relaxed));
                // The thread is still waiting.
                exit(i32::from(waited.is_err()))
            })
        }
        // Connects, and prints what the other end sends.
        ["hear", to] => {
            let mut stream = TcpStream::connect_timeout(&address(to), PATIENCE)?;
            println!("ready");
            let mut said = String::new();
            stream.read_to_string(&mut said)?;
            Ok(said)
        }
        // Connects, and sends when told to.
        ["stay", to] => {
            let mut stream = TcpStream::connect_timeout(&address(to), PATIENCE)?;
            wait()?;
            stream.write_all(b"later")?;
            println!("sent");
            std::thread::sleep(Duration::from_secs(60));
            Ok(String::new())
        }
        // Sends a query, and reads the reply when told to.
        ["ask", to] => {
            let socket = bound(address(to))?;
            println!("ready");
            io::stdout().flush()?;
            socket.set_read_timeout(Some(PATIENCE * 10))?;
            udp(&socket, address(to))
        }
        // Sends without waiting for a reply.
        ["say", to] => {
            let socket = bound(address(to))?;
            socket.send_to(b"who?", address(to))?;
            wait()?;
            Ok("the end".to_owned())
        }
        // Connects by one interface only.
        ["bound", interface, to] => {
            let to = address(to);
            let socket = stream_socket(to)?;
            socket2::SockRef::from(&socket).bind_device(Some(interface.as_bytes()))?;
            connect(socket, to).and_then(read)
        }
        // Sends a datagram to every port.
        ["ports", to] => {
            let (socket, mut to) = (bound(address(to))?, address(to));
            for again in [&socket, &bound(to)?] {
                for port in 1..=u16::MAX {
                    to.set_port(port);
                    let _ = again.send_to(b"chosen-payload", to);
                }
            }
            Ok("sent".to_owned())
        }
        // Prints nanoseconds per datagram for many datagrams to one address.
        ["blast", to, count] => {
            let (to, count): (_, u32) = (address(to), count.parse().map_err(io::Error::other)?);
            let socket = bound(to)?;
            socket.connect(to)?;
            let began = Instant::now();
            for _ in 0..count {
                let _ = socket.send(&[0; 64]);
            }
            Ok((began.elapsed().as_nanos() / u128::from(count)).to_string())
        }
        ["connects", to, count] => connects(address(to), count.parse().map_err(io::Error::other)?),
        ["flood", to, seconds] => {
            // Sends a datagram each millisecond, and data on a connection all the time.
            let seconds = seconds.parse().map_err(io::Error::other)?;
            flood(address(to), Duration::from_secs(seconds))
        }
        _ => crate::senders::act(words)
            .unwrap_or_else(|| Err(io::Error::other(format!("{words:?}")))),
    }
}

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address with a port")
}

fn family(address: IpAddr) -> AddressFamily {
    match address {
        IpAddr::V4(_) => AddressFamily::INET,
        IpAddr::V6(_) => AddressFamily::INET6,
    }
}

/// Changes the real user ID of this thread. It keeps the right to change it again.
fn become_user(id: &str) -> io::Result<()> {
    let (user, root) = (id.parse().map_err(io::Error::other)?, Uid::ROOT);
    Ok(set_thread_res_uid(Uid::from_raw(user), root, root)?)
}

pub(crate) fn mptcp() -> Option<Protocol> {
    NonZeroU32::new(262).map(Protocol::from_raw)
}

fn wait() -> io::Result<()> {
    println!("ready");
    io::stdout().flush()?;
    io::stdin().lock().read_line(&mut String::new()).map(drop)
}
