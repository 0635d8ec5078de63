//! Selection of applications.

use taupe_config::file::KillSwitch;
use taupe_transparent_windows::{FrameDropReason, Protocol, Rules};

use crate::packets::{self, ACK, SYN, at, echo, ethernet, received, sent, tcp, udp, unreachable};
use crate::world::{NAMES, OWN, OWN6, SERVER, SERVER6, Setup, TUNNEL, TUNNEL6, World, rules};

#[test]
fn one_is_tunnelled_and_the_other_untouched() {
    for (own, tunnel, server) in [(OWN, TUNNEL, SERVER), (OWN6, TUNNEL6, SERVER6)] {
        let mut world = World::with(&["mole"]);
        let server = at(server, 443);
        let (mole, bird) = (at(own, 50_000), at(own, 50_001));
        world.mole(Protocol::Tcp, mole, server);
        world.bird(Protocol::Tcp, bird, server);
        let open = tcp(bird, server, SYN, b"");
        world.send(&open);
        world.send(&tcp(mole, server, SYN, b""));
        let data = tcp(bird, server, ACK, b"of the bird");
        world.send(&data);
        world.send(&tcp(mole, server, ACK, b"of the mole"));
        assert_eq!(world.passed(), [sent(&open), sent(&data)]);
        let got = world.take_got();
        assert_eq!(got.len(), 2);
        let outside = at(tunnel, 50_000);
        assert_eq!(got[1], tcp(outside, server, ACK, b"of the mole"));
        // The maximum segment size fits the tunnel's MTU of 1,420 bytes.
        let headers = if server.is_ipv4() { 40 } else { 60 };
        let mss = (1420u16 - headers).to_be_bytes();
        assert_eq!(got[0][got[0].len() - 2..], mss);
        // Replies go to the right application, in a frame as from the gateway.
        world.reply(&tcp(server, outside, ACK, b"to the mole"));
        let to_bird = tcp(server, bird, ACK, b"to the bird");
        world.receive(&to_bird);
        assert_eq!(
            world.at_system(true),
            [received(&tcp(server, mole, ACK, b"to the mole"))]
        );
        assert_eq!(world.at_system(false), [received(&to_bird)]);
        // The device asks to save its labels before anything is sent.
        assert_eq!(world.kept, 1);
    }
}

#[test]
fn names_paths_and_folders_match_as_written() {
    for (allowed, disallowed, path, tunnelled) in [
        (&["mole"][..], &[][..], r"C:\x\MOLE.exe", true),
        (&["Mole.EXE"], &[], r"C:\x\mole", true),
        (&["mo*"], &[], r"C:\x\mountain.exe", true),
        (&["mo*"], &[], r"C:\x\amole.exe", false),
        (&["mole"], &[], r"C:\x\mole2.exe", false),
        (&[r"C:\X\mole.exe"], &[], r"c:\x\Mole.exe", true),
        (&[r"C:\y\mole.exe"], &[], r"C:\x\mole.exe", false),
        (&[r"C:\x\"], &[], r"C:\X\y\z\mole.exe", true),
        (&[r"C:\x\"], &[], r"C:\xy\mole.exe", false),
        (&[], &["mole"], r"C:\x\mole.exe", false),
        (&[], &["mole"], r"C:\x\bird.exe", true),
        (&[], &[], r"C:\x\any.exe", true),
        (&["mole"], &["mole"], r"C:\x\mole.exe", true),
        (&["mole"], &["bird"], r"C:\x\bird.exe", false),
        (&["mole"], &["bird"], r"C:\x\other.exe", false),
    ] {
        let mut world = World::new(&Setup {
            allowed: allowed.to_vec(),
            disallowed: disallowed.to_vec(),
            ..Setup::default()
        });
        world.system.process(30, path, 1);
        let (from, to) = (at(OWN, 50_000), at(SERVER, 5000));
        world.system.socket(Protocol::Udp, 30, from, None);
        let packet = udp(from, to, b"hello");
        world.send(&packet);
        let what = format!("{allowed:?} {disallowed:?} {path}");
        let expected = if tunnelled {
            vec![]
        } else {
            vec![sent(&packet)]
        };
        assert_eq!(world.passed(), expected, "{what}");
        assert_eq!(world.take_got().len(), usize::from(tunnelled), "{what}");
    }
}

#[test]
fn rules_that_fit_no_process_here_are_refused() {
    for text in ["uid:1000", "/usr/bin/mole", "cgroup:x", "snap:mole"] {
        let refused = Rules::new(rules(&["mole"], &[text]), Vec::new());
        let said = refused.unwrap_err().to_string();
        assert!(said.starts_with(&format!("line 1: `{text}'")), "{said}");
    }
}

#[test]
fn questions_go_to_the_tunnels_server() {
    for asked in ["192.168.1.1", "8.8.8.8"] {
        let mut world = World::new(&Setup {
            dns: vec![NAMES],
            ..Setup::default()
        });
        let (mole, bird) = (at(OWN, 50_000), at(OWN, 50_001));
        let server = at(asked, 53);
        world.mole(Protocol::Udp, mole, server);
        world.bird(Protocol::Udp, bird, server);
        world.send(&udp(mole, server, b"mole?"));
        let plain = udp(bird, server, b"bird?");
        world.send(&plain);
        assert_eq!(world.passed(), [sent(&plain)]);
        let (outside, names) = (at(TUNNEL, 50_000), at(NAMES, 53));
        assert_eq!(world.take_got(), [udp(outside, names, b"mole?")]);
        // The reply comes from the server that was queried.
        world.reply(&udp(names, outside, b"mole!"));
        assert_eq!(
            world.at_system(true),
            [received(&udp(server, mole, b"mole!"))]
        );
    }
    // A query is refused at once if the tunnel has no server of its family.
    let mut world = World::new(&Setup {
        dns: vec![NAMES],
        ..Setup::default()
    });
    let (mole, server) = (at(OWN6, 50_000), at("2001:4860:4860::8888", 53));
    world.mole(Protocol::Udp, mole, server);
    world.send(&udp(mole, server, b"mole?"));
    assert!(world.passed().is_empty() && world.take_got().is_empty());
    assert_eq!(world.at_system(true).len(), 1);
}

#[test]
fn destinations_decide_too() {
    let mut world = World::new(&Setup {
        allowed_ips: vec!["198.51.100.0/24", "192.168.0.0/16"],
        disallowed_ips: vec!["198.51.100.128/25"],
        bypass_lan: true,
        ..Setup::default()
    });
    let mole = at(OWN, 50_000);
    world.mole(Protocol::Udp, mole, mole);
    for (to, passes) in [
        (SERVER, false),
        ("198.51.100.200", true),
        ("203.0.113.77", true),
        ("192.168.1.20", true),
        ("169.254.1.2", true),
    ] {
        let packet = udp(mole, at(to, 5000), b"x");
        world.send(&packet);
        assert_eq!(world.passed().contains(&sent(&packet)), passes, "{to}");
    }
    assert_eq!(world.take_got().len(), 1);
}

#[test]
fn a_family_that_the_tunnel_lacks_is_refused() {
    let mut world = World::new(&Setup {
        allowed_ips: vec!["0.0.0.0/0"],
        ..Setup::default()
    });
    let (mole, server) = (at(OWN6, 50_000), at(SERVER6, 443));
    world.mole(Protocol::Tcp, mole, server);
    let open = tcp(mole, server, SYN, b"");
    world.send(&open);
    assert!(world.passed().is_empty() && world.take_got().is_empty());
    // The sender gets an ICMP error that quotes its packet.
    let [answer] = &world.at_system(true)[..] else {
        panic!("one answer");
    };
    assert!(answer.ends_with(&open));
    assert_eq!(world.pipeline.dropped().count(FrameDropReason::Refused), 1);
}

#[test]
fn what_is_about_the_link_passes() {
    let mut world = World::new(&Setup {
        allowed: vec![],
        ..Setup::default()
    });
    let arp = ethernet(packets::CARD, [255; 6], &[0x45; 28]);
    let arp = [&arp[..12], &[8, 6], &arp[14..]].concat();
    let lease = sent(&udp(
        at("0.0.0.0", 68),
        at("255.255.255.255", 67),
        b"lease?",
    ));
    let renewal = sent(&udp(at(OWN, 68), at("192.168.1.1", 67), b"lease?"));
    let mut igmp = udp(at(OWN, 1), at("224.0.0.22", 2), b"group");
    igmp[9] = 2;
    let mdns = sent(&udp(at(OWN, 5353), at("224.0.0.251", 5353), b"who?"));
    let local = sent(&udp(at("fe80::10", 546), at("ff02::1:2", 547), b"lease?"));
    let odd = [&arp[..12], &[0, 60], &arp[14..]].concat();
    let frames = [arp, lease, renewal, sent(&igmp), local, odd, mdns];
    for frame in &frames {
        world.give(
            crate::world::UPLINK,
            taupe_transparent_windows::Towards::Card,
            frame.clone(),
        );
    }
    // The last packet may be an application's, which would show within this time.
    world.wait(std::time::Duration::from_millis(20));
    assert_eq!(world.passed(), frames);
    assert!(world.take_got().is_empty());
}

#[test]
fn without_rules_all_is_tunnelled_and_nothing_is_asked() {
    let mut world = World::with(&[]);
    let packet = udp(at(OWN, 50_000), at(SERVER, 5000), b"anybody's");
    world.send(&packet);
    world.send(&echo(OWN, SERVER, 9, true));
    assert!(world.passed().is_empty());
    assert_eq!(world.take_got().len(), 2);
    assert_eq!(world.system.0.lock().unwrap().reads, 0);
    world.reply(&echo(SERVER, TUNNEL, 9, false));
    assert_eq!(
        world.at_system(true),
        [received(&echo(SERVER, OWN, 9, false))]
    );
}

#[test]
fn errors_follow_what_they_are_about() {
    let mut world = World::with(&["mole"]);
    let (mole, bird, server) = (at(OWN, 50_000), at(OWN, 50_001), at(SERVER, 5000));
    world.mole(Protocol::Udp, mole, server);
    world.bird(Protocol::Udp, bird, server);
    world.send(&udp(mole, server, b"x"));
    world.send(&udp(bird, server, b"x"));
    world.take_got();
    // The socket is gone, and the system reports that inside the tunnel.
    let late = udp(server, at(TUNNEL, 50_000), b"late");
    world.reply(&late);
    world.send(&unreachable(OWN, SERVER, &udp(server, mole, b"late")));
    assert_eq!(world.take_got(), [unreachable(TUNNEL, SERVER, &late)]);
    // The error about the other application's packet leaves outside the tunnel.
    let plain = unreachable(OWN, SERVER, &udp(server, bird, b"late"));
    world.send(&plain);
    assert_eq!(world.passed().last(), Some(&sent(&plain)));
    // Forged from outside: an error about a packet that was never sent, and a packet for the flow.
    world.receive(&unreachable(SERVER, OWN, &udp(mole, server, b"x")));
    world.receive(&udp(server, mole, b"spoofed"));
    assert!(world.at_system(false).is_empty());
    assert_eq!(world.pipeline.dropped().count(FrameDropReason::Clear), 2);
}

#[test]
fn only_selected_programs_listen_in_the_tunnel() {
    let mut world = World::with(&["mole"]);
    let server = at(SERVER, 443);
    world.mole(Protocol::Udp, at("0.0.0.0", 6000), server);
    world.bird(Protocol::Udp, at("0.0.0.0", 6001), server);
    world.system.socket(Protocol::Tcp, 10, at("::", 7000), None);
    world.send(&udp(at(OWN, 6000), server, b"hello"));
    world.take_got();
    world.reply(&udp(
        at("198.51.100.9", 1),
        at(TUNNEL, 6000),
        b"to the mole",
    ));
    world.reply(&tcp(at("198.51.100.9", 2), at(TUNNEL, 7000), SYN, b""));
    assert_eq!(world.at_system(true).len(), 2);
    let strange = udp(at("198.51.100.9", 1), at(TUNNEL, 6001), b"to the bird");
    world.reply(&strange);
    assert_eq!(world.at_system(true).len(), 2);
    // As from a closed port.
    let told = world.take_got().pop().unwrap();
    assert_eq!(
        told[20..],
        unreachable(TUNNEL, "198.51.100.9", &strange)[20..]
    );
    // A listening socket answers in the tunnel.
    world.send(&tcp(at(OWN, 7000), at("198.51.100.9", 2), SYN | ACK, b""));
    assert_eq!(world.take_got().len(), 1);
    assert!(world.passed().is_empty());
}

#[test]
fn the_lock_holds_when_the_tunnel_is_down() {
    for (kill_switch, mole_passes, bird_passes) in [
        (KillSwitch::App, false, true),
        (KillSwitch::All, false, false),
        (KillSwitch::Off, true, true),
    ] {
        let mut world = World::new(&Setup {
            kill_switch,
            ..Setup::default()
        });
        let (mole, bird, server) = (at(OWN, 50_000), at(OWN, 50_001), at(SERVER, 5000));
        world.mole(Protocol::Udp, mole, server);
        world.bird(Protocol::Udp, bird, server);
        world.send(&udp(mole, server, b"x"));
        assert_eq!(world.take_got().len(), 1);
        world.pipeline.close(world.now);
        world.run();
        for (local, passes) in [(mole, mole_passes), (bird, bird_passes)] {
            let packet = udp(local, server, b"now");
            let answers = world.at_system(true).len();
            world.send(&packet);
            assert_eq!(
                world.passed().contains(&sent(&packet)),
                passes,
                "{kill_switch:?}"
            );
            let told = world.at_system(true).len() - answers;
            assert_eq!(
                told,
                usize::from(!passes),
                "{kill_switch:?}: a blocked sender gets an error"
            );
        }
        assert!(world.take_got().is_empty());
        // Traffic of the link continues.
        let lease = udp(at("0.0.0.0", 68), at("255.255.255.255", 67), b"lease?");
        world.send(&lease);
        assert_eq!(world.passed().last(), Some(&sent(&lease)));
    }
}

#[test]
fn before_there_is_a_session_nothing_passes() {
    let mut world = World::with(&["mole"]);
    world.peer.is_silent = true;
    let (mole, server) = (at(OWN, 50_000), at(SERVER, 5000));
    world.mole(Protocol::Udp, mole, server);
    for _ in 0..300 {
        world.send(&udp(mole, server, b"waits"));
    }
    world.wait(std::time::Duration::from_secs(3));
    assert!(world.passed().is_empty() && world.take_got().is_empty());
    world.peer.is_silent = false;
    world.wait(std::time::Duration::from_secs(6));
    // As many packets as a peer stores.
    assert_eq!(world.take_got().len(), 128);
}
