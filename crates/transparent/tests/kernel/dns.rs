//! DNS queries to local resolvers.

use crate::application::install;
use crate::client;
use crate::scene::{REMOTE, Scene, at, everything_but, nothing, rules, unmet};
use std::fs;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use taupe_lab::host::{Host, add_address};
use taupe_lab::sandbox::{SystemTest, step};
use taupe_lab::{Error, Result, ensure};
use taupe_transparent::programs::MissingFeature;
use taupe_transparent::state::{DnsHandling, Lock, Reason};

pub(crate) fn tests() -> Vec<SystemTest> {
    vec![
        SystemTest::new("local_resolvers", local_resolvers),
        SystemTest::new("local_resolvers_while_down", local_resolvers_while_down),
        SystemTest::new(
            "dns_sockets_older_than_the_rules",
            dns_sockets_older_than_the_rules,
        ),
        SystemTest::new(
            "dns_redirected_to_a_local_resolver",
            dns_redirected_to_a_local_resolver,
        ),
        SystemTest::new(
            "dns_redirected_to_another_port",
            dns_redirected_to_another_port,
        ),
        SystemTest::new("name_services_are_refused", name_services_are_refused),
    ]
}

const BOTH: DnsHandling = DnsHandling {
    v4: true,
    v6: true,
    bus: false,
};

/// Local resolvers, and the alias that the server in the tunnel is asked by.
const RESOLVERS: [(&str, &str); 5] = [
    ("127.0.0.53", "240.0.0.53"),
    ("127.0.0.1", "240.0.0.1"),
    ("192.0.2.2", "241.0.0.0"),
    ("::1", "100::1"),
    ("2001:db8:1::2", "100::1:0:1"),
];

/// Every way to query a local resolver, and one socket that queries several. No local resolver is
/// reached, and each reply comes from the resolver that was queried.
fn local_resolvers() -> Result<()> {
    let (mut scene, here) = scene(&["chosen"])?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    step("without name servers they are asked as they are");
    for (resolver, _) in RESOLVERS {
        let said = format!("{0} {0} {resolver}", at(resolver, 53));
        scene.expect(&chosen, &["resolve", "udp", &at(resolver, 53)], &said)?;
    }
    let gap = set_names(&mut scene, BOTH)?;
    ensure!(gap.is_none() || is_before(6, 7)?, "{gap:?}");
    here.store(0, Ordering::Relaxed);
    for (resolver, instead) in RESOLVERS {
        let asked = at(resolver, 53);
        let said = format!("{asked} {asked} {instead}");
        for how in ["udp", "connected-udp", "peek", "tcp"] {
            step(&format!("{resolver} by {how}"));
            scene.expect(&chosen, &["resolve", how, &asked], &said)?;
        }
    }
    step("IPv4 by sockets of IPv6");
    let mapped = "[::ffff:127.0.0.53]:53";
    for how in ["udp", "connected-udp", "peek", "tcp"] {
        let said = format!("{mapped} {mapped} 240.0.0.53");
        scene.expect(&chosen, &["resolve", how, mapped], &said)?;
    }
    step("unspecified is this machine");
    let said = "127.0.0.1:53 127.0.0.1:53 240.0.0.1";
    scene.expect(&chosen, &["resolve", "connected-udp", "0.0.0.0:53"], said)?;
    scene.expect(&chosen, &["resolve", "tcp", "0.0.0.0:53"], said)?;
    let said = "[::1]:53 [::1]:53 100::1";
    scene.expect(&chosen, &["resolve", "connected-udp", "[::]:53"], said)?;
    step("several by one socket");
    let asked: Vec<String> = ["127.0.0.53", "127.0.0.1", "192.0.2.2"]
        .iter()
        .map(|resolver| at(resolver, 53))
        .collect();
    let words: Vec<&str> = ["resolve-all"]
        .into_iter()
        .chain(asked.iter().map(String::as_str))
        .collect();
    let said = "127.0.0.1:53=240.0.0.1 127.0.0.53:53=240.0.0.53 192.0.2.2:53=241.0.0.0";
    scene.expect(&chosen, &words, said)?;
    step("who is asked is told");
    for (resolver, instead) in RESOLVERS {
        let (own, other) = (
            resolver.parse().map_err(unmet)?,
            instead.parse().map_err(unmet)?,
        );
        for (address, asked) in [(other, Some(own)), (own, None)] {
            let found = scene
                .programs()?
                .resolver_of_alias(address)
                .map_err(unmet)?;
            ensure!(found == asked, "{address} is for {found:?}, not {asked:?}");
        }
    }
    step("those outside are who they are");
    scene.expect(&chosen, &["udp", &at(REMOTE[0], 53)], "beyond")?;
    let asked = here.load(Ordering::Relaxed);
    ensure!(asked == 0, "{asked} questions to this machine");
    step("another port, and another application");
    let elsewhere = at("127.0.0.53", 54);
    let said = format!("{elsewhere} {elsewhere} 127.0.0.53");
    scene.expect(&chosen, &["resolve", "udp", &elsewhere], &said)?;
    for (resolver, _) in RESOLVERS {
        let asked = at(resolver, 53);
        let said = format!("{asked} {asked} {resolver}");
        for how in ["udp", "connected-udp", "tcp"] {
            scene.expect(&other, &["resolve", how, &asked], &said)?;
        }
    }
    step("a family without a server");
    let only = DnsHandling { v4: false, ..BOTH };
    set_names(&mut scene, only)?;
    let before = count(&mut scene, Reason::DnsFamily)?;
    for how in ["udp", "connected-udp", "tcp"] {
        let words = ["resolve", how, "127.0.0.53:53"];
        scene.expect(&chosen, &words, "failed 101 at once")?;
        scene.expect(&chosen, &["resolve", how, mapped], "failed 101 at once")?;
    }
    let refused = count(&mut scene, Reason::DnsFamily)? - before;
    ensure!(refused == 6, "{refused} refusals");
    let said = "[::1]:53 [::1]:53 100::1";
    scene.expect(&chosen, &["resolve", "udp", "[::1]:53"], said)
}

/// While the tunnel is down queries are blocked at once. With the kill switch off they reach the
/// local resolvers.
fn local_resolvers_while_down() -> Result<()> {
    let (mut scene, here) = scene(&["chosen"])?;
    let chosen = install("chosen")?;
    set_names(&mut scene, BOTH)?;
    scene.programs()?.set_down();
    for (resolver, _) in RESOLVERS {
        let asked = at(resolver, 53);
        for (how, failed) in [("udp", 1), ("connected-udp", 101), ("tcp", 101)] {
            let said = format!("failed {failed} at once");
            scene.expect(&chosen, &["resolve", how, &asked], &said)?;
        }
    }
    let asked = here.load(Ordering::Relaxed);
    ensure!(asked == 0, "{asked} questions to this machine");
    let home = scene.home.clone();
    let programs = scene.programs()?;
    home.enter(|| programs.set_lock(Lock::Off).map_err(unmet))?;
    let asked = at("127.0.0.53", 53);
    let said = format!("{asked} {asked} 127.0.0.53");
    scene.expect(&chosen, &["resolve", "udp", &asked], &said)
}

/// A socket that is connected to a local resolver no longer reaches it once the socket is selected.
fn dns_sockets_older_than_the_rules() -> Result<()> {
    let (mut scene, here) = scene(&["nobody"])?;
    let chosen = install("chosen")?;
    let asked = at("127.0.0.53", 53);
    let mut application = scene.start(&chosen, &["ask-later", &asked])?;
    set_names(&mut scene, BOTH)?;
    scene.replace(&["chosen"])?;
    let said = application.go()?;
    ensure!(said == "failed 1", "{said}");
    let asked = here.load(Ordering::Relaxed);
    ensure!(asked == 0, "{asked} questions to this machine");
    let refused = count(&mut scene, Reason::DnsLocal)?;
    ensure!(refused == 1, "{refused} refusals");
    Ok(())
}

/// A netfilter rule redirects all queries to a local resolver, at another port.
fn dns_redirected_to_a_local_resolver() -> Result<()> {
    let (mut scene, here) = scene(&["chosen"])?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    resolve(&scene.home, "127.0.0.1", 54, &here)?;
    set_names(&mut scene, BOTH)?;
    for line in [
        "add table ip hijack",
        "add chain ip hijack out { type nat hook output priority -100; }",
        "add rule ip hijack out meta l4proto { tcp, udp } th dport 53 redirect to :54",
    ] {
        scene.home.run(&["nft", line])?;
    }
    let outside = at(REMOTE[0], 53);
    for asked in ["127.0.0.53:53", &outside] {
        for how in ["connected-udp", "tcp"] {
            let words = ["resolve", how, asked];
            let said = scene
                .home
                .run(&[&[&*chosen, crate::client::WORD], &words[..]].concat());
            ensure!(
                said.as_ref()
                    .is_ok_and(|said| said.text().starts_with("failed ")),
                "{asked} by {how}: {said:?}"
            );
        }
    }
    let asked = here.load(Ordering::Relaxed);
    ensure!(asked == 0, "{asked} questions to this machine");
    step("others are led there");
    let said = "127.0.0.53:53 127.0.0.53:53 127.0.0.1";
    scene.expect(&other, &["resolve", "connected-udp", "127.0.0.53:53"], said)
}

/// A netfilter rule redirects queries to another port, on a machine outside the tunnel. Only the
/// socket shows that they are queries.
fn dns_redirected_to_another_port() -> Result<()> {
    let mut scene = Scene::new()?;
    let direct = everything_but(&["192.0.2.0/24", "2001:db8:1::/64"]);
    scene.set_up(&rules(&["chosen"], &[]), &direct)?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    let asked = Arc::<AtomicUsize>::default();
    for address in ["192.0.2.1", "2001:db8:1::1"] {
        resolve(&scene.far, address, 54, &asked)?;
    }
    for line in [
        "add table inet hijack",
        "add chain inet hijack out { type nat hook output priority -100; }",
        "add rule inet hijack out meta l4proto { tcp, udp } th dport 53 dnat ip to 192.0.2.1:54",
        "add rule inet hijack out meta l4proto { tcp, udp } th dport 53 dnat ip6 to \
         [2001:db8:1::1]:54",
    ] {
        scene.home.run(&["nft", line])?;
    }
    // With name servers in the tunnel's file, and without.
    for names in [DnsHandling::default(), BOTH] {
        set_names(&mut scene, names)?;
        let capture = scene.capture("port 54")?;
        for remote in REMOTE {
            for how in ["connected-udp", "tcp"] {
                let words = [client::WORD, "resolve", how, &at(remote, 53)];
                let said = scene.home.run(&[&[&*chosen], &words[..]].concat());
                let is_held = said
                    .as_ref()
                    .is_ok_and(|said| said.text().starts_with("failed "));
                ensure!(is_held, "{remote} by {how}: {said:?}");
            }
        }
        nothing(&scene, capture)?;
    }
    ensure!(asked.load(Ordering::Relaxed) == 0, "it was asked");
    step("what is no question is answered there");
    let said = format!("{0} {0} 192.0.2.1", at("192.0.2.1", 54));
    scene.expect(&chosen, &["resolve", "tcp", &at("192.0.2.1", 54)], &said)?;
    step("others are led there");
    let outside = at(REMOTE[0], 53);
    let said = format!("{outside} {outside} 192.0.2.1");
    scene.expect(&other, &["resolve", "connected-udp", &outside], &said)
}

/// Services that resolve names over a Unix socket.
fn name_services_are_refused() -> Result<()> {
    const RESOLVER: &str = "/run/systemd/resolve/io.systemd.Resolve";
    const NSCD: &str = "/var/run/nscd/socket";
    const BUS: &str = "/run/dbus/system_bus_socket";
    const ANOTHER: &str = "/run/systemd/resolve/another";
    let mut scene = Scene::with(&["chosen"], &[])?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    let mut listeners = Vec::new();
    for path in [RESOLVER, NSCD, BUS, ANOTHER] {
        let folder = Path::new(path).parent().expect("a folder");
        fs::create_dir_all(folder).map_err(Error::io(path))?;
        listeners.push(UnixListener::bind(path).map_err(Error::io(path))?);
    }
    let all = |scene: &Scene, who: &str, refused: &[&str]| {
        for path in [RESOLVER, NSCD, BUS, ANOTHER] {
            let said = match refused.contains(&path) {
                true => "failed 111 at once",
                false => "connected",
            };
            // With a terminating zero after the path, and without.
            scene.expect(who, &["unix", path], said)?;
            scene.expect(who, &["unix-without-end", path], said)?;
        }
        Ok(())
    };
    all(&scene, &chosen, &[])?;
    if let Some(gap) = set_names(&mut scene, BOTH)? {
        ensure!(
            gap == MissingFeature::NameServices && is_before(6, 7)?,
            "{gap:?}"
        );
        return all(&scene, &chosen, &[]);
    }
    step("refused to who is chosen");
    all(&scene, &chosen, &[RESOLVER, NSCD, BUS])?;
    all(&scene, &other, &[])?;
    step("in its own namespace");
    let command = [&*chosen, crate::client::WORD, "unix", RESOLVER];
    let said = scene.far.run(&command)?.text().to_owned();
    ensure!(said == "connected", "elsewhere: {said}");
    step("down, and with the bus");
    scene.programs()?.set_down();
    all(&scene, &chosen, &[RESOLVER, NSCD, BUS])?;
    let open = DnsHandling { bus: true, ..BOTH };
    set_names(&mut scene, open)?;
    all(&scene, &chosen, &[RESOLVER, NSCD])?;
    step("where everything else is chosen, the bus is open");
    set_names(&mut scene, BOTH)?;
    let home = scene.home.clone();
    let rules = crate::scene::rules(&[], &["other"]);
    let programs = scene.programs()?;
    home.enter(|| {
        programs
            .replace(&rules, &crate::scene::everything_but(&[]))
            .map_err(unmet)
    })?;
    all(&scene, &chosen, &[RESOLVER, NSCD])?;
    all(&scene, &other, &[])?;
    step("without name servers");
    let gap = set_names(&mut scene, DnsHandling::default())?;
    ensure!(gap.is_none(), "{gap:?}");
    all(&scene, &chosen, &[])
}

/// Creates a machine with local resolvers that count queries, and the servers in the tunnel.
fn scene(allowed: &[&str]) -> Result<(Scene, Arc<AtomicUsize>)> {
    let scene = Scene::with(allowed, &[])?;
    let (here, there) = (Arc::default(), Arc::default());
    // Besides the address that it has.
    add_address(&scene.home, "lo", "127.0.0.53")?;
    for (resolver, instead) in RESOLVERS {
        resolve(&scene.home, resolver, 53, &here)?;
        add_address(&scene.beyond, "lo", instead)?;
        resolve(&scene.beyond, instead, 53, &there)?;
    }
    resolve(&scene.home, "127.0.0.53", 54, &here)?;
    Ok((scene, here))
}

/// Starts a server that answers with the address it was queried at.
fn resolve(host: &Host, address: &'static str, port: u16, asked: &Arc<AtomicUsize>) -> Result<()> {
    let at: SocketAddr = at(address, port).parse().map_err(unmet)?;
    let (listener, socket) = host.enter(|| {
        let listener = TcpListener::bind(at).map_err(Error::io(address))?;
        let socket = UdpSocket::bind(at).map_err(Error::io(address))?;
        Ok((listener, socket))
    })?;
    let counts = [Arc::clone(asked), Arc::clone(asked)];
    let [by_tcp, by_udp] = counts;
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            by_tcp.fetch_add(1, Ordering::Relaxed);
            let _ = stream.and_then(|mut stream| stream.write_all(address.as_bytes()));
        }
    });
    std::thread::spawn(move || {
        while let Ok((_, from)) = socket.recv_from(&mut [0; 512]) {
            by_udp.fetch_add(1, Ordering::Relaxed);
            let _ = socket.send_to(address.as_bytes(), from);
        }
    });
    Ok(())
}

fn set_names(scene: &mut Scene, names: DnsHandling) -> Result<Option<MissingFeature>> {
    let home = scene.home.clone();
    let programs = scene.programs()?;
    home.enter(|| programs.set_dns(names).map_err(unmet))
}

fn count(scene: &mut Scene, reason: Reason) -> Result<u64> {
    let counts = scene.programs()?.counts().map_err(unmet)?;
    let count = counts.iter().find(|(other, _)| *other == reason);
    Ok(count.map_or(0, |(_, count)| *count))
}

/// Returns true if the kernel is older than this version.
fn is_before(major: u32, minor: u32) -> Result<bool> {
    let release = "/proc/sys/kernel/osrelease";
    let text = fs::read_to_string(release).map_err(Error::io(release))?;
    let mut numbers = text.split(['.', '-']).map_while(|part| part.parse().ok());
    let (first, second) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    Ok((first, second) < (major, minor))
}
