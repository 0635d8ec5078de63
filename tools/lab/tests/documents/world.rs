//! A machine of a reader, with programs that the commands call, and the far end of its tunnels.

use crate::shell::Shell;
use std::fs::{self, Permissions};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::PathBuf;
use std::process::{Child, Command as Program, Stdio};
use std::time::Duration;
use taupe_lab::host::{Host, Transport, add_address, neighbours};
use taupe_lab::peers::Implementation;
use taupe_lab::process::{Process, find_program, wait_until};
use taupe_lab::sandbox::scratch;
use taupe_lab::server::Server;
use taupe_lab::servers::{serve_names, serve_web};
use taupe_lab::surroundings::{open_tun, own_etc};
use taupe_lab::traffic::serve_echo;
use taupe_lab::{Error, Result, ensure};

use rustix::mount::{MountFlags, mount};

/// Address of the servers behind the far machine; `example.org`, `db.example` and every other name.
/// The explanation in README.md has it too.
pub(crate) const BEYOND: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1));

/// The tunnel's name server.
const NAME_SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2));

/// The machine's address in the tunnel, as the web server prints it.
pub(crate) const TUNNEL: &str = "10.77.0.1";

/// The machine's address on its uplink.
pub(crate) const UPLINK: &str = "192.0.2.1";

/// Folder of the files in which units and commands look for names.
pub(crate) const ETC: &str = "/etc/wireguard";

pub(crate) const SOON: Duration = Duration::from_secs(30);

/// Ids of an ordinary user.
const USER: u32 = 4711;

/// Content of a file that the program `editor` adds below `[Interface]`.
const EDIT: &str = "/run/lab/scratch/edit";

/// Programs that replace those of the machine: their names and texts.
const PROGRAMS: [(&str, &str); 4] = [
    (
        "sudo",
        "#!/bin/sh\n\
         # Without -E, the command has an environment of its own.\n\
         if [ \"$1\" = -E ]; then shift; exec env \"$@\"; fi\n\
         exec env -i PATH=\"$PATH\" HOME=/root LC_ALL=C TAUPE_CONFINE=\"$TAUPE_CONFINE\" \"$@\"\n",
    ),
    (
        "editor",
        "#!/bin/sh\nexec sed -i '/^\\[Interface\\]$/r /run/lab/scratch/edit' \"$1\"\n",
    ),
    (
        // In another root directory, systemctl creates links and starts nothing.
        "systemctl",
        "#!/bin/sh\n\
         for word; do shift; [ \"$word\" = --now ] || set -- \"$@\" \"$word\"; done\n\
         exec /usr/bin/systemctl --quiet --root=/run/lab/scratch/systemd \"$@\"\n",
    ),
    (
        "firefox",
        "#!/bin/sh\nexec curl -sS --max-time 20 http://198.51.100.1/\n",
    ),
];

pub(crate) struct World {
    pub(crate) near: Host,
    pub(crate) far: Host,
    pub(crate) server: Server,
    /// The folder in which the commands run.
    pub(crate) folder: PathBuf,
    programs: PathBuf,
    is_user: bool,
    /// The server for https, which ends with this.
    _secure: Process,
}

impl World {
    /// Returns a machine with an uplink, on which commands are root's.
    pub(crate) fn new() -> Result<Self> {
        let world = Self::of(false)?;
        world
            .near
            .ip(&["route", "add", "default", "via", "192.0.2.2"])?;
        world
            .near
            .ip(&["-6", "route", "add", "default", "via", "2001:db8::2"])?;
        // The machine's own address appears a second after the cable, and is part of what must be
        // the same afterwards.
        let own = ["-6", "address", "show", "dev", "eth0", "-tentative"];
        wait_until("link-local address", SOON, || {
            Ok(world.near.ip(&own)?.stdout.contains("fe80:"))
        })?;
        Ok(world)
    }

    /// Returns a machine that reaches its neighbour only, on which commands are an ordinary user's.
    pub(crate) fn of_a_user() -> Result<Self> {
        Self::of(true)
    }

    fn of(is_user: bool) -> Result<Self> {
        open_tun()?;
        own_etc("nameserver 192.0.2.2\n")?;
        fs::write("/etc/nsswitch.conf", "hosts: files dns\n")
            .map_err(Error::io("nsswitch.conf"))?;
        // A new machine has no such folder.
        let _ = fs::remove_dir_all(ETC);
        // Each command on a machine has mounts of its own, so pinned objects must be on a mount of
        // the sandbox.
        let pins = "/run/taupe/bpf";
        fs::create_dir_all(pins).map_err(Error::io(pins))?;
        mount("bpf", pins, "bpf", MountFlags::empty(), None).map_err(Error::io(pins))?;

        let (near, far) = neighbours()?;
        add_address(&far, "lo", &BEYOND.to_string())?;
        let server = Server::start(&near, &far)?;
        serve_web(&far, BEYOND)?;
        serve_names(&far, NAME_SERVER, [BEYOND; 2])?;
        serve_echo(&far, SocketAddr::new(BEYOND, 5432))?;
        let programs = programs()?;
        let secure = serve_https(&far)?;
        let folder = scratch("reader");
        fs::create_dir_all(folder.join("session")).map_err(Error::io("folder"))?;
        let world = Self {
            near,
            far,
            server,
            folder,
            programs,
            is_user,
            _secure: secure,
        };
        world.give("")?;
        world.give("session")?;
        Ok(world)
    }

    /// Returns the text of a file for the tunnel, for all destinations.
    pub(crate) fn conf(&self, interface: &str) -> String {
        self.server.file(
            &format!("DNS = {NAME_SERVER}\n{interface}"),
            "AllowedIPs = 0.0.0.0/0, ::/0\nPersistentKeepalive = 25",
        )
    }

    /// Writes a file into the folder of the commands, for its owner only.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<()> {
        fs::write(self.folder.join(name), text).map_err(Error::io(name.to_owned()))?;
        self.give(name)
    }

    fn give(&self, name: &str) -> Result<()> {
        let path = self.folder.join(name);
        let what = || Error::io(path.display().to_string());
        let mode = if path.is_dir() { 0o700 } else { 0o600 };
        fs::set_permissions(&path, Permissions::from_mode(mode)).map_err(what())?;
        let owner = self.is_user.then_some(USER);
        chown(&path, owner, owner).map_err(what())
    }

    /// Writes a file of the system.
    pub(crate) fn write_etc(&self, name: &str, text: &str) -> Result<()> {
        fs::create_dir_all(ETC).map_err(Error::io(ETC))?;
        let path = format!("{ETC}/{name}");
        fs::write(&path, text).map_err(Error::io(&*path))?;
        fs::set_permissions(&path, Permissions::from_mode(0o600)).map_err(Error::io(path))
    }

    /// Sets the lines that `editor` adds.
    pub(crate) fn set_edit(&self, lines: &str) -> Result<()> {
        fs::write(EDIT, format!("{lines}\n")).map_err(Error::io(EDIT))
    }

    /// Adds a program.
    pub(crate) fn add_program(&self, name: &str, text: &[u8]) -> Result<()> {
        program(&self.programs.join(name), text)
    }

    /// Copies a program of the machine to another name, and returns its path.
    pub(crate) fn copy_program(&self, from: &str, name: &str) -> Result<String> {
        let original = find_program(from).ok_or_else(|| Error::unmet(format!("no {from}")))?;
        let text = fs::read(original).map_err(Error::io(from.to_owned()))?;
        let path = self.programs.join(name);
        program(&path, &text)?;
        Ok(path.display().to_string())
    }

    /// Returns words before a command that execute it as the reader does.
    fn as_reader(&self) -> Vec<String> {
        let user = ["setpriv", "--reuid=4711", "--regid=4711", "--clear-groups"];
        let user = user.iter().take(if self.is_user { user.len() } else { 0 });
        let folder = self.folder.display();
        let certificate = scratch("certificate.pem");
        let variables = [
            format!("--chdir={folder}"),
            "-i".to_owned(),
            format!(
                "PATH={}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                self.programs.display()
            ),
            format!("HOME={folder}"),
            format!("XDG_RUNTIME_DIR={folder}/session"),
            format!("CURL_CA_BUNDLE={}", certificate.display()),
            "LC_ALL=C".to_owned(),
            "TAUPE_CONFINE=kill".to_owned(),
        ];
        let env = ["env", "--default-signal"];
        let words = user.chain(&env).map(|&word| word.to_owned());
        words.chain(variables).collect()
    }

    fn command(&self, words: &[&str]) -> Program {
        let reader = self.as_reader();
        let reader = reader.iter().map(String::as_str);
        let all: Vec<&str> = reader.chain(words.iter().copied()).collect();
        self.near.command(&all)
    }

    /// Starts a shell of the reader's.
    pub(crate) fn shell(&self) -> Result<Shell> {
        Shell::start(self.command(&["bash"]))
    }

    /// Starts a shell in a folder below the reader's.
    pub(crate) fn shell_in(&self, folder: &str) -> Result<Shell> {
        let folder = self.folder.join(folder).display().to_string();
        Shell::start(self.command(&["env", &format!("--chdir={folder}"), "bash"]))
    }

    /// Starts a command line that keeps running, in a shell of its own.
    pub(crate) fn start(&self, text: &str) -> Result<Process> {
        Process::start("near", self.command(&["bash", "-c", text]))
    }

    /// As [`start`](Self::start), with a standard input that is open as long as the child's.
    pub(crate) fn start_interactive(&self, text: &str) -> Result<Child> {
        let mut command = self.command(&["bash", "-c", text]);
        let child = command.stdin(Stdio::piped()).spawn();
        child.map_err(Error::io(text.to_owned()))
    }

    /// Fails unless the web server sees this program's client address. `None`: it gets no answer.
    pub(crate) fn must_be(&self, program: &str, who: Option<&str>, when: &str) -> Result<()> {
        let url = format!("http://{BEYOND}/");
        let request = [program, "-q", "-sS", "--noproxy", "*", "-m", "20", &url];
        let seen = self.near.attempt(&request)?;
        let address = seen.stdout.trim();
        let address = (seen.status == Some(0)).then_some(address);
        ensure!(
            address == who,
            "{when}: {program} is {address:?} to the web server, not {who:?}: {}",
            seen.stderr
        );
        Ok(())
    }

    /// Waits until a program listens at a TCP port of the machine.
    pub(crate) fn wait_for_port(&self, port: u16) -> Result<()> {
        let what = format!("a program at port {port}");
        wait_until(&what, SOON, || self.near.listens(Transport::Tcp, port))
    }

    /// Returns everything that a tunnel may change.
    pub(crate) fn network(&self) -> Result<String> {
        let script = "ip -o link; ip -o address; ip rule; ip -6 rule; ip route show table all; \
                      ip -6 route show table all; nft list ruleset; cat /etc/resolv.conf; \
                      find /run/taupe /run/wireguard /var/run/wireguard -not -type d \
                      -not -name '*.lock' -not -name '*.debug' 2>/dev/null | sort -u";
        let found = self.near.attempt(&["bash", "-c", script])?.stdout;
        let lines = found.lines().filter(|line| !line.contains("fe80:"));
        Ok(lines.collect::<Vec<_>>().join("\n"))
    }
}

/// Fills a folder with the programs, and the units for systemctl.
fn programs() -> Result<PathBuf> {
    let folder = scratch("programs");
    fs::create_dir_all(&folder).map_err(Error::io("programs"))?;
    // For ordinary users, independent of the umask.
    for above in folder
        .ancestors()
        .take_while(|above| above.starts_with("/run"))
    {
        let open = Permissions::from_mode(0o755);
        fs::set_permissions(above, open).map_err(Error::io(above.display().to_string()))?;
    }
    for (name, text) in PROGRAMS {
        program(&folder.join(name), text.as_bytes())?;
    }
    let taupe = Implementation::Taupe.program()?;
    let text = fs::read(&taupe).map_err(Error::io("taupe"))?;
    program(&folder.join("taupe"), &text)?;
    symlink("taupe", folder.join("taupe-device")).map_err(Error::io("taupe-device"))?;
    let units = scratch("systemd/usr/lib/systemd/system");
    fs::create_dir_all(&units).map_err(Error::io("units"))?;
    let packaging = taupe_lab::documents::root().join("packaging");
    for entry in fs::read_dir(packaging).map_err(Error::io("packaging"))? {
        let path = entry.map_err(Error::io("packaging"))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if let Some(unit) = name.strip_suffix(".service.in") {
            let to = units.join(format!("{unit}.service"));
            fs::copy(&path, to).map_err(Error::io(unit.to_owned()))?;
        }
    }
    Ok(folder)
}

fn program(path: &std::path::Path, text: &[u8]) -> Result<()> {
    let what = || Error::io(path.display().to_string());
    fs::write(path, text).map_err(what())?;
    fs::set_permissions(path, Permissions::from_mode(0o755)).map_err(what())
}

/// Runs a server for https://example.org, whose certificate is in a file for the reader's curl.
fn serve_https(far: &Host) -> Result<Process> {
    let path = |name: &str| scratch(name).display().to_string();
    let (key, certificate) = (path("key.pem"), path("certificate.pem"));
    #[rustfmt::skip]
    far.run(&[
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
        "-nodes", "-subj", "/CN=example.org", "-addext", "subjectAltName=DNS:example.org",
        "-keyout", &key, "-out", &certificate,
    ])?;
    fs::set_permissions(&certificate, Permissions::from_mode(0o644))
        .map_err(Error::io("certificate"))?;
    let at = format!("{BEYOND}:443");
    #[rustfmt::skip]
    let server = far.spawn(&[
        "openssl", "s_server", "-quiet", "-www", "-accept", &at, "-cert", &certificate, "-key", &key,
    ])?;
    wait_until("the server for https", SOON, || {
        far.listens(Transport::Tcp, 443)
    })?;
    Ok(server)
}
