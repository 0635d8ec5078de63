//! Programs of a version with another layout of maps take the place of those of a killed process.

use crate::application::{Application, install};
use crate::closed::ANY;
use crate::daemon::{CAPTURE, begin, start_daemon};
use crate::pinned::{PinnedState, forget_flows, only};
use crate::scene::{HOME, REMOTE, Scene, TUNNEL, at, attached, nothing, unmet};
use std::fs;
use std::io::Read as _;
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;
use taupe_lab::capture::Capture as LabCapture;
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::{SystemTest, step};
use taupe_lab::{Error, Result, ensure};
use taupe_transparent::capture::{Capture, release};
use taupe_transparent::error::TransparentError;
use taupe_transparent::pins::Pins;

pub(crate) fn tests() -> Vec<SystemTest> {
    vec![
        SystemTest::new("a_succession_that_fails", a_succession_that_fails),
        SystemTest::new("a_succession_that_is_killed", a_succession_that_is_killed),
        SystemTest::new("programs_of_a_killed_version_end", || {
            let (scene, mut earlier) = Earlier::new()?;
            earlier.kill()?;
            let capture = scene.capture(ANY)?;
            ended_by_release(&scene, &mut earlier, capture)
        }),
        SystemTest::new("succession_ends_deselected_conversations", || {
            deselected_conversations(forget_flows)
        }),
        SystemTest::new("succession_from_programs_without_pinned_iterators", || {
            deselected_conversations(remove_iterators)
        }),
        SystemTest::new(
            "succession_in_a_pid_namespace",
            succession_in_a_pid_namespace,
        ),
        SystemTest::new(
            "conversations_of_a_succession_that_fails",
            conversations_of_a_succession_that_fails,
        ),
        SystemTest::new("succession_drops_waiting_packets", || {
            waiting_packets(false)
        }),
        SystemTest::new("release_drops_waiting_packets", || waiting_packets(true)),
        SystemTest::new(
            "succession_with_a_socket_that_cannot_be_closed",
            succession_with_a_socket_that_cannot_be_closed,
        ),
    ]
}

/// The layout of another version.
const LAYOUT: u32 = 4711;

/// Conversations in the tunnel of a process of another version, which is killed. All applications were
/// selected.
struct Earlier {
    /// Executables of the applications.
    chosen: String,
    other: String,
    daemon: Application,
    /// A connection of each application, with its remote end.
    connections: [(Application, TcpStream); 2],
    /// An unconnected UDP socket of each.
    datagrams: [Application; 2],
}

impl Earlier {
    fn new() -> Result<(Scene, Self)> {
        let scene = Scene::new()?;
        let (chosen, other) = (install("chosen")?, install("other")?);
        let daemon = start_daemon(&scene, "/")?;
        let bind = || TcpListener::bind((REMOTE[0], 7000)).map_err(Error::io("listener"));
        let listener = scene.beyond.enter(bind)?;
        let connect = |program| -> Result<_> {
            let application = scene.start(program, &["stay", &at(REMOTE[0], 7000)])?;
            let (stream, _) = listener.accept().map_err(Error::io("accept"))?;
            Ok((application, stream))
        };
        let ask = |program| scene.start(program, &["ask-again", &at(REMOTE[0], 80)]);
        let earlier = Self {
            connections: [connect(&chosen)?, connect(&other)?],
            datagrams: [ask(&chosen)?, ask(&other)?],
            daemon,
            chosen,
            other,
        };
        Ok((scene, earlier))
    }

    /// Kills the process, and gives its maps the layout of another version.
    fn kill(&mut self) -> Result<Pins> {
        self.daemon.kill()?;
        let pins = only()?;
        let state = PinnedState::open(&pins)?;
        ensure!(state.word(PinnedState::DAEMON) == 0, "a process serves it");
        state.set_word(PinnedState::SCHEMA, LAYOUT);
        Ok(pins)
    }

    /// Checks that the kernel has closed all connections and UDP sockets.
    fn all_have_ended(&mut self) -> Result<()> {
        for (application, _) in &mut self.connections {
            let line = application.go()?;
            ensure!(line.starts_with("failed 103"), "a connection: {line}");
        }
        for application in &mut self.datagrams {
            let line = application.go()?;
            ensure!(line == "beyond failed:103", "a UDP socket: {line}");
        }
        Ok(())
    }
}

/// Starts a process of this version for these applications.
fn succeed(scene: &Scene, allowed: &str) -> Result<std::result::Result<Capture, TransparentError>> {
    let tun = scene.tun.index().map_err(Error::io("TUN"))?;
    scene.home.enter(|| Ok(begin(TUNNEL, allowed, tun)))
}

/// Fails unless applications are blocked by the earlier programs only.
fn blocked_by(scene: &Scene, earlier: &Earlier, pins: &Pins) -> Result<()> {
    let found = only()?;
    let aside = format!("{}:0", pins.directory().display());
    let name = found.directory().display().to_string();
    ensure!(name == aside, "{name}, not {aside}");
    let layout = PinnedState::open(&found)?.word(PinnedState::SCHEMA);
    ensure!(layout == LAYOUT, "the programs of layout {layout}");
    for program in [&earlier.chosen, &earlier.other] {
        scene.expect(program, &["tcp", &at(REMOTE[0], 80)], "failed 101 at once")?;
    }
    Ok(())
}

/// All is as before, and `down` still ends the conversations.
fn a_succession_that_fails() -> Result<()> {
    let (scene, mut earlier) = Earlier::new()?;
    let pins = earlier.kill()?;
    let capture = scene.capture(ANY)?;
    let begun = succeed(&scene, &"x".repeat(255))?;
    ensure!(
        matches!(begun, Err(TransparentError::NameTooLong(_))),
        "{begun:?}"
    );
    blocked_by(&scene, &earlier, &pins)?;
    ended_by_release(&scene, &mut earlier, capture)
}

/// The programs of a process that is killed before it has written rules select nothing.
fn a_succession_that_is_killed() -> Result<()> {
    let (scene, mut earlier) = Earlier::new()?;
    earlier.kill()?;
    let capture = scene.capture(ANY)?;
    drop(scene.home.enter(|| attached([None, None]).map_err(unmet))?);
    let found = Pins::all().count();
    ensure!(found == 2, "{found} sets of programs");
    ended_by_release(&scene, &mut earlier, capture)
}

/// Releases the tunnel. Fails unless that ends the earlier conversations.
fn ended_by_release(scene: &Scene, earlier: &mut Earlier, capture: LabCapture) -> Result<()> {
    let released = scene.home.enter(|| release(TUNNEL).map_err(unmet))?;
    let released = released.ok_or_else(|| unmet("nothing was there"))?;
    ensure!(released.drain_error.is_none(), "{released:?}");
    let ended = released.ended.map_err(unmet)?;
    ensure!((ended.ended, ended.left) == (4, 0), "{ended:?}");
    ensure!(Pins::all().next().is_none(), "pins are left");
    earlier.all_have_ended()?;
    nothing(scene, capture)?;
    scene.expect(&earlier.other, &["tcp", &at(REMOTE[0], 80)], "far")
}

/// As for programs of a version that did not pin its iterators.
fn remove_iterators(pins: &Pins) -> Result<usize> {
    let links = pins.directory().join("links");
    let names = ["taupe_selected", "taupe_open", "taupe_tcp"];
    for name in names {
        fs::remove_file(links.join(name)).map_err(Error::io(name))?;
    }
    Ok(names.len())
}

/// The conversations of an application that the next rules do not select end, and the others continue.
fn deselected_conversations(prepare: fn(&Pins) -> Result<usize>) -> Result<()> {
    let (scene, mut earlier) = Earlier::new()?;
    let pins = earlier.kill()?;
    ensure!(prepare(&pins)? > 0, "nothing was removed");
    let capture = scene.capture(ANY)?;
    let _capture = succeed(&scene, "chosen")?.map_err(unmet)?;
    ensure!(only()? == pins, "{:?}", only()?);
    let [(chosen, stream), (other, _)] = &mut earlier.connections;
    let said = [chosen.go()?, other.go()?];
    ensure!(said[0] == "sent", "the selected one says {said:?}");
    ensure!(said[1].starts_with("failed 103"), "the other says {said:?}");
    let timeout = Some(Duration::from_secs(10));
    stream
        .set_read_timeout(timeout)
        .map_err(Error::io("timeout"))?;
    let mut heard = [0; 5];
    stream
        .read_exact(&mut heard)
        .map_err(Error::io("the connection"))?;
    ensure!(heard == *b"later", "{heard:?}");
    let [chosen, other] = &mut earlier.datagrams;
    let said = [chosen.go()?, other.go()?];
    ensure!(said == ["beyond beyond", "beyond failed:103"], "{said:?}");
    nothing(&scene, capture)?;
    scene.expect(&earlier.chosen, &["tcp", &at(REMOTE[0], 80)], "beyond")?;
    scene.expect(&earlier.other, &["tcp", &at(REMOTE[0], 80)], "far")
}

/// A process in a PID namespace cannot list the sockets of processes outside it.
fn succession_in_a_pid_namespace() -> Result<()> {
    let (scene, mut earlier) = Earlier::new()?;
    let pins = earlier.kill()?;
    forget_flows(&pins)?;
    let capture = scene.capture(ANY)?;
    let own = std::env::current_exe().map_err(Error::io("own executable"))?;
    let tun = scene.tun.index().map_err(Error::io("TUN"))?.to_string();
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
    command.arg(own).args([CAPTURE, "home", "chosen", &tun]);
    let _process = Application::start(command)?;
    ensure!(only()? == pins, "{:?}", only()?);
    earlier.all_have_ended()?;
    nothing(&scene, capture)?;
    scene.expect(&earlier.chosen, &["udp", &at(REMOTE[0], 80)], "beyond")
}

/// Starts two applications whose UDP sockets have the same address. The kernel finds only one of these.
fn sharing(scene: &Scene, program: &str) -> Result<[Application; 2]> {
    let words = ["share", &at(HOME[0], 7001)];
    Ok([scene.start(program, &words)?, scene.start(program, &words)?])
}

/// The earlier programs stay and block, until the application has ended.
fn succession_with_a_socket_that_cannot_be_closed() -> Result<()> {
    let (scene, mut earlier) = Earlier::new()?;
    let mut sharing = sharing(&scene, &earlier.other)?;
    let pins = earlier.kill()?;
    let capture = scene.capture(ANY)?;
    let begun = succeed(&scene, "chosen")?;
    let Err(error @ TransparentError::OpenSockets { count: 1, .. }) = &begun else {
        return Err(unmet(format!("{begun:?}")));
    };
    let text = error.to_string();
    ensure!(
        text.contains("(UDP 192.0.2.2:7001): other sockets have"),
        "{text}"
    );
    blocked_by(&scene, &earlier, &pins)?;
    step("the applications end");
    for application in &mut sharing {
        application.kill()?;
    }
    let _capture = succeed(&scene, "chosen")?.map_err(unmet)?;
    ensure!(only()? == pins, "{:?}", only()?);
    nothing(&scene, capture)?;
    scene.expect(&earlier.chosen, &["tcp", &at(REMOTE[0], 80)], "beyond")?;
    scene.expect(&earlier.other, &["tcp", &at(REMOTE[0], 80)], "far")
}

/// Packets that wait for a neighbour when the earlier programs end do not leave outside the tunnel.
fn waiting_packets(by_release: bool) -> Result<()> {
    let (scene, mut earlier) = Earlier::new()?;
    // The kernel waits for an answer until the end of the test.
    scene
        .home
        .sysctl("net/ipv4/neigh/up0/mcast_solicit", "100")?;
    let answers = |on| scene.far.ip(&["link", "set", "down0", "arp", on]).map(drop);
    answers("off")?;
    scene.home.ip(&["neighbour", "flush", "dev", "up0"])?;
    let capture = scene.capture(ANY)?;
    let _application = scene.start(&earlier.other, &["say", &at(REMOTE[0], 80)])?;
    wait_until("packets wait", Duration::from_secs(5), || {
        let list = ["-4", "neighbour", "show", "dev", "up0", "nud", "incomplete"];
        Ok(!scene.home.ip(&list)?.text().is_empty())
    })?;
    earlier.kill()?;
    let _capture = match by_release {
        true => {
            // The next programs have no uplinks.
            drop(scene.home.enter(|| attached([None, None]).map_err(unmet))?);
            scene.home.enter(|| release(TUNNEL).map_err(unmet))?;
            None
        }
        false => Some(succeed(&scene, "chosen")?.map_err(unmet)?),
    };
    answers("on")?;
    nothing(&scene, capture)
}

/// A conversation that has begun in the tunnel before `up` fails does not continue outside it.
fn conversations_of_a_succession_that_fails() -> Result<()> {
    let scene = Scene::new()?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    let mut daemon = start_daemon(&scene, "other")?;
    let _sharing = sharing(&scene, &other)?;
    daemon.kill()?;
    PinnedState::open(&only()?)?.set_word(PinnedState::SCHEMA, LAYOUT);
    let mut busy = scene.start(&chosen, &["until-aborted", &at(REMOTE[0], 80)])?;
    let begun = succeed(&scene, "chosen")?;
    let is_open = matches!(begun, Err(TransparentError::OpenSockets { .. }));
    ensure!(is_open, "{begun:?}");
    let said = busy.line()?;
    ensure!(said == "aborted", "the UDP socket says {said}");
    scene.expect(&chosen, &["tcp", &at(REMOTE[0], 80)], "far")
}
