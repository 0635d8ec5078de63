//! Source addresses and endpoints.

use crate::pair::{FAR, FAR_OUTER, FAR_PORT, FAR6, NEAR, NEAR6, Pair, neighbours};
use std::net::IpAddr;
use std::time::Duration;
use taupe_lab::capture::Capture;
use taupe_lab::host::{Host, add_address, link};
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::figure;
use taupe_lab::traffic::ping;
use taupe_lab::{Error, Result, ensure};

/// Time limit of one ping: less than the 5 s after which a handshake is retried.
const PROMPT: u32 = 3;

/// Time for which the effect of a notification is awaited: less than the 5 s after which a handshake is
/// retried, by another path to the new address.
const NOTIFIED: Duration = Duration::from_secs(4);

/// Time for which a look-up is awaited.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) fn roaming() -> Result<()> {
    let pair = Pair::new()?;
    let Pair { near, far } = &pair;
    let move_to = |port: &str, gone: &str, new: &str| {
        near.tunnel.set(&["listen-port", port])?;
        near.host.ip(&["address", "delete", gone, "dev", "eth0"])?;
        add_address(&near.host, "eth0", new)
    };
    ping(&near.host, FAR, PROMPT)?;
    far.ensure_endpoint(&near.keys, "192.0.2.1:51820")?;

    move_to("9999", "192.0.2.1/24", "192.0.2.77/24")?;
    ping(&near.host, FAR6, PROMPT)?;
    far.ensure_endpoint(&near.keys, "192.0.2.77:9999")?;
    // The opposite direction now uses this endpoint.
    ping(&far.host, NEAR, PROMPT)?;

    pair.set_far(&["endpoint", "[2001:db8::2]:51821"])?;
    ping(&near.host, FAR, PROMPT)?;
    far.ensure_endpoint(&near.keys, "[2001:db8::1]:9999")?;
    move_to("9998", "2001:db8::1/64", "2001:db8::77/64")?;
    ping(&near.host, FAR, PROMPT)?;
    far.ensure_endpoint(&near.keys, "[2001:db8::77]:9998")?;
    ping(&far.host, NEAR6, PROMPT)
}

/// The address that a peer last used disappears, and the first packet after that has another
/// source.
pub(crate) fn source_not_too_sticky() -> Result<()> {
    let pair = Pair::new()?;
    let Pair { near, far } = &pair;
    near.host
        .sysctl("net/ipv4/conf/eth0/promote_secondaries", "1")?;
    add_address(&near.host, "eth0", "192.0.2.10/24")?;
    ping(&near.host, FAR, PROMPT)?;
    far.ensure_endpoint(&near.keys, "192.0.2.1:51820")?;
    let gone = ["address", "delete", "192.0.2.1/24", "dev", "eth0"];
    near.host.ip(&gone)?;
    ping(&near.host, FAR, PROMPT)?;
    far.ensure_endpoint(&near.keys, "192.0.2.10:51820")?;

    pair.set_far(&["endpoint", "[2001:db8::2]:51821"])?;
    ping(&near.host, FAR, PROMPT)?;
    far.ensure_endpoint(&near.keys, "[2001:db8::1]:51820")?;
    add_address(&near.host, "eth0", "2001:db8::10/64")?;
    let gone = ["address", "delete", "2001:db8::1/64", "dev", "eth0"];
    near.host.ip(&gone)?;
    ping(&near.host, FAR, PROMPT)?;
    far.ensure_endpoint(&near.keys, "[2001:db8::10]:51820")
}

/// The uplink has only link-local addresses. The device looks the source of its datagrams up once
/// for many datagrams, and again when addresses change. The source is never the tunnel's own
/// address, which is closest to the peer's.
pub(crate) fn source_follows_addresses() -> Result<()> {
    const OWN: &str = "2001:db8::1:1";
    const OTHERS: [&str; 2] = ["2001:db8:9::1", "2001:db8:9::2"];
    const DATAGRAMS: usize = 20;
    /// Look-ups for this number of datagrams: the first, one after a result's lifetime, and one
    /// after each late notification of a change.
    const LOOK_UPS: usize = 4;
    let mut pair = Pair::new()?;
    let (near, far) = (pair.near.host.clone(), pair.far.host.clone());
    let gone = ["address", "delete", "2001:db8::1/64", "dev", "eth0"];
    near.ip(&gone)?;
    for (from, to, destination) in [
        (&near, &far, "default"),
        (&far, &near, "2001:db8:9::/64"),
        (&far, &near, OWN),
    ] {
        let router = link_local(to)?;
        #[rustfmt::skip]
        from.ip(&["-6", "route", "add", destination, "via", &router, "dev", "eth0"])?;
    }
    add_address(&near, "wgnear", OWN)?;
    add_address(&near, "lo", OTHERS[0])?;
    pair.set_far(&["endpoint", "[2001:db8::2]:51821"])?;
    ping(&near, FAR, PROMPT)?;
    pair.far
        .ensure_endpoint(&pair.near.keys, &format!("[{}]:51820", OTHERS[0]))?;

    // The far end sends nothing more, and the near one forgets the local address at which it
    // received.
    pair.far.link(&["down"])?;
    let send = |count: usize| {
        let (count, to) = (count.to_string(), FAR.to_string());
        near.attempt(&["ping", "-c", &count, "-i", "0.05", "-W", "1", &to])
    };
    let capture = || Capture::start(&far, "eth0", "ip6 and udp dst port 51821");
    near.ip(&["address", "delete", OTHERS[0], "dev", "lo"])?;
    // A datagram may leave before the program has read the kernel's notification.
    send(3)?;
    let sent = capture()?;
    send(DATAGRAMS)?;
    let sent = sent.stop()?.len();
    ensure!(sent == 0, "{sent} datagrams from the tunnel's own address");

    add_address(&near, "lo", OTHERS[1])?;
    let before = look_ups(&mut pair)?;
    let sent = capture()?;
    send(3)?;
    wait_until("a look-up", PATIENCE, || Ok(look_ups(&mut pair)? > before))?;
    let before = look_ups(&mut pair)?;
    send(DATAGRAMS)?;
    let looked_up = look_ups(&mut pair)? - before;
    let sent = sent.stop()?;
    let sources = sent.iter().filter_map(|packet| packet.datagram());
    let sources: Vec<_> = sources.map(|datagram| datagram.source.ip()).collect();
    let expected: IpAddr = OTHERS[1].parse().map_err(|_| Error::unmet("address"))?;
    ensure!(
        sources.len() >= DATAGRAMS && sources.iter().all(|source| *source == expected),
        "datagrams from {sources:?}"
    );
    figure("look-ups for 20 datagrams", looked_up);
    ensure!(looked_up <= LOOK_UPS, "{looked_up} look-ups");
    Ok(())
}

/// Returns the number of source look-ups by the near end's program.
fn look_ups(pair: &mut Pair) -> Result<usize> {
    let process = pair.near.tunnel.process();
    let process = process.ok_or_else(|| Error::unmet("not a program of this machine"))?;
    let log = process.output();
    Ok(log.matches("looked up the source address").count())
}

/// Returns the link-local address of a machine's uplink.
fn link_local(host: &Host) -> Result<String> {
    #[rustfmt::skip]
    let shown = host.ip(&["-6", "-o", "address", "show", "dev", "eth0", "scope", "link"])?;
    let mut words = shown.stdout.split_whitespace();
    let address = words.find_map(|word| word.strip_suffix("/64"));
    address
        .map(str::to_owned)
        .ok_or_else(|| Error::unmet(format!("no link-local address: {}", shown.stdout)))
}

/// Each of several addresses of a machine answers datagrams to it.
pub(crate) fn reply_to_sender() -> Result<()> {
    let pair = Pair::new()?;
    add_address(&pair.near.host, "eth0", "192.0.2.11/24")?;
    add_address(&pair.near.host, "eth0", "2001:db8::11/64")?;
    for address in [
        "192.0.2.1:51820",
        "192.0.2.11:51820",
        "[2001:db8::1]:51820",
        "[2001:db8::11]:51820",
        "192.0.2.11:51820",
    ] {
        answers_from(&pair, address)?;
    }
    Ok(())
}

pub(crate) fn address_of_another_interface() -> Result<()> {
    let (near, far) = neighbours()?;
    let aside = Host::new("aside")?;
    link(
        near.port("eth1", &["10.50.0.1/24", "2001:db8:50::1/64"]),
        aside.port("eth0", &[]),
        1500,
    )?;
    far.ip(&["route", "add", "10.50.0.0/24", "via", "192.0.2.1"])?;
    #[rustfmt::skip]
    far.ip(&["-6", "route", "add", "2001:db8:50::/64", "via", "2001:db8::1"])?;
    let pair = Pair::between(&near, &far, FAR_OUTER, [&[], &[]])?;
    for address in ["10.50.0.1:51820", "[2001:db8:50::1]:51820"] {
        answers_from(&pair, address)?;
    }
    Ok(())
}

/// The far end sends to the near one at an address, and receives answers from this address.
fn answers_from(pair: &Pair, address: &str) -> Result<()> {
    let Pair { near, far } = pair;
    pair.set_near(&["endpoint", address])?;
    ping(&far.host, NEAR, PROMPT)?;
    far.ensure_endpoint(&near.keys, address)?;
    // Also for traffic that the near end begins.
    ping(&near.host, FAR, PROMPT)?;
    far.ensure_endpoint(&near.keys, address)
}

/// Two routes lead to the far end. The device uses the better one as soon as it exists, with the
/// source address that belongs to it, and the other one when it disappears.
pub(crate) fn better_route() -> Result<()> {
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
    let cases = [
        (
            "198.51.100.2",
            ["192.0.2.2", "203.0.113.2"],
            ["192.0.2.1:51820", "203.0.113.1:51820"],
        ),
        (
            "2001:db8:5::2",
            ["2001:db8::2", "2001:db8:113::2"],
            ["[2001:db8::1]:51820", "[2001:db8:113::1]:51820"],
        ),
    ];
    let pair = Pair::between(&near, &far, FAR_OUTER, [&[], &[]])?;
    for (target, gateways, sources) in cases {
        let target: IpAddr = target.parse().map_err(|_| Error::unmet("address"))?;
        let text = target.to_string();
        add_address(&far, "lo", &text)?;
        let route = |verb: &str, way: usize, metric: &str| {
            let interface = ["eth0", "eth1"][way];
            #[rustfmt::skip]
            let arguments = [
                "route", verb, &text, "via", gateways[way], "dev", interface, "metric", metric,
            ];
            near.ip(&arguments).map(drop)
        };
        route("add", 0, "2")?;
        let endpoint = match target {
            IpAddr::V4(_) => format!("{target}:{FAR_PORT}"),
            IpAddr::V6(_) => format!("[{target}]:{FAR_PORT}"),
        };
        pair.set_far(&["endpoint", &endpoint])?;
        // The kernel notifies the program of a new route while the first packets leave.
        let await_source = |way: usize| {
            wait_until("packets from the new source address", NOTIFIED, || {
                ping(&near, FAR, PROMPT)?;
                Ok(pair
                    .far
                    .ensure_endpoint(&pair.near.keys, sources[way])
                    .is_ok())
            })
        };
        await_source(0)?;
        route("add", 1, "1")?;
        await_source(1)?;
        route("delete", 1, "1")?;
        await_source(0)?;
        ensure!(
            pair.near.tunnel.field("endpoints", &pair.far.keys.public)? == endpoint,
            "the far end answers from another address than {endpoint}"
        );
    }
    Ok(())
}

/// A change of an unrelated link does not change the source address of answers to a peer.
pub(crate) fn unrelated_notice() -> Result<()> {
    let (near, far) = neighbours()?;
    add_address(&far, "eth0", "192.0.2.3/24")?;
    let pair = Pair::between(&near, &far, FAR_OUTER, [&[], &[]])?;
    let second = format!("192.0.2.3:{FAR_PORT}");
    pair.set_far(&["endpoint", &second])?;
    ping(&near, FAR, PROMPT)?;
    far.ip(&[
        "link", "add", "other0", "type", "veth", "peer", "name", "other1",
    ])?;
    std::thread::sleep(Duration::from_millis(200));
    ping(&far, NEAR, PROMPT)?;
    pair.near.ensure_endpoint(&pair.far.keys, &second)
}
