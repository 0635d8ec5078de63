//! Hybrid handshakes on real interfaces: messages on the wire, accepted peers, ordinary peers of
//! the same interface; and a published handshake for comparison.

mod published;
mod world;

use std::time::Duration;
use taupe_lab::capture::{Capture, Message, messages};
use taupe_lab::host::{Host, link};
use taupe_lab::peers::Implementation;
use taupe_lab::process::is_emulated;
use taupe_lab::sandbox::{Suite, SystemTest};
use taupe_lab::traffic::ping;
use taupe_lab::{Result, ensure};

use world::{End, FAR, NEAR, Pair};

fn main() {
    Suite::new(vec![
        SystemTest::new("hybrid_768_over_1280", || {
            over_1280("hybrid-768", &[1232, 1232, 1180, 1164])
        }),
        SystemTest::new("hybrid_512_over_1280", || {
            over_1280("hybrid-512", &[912, 848, 860, 844])
        }),
        SystemTest::new("hybrid_light_over_1280", || {
            over_1280("hybrid-light", &[944, 860])
        }),
        SystemTest::new("lossy_link", lossy_link),
        SystemTest::new("ordinary_peers_beside_hybrid_ones", ordinary_peers),
        SystemTest::new("the_same_x25519_keys_are_not_enough", the_same_keys),
        SystemTest::new("one_wrong_character_of_a_key", one_character),
        SystemTest::new("prefer_is_remembered", prefer_is_remembered),
        SystemTest::new(
            "tunnel_with_a_published_handshake",
            published::carries_a_tunnel,
        ),
        SystemTest::new(
            "published_handshakes_are_refused",
            published::is_refused_where_it_cannot_be,
        ),
    ])
    .prepare(|| {
        Implementation::Taupe.install()?;
        Implementation::WireguardGo.install().map(drop)
    })
    .main()
}

/// Over IPv6 with the minimum MTU each part is one datagram, none is fragmented, and none contains
/// a public key. In an emulated machine, an answer may come so late that parts are sent again.
fn over_1280(suite: &str, parts: &[usize]) -> Result<()> {
    let (near, far) = world::neighbours(1280)?;
    let capture = Capture::start(&near, "eth0", "ip6")?;
    let pair = Pair::new(&near, &far, suite, suite)?;
    ping(&near, FAR, 5)?;
    ping(&far, NEAR, 5)?;
    let packets = capture.stop_once("data", |seen| messages(seen, Message::Data).count() >= 4)?;
    let fragments = packets
        .iter()
        .filter(|packet| packet.ip.get(6) == Some(&44));
    ensure!(fragments.count() == 0, "{suite}: fragments");
    let datagrams = packets.iter().filter_map(|packet| packet.datagram());
    let mut seen: Vec<&[u8]> = Vec::new();
    for payload in datagrams.map(|datagram| datagram.payload) {
        let is_repeated = is_emulated() && seen.contains(&payload);
        if matches!(payload.first(), Some(0x48 | 0x49)) && !is_repeated {
            seen.push(payload);
        }
    }
    let lengths: Vec<usize> = seen.iter().map(|payload| payload.len()).collect();
    ensure!(lengths == parts, "{suite}: parts of {lengths:?}");
    let ordinary = [Message::Initiation, Message::Response];
    let ordinary = ordinary.map(|kind| messages(&packets, kind).count());
    ensure!(ordinary == [0, 0], "{suite}: ordinary handshakes");
    for key in pair.public_keys()? {
        let start = &key[..16];
        let shown = seen
            .iter()
            .any(|payload| payload.windows(16).any(|it| it == start));
        ensure!(!shown, "{suite}: a public key in clear");
    }
    for end in [&pair.near, &pair.far] {
        let shown = end.taupe(&["show", end.interface()])?;
        let line = format!("post-quantum: {suite}");
        ensure!(shown.contains(&line), "{suite}: {shown}");
    }
    Ok(())
}

/// A quarter of the datagrams is lost in each direction; parts are sent again.
fn lossy_link() -> Result<()> {
    const LOSS: &str = "table inet loss {
        chain in {
            type filter hook input priority 0;
            udp dport { 51820, 51821 } numgen random mod 100 < 25 counter drop
        }
    }";
    let (near, far) = world::neighbours(1280)?;
    for host in [&near, &far] {
        host.run_with_input(&["nft", "-f", "-"], LOSS)?;
    }
    let _pair = Pair::new(&near, &far, "hybrid-768", "hybrid-768")?;
    taupe_lab::traffic::first_answer(&near, FAR, Duration::from_secs(60)).map(drop)
}

/// One interface has an ordinary peer, which is another program, and a hybrid one.
fn ordinary_peers() -> Result<()> {
    let (near, far) = world::neighbours(1500)?;
    let pair = Pair::new(&near, &far, "hybrid-768", "hybrid-768")?;
    let third = Host::new("third")?;
    link(
        near.port("eth1", &["198.51.100.1/24"]),
        third.port("eth0", &["198.51.100.2/24"]),
        1500,
    )?;
    let go = Implementation::WireguardGo;
    let third = End::start(&third, go, "wgthird", &["10.77.0.3/24"], 51822)?;
    third.add_peer(&pair.near, "10.77.0.1/32", Some("198.51.100.1:51820"))?;
    pair.near.add_peer(&third, "10.77.0.3/32", None)?;
    ping(&third.host, NEAR, 5)?;
    ping(&near, FAR, 5)?;
    let shown = pair.near.taupe(&["show", "wgnear"])?;
    ensure!(
        shown.matches("post-quantum: hybrid-768").count() == 1,
        "{shown}"
    );
    ensure!(shown.matches("latest handshake").count() == 2, "{shown}");
    Ok(())
}

/// A peer that must be post-quantum is not reached by a program with its X25519 keys.
fn the_same_keys() -> Result<()> {
    let (near, far) = world::neighbours(1500)?;
    let pair = Pair::new(&near, &far, "hybrid-768", "hybrid-768")?;
    let Pair {
        near: local,
        far: remote,
    } = pair;
    let keys = remote.keys.clone();
    drop(remote);
    let go = Implementation::WireguardGo;
    let impostor = End::start_with_keys(&far, go, "wgthief", &["10.77.0.2/24"], 51821, keys)?;
    let capture = Capture::start(&near, "eth0", "udp")?;
    impostor.add_peer(&local, "10.77.0.1/32", Some("[2001:db8::1]:51820"))?;
    ensure!(
        ping(&far, NEAR, 3).is_err(),
        "an ordinary handshake was answered"
    );
    ensure!(ping(&near, FAR, 3).is_err(), "an ordinary session was made");
    let packets = capture.stop_once("an initiation", |seen| {
        messages(seen, Message::Initiation).next().is_some()
    })?;
    for kind in [Message::Response, Message::CookieReply, Message::Data] {
        let sent = messages(&packets, kind).count();
        ensure!(sent == 0, "{sent} of {kind:?}");
    }
    let from_near = |packet: &&taupe_lab::capture::Packet| {
        packet
            .datagram()
            .is_some_and(|it| it.source.port() == 51820)
    };
    let ordinary = messages(&packets, Message::Initiation)
        .filter(from_near)
        .count();
    ensure!(ordinary == 0, "it has sent an ordinary initiation itself");
    Ok(())
}

/// A public key with a changed character is rejected, or at least never leads to a session.
fn one_character() -> Result<()> {
    let (near, far) = world::neighbours(1500)?;
    let pair = Pair::new(&near, &far, "hybrid-768", "hybrid-768")?;
    ping(&near, FAR, 5)?;
    let good = pair.far.pq.public("hybrid-768")?;
    // The last 32 bytes may have any value; those before are validated.
    let mut bad = good.clone().into_bytes();
    bad[1560] = if bad[1560] == b'A' { b'B' } else { b'A' };
    let bad = String::from_utf8_lossy(&bad).into_owned();
    pair.near.set_hybrid(&pair.far, Some(&bad), "require")?;
    ensure!(ping(&near, FAR, 7).is_err(), "a session with a wrong key");
    ensure!(ping(&far, NEAR, 7).is_err(), "a session with a wrong key");
    pair.near.set_hybrid(&pair.far, Some(&good), "require")?;
    taupe_lab::traffic::first_answer(&near, FAR, Duration::from_secs(20)).map(drop)
}

/// After a first hybrid handshake, a peer with `prefer` does not return to ordinary handshakes,
/// even after a restart.
fn prefer_is_remembered() -> Result<()> {
    let (near, far) = world::neighbours(1500)?;
    let pair = Pair::new(&near, &far, "hybrid-768", "hybrid-768")?;
    let key = pair.far.pq.public("hybrid-768")?;
    pair.near.set_hybrid(&pair.far, Some(&key), "prefer")?;
    ping(&near, FAR, 5)?;
    let shown = pair.near.taupe(&["show", "wgnear"])?;
    ensure!(shown.contains("post-quantum: hybrid-768"), "{shown}");
    let Pair {
        near: local,
        far: remote,
    } = pair;
    let restarted = local.restart()?;
    restarted.set_hybrid(&remote, Some(&key), "prefer")?;
    // The other side now supports ordinary handshakes only.
    remote.set_hybrid(&restarted, None, "off")?;
    let capture = Capture::start(&near, "eth0", "udp")?;
    ensure!(
        ping(&far, NEAR, 3).is_err(),
        "led back to an ordinary handshake"
    );
    ensure!(
        ping(&near, FAR, 20).is_err(),
        "led back to an ordinary handshake"
    );
    let packets = capture.stop()?;
    let responses = messages(&packets, Message::Response).count();
    ensure!(responses == 0, "{responses} ordinary responses");
    Ok(())
}
