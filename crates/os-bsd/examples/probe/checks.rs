//! The checks, in the order of their dependence.

use std::{
    error::Error,
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    num::NonZeroU32,
    process::ExitCode,
    sync::{Arc, mpsc::channel},
    thread,
    time::{Duration, Instant},
};

use ipnet::IpNet;
use taupe_os_bsd::{
    System,
    control_message::LocalEnd,
    device_name::DeviceName,
    directory_watch::DirectoryWatch,
    interface::{self, InterfaceName, is_up},
    ioctl,
    outer_path::OuterPath,
    routing::{Listing, NextHop, Notification, RoutingSocket, read_listing},
    tun::Tun,
    udp::{Options, Received, Socket},
};
use taupe_packet::ip::Family;

/// The longest time for one check.
const PATIENCE: Duration = Duration::from_secs(5);

/// `IFF_UP`.
const UP: u32 = 1;

type Outcome = Result<String, Box<dyn Error + Send + Sync>>;

/// Counts and prints results.
#[derive(Default)]
struct Report {
    failed: usize,
    passed: usize,
}

impl Report {
    /// Runs a check in a thread, which may wait for ever if a call does not return.
    fn check(&mut self, name: &str, check: impl FnOnce() -> Outcome + Send + 'static) {
        let (sender, result) = channel();
        thread::spawn(move || sender.send(check()));
        match result.recv_timeout(PATIENCE) {
            Ok(Ok(found)) => {
                self.passed += 1;
                println!("ok      {name}: {found}");
            }
            Ok(Err(error)) => self.fail(name, &*error),
            Err(_) => self.fail(name, &*fault("no result in time, or a panic")),
        }
    }

    fn fail(&mut self, name: &str, error: &dyn Error) {
        self.failed += 1;
        println!("FAILED  {name}: {error}");
    }
}

fn fault(text: impl Into<String>) -> Box<dyn Error + Send + Sync> {
    text.into().into()
}

/// Returns a fault unless the condition holds.
fn require(
    condition: bool,
    text: impl FnOnce() -> String,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    match condition {
        true => Ok(()),
        false => Err(fault(text())),
    }
}

pub(crate) fn run() -> ExitCode {
    println!("probe of the calls of taupe-os-bsd, for {}", System::HERE);
    let mut report = Report::default();
    report.check("kqueue: a new file in a directory", watched_directory);
    for family in Family::ALL {
        report.check(&format!("udp {family}: bind"), move || {
            Ok(format!("port {}", bound(family)?.local_port()))
        });
        report.check(&format!("udp {family}: local address"), move || {
            local_address(family)
        });
        report.check(&format!("udp {family}: lost local address"), move || {
            lost_address(family)
        });
        report.check(&format!("udp {family}: too long datagram"), move || {
            long_datagram(family)
        });
        report.check(&format!("udp {family}: path"), move || path(family));
        report.check(&format!("udp {family}: end of waiting"), move || {
            shutdown(family)
        });
    }
    report.check("udp: mark", mark);
    report.check("routing: listings", listings);
    report.check("routing: lookup of this machine", || {
        lookup(Ipv4Addr::LOCALHOST.into())
    });
    report.check("routing: lookup of another machine", || {
        lookup([192, 0, 2, 1].into())
    });
    report.check("routing: deadline", deadline);
    device(&mut report);
    println!("{} ok, {} failed", report.passed, report.failed);
    match report.failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn watched_directory() -> Outcome {
    let folder = std::env::temp_dir().join(format!("taupe-probe-{}", std::process::id()));
    fs::create_dir(&folder)?;
    let watch = DirectoryWatch::new(&folder)?;
    fs::write(folder.join("file"), "")?;
    let seen = watch.wait();
    fs::remove_dir_all(&folder)?;
    seen?;
    Ok("noticed".to_owned())
}

fn loopback(family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::LOCALHOST.into(),
        Family::V6 => Ipv6Addr::LOCALHOST.into(),
    }
}

fn bound(family: Family) -> Result<Socket, Box<dyn Error + Send + Sync>> {
    Ok(Socket::bind(family, 0, Options::default())?)
}

/// Sends from one socket to another one, and returns what arrived.
fn exchange(
    family: Family,
    from: Option<LocalEnd>,
    sent: &[&[u8]],
    buffer: &mut [u8],
) -> Result<(Received, u16), Box<dyn Error + Send + Sync>> {
    let (sender, receiver) = (bound(family)?, bound(family)?);
    let to = SocketAddr::new(loopback(family), receiver.local_port());
    for datagram in sent {
        sender.send(to, from, datagram)?;
    }
    Ok((receiver.receive(buffer)?, sender.local_port()))
}

fn local_address(family: Family) -> Outcome {
    let from = LocalEnd {
        address: loopback(family),
        interface: 0,
    };
    let mut buffer = [0; 64];
    let (received, port) = exchange(family, Some(from), &[b"hello"], &mut buffer)?;
    let from = SocketAddr::new(loopback(family), port);
    require(received.from == from, || {
        format!("{} instead of {from}", received.from)
    })?;
    require(buffer.starts_with(b"hello") && received.len == 5, || {
        format!("{} other bytes", received.len)
    })?;
    let local = received.local.ok_or("no local address")?;
    require(local.address == loopback(family), || format!("{local:?}"))?;
    require((local.interface != 0) == (family == Family::V6), || {
        format!("{local:?}")
    })?;
    Ok(format!(
        "at {}, interface {}",
        local.address, local.interface
    ))
}

fn lost_address(family: Family) -> Outcome {
    let address = match family {
        Family::V4 => [192, 0, 2, 99].into(),
        Family::V6 => "2001:db8::99".parse()?,
    };
    let from = LocalEnd {
        address,
        interface: 0,
    };
    let mut buffer = [0; 64];
    let (received, _) = exchange(family, Some(from), &[b"hello"], &mut buffer)?;
    Ok(format!("from {} instead of {address}", received.from))
}

fn long_datagram(family: Family) -> Outcome {
    let mut buffer = [0; 16];
    let (received, _) = exchange(family, None, &[&[0; 17], b"short"], &mut buffer)?;
    require(received.len == 5, || format!("{} bytes", received.len))?;
    Ok("skipped".to_owned())
}

fn path(family: Family) -> Outcome {
    let path = match System::HERE {
        System::FreeBsd => OuterPath::Table(0),
        System::MacOs => {
            let index = read_listing(Listing::Interfaces)?
                .interfaces
                .iter()
                .find(|interface| interface.is_loopback())
                .map(|interface| interface.index.into());
            OuterPath::Interface(
                index
                    .and_then(NonZeroU32::new)
                    .ok_or("no loopback interface")?,
            )
        }
    };
    let socket = bound(family)?;
    socket.set_path(path)?;
    socket.set_path(OuterPath::Any)?;
    let own = SocketAddr::new(loopback(family), socket.local_port());
    socket.set_path(path)?;
    socket.send(own, None, b"hello")?;
    let received = socket.receive(&mut [0; 64])?;
    require(received.from == own, || received.from.to_string())?;
    Ok(format!("{path:?}"))
}

fn shutdown(family: Family) -> Outcome {
    let socket = Arc::new(bound(family)?);
    let other = Arc::clone(&socket);
    let waiting = thread::spawn(move || other.receive(&mut [0; 64]));
    thread::sleep(Duration::from_millis(50));
    socket.shutdown();
    match waiting.join().map_err(|_| fault("a panic"))? {
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok("ended".to_owned()),
        other => Err(fault(format!("{other:?}"))),
    }
}

fn mark() -> Outcome {
    let set = bound(Family::V4)?.set_mark(51820);
    match (System::HERE, set) {
        (System::FreeBsd, set) => set.map(|()| "set".to_owned()).map_err(Into::into),
        (System::MacOs, Err(error)) if error.kind() == io::ErrorKind::Unsupported => {
            Ok("refused, as macOS has none".to_owned())
        }
        (System::MacOs, other) => Err(fault(format!("{other:?}"))),
    }
}

fn listings() -> Outcome {
    let interfaces = read_listing(Listing::Interfaces)?;
    let routes = read_listing(Listing::Routes(None))?;
    require(!interfaces.interfaces.is_empty(), || {
        "no interfaces".to_owned()
    })?;
    require(!interfaces.addresses.is_empty(), || {
        "no addresses".to_owned()
    })?;
    require(!routes.routes.is_empty(), || "no routes".to_owned())?;
    Ok(format!(
        "{} interfaces, {} addresses, {} routes, {} others",
        interfaces.interfaces.len(),
        interfaces.addresses.len(),
        routes.routes.len(),
        interfaces.skipped + routes.skipped
    ))
}

fn lookup(destination: IpAddr) -> Outcome {
    let mut socket = RoutingSocket::open(None)?;
    let deadline = Instant::now() + PATIENCE / 2;
    Ok(match socket.route_to(destination.into(), None, deadline)? {
        None => format!("no route to {destination}"),
        Some(entry) => {
            let hop = match entry.route.next_hop {
                NextHop::Gateway(gateway) => format!("by {}", gateway.ip),
                other => format!("{other:?}"),
            };
            let source = entry.source.map(|source| source.ip.to_string());
            format!(
                "{} {hop}, interface {}, source {}",
                entry.route.destination,
                entry.interface,
                source.as_deref().unwrap_or("unknown")
            )
        }
    })
}

fn deadline() -> Outcome {
    let mut socket = RoutingSocket::open(None)?;
    let began = Instant::now();
    let wait = Duration::from_millis(100);
    // Other programs may change something.
    while socket.receive(Some(began + wait))?.is_some() {}
    let took = began.elapsed();
    require(took >= wait, || format!("after {took:?}"))?;
    Ok(format!("after {took:?}"))
}

/// The checks of a TUN device, which all use the same one.
fn device(report: &mut Report) {
    let name = match System::HERE {
        System::FreeBsd => "taupeprobe0",
        System::MacOs => "utun",
    };
    let created = DeviceName::parse(System::HERE, name)
        .map_err(|error| error.to_string())
        .and_then(|name| Tun::create(&name).map_err(|error| error.to_string()));
    let tun = match created {
        Ok(tun) => Arc::new(tun),
        Err(error) => return report.fail("tun: create", &*fault(error)),
    };
    let check = |report: &mut Report, name: &str, check: fn(&Tun) -> Outcome| {
        let tun = Arc::clone(&tun);
        report.check(name, move || check(&tun));
    };
    check(report, "tun: create", |tun| {
        let (name, index) = (tun.name(), tun.index()?);
        let (flags, mtu) = ioctl::interface_state(index)?.ok_or("there is no interface")?;
        Ok(format!(
            "{name}, index {index}, flags {flags:#x}, MTU {mtu}"
        ))
    });
    check(report, "tun: MTU", |tun| {
        tun.set_mtu(1420)?;
        let (_, mtu) = ioctl::interface_state(tun.index()?)?.ok_or("there is no interface")?;
        require(mtu == 1420, || format!("{mtu} instead of 1420"))?;
        Ok(mtu.to_string())
    });
    check(report, "tun: the same name again", same_name);
    check(
        report,
        "routing: notification of a link that comes up",
        comes_up,
    );
    check(report, "tun: IPv4 packets in both directions", |tun| {
        packets(tun, "198.18.0.1/30", "198.18.0.2")
    });
    check(report, "tun: IPv6 packets in both directions", |tun| {
        packets(tun, "fd7a:7a7a::1/64", "fd7a:7a7a::2")
    });
    check(report, "tun: a cut packet is written", |tun| {
        for packet in [&[][..], &[0x45], &[0x60; 39]] {
            tun.write(packet)?;
        }
        tun.index()?;
        Ok("dropped".to_owned())
    });
    check(report, "tun: end of reading", |tun| {
        tun.close();
        let read = tun.read(&mut [0; 2048])?;
        require(read.is_none(), || format!("{read:?}"))?;
        Ok("ended".to_owned())
    });
    let index = match tun.index() {
        Ok(index) => index,
        Err(error) => return report.fail("tun: index", &error),
    };
    let name = tun.name().to_owned();
    // A check that has run out of time ends now, as the device is closed.
    let began = Instant::now();
    while Arc::strong_count(&tun) > 1 && began.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(20));
    }
    let ends = "tun: the interface ends with the device";
    match Arc::try_unwrap(tun) {
        Ok(tun) => {
            drop(tun);
            report.check(ends, move || {
                let state = ioctl::interface_state(index)?;
                require(state.is_none(), || format!("{state:?}"))?;
                Ok(format!("{name} is gone"))
            });
        }
        Err(_) => report.fail(
            ends,
            &*fault(format!("{name} is in use: ifconfig {name} destroy")),
        ),
    }
}

fn same_name(tun: &Tun) -> Outcome {
    let name = DeviceName::parse(System::HERE, tun.name())?;
    match Tun::create(&name) {
        Ok(_) => Err(fault("created")),
        Err(error) => Ok(format!("refused ({error})")),
    }
}

fn comes_up(tun: &Tun) -> Outcome {
    let index = tun.index()?;
    let name = InterfaceName::new(tun.name()).ok_or("name")?;
    let (flags, _) = ioctl::interface_state(index)?.ok_or("there is no interface")?;
    // A utun device of macOS is up from the beginning, and then there would be no notification.
    let mut request = interface::set_flags(System::HERE, &name, flags & !UP);
    ioctl::request(Family::V4, &mut request)?;
    let mut socket = RoutingSocket::open(None)?;
    let mut request = interface::set_flags(System::HERE, &name, flags | UP);
    ioctl::request(Family::V4, &mut request)?;
    let (flags, _) = ioctl::interface_state(index)?.ok_or("there is no interface")?;
    require(is_up(flags), || format!("flags {flags:#x}"))?;
    let deadline = Instant::now() + PATIENCE / 2;
    while let Some(notification) = socket.receive(Some(deadline))? {
        if notification == Notification::Overflow {
            return Err(fault("an overflow"));
        }
        let link = taupe_os_bsd::routing::Change::Link(index);
        if notification.changes().contains(&link) {
            return Ok(format!("interface {index}"));
        }
    }
    Err(fault("no notification"))
}

/// Sends a datagram into the interface, reads it from the device, and writes an answer.
fn packets(tun: &Tun, network: &str, peer: &str) -> Outcome {
    let (network, peer): (IpNet, IpAddr) = (network.parse()?, peer.parse()?);
    let name = InterfaceName::new(tun.name()).ok_or("name")?;
    let other_end = match System::HERE {
        System::FreeBsd => None,
        System::MacOs => network.addr().is_ipv4().then_some(peer),
    };
    let mut request = interface::add_address(System::HERE, &name, network, other_end);
    ioctl::request(Family::of(peer), &mut request)?;
    let program = UdpSocket::bind((network.addr(), 0))?;
    program.set_read_timeout(Some(PATIENCE / 2))?;
    program.send_to(b"through the device", (peer, 51820))?;
    let mut buffer = [0; 2048];
    let packet = loop {
        let length = tun.read(&mut buffer)?.ok_or("the device has ended")?;
        let packet = buffer.get_mut(..length).ok_or("length")?;
        // The kernel also sends packets of its own, as for multicast groups.
        if packet.ends_with(b"through the device") {
            break packet;
        }
    };
    // With its ends exchanged, a packet has the same checksums.
    let (source, destination, length, ports) = match peer {
        IpAddr::V4(_) => (12, 16, 4, 20),
        IpAddr::V6(_) => (8, 24, 16, 40),
    };
    require(packet.len() >= ports + 8, || {
        format!("{} bytes", packet.len())
    })?;
    for byte in 0..length {
        packet.swap(source + byte, destination + byte);
    }
    for byte in 0..2 {
        packet.swap(ports + byte, ports + 2 + byte);
    }
    let length = packet.len();
    tun.write(packet)?;
    let mut answer = [0; 64];
    let (answered, from) = program.recv_from(&mut answer)?;
    require(
        answer.get(..answered) == Some(b"through the device"),
        || format!("another answer of {answered} bytes"),
    )?;
    require(from == SocketAddr::new(peer, 51820), || {
        format!("an answer from {from}")
    })?;
    Ok(format!(
        "{length} bytes from {} to {peer} and back",
        network.addr()
    ))
}
