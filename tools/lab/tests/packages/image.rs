//! The container image, run by podman: a proxy without rights, a gateway with one capability, and all
//! traffic of a container.

use crate::build;
use crate::machine::{BEYOND, PORT, TUNNEL, serve};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;
use taupe_lab::capture::Capture;
use taupe_lab::host::{Host, neighbours};
use taupe_lab::process::{Process, wait_until};
use taupe_lab::sandbox::{scratch, step};
use taupe_lab::server::Server;
use taupe_lab::{Error, Result, ensure};

const SOON: Duration = Duration::from_secs(60);

/// Options of every container: no process of it may get further rights.
const CONFINED: [&str; 4] = ["--cap-drop", "all", "--security-opt", "no-new-privileges"];

/// Podman with storage of its own.
struct Podman {
    host: Host,
    options: Vec<String>,
}

impl Podman {
    /// Loads the image.
    fn new(host: &Host) -> Result<Self> {
        let options = [
            format!("--root={}", scratch("images").display()),
            format!("--runroot={}", scratch("containers").display()),
            "--storage-driver=vfs".to_owned(),
            "--cgroup-manager=cgroupfs".to_owned(),
            "--events-backend=file".to_owned(),
        ];
        let podman = Self {
            host: host.clone(),
            options: options.to_vec(),
        };
        let image = build::image()?.display().to_string();
        podman.run(&["load", "-i", &image])?;
        Ok(podman)
    }

    fn words<'a>(&'a self, words: &[&'a str]) -> Vec<&'a str> {
        // Commands of a host have a /sys of their own. The container's runtime wants cgroup2 there.
        const MOUNT: &str = "mount -t cgroup2 none /sys/fs/cgroup && exec podman \"$@\"";
        let options = self.options.iter().map(String::as_str);
        let shell = ["sh", "-c", MOUNT, "sh"].into_iter();
        shell.chain(options).chain(words.iter().copied()).collect()
    }

    fn run(&self, words: &[&str]) -> Result<String> {
        Ok(self.host.run(&self.words(words))?.stdout)
    }

    /// Starts a container in the host's network namespace.
    fn start(&self, options: &[&str], command: &[&str]) -> Result<Process> {
        let network = format!("ns:/run/netns/{}", self.host.name());
        let first = [
            "run",
            "--rm",
            "--name",
            "taupe",
            "--cgroups=disabled",
            "--network",
            &network,
            // The limits of this process, which may not be raised.
            "--ulimit",
            "nofile=1024:1024",
            "--ulimit",
            "nproc=1000:1000",
        ];
        let words = [&first, &CONFINED[..], options, &[build::IMAGE], command].concat();
        self.host.spawn(&self.words(&words))
    }
}

/// `taupe proxy` as nobody, without a capability, with a root directory that cannot be written to.
pub(crate) fn proxy() -> Result<()> {
    let (near, far) = neighbours()?;
    far.ip(&["address", "add", &BEYOND.to_string(), "dev", "lo"])?;
    serve(&far)?;
    let server = Server::start(&near, &far)?;
    let file = scratch("home.conf");
    let text = server.file("", "AllowedIPs = 0.0.0.0/0, ::/0");
    fs::write(&file, text).map_err(Error::io("home.conf"))?;
    // The container's user is another one.
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644))
        .map_err(Error::io("home.conf"))?;
    let podman = Podman::new(&near)?;
    let volume = format!("{}:/home.conf:ro", file.display());
    let mut process = podman.start(
        &["--read-only", "--volume", &volume],
        &["proxy", "/home.conf"],
    )?;
    wait_until("the proxy", SOON, || {
        ensure!(process.runs()?, "{}", process.output());
        near.listens(taupe_lab::host::Transport::Tcp, 1080)
    })?;
    step("through the proxy");
    let answer = ask(&near, &["--proxy", "socks5h://127.0.0.1:1080"])?;
    ensure!(answer == TUNNEL, "the server sees {answer}");
    podman.run(&["stop", "--time", "10", "taupe"]).map(drop)
}

/// `taupe up` as root with `NET_ADMIN`: no packet of the network namespace leaves outside the tunnel,
/// also after its processes have been killed.
pub(crate) fn all_traffic() -> Result<()> {
    let (near, far) = neighbours()?;
    far.ip(&["address", "add", &BEYOND.to_string(), "dev", "lo"])?;
    near.ip(&["route", "add", &BEYOND.to_string(), "via", "192.0.2.2"])?;
    serve(&far)?;
    let outside = ask(&near, &[])?;
    ensure!(outside != TUNNEL, "the server sees {outside}");
    let server = Server::start(&near, &far)?;
    let file = scratch("home.conf");
    let text = server.file("", "AllowedIPs = 0.0.0.0/0, ::/0");
    fs::write(&file, text).map_err(Error::io("home.conf"))?;
    let podman = Podman::new(&near)?;
    let tun = make_tun(&near)?;
    let volume = format!("{}:/home.conf:ro", file.display());
    let options = [
        "--user",
        "0",
        "--cap-add",
        "NET_ADMIN",
        "--device",
        &tun,
        "--volume",
        &volume,
    ];
    let up = ["up", "--foreground", "--no-firewall", "/home.conf"];
    let mut process = podman.start(&options, &up)?;
    wait_until("the tunnel", SOON, || {
        ensure!(process.runs()?, "{}", process.output());
        let healthy = ["exec", "taupe", "/usr/bin/taupe", "status", "home"];
        Ok(near.attempt(&podman.words(&healthy))?.status == Some(0))
    })?;
    let capture = Capture::start(&near, "eth0", &format!("host {BEYOND}"))?;
    let answer = ask(&near, &[])?;
    ensure!(answer == TUNNEL, "the server sees {answer}");
    step("killed");
    podman.run(&["kill", "--signal", "KILL", "taupe"])?;
    process.wait(SOON)?;
    let answer = ask(&near, &[]);
    ensure!(answer.is_err(), "the server sees {answer:?}");
    let packets = capture.stop()?;
    ensure!(packets.is_empty(), "outside the tunnel: {packets:?}");
    Ok(())
}

/// Returns the address that the server sees of a client.
fn ask(client: &Host, options: &[&str]) -> Result<String> {
    let url = format!("http://{BEYOND}:{PORT}/");
    let first = ["curl", "--silent", "--http0.9", "--max-time", "20"];
    let answer = client.run(&[&first, options, &[&url]].concat())?;
    Ok(answer.text().to_owned())
}

/// Makes a `/dev/net/tun` that everybody may open, as distributions do, and returns podman's option for it.
fn make_tun(host: &Host) -> Result<String> {
    let tun = scratch("tun").display().to_string();
    host.run(&["mknod", "-m", "666", &tun, "c", "10", "200"])?;
    Ok(format!("{tun}:/dev/net/tun"))
}

/// `taupe device` as nobody, with `NET_ADMIN` as ambient capability.
pub(crate) fn gateway() -> Result<()> {
    let (near, _far) = neighbours()?;
    let podman = Podman::new(&near)?;
    let device = make_tun(&near)?;
    let mut process = podman.start(
        &["--cap-add", "NET_ADMIN", "--device", &device],
        &["device", "--foreground", "wg0"],
    )?;
    wait_until("the gateway", SOON, || {
        ensure!(process.runs()?, "{}", process.output());
        Ok(near.attempt(&["ip", "link", "show", "dev", "wg0"])?.status == Some(0))
    })?;
    step("its health");
    let show = podman.run(&["exec", "taupe", "/usr/bin/taupe", "show", "wg0"])?;
    ensure!(show.contains("interface: wg0"), "{show}");
    step("without the capability");
    podman.run(&["stop", "--time", "10", "taupe"])?;
    process.wait(SOON)?;
    let mut refused = podman.start(&["--device", &device], &["device", "--foreground", "wg0"])?;
    let status = refused.wait(SOON)?;
    let output = refused.output();
    ensure!(
        !status.success() && output.contains("CAP_NET_ADMIN"),
        "{status}: {output}"
    );
    Ok(())
}
