//! The applications of these tests: this program under another name.
//!
//! Each prints one line with its result. Further arguments choose what it does.

use rustix::net::{
    AddressFamily, Protocol, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketType, ipproto, recv, recvmsg,
    sendmsg, sendto, socket as make, socket_with,
};
use std::io::{self, BufRead as _, Read, Write as _};
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
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
        // Shares a port with others, on one interface only if a third word names it. When told to,
        // prints the number of datagrams received.
        ["share", port, interface @ ..] => {
            let port: u16 = port.parse().map_err(io::Error::other)?;
            let socket = make(AddressFamily::INET, SocketType::DGRAM, None)?;
            let settings = socket2::SockRef::from(&socket);
            settings.set_reuse_port(true)?;
            if let [interface] = interface {
                settings.bind_device(Some(interface.as_bytes()))?;
            }
            settings.bind(&SocketAddr::from(([0, 0, 0, 0], port)).into())?;
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

fn word(result: io::Result<String>) -> String {
    result.unwrap_or_else(|error| format!("failed:{}", error.raw_os_error().unwrap_or(0)))
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

pub(crate) fn mptcp() -> Option<Protocol> {
    NonZeroU32::new(262).map(Protocol::from_raw)
}

fn wait() -> io::Result<()> {
    println!("ready");
    io::stdout().flush()?;
    io::stdin().lock().read_line(&mut String::new()).map(drop)
}

fn tcp(to: SocketAddr) -> io::Result<String> {
    read(TcpStream::connect_timeout(&to, PATIENCE)?)
}

fn stream_socket(to: SocketAddr) -> io::Result<OwnedFd> {
    let flags = rustix::net::SocketFlags::CLOEXEC;
    Ok(socket_with(
        family(to.ip()),
        SocketType::STREAM,
        flags,
        None,
    )?)
}

fn connect(socket: OwnedFd, to: SocketAddr) -> io::Result<TcpStream> {
    rustix::net::sockopt::set_socket_timeout(
        &socket,
        rustix::net::sockopt::Timeout::Send,
        Some(PATIENCE),
    )?;
    rustix::net::connect(&socket, &to)?;
    Ok(TcpStream::from(socket))
}

fn read(mut stream: TcpStream) -> io::Result<String> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut said = String::new();
    stream.read_to_string(&mut said)?;
    Ok(said)
}

pub(crate) fn bound(to: SocketAddr) -> io::Result<UdpSocket> {
    let any: SocketAddr = match to {
        SocketAddr::V4(_) => "0.0.0.0:0",
        SocketAddr::V6(_) => "[::]:0",
    }
    .parse()
    .map_err(io::Error::other)?;
    let socket = UdpSocket::bind(any)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    Ok(socket)
}

fn udp(socket: &UdpSocket, to: SocketAddr) -> io::Result<String> {
    socket.send_to(b"who?", to)?;
    answer(socket)
}

pub(crate) fn answer(socket: &UdpSocket) -> io::Result<String> {
    let mut buffer = [0; 64];
    let (length, _) = socket.recv_from(&mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}

fn resolve(how: &str, to: SocketAddr) -> io::Result<String> {
    if how == "tcp" {
        let stream = TcpStream::connect_timeout(&to, PATIENCE)?;
        let peer = stream.peer_addr()?;
        return Ok(format!("{peer} {peer} {}", read(stream)?));
    }
    let socket = bound(to)?;
    let peer = if how == "connected-udp" {
        socket.connect(to)?;
        socket.send(b"who?")?;
        socket.peer_addr()?
    } else {
        socket.send_to(b"who?", to)?;
        to
    };
    let mut buffer = [0; 64];
    if how == "peek" {
        let (_, from) = socket.peek_from(&mut buffer)?;
        let again = socket.peek_from(&mut buffer)?.1;
        if again != from {
            return Ok(format!("{from}, and then {again}"));
        }
    }
    let (length, from) = socket.recv_from(&mut buffer)?;
    let answer = String::from_utf8_lossy(&buffer[..length]);
    Ok(format!("{peer} {from} {answer}"))
}

fn unix_without_end(socket: &OwnedFd, path: &str) -> io::Result<()> {
    // SAFETY: all zeros are a valid address without a path.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    // Bytes after the end do not belong to the path.
    address.sun_path.fill(b'x' as libc::c_char);
    for (to, from) in address.sun_path.iter_mut().zip(path.bytes()) {
        *to = from as libc::c_char;
    }
    let length = std::mem::offset_of!(libc::sockaddr_un, sun_path) + path.len();
    // SAFETY: the kernel reads `length` bytes of the address, which is at most its size.
    let connected = unsafe {
        libc::connect(
            std::os::fd::AsRawFd::as_raw_fd(socket),
            (&raw const address).cast(),
            length as libc::socklen_t,
        )
    };
    match connected {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sends an echo request by the kernel's ICMP socket.
fn ping(to: IpAddr) -> io::Result<String> {
    let (protocol, kind) = match to {
        IpAddr::V4(_) => (ipproto::ICMP, 8),
        IpAddr::V6(_) => (ipproto::ICMPV6, 128),
    };
    echo(
        &make(family(to), SocketType::DGRAM, Some(protocol))?,
        to,
        kind,
    )
}

/// Sends an echo request by a raw socket.
fn raw(to: IpAddr) -> io::Result<String> {
    let (protocol, kind) = match to {
        IpAddr::V4(_) => (ipproto::ICMP, 8),
        IpAddr::V6(_) => (ipproto::ICMPV6, 128),
    };
    echo(
        &make(family(to), SocketType::RAW, Some(protocol))?,
        to,
        kind,
    )
}

pub(crate) fn echo(socket: &OwnedFd, to: IpAddr, kind: u8) -> io::Result<String> {
    // Type, code, checksum, identifier, sequence. The kernel fills in the checksum for IPv6 only.
    let mut packet = [kind, 0, 0, 0, 0x12, 0x34, 0, 1];
    let sum = !(u16::from(kind) << 8).wrapping_add(0x1234 + 1);
    if to.is_ipv4() {
        packet[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    rustix::net::sockopt::set_socket_timeout(
        socket,
        rustix::net::sockopt::Timeout::Recv,
        Some(PATIENCE),
    )?;
    sendto(socket, &packet, SendFlags::empty(), &SocketAddr::new(to, 0))?;
    let mut buffer = [0; 128];
    let began = Instant::now();
    // A raw socket receives everything, also this request on its way to itself.
    while began.elapsed() < PATIENCE {
        let (length, _) = recv(socket, &mut buffer[..], RecvFlags::empty())?;
        let answer = &buffer[..length];
        let answer = match answer.first() {
            Some(0x45) => answer.get(20..).unwrap_or_default(),
            _ => answer,
        };
        if matches!(answer.first(), Some(0 | 129)) {
            return Ok("answered".to_owned());
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}

/// Starts a program with a socket as its standard input, and returns its output.
fn pass(kind: &str, program: &str, to: SocketAddr) -> io::Result<String> {
    let mut given = None;
    let socket: OwnedFd = match kind {
        "tcp" => stream_socket(to)?,
        "mptcp" => make(family(to.ip()), SocketType::STREAM, mptcp())?,
        "udp" => bound(to)?.into(),
        "listener" => {
            let listener = TcpListener::bind(("::", to.port()))?;
            wait()?;
            listener.into()
        }
        "message" => {
            let (here, there) = std::os::unix::net::UnixStream::pair()?;
            given = Some((TcpStream::connect_timeout(&to, PATIENCE)?, here));
            wait()?;
            there.into()
        }
        _ => return Err(io::Error::other(kind)),
    };
    let mut child = Command::new(program)
        .args([WORD, "use", kind, &to.to_string()])
        .stdin(socket)
        .spawn()?;
    if let Some((stream, pipe)) = given {
        let fds = [std::os::fd::AsFd::as_fd(&stream)];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&fds));
        sendmsg(
            &pipe,
            &[io::IoSlice::new(b"!")],
            &mut control,
            SendFlags::empty(),
        )?;
        child.wait()?;
    }
    child.wait()?;
    exit(0)
}

pub(crate) fn inherited() -> io::Result<OwnedFd> {
    std::os::fd::AsFd::as_fd(&io::stdin()).try_clone_to_owned()
}

/// Connects with a socket created by io_uring.
fn uring(to: SocketAddr) -> io::Result<String> {
    let socket = ring::socket(match to {
        SocketAddr::V4(_) => libc::AF_INET,
        SocketAddr::V6(_) => libc::AF_INET6,
    })?;
    connect(socket, to).and_then(read)
}

mod ring {
    use std::io;
    use std::os::fd::{FromRawFd as _, OwnedFd};
    use std::ptr;

    const SOCKET: u8 = 45;
    const OFF_SQES: i64 = 0x1000_0000;
    const GET_EVENTS: u32 = 1;

    fn check(result: libc::c_long) -> io::Result<i32> {
        match i32::try_from(result) {
            Ok(result @ 0..) => Ok(result),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Creates a TCP socket of this family.
    pub(super) fn socket(family: i32) -> io::Result<OwnedFd> {
        // `struct io_uring_params`: 10 words, then the offsets of both rings.
        let mut parameters = [0u32; 30];
        // SAFETY: the kernel reads and writes the 120 bytes at the address.
        let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, parameters.as_mut_ptr()) };
        let ring = check(ring)?;
        // SAFETY: the descriptor is new and has no other owner.
        let _owner = unsafe { OwnedFd::from_raw_fd(ring) };
        let (queue, entries) = (map(ring, 0, 4096)?, map(ring, OFF_SQES, 4096)?);
        let offset = |base: usize, field: usize| parameters[base + field] as usize;
        let mut entry = [0u8; 64];
        entry[0] = SOCKET;
        entry[4..8].copy_from_slice(&family.to_ne_bytes());
        entry[8..16].copy_from_slice(&u64::from(libc::SOCK_STREAM as u32).to_ne_bytes());
        // SAFETY: both pointers are mappings of a page, and the kernel's offsets lie within it.
        // Nobody else uses the ring.
        unsafe {
            ptr::copy_nonoverlapping(entry.as_ptr(), entries, 64);
            // The array of the submission queue, entry 0: index 0. Its tail: 1.
            queue.add(offset(10, 6)).cast::<u32>().write_volatile(0);
            queue.add(offset(10, 1)).cast::<u32>().write_volatile(1);
            check(libc::syscall(
                libc::SYS_io_uring_enter,
                ring,
                1,
                1,
                GET_EVENTS,
                0,
                0,
            ))?;
            // The first completion: user data, then the result.
            let completion = queue.add(offset(20, 5));
            let result = completion.add(8).cast::<i32>().read_volatile();
            if result < 0 {
                return Err(io::Error::from_raw_os_error(-result));
            }
            Ok(OwnedFd::from_raw_fd(result))
        }
    }

    fn map(ring: i32, offset: i64, length: usize) -> io::Result<*mut u8> {
        // SAFETY: the kernel chooses the address of the new mapping.
        let address = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                ring,
                offset,
            )
        };
        match address {
            libc::MAP_FAILED => Err(io::Error::last_os_error()),
            address => Ok(address.cast()),
        }
    }
}

/// Sends "served" on each connection, in the way that the client's first byte asks for.
fn serve(port: u16) -> io::Result<String> {
    let listener = TcpListener::bind(("::", port))?;
    println!("ready");
    io::stdout().flush()?;
    loop {
        let (mut stream, _) = listener.accept()?;
        std::thread::spawn(move || -> io::Result<()> {
            let mut order = [0];
            stream.read_exact(&mut order)?;
            match order {
                // Closes first, so TIME_WAIT is on this side.
                [b'f'] => stream.write_all(b"served"),
                // Closes last.
                [b'l'] => {
                    stream.write_all(b"served")?;
                    stream.read_to_end(&mut Vec::new()).map(drop)
                }
                [b'm'] => {
                    let piece = [b'm'; 10_000];
                    (0..1000).try_for_each(|_| stream.write_all(&piece))
                }
                // Unread bytes turn the end into a reset.
                _ => {
                    std::thread::sleep(Duration::from_millis(100));
                    Ok(())
                }
            }
        });
    }
}

/// Prints the time that a socket and a connection take, refused or not.
fn connects(to: SocketAddr, count: u32) -> io::Result<String> {
    let began = Instant::now();
    for _ in 0..count {
        drop(stream_socket(to)?);
    }
    let made = began.elapsed();
    let began = Instant::now();
    for _ in 0..count {
        let socket = UdpSocket::bind(("0.0.0.0", 0))?;
        let _ = socket.connect(to);
    }
    let connected = began.elapsed();
    Ok(format!(
        "{} {}",
        made.as_nanos() / u128::from(count),
        connected.as_nanos() / u128::from(count)
    ))
}

fn flood(to: SocketAddr, length: Duration) -> io::Result<String> {
    let began = Instant::now();
    let socket = bound(to)?;
    let mut stream = None;
    println!("ready");
    while began.elapsed() < length {
        let _ = socket.send_to(b"chosen-payload", to);
        if stream.is_none() {
            stream = TcpStream::connect_timeout(&to, Duration::from_millis(50)).ok();
        }
        if let Some(open) = &mut stream {
            let _ = open.set_write_timeout(Some(Duration::from_millis(5)));
            if open.write_all(b"chosen-payload").is_err() {
                stream = None;
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok("done".to_owned())
}
