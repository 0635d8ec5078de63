//! A machine with users, a message bus that starts polkit and the front, and a WireGuard server.

use rustix::mount::{MountFlags, mount, mount_bind};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;
use taupe_lab::host::{Host, neighbours};
use taupe_lab::peers::Implementation;
use taupe_lab::process::{Attempt, Process, wait_until};
use taupe_lab::sandbox::scratch;
use taupe_lab::server::Server;
use taupe_lab::servers::serve_web;
use taupe_lab::surroundings::own_etc;
use taupe_lab::{Error, Result, ensure};

/// A web server that reports its client's address.
pub(crate) const BEYOND: &str = "198.51.100.1";

/// The machine's address in the tunnel, and outside.
pub(crate) const INSIDE: &str = "10.77.0.1";
pub(crate) const OUTSIDE: &str = "192.0.2.1";

pub(crate) const SOON: Duration = Duration::from_secs(20);

/// The socket of the service.
pub(crate) const SOCKET: &str = "/run/taupe-service/socket";

/// Sources of the packaging.
const PACKAGING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/service");

/// Users: name, ID, and true for members of the group `taupe`.
pub(crate) const USERS: [(&str, u32, bool); 4] = [
    ("alice", 5001, true),
    ("bob", 5002, false),
    ("carol", 5003, true),
    // Whoever is asked for an administrator's consent agrees.
    ("dora", 5004, true),
];

const ALL: &str = "AllowedIPs = 198.51.100.0/24";

pub(crate) struct World {
    pub(crate) near: Host,
    pub(crate) server: Server,
    pub(crate) service: Process,
    bus: Process,
}

impl World {
    pub(crate) fn new() -> Result<Self> {
        Self::with(true)
    }

    /// Creates a machine without the front's files on the bus if `has_front` is false.
    pub(crate) fn with(has_front: bool) -> Result<Self> {
        let pins = "/run/taupe/bpf";
        create(Path::new(pins))?;
        mount("bpf", pins, "bpf", MountFlags::empty(), None).map_err(Error::io(pins))?;
        users()?;
        programs()?;
        if has_front {
            install()?;
        }
        let (near, far) = neighbours()?;
        near.ip(&["route", "add", "default", "via", "192.0.2.2"])?;
        far.ip(&["address", "add", BEYOND, "dev", "lo"])?;
        serve_web(&far, BEYOND.parse().map_err(|_| Error::unmet("address"))?)?;
        let server = Server::start(&near, &far)?;
        create(Path::new("/run/dbus"))?;
        let bus = near.spawn(&["dbus-daemon", "--system", "--nofork", "--nopidfile"])?;
        wait_until("the bus", SOON, || {
            Ok(Path::new("/run/dbus/system_bus_socket").exists())
        })?;
        let service = Self::start_service(&near)?;
        Ok(Self {
            near,
            server,
            service,
            bus,
        })
    }

    fn start_service(near: &Host) -> Result<Process> {
        Self::start_by(near, &[&taupe()?, "service"])
    }

    fn start_by(near: &Host, command: &[&str]) -> Result<Process> {
        let _ = fs::remove_file(SOCKET);
        let service = near.spawn(command)?;
        wait_until("the service", SOON, || {
            let shown = near.run(&["ss", "-xlH", "src", SOCKET])?;
            Ok(!shown.text().is_empty())
        })?;
        Ok(service)
    }

    /// Kills the service and starts it again.
    pub(crate) fn restart(self) -> Result<Self> {
        let Self {
            near,
            server,
            service,
            bus,
        } = self;
        drop(service);
        let service = Self::start_service(&near)?;
        Ok(Self {
            near,
            server,
            service,
            bus,
        })
    }

    /// Kills the service and starts it again with a listening socket at standard input, as its unit for
    /// systemd does.
    pub(crate) fn restart_with_socket(self) -> Result<Self> {
        const START: &str = "import os,socket,sys\n\
            s=socket.socket(socket.AF_UNIX,socket.SOCK_SEQPACKET)\n\
            s.bind(sys.argv[1])\n\
            os.chmod(sys.argv[1],0o600)\n\
            os.chown(sys.argv[1],5000,-1)\n\
            s.listen(64)\n\
            os.dup2(s.fileno(),0)\n\
            os.execv(sys.argv[2],[sys.argv[2],'service'])\n";
        let Self {
            near,
            server,
            service,
            bus,
        } = self;
        drop(service);
        let command = ["/usr/bin/python3", "-c", START, SOCKET, &taupe()?];
        let service = Self::start_by(&near, &command)?;
        Ok(Self {
            near,
            server,
            service,
            bus,
        })
    }

    /// Ends the bus.
    pub(crate) fn without_bus(self) -> Result<(Host, Server, Process)> {
        let Self {
            near,
            server,
            service,
            bus,
        } = self;
        drop(bus);
        Ok((near, server, service))
    }

    /// Runs a command as a user.
    pub(crate) fn run_as(&self, user: &str, command: &[&str]) -> Result<Attempt> {
        self.near.attempt(&as_user(user, command))
    }

    /// Runs `taupe` as a user.
    pub(crate) fn taupe(&self, user: &str, arguments: &[&str]) -> Result<Attempt> {
        let program = taupe()?;
        self.run_as(user, &[&[&*program], arguments].concat())
    }

    /// Runs `taupe` as a user, which must succeed.
    pub(crate) fn succeed(&self, user: &str, arguments: &[&str]) -> Result<Attempt> {
        let attempt = self.taupe(user, arguments)?;
        ensure!(
            attempt.status == Some(0),
            "{user}: {arguments:?}: {attempt:?}"
        );
        Ok(attempt)
    }

    /// Runs `taupe` as a user, which must be refused in one line with these words.
    pub(crate) fn refuse(&self, user: &str, arguments: &[&str], words: &str) -> Result<()> {
        let attempt = self.taupe(user, arguments)?;
        ensure!(
            attempt.status != Some(0),
            "{user}: {arguments:?}: {attempt:?}"
        );
        let errors = attempt.stderr.trim();
        ensure!(errors.contains(words), "{words:?} is not in {attempt:?}");
        ensure!(
            errors.lines().count() == 1,
            "more than one line: {attempt:?}"
        );
        ensure!(attempt.stdout.is_empty(), "{attempt:?}");
        Ok(())
    }

    /// Writes a file of a user, which only the user can read. `interface` has lines for its section.
    pub(crate) fn file(&self, user: &str, name: &str, interface: &str) -> Result<String> {
        write(
            user,
            &format!("{name}.conf"),
            &self.server.file(interface, ALL),
        )
    }

    /// Returns the address by which the web server sees a user's curl.
    pub(crate) fn seen(&self, user: &str) -> Result<String> {
        self.seen_by(user, "curl")
    }

    /// Returns the address by which the web server sees a copy of curl that a user runs.
    pub(crate) fn seen_by(&self, user: &str, curl: &str) -> Result<String> {
        let url = format!("http://{BEYOND}/");
        let answer = self.run_as(user, &[curl, "-sS", "--max-time", "15", &url])?;
        Ok(format!("{}{}", answer.stdout, answer.stderr)
            .trim()
            .to_owned())
    }

    /// Returns the machine's links, routes, rules, and the files of the service, which a refused request
    /// does not change.
    pub(crate) fn state(&self) -> Result<String> {
        let mut state = String::new();
        for command in [
            &["ip", "-br", "link"][..],
            &["ip", "route", "show", "table", "all"],
            &["ip", "rule"],
        ] {
            state += &self.near.run(command)?.stdout;
        }
        let folder = "/run/taupe-service/tunnels";
        let entries = fs::read_dir(folder).map_err(Error::io(folder))?;
        let mut names: Vec<_> = entries
            .flatten()
            .map(|it| format!("{:?}", it.path()))
            .collect();
        names.sort();
        Ok(state + &names.join("\n"))
    }

    /// Calls a method of the front as a user by `busctl`.
    pub(crate) fn call(&self, user: &str, method: &str, arguments: &[&str]) -> Result<Attempt> {
        let name = "org.taupe.Service1";
        let call = [
            "busctl",
            "--system",
            "--timeout=60",
            "--",
            "call",
            name,
            "/org/taupe/Service1",
            name,
            method,
        ];
        self.run_as(user, &[&call, arguments].concat())
    }
}

/// Returns a command that runs another as a user.
pub(crate) fn as_user<'a>(user: &'a str, command: &[&'a str]) -> Vec<&'a str> {
    let prefix = ["setpriv", "--reuid", user, "--regid", user, "--init-groups"];
    [&prefix, command].concat()
}

/// Folder in which the programs are as the package installs them.
const PROGRAMS: &str = "/run/lab/program";

/// Returns the program's path.
pub(crate) fn taupe() -> Result<String> {
    Ok(format!("{PROGRAMS}/bin/taupe"))
}

/// Returns the front's path, as the program finds it.
pub(crate) fn front() -> Result<PathBuf> {
    Ok(PathBuf::from(format!("{PROGRAMS}/libexec/taupe-dbus")))
}

/// Mounts the programs where the package would have them.
fn programs() -> Result<()> {
    let taupe = Implementation::Taupe.program()?;
    let folder = taupe.parent().unwrap_or(Path::new("/"));
    let places = [
        folder.join("taupe-dbus"),
        folder.join("../libexec/taupe-dbus"),
    ];
    let front = places.iter().find(|place| place.is_file());
    let front = front.ok_or_else(|| {
        Error::unmet(
            "there is no taupe-dbus beside taupe: run `cargo build --release -p taupe-dbus`",
        )
    })?;
    for (from, to) in [(&taupe, "bin/taupe"), (front, "libexec/taupe-dbus")] {
        let to = Path::new(PROGRAMS).join(to);
        create(to.parent().unwrap_or(Path::new(PROGRAMS)))?;
        fs::write(&to, "").map_err(Error::io(to.display().to_string()))?;
        mount_bind(from, &to).map_err(Error::io(to.display().to_string()))?;
    }
    Ok(())
}

/// Writes a file of a user.
pub(crate) fn write(user: &str, name: &str, text: &str) -> Result<String> {
    let folder = scratch(user);
    let path = folder.join(name);
    let shown = path.display().to_string();
    fs::write(&path, text).map_err(Error::io(&*shown))?;
    fs::set_permissions(&path, Permissions::from_mode(0o600)).map_err(Error::io(&*shown))?;
    own(&path, user)?;
    Ok(shown)
}

fn own(path: &Path, user: &str) -> Result<()> {
    let id = USERS
        .iter()
        .find(|(name, ..)| *name == user)
        .map(|(_, id, _)| *id);
    chown(path, id, id).map_err(Error::io(path.display().to_string()))
}

fn create(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).map_err(Error::io(folder.display().to_string()))
}

/// Adds the users to the sandbox's `/etc`.
fn users() -> Result<()> {
    own_etc("nameserver 198.51.100.53\n")?;
    let add = |file: &str, lines: &str| {
        let text = fs::read_to_string(file).map_err(Error::io(file))?;
        fs::write(file, text + lines).map_err(Error::io(file))
    };
    let mut passwd = "taupe-dbus:x:5000:5000::/:/usr/sbin/nologin\n".to_owned();
    let mut group = "taupe-dbus:x:5000:\n".to_owned();
    for (name, id, _) in USERS {
        passwd += &format!("{name}:x:{id}:{id}::/:/bin/sh\n");
        group += &format!("{name}:x:{id}:\n");
        create(&scratch(name))?;
        own(&scratch(name), name)?;
    }
    let members = USERS.iter().filter(|(.., is_member)| *is_member);
    let members: Vec<_> = members.map(|(name, ..)| *name).collect();
    group += &format!("taupe:x:5010:{}\n", members.join(","));
    add("/etc/passwd", &passwd)?;
    add("/etc/group", &group)
}

/// Puts the files of the package where bus and polkit look, over copies of their folders.
fn install() -> Result<()> {
    let read = |name: &str| {
        let path = format!("{PACKAGING}/{name}");
        fs::read_to_string(&path).map_err(Error::io(path))
    };
    let put = |path: &str, text: &str| fs::write(path, text).map_err(Error::io(path.to_owned()));
    for folder in ["/usr/share/dbus-1/system-services", "/usr/share/polkit-1"] {
        let copy = scratch(&folder.replace('/', "-"));
        let status = std::process::Command::new("cp")
            .arg("-a")
            .arg(folder)
            .arg(&copy)
            .status();
        ensure!(
            status.is_ok_and(|status| status.success()),
            "{folder} cannot be copied"
        );
        mount_bind(&copy, folder).map_err(Error::io(folder))?;
    }
    // The sandbox has no systemd, and no programs that other services of the machine would start.
    let folder = front()?
        .parent()
        .map(|it| it.display().to_string())
        .unwrap_or_default();
    let service = read("org.taupe.Service1.service.in")?.replace("@LIBEXECDIR@", &folder);
    put(
        "/usr/share/dbus-1/system-services/org.taupe.Service1.service",
        &service,
    )?;
    create(Path::new("/etc/dbus-1/system.d"))?;
    put(
        "/etc/dbus-1/system.d/org.taupe.Service1.conf",
        &read("org.taupe.Service1.conf")?,
    )?;
    put(
        "/usr/share/polkit-1/actions/org.taupe.policy",
        &read("org.taupe.policy")?,
    )?;
    put(
        "/usr/share/polkit-1/rules.d/taupe.rules",
        &read("taupe.rules")?,
    )?;
    let consent = "polkit.addRule(function (action, subject) {\n\
         if (action.id === \"org.taupe.administer\" && subject.user === \"dora\") {\n\
         return polkit.Result.YES;\n}\n});\n";
    put("/etc/polkit-1/rules.d/10-dora.rules", consent)
}
