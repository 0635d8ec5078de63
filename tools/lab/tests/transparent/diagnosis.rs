//! The messages of `up` and `status` and the documentation are true: their sentences come from the
//! deciding code, and captures confirm the limits that they name.

use crate::world::{Application, BEYOND, SERVER, TUNNEL, UPLINK, World, expect, succeeded};
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;
use taupe_lab::capture::{Capture, Packet};
use taupe_lab::peers::{Implementation, Keys};
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::{scratch_file, step};
use taupe_lab::{Error, Result, ensure};

/// Name server questions go through the tunnel in spite of `BypassLanTraffic`.
pub(crate) fn name_servers_in_a_local_network() -> Result<()> {
    let world = World::new()?;
    let file = world.file_with_sections(
        &format!("Address = 10.77.0.1/32\nDNS = {}", SERVER[0]),
        "Endpoint = 192.168.1.2:51821\nAllowedIPs = 0.0.0.0/0\nAllowedApps = mole\n\
         BypassLanTraffic = true",
    )?;
    let up = world.taupe(&["up", &file])?;
    succeeded("up", &up)?;
    ensure!(!up.stderr.contains("not in the tunnel"), "{}", up.stderr);
    let status = world.taupe(&["status"])?;
    ensure!(status.status == Some(0), "{}", status.stdout);
    world.down(&file)
}

/// One message, without the advice to use adapter mode, which has no IPv6 either.
pub(crate) fn kernel_without_ipv6() -> Result<()> {
    let world = World::new()?;
    for which in ["all", "default"] {
        let setting = format!("net/ipv6/conf/{which}/disable_ipv6");
        world.near.sysctl(&setting, "1")?;
    }
    let file = world.file("AllowedApps = mole")?;
    let up = world.taupe(&["up", &file])?;
    succeeded("up", &up)?;
    let lines = up.stderr.lines().filter(|line| line.contains("IPv6"));
    let lines: Vec<_> = lines.collect();
    ensure!(
        matches!(lines.as_slice(), [one] if one.contains("switched off")),
        "{lines:#?}"
    );
    let status = world.taupe(&["status"])?;
    ensure!(
        status.stdout.contains("IPv6 is switched off")
            && !status.stdout.contains("no route to IPv6"),
        "{}",
        status.stdout
    );
    world.down(&file)
}

/// A process without descriptors gets no advice to use another kernel.
pub(crate) fn out_of_descriptors() -> Result<()> {
    let world = World::new()?;
    let program = Implementation::Taupe.program()?.display().to_string();
    let file = world.file("AllowedApps = mole")?;
    // Too few for the maps, and too few for the programs.
    for limit in [24, 40] {
        step(&format!("{limit} descriptors"));
        let command = format!("ulimit -n {limit}; exec {program} up {file}");
        let up = world.near.attempt(&["sh", "-c", &command])?;
        ensure!(up.status == Some(1), "{up:?}");
        ensure!(up.stderr.contains("Too many open files"), "{}", up.stderr);
        ensure!(!up.stderr.contains("newer kernel"), "{}", up.stderr);
        ensure!(!up.stderr.contains("CONFIG_"), "{}", up.stderr);
    }
    Ok(())
}

/// `up` (once), `status` and its JSON report the guarantees that Taupe cannot give on this kernel.
pub(crate) fn missing_guarantees_are_reported() -> Result<()> {
    let world = World::new()?;
    let file = world.file("AllowedApps = mole")?;
    let up = world.taupe(&["up", &file])?;
    succeeded("up", &up)?;
    let json = |arguments: &[&str]| -> Result<serde_json::Value> {
        let output = world.taupe(arguments)?.stdout;
        serde_json::from_str(&output).map_err(|error| Error::unmet(format!("{error}: {output}")))
    };
    let status = json(&["status", "--json"])?;
    let gaps = status["tunnels"][0]["gaps"].as_array();
    let gaps = gaps.ok_or_else(|| Error::unmet(format!("no gaps: {status}")))?;
    let text = world.taupe(&["status"])?.stdout;
    for gap in gaps {
        let gap = gap["text"].as_str().unwrap_or_default();
        ensure!(!gap.is_empty(), "{status}");
        ensure!(up.stderr.matches(gap).count() == 1, "{gap}: {}", up.stderr);
        ensure!(text.contains(gap), "{gap}: {text}");
    }
    // `doctor` reports the same gaps of the kernel.
    let doctor = json(&["doctor", "--json"])?;
    let checks = doctor["checks"].as_array();
    let mut checks = checks.into_iter().flatten();
    let programs = checks.find(|check| check["name"] == "transparent-mode");
    let is_refused = programs.is_some_and(|check| check["result"] == "warn");
    let is_reported = gaps
        .iter()
        .any(|gap| gap["code"] == "handover" || gap["code"] == "families");
    ensure!(!is_refused || is_reported, "{doctor}\n{status}");
    world.down(&file)
}

/// Without a link to the endpoint `up` succeeds, since one may appear, and warns. `status` is
/// degraded at once, before any packet was sent, and up when there is a link.
pub(crate) fn no_link_to_the_endpoint() -> Result<()> {
    let world = World::new()?;
    let eth0 = |host: &taupe_lab::host::Host, state| host.ip(&["link", "set", "eth0", state]);
    let is_up = || {
        wait_until("up", Duration::from_secs(30), || {
            Ok(world.taupe(&["status"])?.status == Some(0))
        })
    };
    for (options, line) in [
        (["up"].as_slice(), "AllowedApps = mole"),
        (&["up", "--adapter"], ""),
    ] {
        step(&format!("{options:?} without a link"));
        let file = world.file(line)?;
        eth0(&world.near, "down")?;
        let up = world.taupe(&[options, &[&file]].concat())?;
        succeeded("up", &up)?;
        let reported = "no route leads to its peer at 192.168.1.2:51821 (eth0 is down";
        let lines = up.stderr.lines().filter(|line| line.contains(reported));
        ensure!(lines.count() == 1, "not once {reported:?}: {}", up.stderr);
        let status = world.taupe(&["status"])?;
        ensure!(status.status == Some(2), "{}", status.stdout);
        ensure!(status.stdout.contains(reported), "{}", status.stdout);
        step("the link comes");
        eth0(&world.near, "up")?;
        is_up()?;
        step("its cable is pulled out, and put in");
        eth0(&world.far, "down")?;
        wait_until("no carrier", Duration::from_secs(30), || {
            let status = world.taupe(&["status"])?;
            let reported = "leaves by eth0, which is down or has no carrier";
            Ok(status.status == Some(2) && status.stdout.contains(reported))
        })?;
        eth0(&world.far, "up")?;
        is_up()?;
        world.down(&file)?;
    }
    step("through another tunnel, whose endpoint no route leads to");
    let inner = world.with_another("inner", 7)?;
    let [address, _] = inner.tunnel();
    let inner = inner.file_with_sections(
        &format!("Address = {address}/32"),
        &format!(
            "Endpoint = {}:51821\nAllowedIPs = 203.0.113.0/24",
            SERVER[0]
        ),
    )?;
    let outer = world.file("")?;
    eth0(&world.near, "down")?;
    let up = world.taupe(&["up", "--adapter", &inner, "--via", &outer])?;
    succeeded("up", &up)?;
    let reported = "home, which it goes through: no route leads to its peer at 192.168.1.2:51821";
    ensure!(up.stderr.matches(reported).count() == 1, "{}", up.stderr);
    let status = world.taupe(&["status", "inner"])?;
    ensure!(status.status == Some(2), "{}", status.stdout);
    ensure!(status.stdout.contains(reported), "{}", status.stdout);
    world.down(&inner)
}

/// Two tunnels with one private key share one session at a common peer: the second `up` warns, and
/// `status` reports it for both while it lasts. With different peers it is no fault.
pub(crate) fn one_private_key_in_two_tunnels() -> Result<()> {
    let world = World::new()?;
    let home = world.file("AllowedApps = mole")?;
    let reported = |other: &str| format!("{other} has the same PrivateKey and shares its peer");
    let another = |peer: &str| {
        let text = std::fs::read_to_string(&home).map_err(Error::io("home.conf"))?;
        let text = text
            .replace(world.server_key(), peer)
            .replace("mole", "shrew");
        scratch_file("work.conf", &text)
    };
    let up = world.taupe(&["up", &home])?;
    succeeded("up", &up)?;
    ensure!(!up.stderr.contains("same PrivateKey"), "{}", up.stderr);

    step("another peer");
    let work = another(&Keys::new(&world.near)?.public)?;
    let up = world.taupe(&["up", &work])?;
    succeeded("up", &up)?;
    ensure!(!up.stderr.contains("same PrivateKey"), "{}", up.stderr);
    let status = world.taupe(&["status"])?;
    ensure!(status.status == Some(0), "{}", status.stdout);
    world.down(&work)?;

    step("the same peer");
    let work = another(world.server_key())?;
    let up = world.taupe(&["up", &work])?;
    succeeded("up", &up)?;
    let lines = up
        .stderr
        .lines()
        .filter(|line| line.contains("same PrivateKey"));
    let lines: Vec<_> = lines.collect();
    ensure!(
        matches!(lines.as_slice(), [line] if line.contains(&reported("home"))),
        "{}",
        up.stderr
    );
    for (tunnel, other) in [("home", "work"), ("work", "home")] {
        let status = world.taupe(&["status", tunnel])?;
        ensure!(status.status == Some(2), "{}", status.stdout);
        ensure!(
            status.stdout.contains(&reported(other)),
            "{}",
            status.stdout
        );
    }
    world.down(&work)?;
    let status = world.taupe(&["status"])?;
    ensure!(status.status == Some(0), "{}", status.stdout);
    world.down(&home)
}

/// Joins a group of each family, and sends a datagram to it and to four machines of the link: the
/// first of each family is outside the tunnel, the second inside.
const JOINS: &str = r#"
    use Socket qw(:all);
    open(my $number, "<", "/sys/class/net/eth0/ifindex") or die; my $eth0 = <$number> + 0;
    socket(my $v4, AF_INET, SOCK_DGRAM, 0) or die;
    my $group = pack_ip_mreq(inet_aton("239.1.2.3"));
    setsockopt($v4, IPPROTO_IP, IP_ADD_MEMBERSHIP, $group) or die "IPv4: $!";
    socket(my $v6, AF_INET6, SOCK_DGRAM, 0) or die;
    $group = pack_ipv6_mreq(inet_pton(AF_INET6, "ff0e::99"), $eth0);
    setsockopt($v6, IPPROTO_IPV6, IPV6_JOIN_GROUP, $group) or die "IPv6: $!";
    for my $to ("239.1.2.3", "192.168.1.77", "192.168.1.78") {
        send($v4, "mole", 0, pack_sockaddr_in(7000, inet_aton($to)));
    }
    for my $to ("ff0e::99", "2001:db8:1::77", "2001:db8:1::78") {
        my $address = inet_pton(AF_INET6, $to);
        send($v6, "mole", 0, pack_sockaddr_in6(7000, $address, $eth0, 0));
    }
    sleep 600;
"#;

/// The link sees the groups that a selected application joins and its neighbour discovery, but none
/// of its datagrams.
pub(crate) fn multicast_groups_on_the_link() -> Result<()> {
    let world = World::new()?;
    let Application(mole) = Application::copy_of(Path::new("/usr/bin/perl"), "mole")?;
    let file =
        world.file("AllowedApps = mole\nDisallowedIPs = 192.168.1.77/32, 2001:db8:1::77/128")?;
    world.up(&file)?;
    let [queries, inside, others] = [
        "arp host 192.168.1.77",
        "arp host 192.168.1.78",
        "igmp or ip6 or udp port 7000",
    ]
    .map(|filter| Capture::start(&world.far, "eth0", filter));
    let (queries, inside, others) = (queries?, inside?, others?);
    let _mole = world.near.spawn(&[&*mole, "-e", JOINS])?;
    queries.stop_once("ARP", |packets| !packets.is_empty())?;
    let inside = inside.stop()?;
    let has = |packet: &Packet, address: &str| {
        let address: Vec<u8> = match address.parse() {
            Ok(IpAddr::V4(address)) => address.octets().to_vec(),
            Ok(IpAddr::V6(address)) => address.octets().to_vec(),
            Err(_) => return false,
        };
        packet.ip.windows(address.len()).any(|part| part == address)
    };
    let seen = ["239.1.2.3", "ff0e::99", "2001:db8:1::77", "2001:db8:1::78"];
    let packets = others.stop_once("groups and a neighbour", |packets| {
        let is_seen = |address: &&str| packets.iter().any(|packet| has(packet, address));
        seen.iter().all(is_seen)
    })?;
    // The kernel resolves a neighbour before it hands a packet to the tunnel's program.
    ensure!(!inside.is_empty(), "no ARP for a destination in the tunnel");
    let clear: Vec<_> = packets
        .iter()
        .filter(|packet| packet.ip.windows(4).any(|part| part == b"mole"))
        .collect();
    ensure!(clear.is_empty(), "in clear: {clear:?}");
    world.down(&file)
}

/// Connects to the server beyond, with the socket's mark or without one, and prints the answer.
const CONNECTS: &str = r#"
    use Socket qw(:all);
    socket(my $socket, AF_INET, SOCK_STREAM, 0) or die;
    my $so_mark = 36;
    setsockopt($socket, SOL_SOCKET, $so_mark, pack("l", 0)) or die "mark: $!" if $ARGV[0];
    alarm 3;
    connect($socket, pack_sockaddr_in(8080, inet_aton("198.51.100.1"))) or die "connect: $!";
    print scalar <$socket>;
"#;

/// In adapter mode a selected application that removes its socket's mark reaches nothing in the
/// tunnel's networks, and sends nothing unencrypted.
pub(crate) fn application_removes_its_mark() -> Result<()> {
    let world = World::new()?;
    let perl = Path::new("/usr/bin/perl");
    let Application(mole) = Application::copy_of(perl, "mole")?;
    let Application(bird) = Application::copy_of(perl, "bird")?;
    let file = world.file("AllowedApps = mole")?;
    succeeded("up", &world.taupe(&["up", "--adapter", &file])?)?;
    let ask = |program: &str, takes_off: &str| {
        let queries = world.near.attempt(&[program, "-e", CONNECTS, takes_off])?;
        Ok::<_, Error>((queries.stdout.trim().to_owned(), queries.stderr))
    };
    let clear = Capture::start(&world.far, "eth0", "host 198.51.100.1")?;
    for (takes_off, who) in [("0", TUNNEL[0]), ("1", "")] {
        let (output, error) = ask(&mole, takes_off)?;
        ensure!(
            output == who && !error.contains("mark"),
            "{output:?} {error}"
        );
    }
    let packets = clear.stop()?;
    ensure!(packets.is_empty(), "{} packets in clear", packets.len());
    // For another application the mark makes no difference.
    let (output, error) = ask(&bird, "1")?;
    ensure!(output == UPLINK[0], "{output:?} {error}");
    world.down(&file)
}

/// Without a route for a family on the uplink, selected applications cannot use it in transparent
/// mode, as `up` reports, but can in adapter mode.
pub(crate) fn uplink_route_for_one_family_only() -> Result<()> {
    let world = World::new()?;
    let mole = Application::new("mole")?;
    world.near.ip(&["-6", "route", "delete", "default"])?;
    let file = world.file("AllowedApps = mole")?;
    for (options, ipv6) in [
        (["up"].as_slice(), None),
        (&["up", "--adapter"], Some(TUNNEL[1])),
    ] {
        step(&format!("{options:?}"));
        let up = world.taupe(&[options, &[&file]].concat())?;
        succeeded("up", &up)?;
        let is_reported = up.stderr.contains("there is no route to IPv6 from here");
        ensure!(is_reported == ipv6.is_none(), "{}", up.stderr);
        expect(&world, &mole, 0, Some(TUNNEL[0]))?;
        expect(&world, &mole, 1, ipv6)?;
        world.down(&file)?;
    }
    Ok(())
}

/// Captures on this machine's uplink show the tunnel's answers to applications; the wire does not.
pub(crate) fn local_captures_show_inner_packets() -> Result<()> {
    let world = World::new()?;
    let mole = Application::new("mole")?;
    let file = world.file("AllowedApps = mole")?;
    world.up(&file)?;
    let answers = "tcp src port 8080";
    let here = Capture::start(&world.near, "eth0", answers)?;
    let wire = Capture::start(&world.far, "eth0", answers)?;
    expect(&world, &mole, 0, Some(TUNNEL[0]))?;
    here.stop_once("answers", |packets| {
        let IpAddr::V4(beyond) = BEYOND[0] else {
            return false;
        };
        let source = |packet: &Packet| packet.ip.get(12..16) == Some(&beyond.octets());
        packets.iter().any(source)
    })?;
    let packets = wire.stop()?;
    ensure!(packets.is_empty(), "{} packets in clear", packets.len());
    world.down(&file)
}
