//! The verdict on a socket: which process counts as its owner, however it was created or passed on.

use crate::application::{Application, install};
use crate::client::mptcp;
use crate::daemon::start_daemon;
use crate::processes::replace;
use crate::scene::{self, HOME, REMOTE, Scene, TUNNEL, at, everything_but, nothing, rules, unmet};
use crate::users::of_user;
use rustix::net::{AddressFamily, SocketType, bind, listen, socket};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;
use taupe_lab::capture::Capture;
use taupe_lab::host::add_address;
use taupe_lab::sandbox::{SystemTest, step};
use taupe_lab::{Error, Result, ensure};
use taupe_transparent::capture::reset;
use taupe_transparent::pins::Pins;
use taupe_transparent::programs::{MissingFeature, Programs, TunnelMaps};
use taupe_transparent::state::{Lock, Reason};

/// Debian 12's kernel runs the tests that need features missing from some kernels.
pub(crate) fn tests() -> Vec<SystemTest> {
    vec![
        SystemTest::new("rules_from_another_process", rules_from_another_process),
        SystemTest::new("inherited_sockets", inherited_sockets),
        SystemTest::new("mptcp_connections", mptcp_connections),
        SystemTest::new(
            "mptcp_subflows_created_under_another_task",
            mptcp_subflows_created_under_another_task,
        ),
        SystemTest::new(
            "connections_passed_to_another_process",
            connections_passed_to_another_process,
        )
        .fixture(),
        SystemTest::new("kill_switch_off", kill_switch_off),
        SystemTest::new("kill_switch_all", kill_switch_all),
        SystemTest::new("refused_socket_families", refused_socket_families).fixture(),
        SystemTest::new("no_memory_for_a_verdict", no_memory_for_a_verdict),
        SystemTest::new("paths_too_deep_to_compare", paths_too_deep_to_compare),
        SystemTest::new("upgraded_executables", upgraded_executables),
        SystemTest::new("maps_without_programs", maps_without_programs),
        SystemTest::new("pins_that_somebody_reads", pins_that_somebody_reads),
    ]
}

/// Opens the programs that the daemon has attached, to change them from here.
fn open(scene: &Scene) -> Result<Programs> {
    let programs = scene.home.enter(|| Programs::open(TUNNEL).map_err(unmet))?;
    programs.ok_or_else(|| Error::unmet("nothing is attached"))
}

/// Returns the number of eBPF programs that this process holds.
fn held_programs() -> Result<usize> {
    let folder = fs::read_dir("/proc/self/fd").map_err(Error::io("/proc/self/fd"))?;
    let targets = folder.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    Ok(targets
        .filter(|to| to.ends_with("anon_inode:bpf-prog"))
        .count())
}

/// Maps, and programs of another process, are opened without loading any, as `taupe status` and `taupe
/// flows` do it.
fn maps_without_programs() -> Result<()> {
    let mut scene = Scene::with(&["chosen"], &[])?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    is(&scene, &chosen, "beyond")?;
    is(&scene, &other, "far")?;
    scene.programs()?.set_down();
    scene.expect(&chosen, &["udp", &at(REMOTE[0], 80)], "failed 1 at once")?;
    let before = held_programs()?;
    let maps = scene
        .home
        .enter(|| TunnelMaps::open(TUNNEL).map_err(unmet))?;
    let maps = maps.ok_or_else(|| Error::unmet("nothing is attached"))?;
    let programs = open(&scene)?;
    ensure!(before > 0, "programs are counted wrongly");
    ensure!(held_programs()? == before, "a program was loaded");
    let sockets = scene
        .home
        .enter(|| programs.selected_connections().map_err(unmet))?;
    let hold = scene.start(&chosen, &["hold", &at(REMOTE[0], 80)])?;
    let more = scene
        .home
        .enter(|| programs.selected_connections().map_err(unmet))?;
    ensure!(more.len() > sockets.len(), "{sockets:?}, {more:?}");
    drop(hold);
    ensure!(maps.mode() == programs.mode(), "{:?}", maps.mode());
    ensure!(maps.is_up() == programs.is_up(), "{}", maps.is_up());
    let (guarded, all) = (
        maps.guarded().map_err(unmet)?,
        programs.guarded().map_err(unmet)?,
    );
    ensure!(
        !guarded.is_empty() && guarded == all,
        "{guarded:?}, {all:?}"
    );
    let (counts, all) = (
        maps.counts().map_err(unmet)?,
        programs.counts().map_err(unmet)?,
    );
    ensure!(counts.iter().any(|(_, count)| *count > 0), "{counts:?}");
    ensure!(counts == all, "{counts:?}, {all:?}");
    Ok(())
}

/// A search through the BPF file system reads pinned iterators, and changes nothing.
fn pins_that_somebody_reads() -> Result<()> {
    let mut scene = Scene::with(&["chosen"], &[])?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    let mut held = [&chosen, &other].map(|name| scene.start(name, &["hold", &at(REMOTE[0], 80)]));
    let daemon = scene.programs()?.daemon();
    let links = Pins::all()
        .next()
        .map(|pins| pins.directory().join("links"));
    let links = links.ok_or_else(|| Error::unmet("nothing is pinned"))?;
    let links = links.display();
    let read = format!("cat {links}/* 2>/dev/null | wc -c");
    let listed = scene.home.run(&["sh", "-c", &read])?;
    ensure!(listed.text() != "0", "no iterator is pinned in {links}");
    ensure!(scene.programs()?.daemon() == daemon, "another daemon");
    is(&scene, &chosen, "beyond")?;
    is(&scene, &other, "far")?;
    for (held, who) in held.iter_mut().zip(["beyond beyond", "far far"]) {
        let held = held
            .as_mut()
            .map_err(|error| Error::unmet(error.to_string()))?;
        let said = held.go()?;
        ensure!(said == who, "a socket from before: {said}, not {who}");
    }
    Ok(())
}

/// Checks who answers an application by TCP.
fn is(scene: &Scene, program: &str, who: &str) -> Result<()> {
    scene.expect(program, &["tcp", &at(REMOTE[0], 80)], who)
}

fn rules_from_another_process() -> Result<()> {
    let scene = Scene::new()?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    ensure!(
        scene
            .home
            .enter(|| Programs::open(TUNNEL).map_err(unmet))?
            .is_none(),
        "there is something before anything was attached"
    );
    let mut daemon = start_daemon(&scene, "chosen")?;
    let mut held = scene.start(&other, &["hold", &at(REMOTE[0], 80)])?;
    let mut programs = open(&scene)?;
    let number = programs.daemon();
    ensure!(number.is_some(), "nobody is the daemon");
    let mut replace = |allowed: &[&str]| {
        let rules = rules(allowed, &[]);
        scene.home.enter(|| {
            programs
                .replace(&rules, &everything_but(&[]))
                .map_err(unmet)
        })
    };
    replace(&["other"])?;
    is(&scene, &chosen, "far")?;
    is(&scene, &other, "beyond")?;
    let said = held.go()?;
    ensure!(said == "beyond beyond", "a socket from before: {said}");
    step("who changes rules is as everybody else");
    replace(&["/"])?;
    let said = scene.home.enter(|| {
        let to = at(REMOTE[0], 80).parse().map_err(unmet)?;
        let mut said = String::new();
        TcpStream::connect_timeout(&to, scene::QUIET * 5)
            .and_then(|mut stream| stream.read_to_string(&mut said))
            .map_err(Error::io("asking"))?;
        Ok(said)
    })?;
    ensure!(said == "beyond", "{said}");
    ensure!(programs.daemon() == number, "{:?}", programs.daemon());
    ensure!(programs.is_up(), "it is down");
    step("and the daemon's end is its end");
    daemon.kill()?;
    ensure!(!programs.is_up(), "it is up without a daemon");
    // The next process with this PID must not count as the daemon.
    ensure!(programs.daemon().is_none(), "{:?}", programs.daemon());
    Ok(())
}

fn inherited_sockets() -> Result<()> {
    let scene = Scene::with(&["chosen"], &[])?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    let capture = scene.capture("host 198.51.100.1 or host 2001:db8:9::1")?;
    for (kind, remote) in ["tcp", "udp"]
        .iter()
        .flat_map(|kind| REMOTE.map(|at| (kind, at)))
    {
        step(&format!("{kind} to {remote}"));
        let to = at(remote, 80);
        scene.expect(&other, &["pass", kind, &chosen, &to], "beyond")?;
        // An application that receives a selected application's socket is in the tunnel with it.
        scene.expect(&chosen, &["pass", kind, &other, &to], "beyond")?;
    }
    nothing(&scene, capture)?;
    step("among those that are not chosen");
    let again = install("again")?;
    for kind in ["tcp", "udp"] {
        let words = ["pass", kind, &*again, &at(REMOTE[0], 80)];
        scene.expect(&other, &words, "far")?;
    }
    Ok(())
}

/// Connections from before the tunnel, for which the kernel creates more subflows by itself, and
/// sockets that are passed on.
fn mptcp_connections() -> Result<()> {
    const PORT: u16 = 7003;
    let mut scene = Scene::new()?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    let to = at(REMOTE[0], PORT);
    let listener = many_ways(&scene, &to)?;
    let (mut first, _stream) = begin_mptcp(&scene, &chosen, &listener, &to)?;
    let (_second, _other_stream) = begin_mptcp(&scene, &chosen, &listener, &to)?;
    let capture = scene.capture(&format!("dst port {PORT}"))?;
    scene.set_up(&rules(&["chosen"], &[]), &everything_but(&[]))?;
    let goes_on = |address: &str| {
        let filter = format!("src host {address} and dst port {PORT}");
        Capture::start(&scene.beyond, "back", &filter)
    };
    let seen = [goes_on(HOME[0])?, goes_on(SECOND)?];
    step("more subflows");
    #[rustfmt::skip]
    scene.home.ip(&["mptcp", "endpoint", "add", SECOND, "dev", "up0", "subflow"])?;
    let said = first.go()?;
    ensure!(said == "sent", "{said}");
    for seen in seen {
        seen.stop_once("packets in the tunnel", |packets| !packets.is_empty())?;
    }
    step("reset");
    let reset = scene.home.enter(|| reset(TUNNEL).map_err(unmet))?;
    ensure!(reset.ended > 0 && reset.left == 0, "{reset:?}");
    std::thread::sleep(scene::QUIET);
    nothing(&scene, capture)?;
    step("handed on");
    for remote in REMOTE {
        let words = ["pass", "mptcp", &*chosen, &at(remote, 80)];
        scene.expect(&other, &words, "beyond")?;
    }
    Ok(())
}

/// A second address of home, for a second subflow of an MPTCP connection.
const SECOND: &str = "192.0.2.3";

/// Allows several subflows at home and the far end, and listens there.
fn many_ways(scene: &Scene, to: &str) -> Result<TcpListener> {
    add_address(&scene.home, "up0", &format!("{SECOND}/24"))?;
    for host in [&scene.home, &scene.far] {
        host.ip(&["mptcp", "limits", "set", "subflow", "2"])?;
    }
    scene.far.enter(|| {
        let to: SocketAddr = to.parse().map_err(unmet)?;
        let listener = socket(AddressFamily::INET, SocketType::STREAM, mptcp())
            .and_then(|socket| bind(&socket, &to).map(|()| socket))
            .and_then(|socket| listen(&socket, 8).map(|()| socket));
        Ok(TcpListener::from(listener.map_err(Error::io("listener"))?))
    })
}

fn begin_mptcp(
    scene: &Scene,
    program: &str,
    listener: &TcpListener,
    to: &str,
) -> Result<(Application, TcpStream)> {
    let application = scene.start(program, &["stay-mptcp", to])?;
    let (mut stream, _) = listener.accept().map_err(Error::io("accept"))?;
    // Each end must hear from the other before there can be more subflows.
    stream
        .read_exact(&mut [0; 5])
        .and_then(|()| stream.write_all(b"!"))
        .map_err(Error::io("the other end"))?;
    Ok((application, stream))
}

/// A subflow that the kernel creates belongs to the connection, whichever process runs. `ip` is
/// selected here, since everything but `other` is.
fn mptcp_subflows_created_under_another_task() -> Result<()> {
    const PORT: u16 = 7003;
    let mut scene = Scene::new()?;
    let other = install("other")?;
    let to = at(REMOTE[0], PORT);
    let listener = many_ways(&scene, &to)?;
    let (mut first, mut stream) = begin_mptcp(&scene, &other, &listener, &to)?;
    let (mut second, mut late) = begin_mptcp(&scene, &other, &listener, &to)?;
    scene.set_up(&rules(&[], &["other"]), &everything_but(&[]))?;
    scene.programs()?.set_lock(Lock::All).map_err(unmet)?;
    let capture = scene.capture(&format!("src host {SECOND} and dst port {PORT}"))?;
    #[rustfmt::skip]
    scene.home.ip(&["mptcp", "endpoint", "add", SECOND, "dev", "up0", "subflow"])?;
    let said = first.go()?;
    ensure!(said == "sent", "{said}");
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .and_then(|()| stream.read_exact(&mut [0; 5]))
        .map_err(Error::io("what is said later"))?;
    capture.stop_once("a second subflow", |packets| !packets.is_empty())?;
    step("while it is shut");
    scene.programs()?.set_down();
    let said = second.go()?;
    ensure!(said == "sent", "{said}");
    let heard = late
        .set_read_timeout(Some(scene::QUIET))
        .and_then(|()| late.read_exact(&mut [0; 5]));
    ensure!(heard.is_err(), "it leaves while everybody is held back");
    Ok(())
}

fn connections_passed_to_another_process() -> Result<()> {
    let mut scene = Scene::with(&["chosen"], &[])?;
    if scene
        .programs()?
        .missing_features()
        .contains(&MissingFeature::SocketHandover)
    {
        return Err(unmet(MissingFeature::SocketHandover));
    }
    let (chosen, other) = (install("chosen")?, install("other")?);
    step("by a message");
    let _listener = scene
        .far
        .enter(|| TcpListener::bind((REMOTE[0], 7001)).map_err(Error::io("listener")))?;
    let words = ["pass", "message", &*chosen, &at(REMOTE[0], 7001)];
    let mut giver = scene.start(&other, &words)?;
    let capture = scene.capture("dst port 7001")?;
    let said = giver.go()?;
    ensure!(said == "sent", "{said}");
    nothing(&scene, capture)?;
    step("accepted from a listener that was inherited");
    let mut server = scene.start(&other, &["pass", "listener", &chosen, &at("::", 7002)])?;
    let connect = || {
        scene.far.enter(|| {
            let home = ([192, 0, 2, 2], 7002).into();
            TcpStream::connect_timeout(&home, scene::QUIET).map_err(Error::io("connect"))
        })
    };
    let _waits = connect()?;
    let capture = scene.capture("src port 7002")?;
    let said = server.go()?;
    ensure!(said == "accepted", "{said}");
    ensure!(connect().is_err(), "the listener answers in the clear");
    nothing(&scene, capture)
}

/// `AF_PACKET`, `AF_TIPC`.
const FAMILIES: [&str; 2] = ["17", "30"];

fn refused_socket_families() -> Result<()> {
    let mut scene = Scene::with(&["chosen"], &[])?;
    if scene
        .programs()?
        .missing_features()
        .contains(&MissingFeature::SocketFamilies)
    {
        return Err(unmet(MissingFeature::SocketFamilies));
    }
    let (chosen, other) = (install("chosen")?, install("other")?);
    let [packet, carried] = FAMILIES;
    let refused = |scene: &mut Scene| -> Result<u64> {
        let counts = scene.programs()?.counts().map_err(unmet)?;
        let count = counts.iter().find(|(reason, _)| *reason == Reason::Family);
        Ok(count.map_or(0, |(_, count)| *count))
    };
    scene.expect(&chosen, &["family", packet], "failed 97 at once")?;
    scene.expect(&other, &["family", packet], "made")?;
    ensure!(refused(&mut scene)? == 1, "{}", refused(&mut scene)?);
    // Not every kernel has this family, so only the counter shows the refusal.
    scene.run(&other, &["family", carried])?;
    ensure!(refused(&mut scene)? == 1, "{}", refused(&mut scene)?);
    scene.expect(&chosen, &["family", carried], "failed 97 at once")?;
    ensure!(refused(&mut scene)? == 2, "{}", refused(&mut scene)?);
    step("chosen, but of another user");
    for (user, said) in [(1, "made"), (0, "failed 97 at once")] {
        replace(&mut scene, &of_user(user, rules(&["chosen"], &[])))?;
        scene.expect(&chosen, &["family", packet], said)?;
    }
    step("chosen, but not by name");
    let rules = rules(&[], &["never"]);
    let programs = scene.programs()?;
    programs
        .replace(&rules, &everything_but(&[]))
        .map_err(unmet)?;
    is(&scene, &other, "beyond")?;
    scene.expect(&other, &["family", packet], "made")?;
    scene.expect(&other, &["family", carried], "failed 97 at once")?;
    ensure!(refused(&mut scene)? == 4, "{}", refused(&mut scene)?);
    step("elsewhere");
    let said = scene
        .far
        .run(&[&*chosen, crate::client::WORD, "family", packet])?;
    ensure!(said.text() == "made", "{}", said.text());
    Ok(())
}

fn no_memory_for_a_verdict() -> Result<()> {
    let mut scene = Scene::new()?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    let to = at(REMOTE[0], 80);
    let memory = |scene: &Scene, bytes| scene.home.sysctl("net/core/optmem_max", bytes);
    let before = scene.start(&chosen, &["hold", &to])?;
    memory(&scene, "0")?;
    let taken = scene.set_up(&rules(&["chosen"], &[]), &everything_but(&[]));
    let refusal = taken
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default();
    ensure!(refusal.contains("2 open sockets"), "{refusal:?}");
    drop(before);
    scene.set_up(&rules(&["chosen"], &[]), &everything_but(&[]))?;
    scene.expect(&chosen, &["tcp", &to], "failed 105 at once")?;
    scene.expect(&other, &["pass", "tcp", &chosen, &to], "failed 105 at once")?;
    scene.expect(&other, &["pass", "udp", &chosen, &to], "failed 105 at once")?;
    is(&scene, &other, "far")?;
    memory(&scene, "131072")?;
    is(&scene, &chosen, "beyond")?;
    step("rules that cannot be had for all leave those of before");
    let mut free = scene.start(&chosen, &["hold", &to])?;
    let _missed = scene.start(&other, &["hold", &to])?;
    memory(&scene, "0")?;
    let taken = scene.replace(&["other"]);
    let refusal = taken.err().map(|error| error.to_string());
    let refusal = refusal.unwrap_or_default();
    ensure!(refusal.contains("2 open sockets"), "{refusal:?}");
    let said = free.go()?;
    // The UDP socket was to leave the tunnel already.
    ensure!(said == "beyond failed:103", "{said}");
    Ok(())
}

fn paths_too_deep_to_compare() -> Result<()> {
    let mut scene = Scene::new()?;
    let deep = install(&format!("{}deep", "d/".repeat(40)))?;
    let to = at(REMOTE[0], 80);
    let mut before = scene.start(&deep, &["hold", &to])?;
    scene.set_up(&rules(&["chosen", "/usr/bin/"], &[]), &everything_but(&[]))?;
    scene.expect(&deep, &["tcp", &to], "failed 36 at once")?;
    let said = before.go()?;
    ensure!(said == "beyond beyond", "a socket from before: {said}");
    step("where no rule is about paths");
    scene.replace(&["chosen"])?;
    is(&scene, &deep, "far")?;
    step("where another rule decides");
    scene.replace(&["deep", "/usr/bin/"])?;
    is(&scene, &deep, "beyond")
}

fn upgraded_executables() -> Result<()> {
    let (named, by_path, folder) = (install("named")?, install("a/path")?, install("b/any")?);
    let allowed = ["named", &*by_path, folder.trim_end_matches("any")];
    let scene = Scene::with(&allowed, &[])?;
    for program in [&named, &by_path, &folder] {
        let words = ["later", "tcp", &at(REMOTE[0], 80)];
        let (mut replaced, mut removed) = (scene.start(program, &words)?, {
            let new = format!("{program}.new");
            fs::copy(program, &new).map_err(Error::io("copy"))?;
            fs::rename(&new, program).map_err(Error::io("rename"))?;
            scene.start(program, &words)?
        });
        fs::remove_file(program).map_err(Error::io("remove"))?;
        for (how, application) in [("replaced", &mut replaced), ("removed", &mut removed)] {
            let said = application.go()?;
            ensure!(said == "beyond", "{program}, {how}: {said}");
        }
    }
    Ok(())
}

fn kill_switch_off() -> Result<()> {
    let mut scene = Scene::with(&["chosen"], &[])?;
    let chosen = install("chosen")?;
    let home = scene.home.clone();
    let programs = scene.programs()?;
    home.enter(|| programs.set_lock(Lock::Off).map_err(unmet))?;
    let ask = |scene: &Scene, who| {
        REMOTE.iter().try_for_each(|remote| {
            let to = at(remote, 80);
            scene.expect(&chosen, &["tcp", &to], who)?;
            scene.expect(&chosen, &["udp", &to], who)?;
            scene.expect(&chosen, &["connected-udp", &to], who)
        })
    };
    ask(&scene, "beyond")?;
    scene.programs()?.set_down();
    ask(&scene, "far")?;
    step("not even where no filter is");
    let uplink = scene.uplink("up0")?;
    let home = scene.home.clone();
    let programs = scene.programs()?;
    home.enter(|| programs.unguard(uplink.index).map_err(unmet))?;
    ask(&scene, "far")?;
    let programs = scene.programs()?;
    home.enter(|| programs.guard(&uplink).map_err(unmet))?;
    scene.read_again(&scene.tun.clone())?;
    ask(&scene, "beyond")
}

fn kill_switch_all() -> Result<()> {
    let mut scene = Scene::with(&["chosen"], &[])?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    let listener = scene
        .far
        .enter(|| TcpListener::bind((REMOTE[0], 7000)).map_err(Error::io("listener")))?;
    let mut before = scene.start(&other, &["stay", &at(REMOTE[0], 7000)])?;
    let home = scene.home.clone();
    let programs = scene.programs()?;
    home.enter(|| programs.set_lock(Lock::All).map_err(unmet))?;
    let mut after = scene.start(&other, &["stay", &at(REMOTE[0], 7000)])?;
    is(&scene, &chosen, "beyond")?;
    is(&scene, &other, "far")?;
    scene.programs()?.set_down();
    let capture = scene.capture("host 198.51.100.1 or host 2001:db8:9::1")?;
    let told = |scene: &Scene| {
        for (program, remote) in [&chosen, &other]
            .iter()
            .flat_map(|program| REMOTE.map(|at| (program, at)))
        {
            let to = at(remote, 80);
            scene.expect(program, &["tcp", &to], "failed 101 at once")?;
            scene.expect(program, &["udp", &to], "failed 1 at once")?;
            let said = scene.run(program, &["raw", remote])?;
            ensure!(said.starts_with("failed"), "raw: {said}");
        }
        Ok(())
    };
    told(&scene)?;
    for held in [&mut before, &mut after] {
        let said = held.go()?;
        ensure!(said == "sent", "{said}");
    }
    step("where no filter is");
    let uplink = scene.uplink("up0")?;
    let home = scene.home.clone();
    let programs = scene.programs()?;
    home.enter(|| programs.unguard(uplink.index).map_err(unmet))?;
    told(&scene)?;
    // The connections above retry meanwhile, and none of their packets may leave. Only the tunnel's
    // own datagram, which ends the capture, leaves.
    std::thread::sleep(scene::QUIET);
    nothing(&scene, capture)?;
    step("this machine itself");
    let here = home.enter(|| TcpListener::bind("127.0.0.1:0").map_err(Error::io("listener")))?;
    let local = here.local_addr().map_err(Error::io("listener"))?;
    drop(scene.start(&other, &["stay", &local.to_string()])?);
    step("and elsewhere");
    let said = scene
        .far
        .run(&[&*other, crate::client::WORD, "tcp", &at(REMOTE[0], 80)])?;
    ensure!(said.text() == "far", "{}", said.text());
    let programs = scene.programs()?;
    home.enter(|| programs.guard(&uplink).map_err(unmet))?;
    scene.read_again(&scene.tun.clone())?;
    is(&scene, &other, "far")?;
    for _ in 0..2 {
        let (mut stream, _) = listener.accept().map_err(Error::io("accept"))?;
        stream
            .set_read_timeout(Some(std::time::Duration::from_secs(10)))
            .map_err(Error::io("timeout"))?;
        let mut heard = [0; 5];
        stream
            .read_exact(&mut heard)
            .map_err(Error::io("what was held"))?;
    }
    Ok(())
}
