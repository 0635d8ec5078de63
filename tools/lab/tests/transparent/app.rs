//! Rules that change while the tunnel is up: by `app`, and by the file and `reload`.

use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use taupe_lab::capture::Capture;
use taupe_lab::peers::Implementation;
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::{scratch, scratch_file, step};
use taupe_lab::{Error, Result, ensure};

use crate::inspection::json;
use crate::world::{Application, INTERFACE, TUNNEL, UPLINK, World, expect, succeeded};

/// An application is selected and deselected, with its existing sockets.
pub(crate) fn select_while_up() -> Result<()> {
    let world = World::new()?;
    let (mole, bird) = (Application::new("mole")?, Application::new("bird")?);
    let file = world.file("#@ws:AllowedApps = mole # as on the other machine")?;
    let mode = || fs::metadata(&file).map(|data| data.permissions().mode() & 0o777);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).map_err(Error::io("chmod"))?;
    world.up(&file)?;
    expect(&world, &bird, 0, Some(UPLINK[0]))?;
    let bind = || UdpSocket::bind("198.51.100.1:9999").map_err(Error::io("port 9999"));
    let _sink = world.far.enter(bind)?;
    let sender = Sender::start(&world, &bird)?;
    let clear = Capture::start(&world.far, "eth0", "udp port 9999")?;
    sender.send()?;
    let packets = clear.stop_once("a datagram", |packets| !packets.is_empty())?;
    ensure!(packets.len() == 1, "{} packets in clear", packets.len());

    step("allow");
    let allow = world.taupe(&["app", "allow", &file, "bird"])?;
    succeeded("app allow", &allow)?;
    ensure!(
        read(&file)?.contains("\n#@ws:AllowedApps = mole, bird # as on"),
        "{}",
        read(&file)?
    );
    ensure!(mode().map_err(Error::io("mode"))? == 0o640, "another mode");
    for application in [&mole, &bird] {
        expect(&world, application, 0, Some(TUNNEL[0]))?;
    }
    let clear = Capture::start(&world.far, "eth0", "udp port 9999")?;
    let inside = Capture::start(&world.far, "wgfar", "udp port 9999")?;
    sender.send()?;
    let packets = inside.stop_once("a datagram", |packets| !packets.is_empty())?;
    ensure!(!packets.is_empty(), "what was open is not in the tunnel");
    let packets = clear.stop()?;
    ensure!(packets.is_empty(), "{} packets in clear", packets.len());
    let list = world.taupe(&["app", "list", &file])?;
    let process = format!("process {}, {}, 1 sockets", sender.process.id(), bird.0);
    ensure!(list.stdout.contains(&process), "{}", list.stdout);
    let list = json(&world.taupe(&["app", "list", &file, "--json"])?)?;
    let rules = list["rules"].as_array().into_iter().flatten();
    let mut rules = rules.filter(|rule| rule["application"] == "bird");
    let rule = rules.next().ok_or_else(|| Error::unmet(list.to_string()))?;
    let own = serde_json::json!({
        "pid": sender.process.id(), "application": bird.0, "sockets": 1
    });
    // Programs that it runs are listed too.
    let mut processes = rule["processes"].as_array().into_iter().flatten();
    let is_listed = rule["key"] == "AllowedApps" && processes.any(|one| *one == own);
    ensure!(is_listed, "{list}");
    ensure!(list["schema"] == 1 && list["others"] == "direct", "{list}");

    step("deny and remove");
    let deny = world.taupe(&["app", "deny", &file, "mole"])?;
    succeeded("app deny", &deny)?;
    expect(&world, &mole, 0, Some(UPLINK[0]))?;
    expect(&world, &bird, 0, Some(TUNNEL[0]))?;
    let before = read(&file)?;
    ensure!(
        before.contains("\n#@ws:AllowedApps = bird # as on"),
        "{before}"
    );
    for (words, why) in [
        (&["remove", "bird", "cat"][..], "no entry cat"),
        (&["remove", "bird"], "no AllowedApps any more"),
        (&["deny", "bird"], "no AllowedApps any more"),
    ] {
        let [verb, applications @ ..] = words else {
            continue;
        };
        let app = world.taupe(&[&["app", verb, &*file], applications].concat())?;
        ensure!(app.status == Some(1), "{words:?}: {}", app.stderr);
        ensure!(app.stderr.contains(why), "{words:?}: {}", app.stderr);
        ensure!(read(&file)? == before, "{words:?}: {}", read(&file)?);
        expect(&world, &mole, 0, Some(UPLINK[0]))?;
    }
    step("explain");
    for (application, line) in [(&mole, "5  =>"), (&bird, "6  =>")] {
        let explained = world.taupe(&["explain", &application.0, "198.51.100.1:8080"])?;
        succeeded("explain", &explained)?;
        ensure!(explained.stdout.contains(line), "{}", explained.stdout);
        let words = ["explain", "--json", &application.0, "198.51.100.1:8080"];
        let explained = json(&world.taupe(&words)?)?;
        let tunnel = &explained["tunnels"][0];
        let steps = tunnel["steps"].as_array().into_iter().flatten();
        let number = 1 + steps.take_while(|step| step["decides"] == false).count();
        ensure!(line.starts_with(&format!("{number}  ")), "{explained}");
        ensure!(
            tunnel["interface"] == INTERFACE && tunnel["file"] == file,
            "{explained}"
        );
    }
    world.down(&file)
}

/// The file is edited, and `reload` applies it.
pub(crate) fn reload_applies_edited_rules() -> Result<()> {
    let world = World::new()?;
    let (mole, bird) = (Application::new("mole")?, Application::new("bird")?);
    let file = world.file("AllowedApps = mole")?;
    world.up(&file)?;
    step("other applications");
    let file = world.file("AllowedApps = bird")?;
    succeeded("reload", &world.taupe(&["reload", &file])?)?;
    expect(&world, &mole, 0, Some(UPLINK[0]))?;
    expect(&world, &bird, 0, Some(TUNNEL[0]))?;
    step("other destinations");
    let file = world.file("AllowedApps = bird\nDisallowedIPs = 198.51.100.0/24")?;
    succeeded("reload", &world.taupe(&["reload", &file])?)?;
    expect(&world, &bird, 0, Some(UPLINK[0]))?;
    expect(&world, &bird, 1, Some(TUNNEL[1]))?;
    step("what cannot be changed");
    let peer = "Endpoint = 192.168.1.2:51821\nAllowedIPs = 0.0.0.0/0, ::/0";
    let file = world.file_with_sections(
        "Address = 10.77.0.9/32, fd77::1/128",
        &format!("{peer}\nAllowedApps = mole"),
    )?;
    let reload = world.taupe(&["reload", &file])?;
    ensure!(reload.status == Some(1), "reload: {}", reload.stderr);
    ensure!(reload.stderr.contains("10.77.0.9"), "{}", reload.stderr);
    let file = world.file_with_sections("Address = 10.77.0.1/32, fd77::1/128", peer)?;
    let reload = world.taupe(&["reload", &file])?;
    ensure!(reload.status == Some(1), "reload: {}", reload.stderr);
    expect(&world, &mole, 0, Some(UPLINK[0]))?;
    expect(&world, &bird, 1, Some(TUNNEL[1]))?;
    world.down(&file)
}

/// `app` does not change a rule that differs between the tunnel and an edited file, and applies a
/// rule that the file already has.
pub(crate) fn app_command_beside_an_edited_file() -> Result<()> {
    let world = World::new()?;
    let (mole, bird) = (Application::new("mole")?, Application::new("bird")?);
    let file = world.file("AllowedApps = mole")?;
    world.up(&file)?;
    let refused = |file: &str, why: &str| {
        let before = read(file)?;
        let allow = world.taupe(&["app", "allow", file, "bird"])?;
        ensure!(allow.status == Some(1), "app allow: {}", allow.stderr);
        ensure!(allow.stderr.contains(why), "{}", allow.stderr);
        ensure!(read(file)? == before, "{}", read(file)?);
        expect(&world, &bird, 0, Some(UPLINK[0]))
    };
    step("another line");
    let file = world.file("AllowedApps = mole\nDisallowedIPs = 203.0.113.0/24")?;
    refused(&file, "taupe reload")?;
    succeeded("reload", &world.taupe(&["reload", &file])?)?;
    step("another file");
    let folder = scratch("elsewhere");
    fs::create_dir_all(&folder).map_err(Error::io("elsewhere"))?;
    let other = folder.join("home.conf").display().to_string();
    fs::copy(&file, &other).map_err(Error::io("home.conf"))?;
    refused(&other, &file)?;
    step("again and again");
    for application in ["bird", "cat"] {
        let allow = world.taupe(&["app", "allow", &file, application])?;
        succeeded("app allow", &allow)?;
    }
    expect(&world, &bird, 0, Some(TUNNEL[0]))?;
    step("what the file says already");
    let down = world.taupe(&["down", "--keep-closed", &file])?;
    succeeded("down", &down)?;
    let file = world.file("AllowedApps = bird")?;
    expect(&world, &mole, 0, None)?;
    let allow = world.taupe(&["app", "allow", &file, "bird"])?;
    succeeded("app allow", &allow)?;
    ensure!(allow.stderr.contains("needs no change"), "{}", allow.stderr);
    expect(&world, &mole, 0, Some(UPLINK[0]))?;
    expect(&world, &bird, 0, None)?;
    world.down(&file)
}

/// A file with a rejected part is rejected as a whole.
pub(crate) fn reload_is_atomic() -> Result<()> {
    let world = World::new()?;
    let (mole, bird) = (Application::new("mole")?, Application::new("bird")?);
    let full = |settings: &str, allowed_ips: &str, applications: &str| {
        world.file_with_sections(
            &format!("Address = 10.77.0.1/32, fd77::1/128\n{settings}"),
            &format!(
                "Endpoint = 192.168.1.2:51821\nAllowedIPs = {allowed_ips}\n\
                 AllowedApps = {applications}"
            ),
        )
    };
    let file = full("", "0.0.0.0/0, ::/0", "mole")?;
    world.up(&file)?;
    let device = || world.near.run(&["wg", "showconf", "home"]);
    let before = device()?.stdout;
    let is_as_before = |reload: &taupe_lab::process::Attempt, word: &str| -> Result<()> {
        ensure!(reload.status == Some(1), "reload: {reload:?}");
        ensure!(reload.stderr.contains(word), "{}", reload.stderr);
        ensure!(device()?.stdout == before, "{}", device()?.stdout);
        for family in [0, 1] {
            expect(&world, &mole, family, Some(TUNNEL[family]))?;
            expect(&world, &bird, family, Some(UPLINK[family]))?;
        }
        Ok(())
    };
    step("applications");
    let long = format!("cgroup:{}", "x".repeat(250));
    let file = full("", "0.0.0.0/0", &format!("bird, {long}"))?;
    is_as_before(&world.taupe(&["reload", &file])?, "too long to be compared")?;
    step("the device");
    let bind = || UdpSocket::bind("0.0.0.0:51999").map_err(Error::io("port 51999"));
    let _taken = world.near.enter(bind)?;
    let file = full("ListenPort = 51999", "0.0.0.0/0, ::/0", "bird")?;
    is_as_before(&world.taupe(&["reload", &file])?, "already in use")?;
    step("and what can be done is");
    let file = full("", "0.0.0.0/0, ::/0", "bird")?;
    succeeded("reload", &world.taupe(&["reload", &file])?)?;
    expect(&world, &mole, 0, Some(UPLINK[0]))?;
    expect(&world, &bird, 0, Some(TUNNEL[0]))?;
    world.down(&file)
}

/// An application cannot be selected by two tunnels at once.
pub(crate) fn one_application_in_two_tunnels() -> Result<()> {
    let world = World::new()?;
    let file = world.file("AllowedApps = bird, mole")?;
    world.up(&file)?;
    let text = read(&file)?;
    let office = scratch_file("office.conf", &text.replace("bird, mole", "cat, mol*"))?;
    let before = world.configuration()?;
    let up = world.taupe(&["up", &office])?;
    ensure!(up.status == Some(1), "up: {}", up.stderr);
    let line = text.lines().count();
    for place in [
        format!("office.conf:{line}: mol*"),
        format!("home.conf:{line}: mole"),
    ] {
        ensure!(up.stderr.contains(&place), "{place}: {}", up.stderr);
    }
    world.is_as_before(&before, "something was done")?;
    step("both at once");
    world.down(&file)?;
    both_at_once(&world, [&file, &office])?;
    world.up(&file)?;
    let before = world.configuration()?;
    step("the other file cannot be read");
    fs::write(&file, "").map_err(Error::io(&*file))?;
    let office = scratch_file("office.conf", &text.replace("bird, mole", "cat"))?;
    let up = world.taupe(&["up", &office])?;
    ensure!(up.status == Some(1), "up: {}", up.stderr);
    ensure!(up.stderr.contains("are unknown"), "{}", up.stderr);
    world.is_as_before(&before, "something was done")?;
    world.down(&file)?;
    world.up(&office)?;
    world.down(&office)
}

/// Brings up two tunnels, home and office, that select the same application, so that both check the
/// other before either is up. The one whose device starts second finds the first and fails.
fn both_at_once(world: &World, files: [&str; 2]) -> Result<()> {
    let before = world.configuration()?;
    // A process waits for this lock before it starts a device.
    let network = fs::File::open("/run/taupe").map_err(Error::io("/run/taupe"))?;
    network.lock().map_err(Error::io("lock"))?;
    let program = Implementation::Taupe.program()?.display().to_string();
    let spawn = |file: &str| world.near.spawn(&[&program, "up", file]);
    let mut ups = [spawn(files[0])?, spawn(files[1])?];
    for name in ["home", "office"] {
        let journal = Path::new("/run/taupe").join(format!("{name}.journal"));
        wait_until("the journal", Duration::from_secs(10), || {
            Ok(journal.exists())
        })?;
    }
    network.unlock().map_err(Error::io("unlock"))?;
    let limit = Duration::from_secs(30);
    let succeeded = [ups[0].wait(limit)?, ups[1].wait(limit)?].map(|status| status.success());
    let [home, office] = ups.map(|up| up.output());
    let (winner, failed) = match succeeded {
        [true, false] => (files[0], office),
        [false, true] => (files[1], home),
        _ => return Err(Error::unmet(format!("{succeeded:?}: {home} {office}"))),
    };
    for file in ["home.conf", "office.conf"] {
        ensure!(failed.contains(file), "{file}: {failed}");
    }
    world.down(winner)?;
    world.is_as_before(&before, "something was left")
}

/// A connection from before `up` is closed on request.
pub(crate) fn existing_connections() -> Result<()> {
    let world = World::new()?;
    let mole = Application::new("mole")?;
    let file = world.file("AllowedApps = mole")?;
    let wait = "exec 3<>/dev/tcp/198.51.100.1/8080 && read -r -u 3 line && echo open; \
                read -r -u 3 line; echo closed";
    let mut process = world.near.spawn(&[&mole.0, "-c", wait])?;
    wait_until("the connection", Duration::from_secs(10), || {
        Ok(process.output().contains("open"))
    })?;
    let inside = Capture::start(&world.far, "wgfar", "tcp port 8080")?;
    let up = world.taupe(&["up", "--reset-existing", &file])?;
    succeeded("up", &up)?;
    // The server would close it after ten seconds.
    process.wait(Duration::from_secs(5))?;
    ensure!(process.output().contains("closed"), "{}", process.output());
    let packets = inside.stop()?;
    ensure!(
        packets.is_empty(),
        "{} packets of it in the tunnel",
        packets.len()
    );
    expect(&world, &mole, 0, Some(TUNNEL[0]))?;
    world.down(&file)
}

/// An application with one socket, which sends on request.
struct Sender {
    process: taupe_lab::process::Process,
    go: std::path::PathBuf,
}

impl Sender {
    fn start(world: &World, application: &Application) -> Result<Self> {
        let go = scratch("go");
        let script = format!(
            "exec 3<>/dev/udp/198.51.100.1/9999; echo ready; \
             while :; do while [ ! -e {0} ]; do sleep 0.05; done; echo hello >&3; rm {0}; done",
            go.display()
        );
        let process = world.near.spawn(&[&application.0, "-c", &script])?;
        wait_until("the sender", Duration::from_secs(10), || {
            Ok(process.output().contains("ready"))
        })?;
        Ok(Self { process, go })
    }

    /// Returns after it has sent.
    fn send(&self) -> Result<()> {
        fs::write(&self.go, "").map_err(Error::io("go"))?;
        wait_until("a datagram", Duration::from_secs(10), || {
            Ok(!self.go.exists())
        })
    }
}

fn read(file: &str) -> Result<String> {
    fs::read_to_string(file).map_err(Error::io(file))
}
