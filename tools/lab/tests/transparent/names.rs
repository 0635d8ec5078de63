//! Endpoint names while all applications' questions are blocked.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::mount::mount_bind;
use taupe_lab::capture::Capture;
use taupe_lab::host::Host;
use taupe_lab::peers::Implementation;
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::{scratch_file, step};
use taupe_lab::{Error, Result, ensure};

use crate::world::{Application, BEYOND, TUNNEL, UPLINK, World, expect};

const NAME: &str = "vpn.example.net";

/// Every application but one is selected, including the program that brings the tunnel up again.
pub(crate) fn up_again_resolves_the_endpoint() -> Result<()> {
    let scene = Scene::new()?;
    let world = &scene.world;
    step("up");
    world.up(&scene.file)?;
    expect(world, &scene.selected, 0, Some(TUNNEL[0]))?;
    step("killed, and up again");
    world.kill_device()?;
    let capture = Capture::start(&world.far, "eth0", "tcp port 8080")?;
    expect(world, &scene.selected, 0, None)?;
    let up = world.taupe(&["up", &scene.file])?;
    ensure!(up.status == Some(0), "up: {}", up.stderr);
    ensure!(!up.stderr.contains("no address"), "up: {}", up.stderr);
    expect(world, &scene.selected, 0, Some(TUNNEL[0]))?;
    let packets = capture.stop()?;
    ensure!(packets.is_empty(), "{} packets in clear", packets.len());
    step("the name is still known");
    let shown = world.taupe(&["show", "home"])?;
    ensure!(shown.stdout.contains(NAME), "show: {}", shown.stdout);
    let mode = "mode: transparent\n";
    ensure!(shown.stdout.contains(mode), "show: {}", shown.stdout);
    world.down(&scene.file)
}

/// The resolver is on this machine, where the C library cannot reach it: the program that brings
/// the tunnel up again is selected, and the tunnel's servers are behind it. The tunnel's own
/// process resolves the name.
pub(crate) fn up_again_with_a_local_resolver() -> Result<()> {
    let scene = Scene::with("127.0.0.53", "DNS = 10.77.0.254\n")?;
    let world = &scene.world;
    world.up(&scene.file)?;
    expect(world, &scene.selected, 0, Some(TUNNEL[0]))?;
    world.kill_device()?;
    let up = world.taupe(&["up", &scene.file])?;
    ensure!(up.status == Some(0), "up: {}", up.stderr);
    wait_until("the tunnel", Duration::from_secs(90), || {
        Ok(world.asks(&scene.selected, BEYOND[0])?.as_deref() == Some(TUNNEL[0]))
    })?;
    world.down(&scene.file)
}

/// A name without an address keeps traffic blocked, is reported, and is looked up again.
pub(crate) fn endpoint_name_without_an_address() -> Result<()> {
    let scene = Scene::new()?;
    let world = &scene.world;
    for killed in [false, true] {
        if killed {
            step("killed");
            world.up(&scene.file)?;
            world.kill_device()?;
        }
        scene.server.does(Answers::Not);
        let up = world.taupe(&["up", &scene.file])?;
        ensure!(up.status == Some(0), "up: {}", up.stderr);
        let output = up.stderr.contains(NAME) && up.stderr.contains("no address now");
        ensure!(output, "up: {}", up.stderr);
        expect(world, &scene.selected, 0, None)?;
        expect(world, &scene.other, 0, Some(UPLINK[0]))?;
        let status = world.taupe(&["status", "home"])?;
        // Only the program that asked knows the reason.
        ensure!(
            status.stdout.contains("no address now")
                && !status.stdout.contains("no name server answers"),
            "{}",
            status.stdout
        );
        step("the name has one");
        scene.server.does(Answers::Address);
        wait_until("the tunnel", Duration::from_secs(90), || {
            Ok(world.asks(&scene.selected, BEYOND[0])?.as_deref() == Some(TUNNEL[0]))
        })?;
        world.down(&scene.file)?;
    }
    Ok(())
}

/// After failed attempts the next one is far off, but a change of the network triggers it at once.
pub(crate) fn network_change_triggers_a_look_up() -> Result<()> {
    let scene = Scene::new()?;
    let world = &scene.world;
    scene.server.does(Answers::Not);
    world.up(&scene.file)?;
    // The pauses double, and a look-up continues for 3 s after its last question. The wait
    // therefore ends in a pause of 32 s or more, at least 13 s before the next question.
    let quiet = Duration::from_secs(21);
    let (mut queries, mut since) = (0, Instant::now());
    wait_until("a long pause", Duration::from_secs(180), || {
        let now = scene.server.query_count();
        if now != queries {
            (queries, since) = (now, Instant::now());
        }
        Ok(since.elapsed() >= quiet)
    })?;
    scene.server.does(Answers::Address);
    step("another address");
    world
        .near
        .ip(&["address", "add", "192.168.1.77/24", "dev", "eth0"])?;
    wait_until("an address", Duration::from_secs(8), || {
        let shown = world.taupe(&["show", "home"])?;
        Ok(shown.stdout.contains("192.168.1.2:51821"))
    })?;
    world.down(&scene.file)
}

/// Continuous changes trigger look-ups with pauses in between.
pub(crate) fn constant_network_changes() -> Result<()> {
    let scene = Scene::new()?;
    let world = &scene.world;
    scene.server.does(Answers::Denial);
    world.up(&scene.file)?;
    let (before, begin) = (scene.server.query_count(), Instant::now());
    let seconds = || begin.elapsed().as_secs();
    while seconds() < 20 {
        for verb in ["add", "del"] {
            let address = ["address", verb, "192.168.1.77/24", "dev", "eth0"];
            world.near.ip(&address)?;
        }
        thread::sleep(Duration::from_millis(100));
    }
    let queries = scene.server.query_count() - before;
    // The C library asks for both families, and so does Taupe after it. One look-up may fall on
    // each end, and two before the first change is noticed.
    let most = 4 * (seconds() / 5 + 4);
    ensure!(queries <= most, "{queries} questions in {} s", seconds());
    step("the name has an address");
    scene.server.does(Answers::Address);
    wait_until("the tunnel", Duration::from_secs(90), || {
        Ok(world.asks(&scene.selected, BEYOND[0])?.as_deref() == Some(TUNNEL[0]))
    })?;
    world.down(&scene.file)
}

/// The missing address does not delay the end of a reload either.
pub(crate) fn reload_with_an_unresolvable_endpoint() -> Result<()> {
    let scene = Scene::new()?;
    let world = &scene.world;
    scene.server.does(Answers::Not);
    world.up(&scene.file)?;
    let program = Implementation::Taupe.program()?.display().to_string();
    let reload = || {
        let retries = "WG_ENDPOINT_RESOLUTION_RETRIES=infinity";
        let command = [
            "timeout",
            "60",
            "env",
            retries,
            &program,
            "reload",
            &scene.file,
        ];
        let reload = world.near.attempt(&command)?;
        ensure!(reload.status == Some(0), "reload: {}", reload.stderr);
        Ok(reload.stderr.contains("no address now"))
    };
    ensure!(reload()?, "nothing is said of the name");
    step("the name has an address");
    scene.server.does(Answers::Address);
    wait_until("the tunnel", Duration::from_secs(90), || {
        Ok(world.asks(&scene.selected, BEYOND[0])?.as_deref() == Some(TUNNEL[0]))
    })?;
    step("and none again");
    scene.server.does(Answers::Not);
    ensure!(!reload()?, "the endpoint is lost");
    expect(world, &scene.selected, 0, Some(TUNNEL[0]))?;
    let shown = world.taupe(&["show", "home"])?;
    ensure!(shown.stdout.contains(NAME), "show: {}", shown.stdout);
    world.down(&scene.file)
}

struct Scene {
    world: World,
    file: String,
    selected: Application,
    other: Application,
    server: NameServer,
}

impl Scene {
    fn new() -> Result<Self> {
        Self::with("192.168.1.2", "")
    }

    /// Uses a resolver at this address, and an additional line in the file.
    fn with(resolver: &str, line: &str) -> Result<Self> {
        let world = World::new()?;
        let text = format!("nameserver {resolver}\noptions timeout:1 attempts:1\n");
        let file = scratch_file("resolv.conf", &text)?;
        mount_bind(&*file, "/etc/resolv.conf").map_err(Error::io("/etc/resolv.conf"))?;
        let host = match resolver {
            "127.0.0.53" => &world.near,
            _ => &world.far,
        };
        let server = NameServer::start(host, resolver)?;
        let file = world.file_with_sections(
            &format!("Address = 10.77.0.1/32, fd77::1/128\n{line}"),
            &format!(
                "Endpoint = {NAME}:51821\nAllowedIPs = 0.0.0.0/0, ::/0\nDisallowedApps = bird"
            ),
        )?;
        Ok(Self {
            world,
            file,
            selected: Application::new("mole")?,
            other: Application::new("bird")?,
            server,
        })
    }
}

/// Answers of a name server to questions for IPv4 addresses.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answers {
    /// The neighbour's address.
    Address,
    /// No such name.
    Denial,
    Not,
}

/// A name server that counts its questions.
struct NameServer(Arc<Mutex<(Answers, u64)>>);

impl NameServer {
    /// Starts a server that answers with an address.
    fn start(host: &Host, resolver: &str) -> Result<Self> {
        let bind = || UdpSocket::bind((resolver, 53)).map_err(Error::io("port 53"));
        let socket = host.enter(bind)?;
        let server = Self(Arc::new(Mutex::new((Answers::Address, 0))));
        let state = Arc::clone(&server.0);
        // Until the sandbox ends.
        thread::spawn(move || {
            let mut query = [0; 512];
            loop {
                let received = socket.recv_from(&mut query);
                let answers = {
                    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                    state.1 += 1;
                    state.0
                };
                match received {
                    Ok((length, from)) => {
                        if let Some(answer) = answer_to(&query[..length], answers) {
                            let _ = socket.send_to(&answer, from);
                        }
                    }
                    // The client had closed its socket when the last answer arrived.
                    Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
                    Err(_) => return,
                }
            }
        });
        Ok(server)
    }

    fn does(&self, answers: Answers) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0 = answers;
    }

    /// Returns the number of questions so far.
    fn query_count(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1
    }
}

/// Returns the answer to a question (RFC 1035).
fn answer_to(query: &[u8], answers: Answers) -> Option<Vec<u8>> {
    let name_end = 12 + query.get(12..)?.iter().position(|byte| *byte == 0)? + 1;
    let question = query.get(12..name_end + 4)?;
    let is_given = answers == Answers::Address && question.ends_with(&[0, 1, 0, 1]);
    let code = match answers {
        Answers::Address => 0x80,
        Answers::Denial => 0x83,
        Answers::Not => return None,
    };
    let mut answer = query.get(..2)?.to_vec();
    answer.extend([0x81, code, 0, 1, 0, u8::from(is_given), 0, 0, 0, 0]);
    answer.extend(question);
    if is_given {
        // The name of the question, class Internet, for a second.
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4, 192, 168, 1, 2]);
    }
    Some(answer)
}
