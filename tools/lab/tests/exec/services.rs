//! Services on Unix sockets and name servers outside, which a command must not reach.

use crate::{NAME, PROGRAM, SESSION, USER, World, give, home};
use rustix::net::sockopt::socket_peercred;
use std::fs::{self, Permissions};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;
use taupe_lab::host::Host;
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::step;
use taupe_lab::{Error, Result, ensure};

/// Sockets of system services.
const PATHS: [&str; 4] = [
    "/run/systemd/resolve/io.systemd.Resolve",
    "/run/nscd/socket",
    "/run/dbus/system_bus_socket",
    "/run/avahi-daemon/socket",
];

/// Generous time limit for busy machines.
const PATIENCE: Duration = Duration::from_secs(60);

/// An abstract socket name like X11's.
const ABSTRACT: &str = "taupe-lab/X0";

/// Number of connections of the user to a service.
#[derive(Clone, Default)]
struct ConnectionCount(Arc<AtomicUsize>);

impl ConnectionCount {
    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    fn serve(&self, listener: UnixListener) {
        let heard = self.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // Processes of root that prepare the test may connect too.
                if socket_peercred(&stream).is_ok_and(|peer| peer.uid.as_raw() == USER) {
                    heard.0.fetch_add(1, Ordering::SeqCst);
                }
            }
        });
    }
}

/// Listens at a path, for everybody.
fn at(path: &str, heard: &ConnectionCount) -> Result<()> {
    if let Some(folder) = Path::new(path).parent() {
        fs::create_dir_all(folder).map_err(Error::io(path))?;
    }
    let listener = UnixListener::bind(path).map_err(Error::io(path))?;
    fs::set_permissions(path, Permissions::from_mode(0o666)).map_err(Error::io(path))?;
    heard.serve(listener);
    Ok(())
}

/// Starts all services that a command outside can reach.
fn begin(near: &Host) -> Result<ConnectionCount> {
    let heard = ConnectionCount::default();
    for path in PATHS {
        at(path, &heard)?;
    }
    let name = SocketAddr::from_abstract_name(ABSTRACT).map_err(Error::io(ABSTRACT))?;
    let listener = near.enter(|| UnixListener::bind_addr(&name).map_err(Error::io("abstract")))?;
    heard.serve(listener);
    let stub = (Ipv4Addr::new(127, 0, 0, 53), 53);
    let stub = near.enter(|| UdpSocket::bind(stub).map_err(Error::io("stub")))?;
    let count = heard.clone();
    thread::spawn(move || {
        while stub.recv_from(&mut [0; 512]).is_ok() {
            count.0.fetch_add(1, Ordering::SeqCst);
        }
    });
    Ok(heard)
}

/// Connects to each path, and prints those at which a server listens.
const CONNECT: &str = "import socket, sys
for path in sys.argv[1:]:
    try:
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).connect(path.replace('@', '\\0'))
        print(path)
    except OSError:
        pass
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'?', ('127.0.0.53', 53))";

pub(crate) fn hear_nothing() -> Result<()> {
    let world = World::new()?;
    let heard = begin(&world.near)?;
    let address = format!("@{ABSTRACT}");
    let connect = [&["python3", "-c", CONNECT][..], &PATHS, &[&*address]].concat();

    step("outside, all of them are there, and are asked for names");
    let attempt = world.user(&connect)?;
    ensure!(
        attempt.stdout.lines().count() == PATHS.len() + 1,
        "{attempt:?}"
    );
    let all = PATHS.len() + 2;
    wait_until("all heard", PATIENCE, || Ok(heard.count() >= all))?;
    world.user(&["timeout", "20", "getent", "ahosts", "outside.example.org"])?;
    wait_until("the C library asks a service", PATIENCE, || {
        Ok(heard.count() > all)
    })?;
    let before = heard.count();

    step("inside, none is");
    let attempt = world.user(&[&[PROGRAM, "exec", &home(), "--"][..], &connect].concat())?;
    ensure!(
        attempt.status == Some(0) && attempt.stdout.is_empty(),
        "{attempt:?}"
    );
    let script = format!(
        "getent ahostsv4 {NAME} && getent ahosts {NAME} && \
         python3 -c 'import socket; print(socket.getaddrinfo(\"{NAME}\", 80))'"
    );
    let reported = world.output_of(&script)?;
    ensure!(reported.matches("198.51.100.1").count() >= 3, "{reported}");
    ensure!(
        world.queries.count() > 0,
        "the tunnel's name server was not asked"
    );
    ensure!(heard.count() == before, "{} came", heard.count() - before);

    step("none in the folder that the command is started in either");
    let start = |folder: &str| {
        // A shell outside the tunnel asks for its user's name.
        let chdir = format!("--chdir={folder}");
        let paths = [
            "nscd/socket",
            "dbus/system_bus_socket",
            "socket",
            "system_bus_socket",
        ];
        let (file, python) = (home(), ["--", "python3", "-c", CONNECT]);
        let words = [
            &["env", &*chdir, PROGRAM, "exec", &*file],
            &python[..],
            &paths,
        ];
        world.user(&words.concat())
    };
    let attempt = start("/run")?;
    ensure!(
        attempt.status == Some(0) && attempt.stdout.is_empty(),
        "{attempt:?}"
    );
    let attempt = start("/run/dbus")?;
    ensure!(
        attempt.status == Some(125) && attempt.stdout.is_empty(),
        "{attempt:?}"
    );
    ensure!(
        attempt.stderr.contains("folder cannot be entered"),
        "{attempt:?}"
    );
    ensure!(heard.count() == before, "{} came", heard.count() - before);

    step("nor for a command that joins");
    let mut first = world.start("echo begun; sleep 600")?;
    wait_until("begun", PATIENCE, || Ok(first.output().contains("begun")))?;
    let joined = [PROGRAM, "exec", "--join", "home", "--"];
    let attempt = world.user(&[&joined[..], &connect].concat())?;
    ensure!(
        attempt.status == Some(0) && attempt.stdout.is_empty(),
        "{attempt:?}"
    );
    ensure!(heard.count() == before, "{} came", heard.count() - before);

    step("nor when one is started again, or only now");
    for folder in ["/run/nscd", "/run/dbus"] {
        fs::remove_dir_all(folder).map_err(Error::io(folder))?;
    }
    for path in ["/run/nscd/socket", "/run/dbus/system_bus_socket"] {
        at(path, &heard)?;
    }
    let attempt = world.user(&[&joined[..], &connect].concat())?;
    ensure!(
        attempt.status == Some(0) && attempt.stdout.is_empty(),
        "{attempt:?}"
    );
    ensure!(heard.count() == before, "{} came", heard.count() - before);
    ensure!(first.runs()?, "{}", first.output());
    Ok(())
}

pub(crate) fn session_bus() -> Result<()> {
    let world = World::new()?;
    let heard = ConnectionCount::default();
    let paths = [
        format!("{SESSION}/bus"),
        format!("{SESSION}/systemd/private"),
        format!("{SESSION}/wayland-0"),
    ];
    for path in &paths {
        at(path, &heard)?;
    }
    give(&format!("{SESSION}/systemd"), 0o700)?;
    let connect = format!(
        "python3 -c \"$1\" {}; echo \"$DBUS_SESSION_BUS_ADDRESS\"",
        paths.join(" ")
    );
    let reached = |options: &[&str]| {
        let file = home();
        let command = [&*file, "--", "bash", "-c", &connect, "bash", CONNECT];
        world.user(&[&[PROGRAM, "exec"], options, &command].concat())
    };
    let address = format!("unix:path={SESSION}/bus,guid=1");
    let attempt = reached(&[])?;
    let expected = format!("{}\n{address}\n", paths.join("\n"));
    ensure!(attempt.stdout == expected, "{attempt:?}");
    let before = heard.count();
    let attempt = reached(&["--no-session-bus"])?;
    // Sockets that are no bus and start no programs stay reachable.
    ensure!(
        attempt.stdout == format!("{}\n{address}\n", paths[2]),
        "{attempt:?}"
    );
    ensure!(
        heard.count() == before + 1,
        "{} came",
        heard.count() - before
    );

    step("where nothing says where they are");
    let usual = format!("/run/user/{USER}");
    let paths = ["bus", "systemd/private", "wayland-0"].map(|name| format!("{usual}/{name}"));
    fs::create_dir_all(format!("{usual}/systemd")).map_err(Error::io(&*usual))?;
    for path in &paths {
        at(path, &heard)?;
    }
    let all = Permissions::from_mode(0o755);
    fs::set_permissions("/run/user", all).map_err(Error::io("/run/user"))?;
    give(&usual, 0o700)?;
    give(&format!("{usual}/systemd"), 0o700)?;
    let connect = format!("python3 -c \"$1\" {}", paths.join(" "));
    let reached = |options: &[&str]| {
        let file = home();
        let without = [
            "env",
            "--unset=XDG_RUNTIME_DIR",
            "--unset=DBUS_SESSION_BUS_ADDRESS",
            PROGRAM,
            "exec",
        ];
        let command = [&*file, "--", "bash", "-c", &connect, "bash", CONNECT];
        world.user(&[&without, options, &command].concat())
    };
    let attempt = reached(&[])?;
    ensure!(attempt.stdout == paths.join("\n") + "\n", "{attempt:?}");
    let attempt = reached(&["--no-session-bus"])?;
    ensure!(attempt.stdout == format!("{}\n", paths[2]), "{attempt:?}");
    Ok(())
}
