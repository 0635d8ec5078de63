//! `taupe exec`, run by an unprivileged user.

mod commands;
mod confined;
mod hybrid;
mod refusals;
mod resolvers;
#[path = "../names/server.rs"]
mod server;
mod services;
mod shared;

use rustix::fs::chown;
use rustix::mount::{MountFlags, mount};
use rustix::process::{Gid, Uid};
use server::QueryCount;
use std::fs::{self, Permissions};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use taupe_lab::host::{Host, neighbours};
use taupe_lab::peers::Implementation;
use taupe_lab::process::{Attempt, Process};
use taupe_lab::sandbox::{Suite, SystemTest};
use taupe_lab::server::Server;
use taupe_lab::surroundings::{open_tun, own_etc};
use taupe_lab::{Error, Result, ensure};

fn main() {
    Suite::new(vec![
        SystemTest::new("only_the_tunnel_is_visible", confined::only_the_tunnel),
        SystemTest::new("outer_sockets_are_not_inherited", confined::no_outer_socket),
        SystemTest::new("no_privilege_is_left", confined::no_right),
        SystemTest::new("host_services_are_unreachable", services::hear_nothing),
        SystemTest::new("session_bus_by_option", services::session_bus),
        SystemTest::new("a_hundred_megabytes", confined::transfer),
        SystemTest::new("killed_holder_leaks_nothing", confined::killed_holder),
        SystemTest::new("status_of_the_command", commands::status),
        SystemTest::new("signals_reach_the_command", commands::signals),
        SystemTest::new("silent_peer", commands::silent_peer),
        SystemTest::new("interrupt_from_the_terminal", commands::terminal),
        SystemTest::new(
            "environment_and_folder_are_preserved",
            commands::surroundings,
        ),
        SystemTest::new("folder_covered_by_a_mount", commands::covered_folder),
        SystemTest::new("root_runs_a_command", commands::root),
        SystemTest::new("several_commands_share_a_tunnel", shared::several),
        SystemTest::new("signal_ends_a_shared_tunnel", shared::ended),
        SystemTest::new("other_users_cannot_join", shared::other_users),
        SystemTest::new("without_a_session_folder", shared::without_session),
        SystemTest::new("no_resolv_conf", resolvers::absent),
        SystemTest::new("link_to_no_resolv_conf", resolvers::dangling),
        SystemTest::new("resolv_conf_of_a_hidden_service", resolvers::hidden),
        SystemTest::new("resolv_conf_is_replaced", resolvers::replaced),
        SystemTest::new("resolv_conf_of_a_link_is_replaced", resolvers::linked),
        SystemTest::new("file_without_dns", resolvers::no_dns),
        SystemTest::new("endpoint_name_is_looked_up_again", resolvers::endpoint_name),
        SystemTest::new("hybrid_peer", hybrid::require),
        SystemTest::new("preferred_peer_is_remembered", hybrid::prefer),
        SystemTest::new("without_a_state_folder", hybrid::without_state_folder),
        SystemTest::new("no_user_namespaces", refusals::namespaces),
        SystemTest::new("no_tun", refusals::tun),
        SystemTest::new("unavailable_port", refusals::port),
        SystemTest::new("unusable_file", refusals::file),
    ])
    .prepare(|| Implementation::Taupe.install().map(drop))
    .main()
}

/// Ids of the user, which no system file lists.
const USER: u32 = 4711;
const GROUP: u32 = 4712;

/// Folders mounted for the test.
const HOME: &str = "/run/exec/home";
const SESSION: &str = "/run/exec/session";
const PROGRAM: &str = "/run/exec/taupe";

/// The server's address in the tunnel, also the name server's.
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const NAME_SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(SERVER), 53);

/// A name known to the tunnel's name server, and its address behind the server.
const NAME: &str = "beyond.example.org";
const BEYOND: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);

/// A user's machine, with its router and WireGuard server.
struct World {
    near: Host,
    far: Host,
    server: Server,
    /// Questions to the tunnel's name server.
    queries: QueryCount,
}

impl World {
    fn new() -> Result<Self> {
        prepare_machine()?;
        let (near, far) = neighbours()?;
        near.ip(&["route", "add", "default", "via", "192.0.2.2"])?;
        near.ip(&["-6", "route", "add", "default", "via", "2001:db8::2"])?;
        let beyond = BEYOND.to_string();
        far.ip(&["address", "add", &beyond, "dev", "lo"])?;
        let server = Server::start(&near, &far)?;
        let queries = server::start(&far, NAME, BEYOND)?;
        let world = Self {
            near,
            far,
            server,
            queries,
        };
        world.file("home", "DNS = 10.77.0.2, example.org", "0.0.0.0/0, ::/0")?;
        Ok(world)
    }

    /// Writes a file of the user's, with further lines in `[Interface]`, and in `[Peer]` after the
    /// allowed IPs.
    fn file(&self, name: &str, lines: &str, allowed_ips: &str) -> Result<String> {
        let path = format!("{HOME}/{name}.conf");
        let text = self
            .server
            .file(lines, &format!("AllowedIPs = {allowed_ips}"));
        fs::write(&path, text).map_err(Error::io(&*path))?;
        give(&path, 0o600)?;
        Ok(path)
    }

    /// Runs a command as the user, outside a tunnel.
    fn user(&self, words: &[&str]) -> Result<Attempt> {
        self.near.attempt(&as_user(words))
    }

    /// Runs a shell script in a tunnel of its own, as the user.
    fn exec(&self, script: &str) -> Result<Attempt> {
        self.user(&[PROGRAM, "exec", &home(), "--", "bash", "-c", script])
    }

    /// As [`exec`](Self::exec); it must succeed, and returns standard output.
    fn output_of(&self, script: &str) -> Result<String> {
        let attempt = self.exec(script)?;
        ensure!(attempt.status == Some(0), "{script}: {attempt:?}");
        Ok(attempt.stdout)
    }

    /// Starts a shell script in a tunnel of its own, as the user.
    fn start(&self, script: &str) -> Result<Process> {
        let words = [PROGRAM, "exec", &home(), "--", "bash", "-c", script];
        self.near.spawn(&as_user(&words))
    }

    /// Runs a shell script in the existing tunnel, as the user.
    fn join(&self, script: &str) -> Result<Attempt> {
        self.user(&[
            PROGRAM, "exec", "--join", "home", "--", "bash", "-c", script,
        ])
    }
}

/// Returns the path of the file that most tests use.
fn home() -> String {
    format!("{HOME}/home.conf")
}

/// Returns a command line that runs as the user, with an environment of the user's.
fn as_user<'a>(words: &[&'a str]) -> Vec<&'a str> {
    #[rustfmt::skip]
    let user = [
        "setpriv", "--reuid", "4711", "--regid", "4712", "--clear-groups",
        "env", "--default-signal", "--chdir=/", "-i", "PATH=/usr/bin:/bin:/usr/sbin:/sbin", "HOME=/run/exec/home",
        "XDG_RUNTIME_DIR=/run/exec/session", "LC_ALL=C", "TAUPE_CONFINE=kill",
        "DBUS_SESSION_BUS_ADDRESS=unix:path=/run/exec/session/bus,guid=1",
    ];
    [&user[..], words].concat()
}

/// Provides parts of an ordinary machine that the test machine may lack: a TUN device that
/// everybody may open, a writable `/etc`, a program that everybody can execute.
fn prepare_machine() -> Result<()> {
    open_tun()?;
    for folder in ["/run/exec", HOME, SESSION, "/run/exec/programs"] {
        fs::create_dir(folder).map_err(Error::io(folder))?;
    }
    open("/run")?;
    open("/run/exec")?;
    let program = Implementation::Taupe.program()?;
    fs::copy(&program, PROGRAM).map_err(Error::io(PROGRAM))?;
    open(PROGRAM)?;
    let built = fs::canonicalize(&program).map_err(Error::io("the program"))?;
    let sticky = c"mode=1777";
    mount("lab", "/tmp", "tmpfs", MountFlags::NOSUID, sticky).map_err(Error::io("/tmp"))?;
    // The program was built in the folder that has just been hidden.
    if let Some(folder) = built.parent().filter(|folder| !folder.exists()) {
        fs::create_dir_all(folder).map_err(Error::io("/tmp"))?;
        fs::copy(PROGRAM, &built).map_err(Error::io("the program"))?;
    }
    give(HOME, 0o700)?;
    give(SESSION, 0o700)?;
    // The server must not be asked.
    own_etc("nameserver 192.0.2.2\n")
}

fn give(path: &str, mode: u32) -> Result<()> {
    let (user, group) = (Uid::from_raw(USER), Gid::from_raw(GROUP));
    chown(path, Some(user), Some(group)).map_err(Error::io(path))?;
    fs::set_permissions(path, Permissions::from_mode(mode)).map_err(Error::io(path))
}

fn open(path: impl AsRef<Path>) -> Result<()> {
    let path = path.as_ref();
    let what = path.display().to_string();
    fs::set_permissions(path, Permissions::from_mode(0o755)).map_err(Error::io(what))
}
