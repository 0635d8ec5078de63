//! Valid and invalid routes and rules of the machine.

use crate::pair::{
    End, FAR, FAR_OUTER, FAR_OUTER6, FAR6, NEAR, NEAR6, Pair, await_port, neighbours,
};
use rustix::process::Signal;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd as _;
use std::time::Duration;
use taupe_lab::capture::{Capture, Message, Packet, messages};
use taupe_lab::host::{Host, add_address, link};
use taupe_lab::peers::{Keys, PeerSettings, Settings};
use taupe_lab::process;
use taupe_lab::traffic::{first_answer, ping};
use taupe_lab::{Error, Result, ensure};
use taupe_os_linux::socket_option::{self, IntOption};

/// The bytes that the kernel's own test allows for a hundred pings in a routing loop.
const BOUND: u64 = 70_000;

/// With a session in place, the route to the peer's endpoint is changed to the tunnel itself.
pub(crate) fn routing_loop() -> Result<()> {
    let mut pair = Pair::new()?;
    let host = pair.near.host.clone();
    ping(&host, FAR, 5)?;
    pair.set_far(&["allowed-ips", "10.77.0.2/32,fd77::2/128,192.0.2.2/32"])?;
    let loop_route = |verb: &str| host.ip(&["route", verb, "192.0.2.2/32", "dev", "wgnear"]);
    loop_route("add")?;
    // Small packets, and packets whose messages exceed the interface's MTU.
    for size in ["56", "1392"] {
        bounded(&pair.near, &pair.far.keys, &["-c", "100", "-f", "-s", size])?;
    }
    pair.near.id()?;
    loop_route("delete")?;
    ping(&host, FAR, 5)
}

/// Two tunnels of one machine, with the endpoint of each routed through the other.
pub(crate) fn routing_loop_over_two_interfaces() -> Result<()> {
    let mut pair = Pair::new()?;
    let (near, far) = (pair.near.host.clone(), pair.far.host.clone());
    add_address(&far, "eth0", "192.0.2.3/24")?;
    let second = End::start(&near, "wgsecond", &[])?;
    let third = End::start(&far, "wgthird", &[])?;
    let hidden = IpAddr::from([10, 78, 0, 2]);
    let configure = |end: &End, peer: &Keys, port, address, endpoint, allowed_ips| {
        end.tunnel.configure(&Settings {
            private_key: &end.keys.private,
            listen_port: Some(port),
            addresses: &[address],
            peers: &[PeerSettings {
                public_key: &peer.public,
                preshared_key: None,
                endpoint,
                allowed_ips,
            }],
        })?;
        await_port(&end.host, port)
    };
    let endpoint = Some(SocketAddr::from(([192, 0, 2, 3], 5)));
    configure(
        &third,
        &second.keys,
        5,
        "10.78.0.2/24",
        None,
        "10.78.0.1/32",
    )?;
    configure(
        &second,
        &third.keys,
        6,
        "10.78.0.1/24",
        endpoint,
        "10.78.0.2/32,192.0.2.2/32",
    )?;
    ping(&near, FAR, 5)?;
    ping(&near, hidden, 5)?;
    pair.set_far(&["allowed-ips", "10.77.0.2/32,192.0.2.3/32"])?;
    let to_first = |verb: &str| near.ip(&["route", verb, "192.0.2.3/32", "dev", "wgnear"]);
    let to_second = |verb: &str| near.ip(&["route", verb, "192.0.2.2/32", "dev", "wgsecond"]);

    // One tunnel inside the other is no loop, and the hop limit does not reveal it to an observer.
    to_first("add")?;
    let outer = "udp src port 51820 and udp dst port 51821";
    let captures = [
        Capture::start(&near, "eth0", &format!("{outer} and ip[8] == 64"))?,
        Capture::start(&near, "eth0", &format!("{outer} and ip[8] != 64"))?,
    ];
    // Until the device is notified of the route, it sends on by its old path. So the pings go on
    // until ten are nested.
    let pings = near.spawn(&["ping", "-n", "-i", "0.02", &hidden.to_string()])?;
    let [usual, others] = captures;
    usual.stop_once("nested messages", |seen| {
        messages(seen, Message::Data).count() >= 10
    })?;
    drop(pings);
    let others = others.stop()?.len();
    ensure!(others == 0, "{others} messages with another hop limit");

    to_second("add")?;
    let sent = |pair: &Pair| {
        Ok((
            pair.near.transfer(&pair.far.keys)?.1,
            second.transfer(&third.keys)?.1,
        ))
    };
    let ((first, other), target) = (sent(&pair)?, FAR.to_string());
    let flood = [
        "ping", "-n", "-W", "1", "-c", "100", "-f", "-s", "56", &target,
    ];
    ensure!(
        near.run(&flood).is_err(),
        "something has answered in a loop"
    );
    std::thread::sleep(Duration::from_millis(1500));
    let (first_after, other_after) = sent(&pair)?;
    for grown in [first_after - first, other_after - other] {
        ensure!(grown < BOUND, "{grown} bytes sent for a hundred pings");
        ensure!(grown > 0, "nothing was sent");
    }
    // The same for fragmented pings.
    let flood = [
        "ping", "-n", "-W", "1", "-c", "100", "-f", "-s", "1392", &target,
    ];
    ensure!(
        near.run(&flood).is_err(),
        "something has answered in a loop"
    );
    let before = sent(&pair)?;
    std::thread::sleep(Duration::from_millis(1500));
    let after = sent(&pair)?;
    ensure!(
        after.0 - before.0 < 1000,
        "it goes on after the pings had ended"
    );
    pair.near.id()?;
    to_second("delete")?;
    ping(&near, FAR, 5)
}

/// A peer whose endpoint is behind another peer of the same interface is reached through that peer.
/// If a peer is behind itself, or two peers are behind each other, nothing is sent.
pub(crate) fn onion_routing() -> Result<()> {
    let mut pair = Pair::new()?;
    let (near, far) = (pair.near.host.clone(), pair.far.host.clone());
    let third = End::start(&far, "wgthird", &[])?;
    third.tunnel.wg_with_input(
        "setconf",
        &format!(
            "[Interface]\nPrivateKey = {}\nListenPort = 5\n\
             [Peer]\nPublicKey = {}\nAllowedIPs = 10.79.0.1/32\n",
            third.keys.private, pair.near.keys.public
        ),
    )?;
    add_address(&far, "wgthird", "10.79.0.2/24")?;
    third.link(&["up"])?;
    await_port(&far, 5)?;
    add_address(&near, "wgnear", "10.79.0.1/24")?;
    let set_third = |endpoint: &str| {
        #[rustfmt::skip]
        let arguments = [
            "peer", &*third.keys.public, "allowed-ips", "10.79.0.2/32", "endpoint", endpoint,
        ];
        pair.near.tunnel.set(&arguments).map(drop)
    };
    let hidden = IpAddr::from([10, 79, 0, 2]);
    set_third("10.77.0.2:5")?;
    ping(&near, FAR, 5)?;
    ping(&near, hidden, 5)?;
    third.ensure_endpoint(&pair.near.keys, "10.77.0.1:51820")?;

    set_third("10.79.0.2:5")?;
    for size in ["56", "1392"] {
        let flood = ["-c", "100", "-f", "-s", size];
        bounded_to(&pair.near, &third.keys, hidden, &flood)?;
    }

    // Two peers, each behind the other.
    add_address(&far, "eth0", "192.0.2.3/24")?;
    set_third("192.0.2.3:5")?;
    ping(&near, hidden, 5)?;
    pair.set_far(&["allowed-ips", "10.77.0.2/32,192.0.2.3/32"])?;
    let third_peer = [
        "peer",
        &*third.keys.public,
        "allowed-ips",
        "10.79.0.2/32,192.0.2.2/32",
    ];
    pair.near.tunnel.set(&third_peer)?;
    let loops = ["192.0.2.2/32", "192.0.2.3/32"];
    for target in loops {
        near.ip(&["route", "add", target, "dev", "wgnear"])?;
    }
    bounded(&pair.near, &pair.far.keys, &["-c", "100", "-f", "-s", "56"])?;
    for target in loops {
        near.ip(&["route", "delete", target, "dev", "wgnear"])?;
    }
    pair.near.id()?;
    ping(&near, FAR, 5)
}

fn bounded(end: &End, peer: &Keys, flood: &[&str]) -> Result<()> {
    bounded_to(end, peer, FAR, flood)
}

/// Unanswered pings cost a limited number of bytes, and no traffic continues after them.
fn bounded_to(end: &End, peer: &Keys, to: IpAddr, flood: &[&str]) -> Result<()> {
    // The pings themselves: padded, in messages.
    let own = 100 * 1452;
    let (_, before) = end.transfer(peer)?;
    let answered = end
        .host
        .run(&[&["ping", "-n", "-W", "1"], flood, &[&to.to_string()]].concat());
    ensure!(answered.is_err(), "something has answered in a loop");
    let (_, after) = end.transfer(peer)?;
    let grown = after - before;
    let bound = if flood.contains(&"56") {
        BOUND
    } else {
        own + BOUND
    };
    ensure!(grown < bound, "{grown} bytes sent for pings of {flood:?}");
    std::thread::sleep(Duration::from_millis(1500));
    let (_, later) = end.transfer(peer)?;
    ensure!(
        later - after < 1000,
        "{} bytes sent after the pings had ended",
        later - after
    );
    Ok(())
}

/// The firewall marks outer packets, and rules for this mark send them over the other cable; the
/// firewall sees the interface's own mark.
pub(crate) fn marked_and_rerouted() -> Result<()> {
    let (near, far) = neighbours()?;
    link(
        near.port("eth1", &["203.0.113.1/24", "2001:db8:113::1/64"]),
        far.port("eth1", &["203.0.113.2/24", "2001:db8:113::2/64"]),
        1500,
    )?;
    for host in [&near, &far] {
        for interface in ["all", "eth0", "eth1"] {
            host.sysctl(&format!("net/ipv4/conf/{interface}/rp_filter"), "0")?;
        }
    }
    let mut pair = Pair::between(&near, &far, FAR_OUTER, [&[], &[]])?;
    ping(&near, FAR, 5)?;

    for (family, outer) in [("-4", FAR_OUTER), ("-6", FAR_OUTER6)] {
        let (target, via) = match outer {
            IpAddr::V4(_) => ("192.0.2.2/32", "203.0.113.2"),
            IpAddr::V6(_) => ("2001:db8::2/128", "2001:db8:113::2"),
        };
        #[rustfmt::skip]
        near.ip(&[family, "route", "add", target, "via", via, "dev", "eth1", "table", "77"])?;
        near.ip(&[family, "rule", "add", "fwmark", "1", "table", "77"])?;
    }
    near.run_with_input(
        &["nft", "-f", "-"],
        "table inet marks {
            chain out {
                type route hook output priority mangle;
                udp sport 51820 meta mark 0x2a counter
                udp sport 51820 meta mark set 1
            }
        }",
    )?;
    pair.near.tunnel.set(&["fwmark", "42"])?;
    for endpoint in ["192.0.2.2:51821", "[2001:db8::2]:51821"] {
        pair.set_far(&["endpoint", endpoint])?;
        let captures = [
            Capture::start(&near, "eth0", "udp src port 51820")?,
            Capture::start(&near, "eth1", "udp src port 51820")?,
        ];
        #[rustfmt::skip]
        near.run(&["ping", "-c", "20", "-i", "0.02", "-W", "5", &FAR.to_string()])?;
        let data = |packets: &[Packet]| messages(packets, Message::Data).count();
        let [direct, rerouted] = captures;
        let rerouted = data(&rerouted.stop_once("rerouted", |seen| data(seen) >= 20)?);
        let direct = data(&direct.stop()?);
        ensure!(
            (direct, rerouted) == (0, 20),
            "{direct} direct and {rerouted} rerouted"
        );
    }
    let rules = near.run(&["nft", "list", "table", "inet", "marks"])?;
    let marked = rules.stdout.contains("counter packets 40 ");
    ensure!(marked, "marked packets: {}", rules.stdout);
    pair.near.id().map(drop)
}

/// The rules of `wg-quick` for a default route, made by hand.
pub(crate) fn default_route_by_mark() -> Result<()> {
    let pair = Pair::new()?;
    let (near, far) = (&pair.near.host, &pair.far.host);
    let beyond = ["198.51.100.1", "2001:db8:5::1"];
    for address in beyond {
        add_address(far, "lo", address)?;
    }
    pair.near.tunnel.set(&["fwmark", "51820"])?;
    pair.set_far(&["allowed-ips", "0.0.0.0/0,::/0"])?;
    near.sysctl("net/ipv4/conf/all/src_valid_mark", "1")?;
    for family in ["-4", "-6"] {
        for command in [
            "route add default dev wgnear table 51820",
            "rule add not fwmark 51820 table 51820",
            "rule add table main suppress_prefixlength 0",
        ] {
            let words: Vec<_> = command.split(' ').collect();
            near.ip(&[&[family], &words[..]].concat())?;
        }
    }
    for outer in ["192.0.2.2:51821", "[2001:db8::2]:51821"] {
        pair.set_far(&["endpoint", outer])?;
        for address in beyond {
            near.run(&["ping", "-c", "100", "-f", "-W", "5", address])?;
        }
    }
    Ok(())
}

/// Senders get an ICMP error for packets to a removed peer, to a peer without an endpoint, and from
/// behind a router with NAT.
pub(crate) fn unreachable() -> Result<()> {
    let pair = Pair::new()?;
    let near = &pair.near.host;
    let client = Host::new("client")?;
    link(
        client.port("eth0", &["192.168.1.2/24"]),
        near.port("lan", &["192.168.1.1/24"]),
        1500,
    )?;
    client.ip(&["route", "add", "default", "via", "192.168.1.1"])?;
    near.sysctl("net/ipv4/ip_forward", "1")?;
    near.run_with_input(
        &["nft", "-f", "-"],
        "table ip nat { chain out {
            type nat hook postrouting priority srcnat;
            oifname wgnear masquerade
        }
        }",
    )?;
    ping(&client, FAR, 5)?;
    ping(near, FAR6, 5)?;

    pair.near
        .tunnel
        .set(&["peer", &pair.far.keys.public, "remove"])?;
    ensure_refused(near, FAR, "Destination Host Unreachable")?;
    ensure_refused(near, FAR6, "Destination unreachable: Address unreachable")?;
    ensure_refused(&client, FAR, "Destination Host Unreachable")?;

    pair.set_far(&["allowed-ips", "10.77.0.2/32,fd77::2/128"])?;
    ensure_refused(near, FAR, "Destination Host Unreachable")?;
    ensure_refused(near, FAR6, "Destination unreachable: Address unreachable")?;
    ensure_refused(&client, FAR, "Destination Host Unreachable")?;

    pair.set_far(&["endpoint", "192.0.2.2:51821"])?;
    ping(&client, FAR, 5)
}

/// Packets of many senders in one batch: each sender gets an error.
pub(crate) fn unreachable_at_once() -> Result<()> {
    // Below the limit of a hundred errors at once.
    const SENDERS: usize = 40;
    let mut pair = Pair::new()?;
    let near = pair.near.host.clone();
    for (far, own) in [(FAR, NEAR), (FAR6, NEAR6)] {
        // A peer that is removed and added again at once may send its next initiation too soon to
        // be answered (within a fiftieth of a second), and retries after 5 s.
        first_answer(&near, far, Duration::from_secs(15))?;
        let senders: Vec<_> = (0..SENDERS)
            .map(|_| socket_with_errors(&near, own, far))
            .collect::<Result<_>>()?;
        pair.near
            .tunnel
            .set(&["peer", &pair.far.keys.public, "remove"])?;
        pair.set_far(&["allowed-ips", "10.77.0.2/32,fd77::2/128"])?;
        // Packets sent meanwhile are all waiting when the program continues.
        signal(&mut pair.near, Signal::STOP)?;
        for sender in &senders {
            sender.send(b"anybody?").map_err(Error::io("sending"))?;
        }
        signal(&mut pair.near, Signal::CONT)?;
        for (i, sender) in senders.iter().enumerate() {
            let reported = sender.recv(&mut [0; 100]).map_err(|error| error.kind());
            let expected = Err(ErrorKind::HostUnreachable);
            ensure!(
                reported == expected,
                "sender {i} of {far} gets {reported:?}"
            );
        }
        pair.set_far(&["endpoint", "192.0.2.2:51821"])?;
    }
    Ok(())
}

fn signal(end: &mut End, signal: Signal) -> Result<()> {
    let process = end.tunnel.process();
    let process = process.ok_or_else(|| Error::unmet("not a program of this machine"))?;
    process.signal(signal)
}

/// Returns a UDP socket that reports all ICMP errors for its packets; others report only errors
/// that end a connection.
fn socket_with_errors(host: &Host, from: IpAddr, to: IpAddr) -> Result<UdpSocket> {
    let what = "a UDP socket that reports errors";
    host.enter(|| {
        let socket = UdpSocket::bind((from, 0)).map_err(Error::io(what))?;
        socket.connect((to, 9)).map_err(Error::io(what))?;
        let limit = Some(Duration::from_secs(5));
        socket.set_read_timeout(limit).map_err(Error::io(what))?;
        let option = match to {
            IpAddr::V4(_) => IntOption::ReceiveErrorsV4,
            IpAddr::V6(_) => IntOption::ReceiveErrorsV6,
        };
        socket_option::set(socket.as_fd(), option, 1).map_err(Error::io(what))?;
        Ok(socket)
    })
}

fn ensure_refused(from: &Host, to: IpAddr, answer: &str) -> Result<()> {
    let to = to.to_string();
    let command = from.command(&["ping", "-n", "-c", "1", "-W", "3", &to]);
    let Err(Error::Command { output, .. }) = process::run(from.name(), command, None) else {
        return Err(Error::unmet("a ping to nobody was answered"));
    };
    let reported = output
        .lines()
        .any(|line| line.starts_with(&format!("From {to}")) && line.ends_with(answer));
    ensure!(reported, "ping to nobody says {output}");
    Ok(())
}
