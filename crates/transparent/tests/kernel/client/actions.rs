//! Operations of the applications on their sockets.

use super::{PATIENCE, WORD, family, io_uring, mptcp, wait};
use rustix::net::{
    RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketType, ipproto, recv,
    sendmsg, sendto, socket as make, socket_with,
};
use std::io::{self, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::process::{Command, exit};
use std::time::{Duration, Instant};

pub(super) fn word(result: io::Result<String>) -> String {
    result.unwrap_or_else(|error| format!("failed:{}", error.raw_os_error().unwrap_or(0)))
}

pub(super) fn tcp(to: SocketAddr) -> io::Result<String> {
    read(TcpStream::connect_timeout(&to, PATIENCE)?)
}

pub(super) fn stream_socket(to: SocketAddr) -> io::Result<OwnedFd> {
    let flags = rustix::net::SocketFlags::CLOEXEC;
    Ok(socket_with(
        family(to.ip()),
        SocketType::STREAM,
        flags,
        None,
    )?)
}

pub(super) fn connect(socket: OwnedFd, to: SocketAddr) -> io::Result<TcpStream> {
    rustix::net::sockopt::set_socket_timeout(
        &socket,
        rustix::net::sockopt::Timeout::Send,
        Some(PATIENCE),
    )?;
    rustix::net::connect(&socket, &to)?;
    Ok(TcpStream::from(socket))
}

pub(super) fn read(mut stream: TcpStream) -> io::Result<String> {
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

pub(super) fn udp(socket: &UdpSocket, to: SocketAddr) -> io::Result<String> {
    socket.send_to(b"who?", to)?;
    answer(socket)
}

pub(crate) fn answer(socket: &UdpSocket) -> io::Result<String> {
    let mut buffer = [0; 64];
    let (length, _) = socket.recv_from(&mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}

pub(super) fn resolve(how: &str, to: SocketAddr) -> io::Result<String> {
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

pub(super) fn unix_without_end(socket: &OwnedFd, path: &str) -> io::Result<()> {
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
pub(super) fn ping(to: IpAddr) -> io::Result<String> {
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
pub(super) fn raw(to: IpAddr) -> io::Result<String> {
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
pub(super) fn pass(kind: &str, program: &str, to: SocketAddr) -> io::Result<String> {
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
pub(super) fn uring(to: SocketAddr) -> io::Result<String> {
    let socket = io_uring::socket(match to {
        SocketAddr::V4(_) => libc::AF_INET,
        SocketAddr::V6(_) => libc::AF_INET6,
    })?;
    connect(socket, to).and_then(read)
}

/// Sends "served" on each connection, in the way that the client's first byte asks for.
pub(super) fn serve(port: u16) -> io::Result<String> {
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
pub(super) fn connects(to: SocketAddr, count: u32) -> io::Result<String> {
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

pub(super) fn flood(to: SocketAddr, length: Duration) -> io::Result<String> {
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
