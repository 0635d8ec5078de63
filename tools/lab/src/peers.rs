//! The tested implementations of WireGuard: how each is installed, started and configured.
//!
//! [`Implementation`] describes the userspace programs. A started program gives a [`Tunnel`]: one
//! interface at a [`Place`], configured with `wg`. An implementation elsewhere, such as the kernel
//! of a virtual machine behind a TAP interface, implements [`Place`] and makes its [`Tunnel`] with
//! [`Tunnel::at`]; tests treat both alike.

mod install;

use crate::ensure;
use crate::error::{Error, Result};
use crate::host::{Host, add_address};
use crate::process::{Output, Process, wait_closely};
use crate::sandbox::scratch;
use crate::traffic;
use std::fmt::Write;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Folder of the configuration sockets of all userspace implementations.
pub const SOCKETS: &str = "/var/run/wireguard";

/// A userspace implementation of WireGuard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Implementation {
    /// The program under test: `target/release/taupe` of this workspace, or the path in
    /// `TAUPE_BIN`. `TAUPE_KIND=wireguard-go` (or another implementation's name) starts `TAUPE_BIN`
    /// with the command line of that implementation, which tests the tests themselves. `TAUPE_KIND`
    /// without `TAUPE_BIN` is an error.
    Taupe,
    /// The Go implementation.
    WireguardGo,
    /// Cloudflare's implementation.
    Boringtun,
    /// Mullvad's implementation.
    Gotatun,
}

/// Description of an implementation.
#[derive(Debug)]
struct Description {
    name: &'static str,
    version: &'static str,
    source: Source,
    /// Arguments before and after the name of the interface that keep the program in the
    /// foreground.
    arguments: (&'static [&'static str], &'static [&'static str]),
    /// Variable that enables verbose logging.
    environment: (&'static str, &'static str),
    quirks: Quirks,
}

/// Source of a program.
#[derive(Debug)]
enum Source {
    /// Built by this workspace.
    Workspace,
    /// A module for the Go toolchain.
    GoModule(&'static str),
    /// A crate and the program in it.
    Crate(&'static str, &'static str),
}

/// Known deviations of an implementation. Without quirks it does everything that the tests require.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quirks {
    /// `wg show` reports the age of a handshake instead of its time, which cannot be compared with
    /// the clock.
    pub handshake_times_are_wrong: bool,
    /// The program may end when its listening port is changed under traffic.
    pub listen_port_is_final: bool,
    /// The program keeps sending from an outer address that the machine has lost.
    pub outer_address_is_final: bool,
}

impl Implementation {
    /// The implementations that Taupe is tested with.
    pub const PEERS: [Self; 3] = [Self::WireguardGo, Self::Boringtun, Self::Gotatun];

    const fn description(self) -> Description {
        match self {
            Self::Taupe => Description {
                name: "taupe",
                version: env!("CARGO_PKG_VERSION"),
                source: Source::Workspace,
                arguments: (&["device"], &["-f"]),
                environment: ("LOG_LEVEL", "verbose"),
                quirks: Quirks {
                    handshake_times_are_wrong: false,
                    listen_port_is_final: false,
                    outer_address_is_final: false,
                },
            },
            Self::WireguardGo => Description {
                name: "wireguard-go",
                version: "v0.0.0-20260522210424-ecfc5a8d5446",
                source: Source::GoModule("golang.zx2c4.com/wireguard"),
                arguments: (&["-f"], &[]),
                environment: ("LOG_LEVEL", "verbose"),
                quirks: Quirks {
                    handshake_times_are_wrong: false,
                    listen_port_is_final: false,
                    outer_address_is_final: false,
                },
            },
            Self::Boringtun => Description {
                name: "boringtun",
                version: "0.7.1",
                source: Source::Crate("boringtun-cli", "boringtun-cli"),
                arguments: (&["-f", "--disable-drop-privileges"], &[]),
                environment: ("WG_LOG_LEVEL", "debug"),
                quirks: Quirks {
                    handshake_times_are_wrong: true,
                    listen_port_is_final: false,
                    // 0.7.1: it connects a socket to each peer and keeps it.
                    outer_address_is_final: true,
                },
            },
            Self::Gotatun => Description {
                name: "gotatun",
                version: "0.10.2",
                source: Source::Crate("gotatun-cli", "gotatun"),
                arguments: (&["-f", "--disable-drop-privileges"], &[]),
                environment: ("WG_LOG_LEVEL", "debug"),
                quirks: Quirks {
                    handshake_times_are_wrong: false,
                    // 0.10.2: its TUN reader finds a closed channel while the sockets are
                    // recreated, treats that as an error, and ends.
                    listen_port_is_final: true,
                    outer_address_is_final: false,
                },
            },
        }
    }

    /// Returns its name, as in the tables.
    pub const fn name(self) -> &'static str {
        self.description().name
    }

    /// Returns the tested version.
    pub const fn version(self) -> &'static str {
        self.description().version
    }

    /// Returns its known deviations.
    pub fn quirks(self) -> Quirks {
        self.behaves_like().description().quirks
    }

    /// Builds the program if necessary, and returns its path. It needs the registries, so call it
    /// in [`Suite::prepare`], not inside a sandbox.
    ///
    /// [`Suite::prepare`]: crate::sandbox::Suite::prepare
    ///
    /// # Errors
    ///
    /// [`Error::Missing`] for Taupe itself, which must be built before; [`Error::Command`] if a
    /// build fails; [`Error::Unmet`] for an invalid `TAUPE_KIND`.
    pub fn install(self) -> Result<PathBuf> {
        self.like()?;
        install::install(&self.description())
    }

    /// Returns the program's path.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`] if it has not been built; [`Error::Unmet`] for an invalid `TAUPE_KIND`.
    pub fn program(self) -> Result<PathBuf> {
        self.like()?;
        install::program(&self.description())
    }

    /// Returns a program that makes a tunnel in the background, with the name of an interface as
    /// its only argument, as `wg-quick` and others start their userspace implementation. For Taupe
    /// it is a link with the name that selects this form.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`], [`Error::Io`].
    pub fn daemon(self) -> Result<PathBuf> {
        let program = self.program()?;
        if self.behaves_like() != Self::Taupe {
            return Ok(program);
        }
        let path = scratch("taupe-device");
        if !path.exists() {
            symlink(&program, &path).map_err(Error::io(path.display().to_string()))?;
        }
        Ok(path)
    }

    /// Returns the command that makes a tunnel and stays in the foreground, for a program at the
    /// path `program`.
    pub fn command(self, program: &str, interface: &str) -> Vec<String> {
        let (before, after) = self.behaves_like().description().arguments;
        let words = [&[program], before, &[interface], after].concat();
        words.into_iter().map(str::to_owned).collect()
    }

    /// Starts the program in a machine and waits until its interface can be configured.
    ///
    /// # Errors
    ///
    /// [`Error::Unmet`] with its output if it ends instead, [`Error::Timeout`] after 10 seconds.
    pub fn start(self, host: &Host, interface: &str) -> Result<Tunnel> {
        self.start_with(host, interface, &[])
    }

    /// As [`start`](Self::start), with more options at the end of the command.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn start_with(self, host: &Host, interface: &str, options: &[&str]) -> Result<Tunnel> {
        self.launch(host, interface, options, true)
    }

    /// As [`start`](Self::start), but with the program's default logging: for measurements.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn start_quietly(self, host: &Host, interface: &str) -> Result<Tunnel> {
        self.launch(host, interface, &[], false)
    }

    fn launch(
        self,
        host: &Host,
        interface: &str,
        options: &[&str],
        talkative: bool,
    ) -> Result<Tunnel> {
        let program = self.program()?.display().to_string();
        let words = self.command(&program, interface);
        let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
        words.extend(options);
        let mut command = host.command(&words);
        let (variable, level) = self.behaves_like().description().environment;
        if talkative {
            command.env(variable, level);
        } else {
            command.env_remove(variable);
        }
        let mut process = Process::start(host.name(), command)?;
        // Programs start within milliseconds, and a benchmark compares these times.
        let [limit, pause] = [Duration::from_secs(10), Duration::from_millis(1)];
        wait_closely("configuration socket", limit, pause, || {
            if !process.runs()? {
                let said = process.output();
                return Err(Error::unmet(format!("{} ended: {said}", self.name())));
            }
            Ok(UnixStream::connect(socket(interface)).is_ok())
        })?;
        let mut tunnel = Tunnel::at(self.name(), host.clone(), interface, self.quirks());
        tunnel.process = Some(process);
        Ok(tunnel)
    }

    /// Returns the implementation whose command line the program has. [`program`](Self::program)
    /// reports an unknown name before.
    fn behaves_like(self) -> Self {
        self.like().unwrap_or(self)
    }

    fn like(self) -> Result<Self> {
        let named = std::env::var_os("TAUPE_KIND").filter(|_| self == Self::Taupe);
        let has_program = std::env::var_os("TAUPE_BIN").is_some();
        let like = named.map(|kind| kind_of(&kind.to_string_lossy(), has_program));
        like.unwrap_or(Ok(self))
    }
}

/// Returns the implementation whose command line the program at `TAUPE_BIN` has, by `TAUPE_KIND`.
fn kind_of(kind: &str, has_program: bool) -> Result<Implementation> {
    ensure!(
        has_program,
        "TAUPE_KIND says how the program that TAUPE_BIN names is started, and TAUPE_BIN is not \
         set: set both or neither"
    );
    let mut known = [&[Implementation::Taupe][..], &Implementation::PEERS].concat();
    known.retain(|one| one.name() == kind);
    let found = known.first().copied();
    found.ok_or_else(|| {
        let names = Implementation::PEERS.map(Implementation::name).join(", ");
        Error::unmet(format!("TAUPE_KIND is one of taupe, {names}, not {kind:?}"))
    })
}

/// Returns the system test of wireguard-go, `tests/netns.sh`.
///
/// # Errors
///
/// [`Error::Missing`] if wireguard-go is not installed.
pub fn netns_script() -> Result<PathBuf> {
    install::companion(&Implementation::WireguardGo.description(), "tests/netns.sh")
}

/// Returns the path of an interface's configuration socket.
pub fn socket(interface: &str) -> PathBuf {
    Path::new(SOCKETS).join(format!("{interface}.sock"))
}

/// A place that holds a tunnel's interface and can run commands for it.
pub trait Place: Send + Sync {
    /// Runs a command there, which must succeed.
    ///
    /// # Errors
    ///
    /// [`Error::Command`] if it fails.
    fn run(&self, command: &[&str]) -> Result<Output>;

    /// Runs a command there with the given standard input.
    ///
    /// # Errors
    ///
    /// [`Error::Command`] if it fails.
    fn run_with_input(&self, command: &[&str], input: &str) -> Result<Output>;

    /// Adds an address with its prefix length to an interface there, usable at once.
    ///
    /// # Errors
    ///
    /// [`Error::Command`] if it fails.
    fn add_address(&self, interface: &str, address: &str) -> Result<()>;

    /// Echoes every byte that arrives at a TCP port there, on every connection until the end of the
    /// test.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if it cannot listen.
    fn serve_echo(&self, address: SocketAddr) -> Result<()>;
}

impl Place for Host {
    fn run(&self, command: &[&str]) -> Result<Output> {
        self.run(command)
    }

    fn run_with_input(&self, command: &[&str], input: &str) -> Result<Output> {
        self.run_with_input(command, input)
    }

    fn add_address(&self, interface: &str, address: &str) -> Result<()> {
        add_address(self, interface, address)
    }

    fn serve_echo(&self, address: SocketAddr) -> Result<()> {
        traffic::serve_echo(self, address)
    }
}

/// A WireGuard interface of some implementation, ready to be configured.
pub struct Tunnel {
    implementation: String,
    place: Box<dyn Place>,
    interface: String,
    quirks: Quirks,
    process: Option<Process>,
}

impl Tunnel {
    /// Creates a tunnel for an existing interface at a place.
    pub fn at(
        implementation: impl Into<String>,
        place: impl Place + 'static,
        interface: &str,
        quirks: Quirks,
    ) -> Self {
        Self {
            implementation: implementation.into(),
            place: Box::new(place),
            interface: interface.to_owned(),
            quirks,
            process: None,
        }
    }

    /// Returns the name of the implementation.
    pub fn implementation(&self) -> &str {
        &self.implementation
    }

    /// Returns the place of the interface.
    pub fn place(&self) -> &dyn Place {
        &*self.place
    }

    /// Returns the interface's name.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// Returns its implementation's known deviations.
    pub const fn quirks(&self) -> Quirks {
        self.quirks
    }

    /// Returns true if a program of this machine runs it.
    pub const fn is_program(&self) -> bool {
        self.process.is_some()
    }

    /// Returns the program that runs it, if it is a program.
    pub const fn process(&mut self) -> Option<&mut Process> {
        self.process.as_mut()
    }

    /// Returns the program that runs it, if it is a program, and lets it live on.
    pub fn into_process(self) -> Option<Process> {
        self.process
    }

    /// Applies a complete configuration, adds the inner addresses and brings the interface up.
    ///
    /// # Errors
    ///
    /// [`Error::Command`] if one of the steps fails.
    pub fn configure(&self, settings: &Settings<'_>) -> Result<()> {
        self.wg_with_input("setconf", &settings.to_string())?;
        for address in settings.addresses {
            self.place.add_address(&self.interface, address)?;
        }
        #[rustfmt::skip]
        self.place.run(&[
            "ip", "link", "set", &self.interface, "mtu", "1420", "up",
        ])?;
        Ok(())
    }

    /// Removes a peer and adds it again, which ends its sessions.
    ///
    /// # Errors
    ///
    /// [`Error::Command`].
    pub fn forget_and_add(&self, peer: &PeerSettings<'_>) -> Result<()> {
        self.set(&["peer", peer.public_key, "remove"])?;
        self.wg_with_input("addconf", &peer.to_string()).map(drop)
    }

    /// Runs `wg set` on this interface.
    ///
    /// # Errors
    ///
    /// [`Error::Command`].
    pub fn set(&self, arguments: &[&str]) -> Result<Output> {
        let command = [&["wg", "set", &self.interface], arguments].concat();
        self.place.run(&command)
    }

    /// Runs `wg show` on this interface; without a field, in its readable form.
    ///
    /// # Errors
    ///
    /// [`Error::Command`].
    pub fn show(&self, field: Option<&str>) -> Result<Output> {
        let mut command = vec!["wg", "show", &self.interface];
        command.extend(field);
        self.place.run(&command)
    }

    /// Returns the value of a field of `wg show` for a peer.
    ///
    /// # Errors
    ///
    /// [`Error::Unmet`] if there is no such peer.
    pub fn field(&self, field: &str, peer: &str) -> Result<String> {
        let output = self.show(Some(field))?;
        let mut lines = output.stdout.lines();
        let value = lines.find_map(|line| line.strip_prefix(peer)?.strip_prefix('\t'));
        value
            .map(str::to_owned)
            .ok_or_else(|| Error::unmet(format!("no peer {peer} in {field}: {}", output.text())))
    }

    /// Runs `wg setconf`, `addconf` or `syncconf` with this text as the file.
    ///
    /// # Errors
    ///
    /// [`Error::Command`].
    pub fn wg_with_input(&self, verb: &str, text: &str) -> Result<Output> {
        let command = ["wg", verb, &self.interface, "/dev/stdin"];
        self.place.run_with_input(&command, text)
    }
}

/// A key pair, in Base64 as `wg` writes it.
#[derive(Debug, Clone)]
pub struct Keys {
    /// The private key, made for one test and worthless after it.
    pub private: String,
    /// The public key.
    pub public: String,
}

impl Keys {
    /// Generates a key pair with `wg genkey` and `wg pubkey`.
    ///
    /// # Errors
    ///
    /// [`Error::Command`].
    pub fn new(host: &Host) -> Result<Self> {
        let private = host.run(&["wg", "genkey"])?.stdout;
        let public = host.run_with_input(&["wg", "pubkey"], &private)?;
        Ok(Self {
            private: private.trim().to_owned(),
            public: public.text().to_owned(),
        })
    }
}

/// ML-KEM keys, in Base64 as `taupe` writes them.
#[derive(Debug, Clone)]
pub struct PqKeys {
    /// The seed, made for one test and worthless after it.
    pub seed: String,
    host: Host,
    program: String,
}

impl PqKeys {
    /// Generates keys with `taupe genkey --pq`.
    ///
    /// # Errors
    ///
    /// [`Error::Command`]; [`Error::Missing`] if there is no `taupe`.
    pub fn new(host: &Host) -> Result<Self> {
        let program = Implementation::Taupe.program()?.display().to_string();
        let seed = host.run(&[&program, "genkey", "--pq"])?.text().to_owned();
        Ok(Self {
            seed,
            host: host.clone(),
            program,
        })
    }

    /// Computes the public key for a suite with `taupe pubkey --pq`.
    ///
    /// # Errors
    ///
    /// [`Error::Command`].
    pub fn public(&self, suite: &str) -> Result<String> {
        let command = [&*self.program, "pubkey", "--pq", "--suite", suite];
        let key = self.host.run_with_input(&command, &self.seed)?;
        Ok(key.text().to_owned())
    }
}

/// The configuration of a [`Tunnel`], written as a file for `wg setconf`.
#[derive(Debug, Clone)]
pub struct Settings<'a> {
    /// Its private key.
    pub private_key: &'a str,
    /// The outer port; `None` for one of the implementation's choice.
    pub listen_port: Option<u16>,
    /// The inner addresses, with prefix length.
    pub addresses: &'a [&'a str],
    /// The peers.
    pub peers: &'a [PeerSettings<'a>],
}

/// One peer in [`Settings`].
#[derive(Debug, Clone, Copy)]
pub struct PeerSettings<'a> {
    /// Its public key.
    pub public_key: &'a str,
    /// The preshared key, if any.
    pub preshared_key: Option<&'a str>,
    /// Its endpoint; `None` if the peer initiates.
    pub endpoint: Option<SocketAddr>,
    /// Its allowed IPs, separated by commas.
    pub allowed_ips: &'a str,
}

impl std::fmt::Display for Settings<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "[Interface]\nPrivateKey = {}", self.private_key)?;
        if let Some(port) = self.listen_port {
            writeln!(f, "ListenPort = {port}")?;
        }
        self.peers.iter().try_for_each(|peer| write!(f, "{peer}"))
    }
}

impl std::fmt::Display for PeerSettings<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = format!("[Peer]\nPublicKey = {}\n", self.public_key);
        if let Some(key) = self.preshared_key {
            writeln!(text, "PresharedKey = {key}")?;
        }
        if let Some(endpoint) = self.endpoint {
            writeln!(text, "Endpoint = {endpoint}")?;
        }
        writeln!(text, "AllowedIPs = {}", self.allowed_ips)?;
        f.write_str(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_that_of_a_program() {
        assert!(matches!(
            kind_of("boringtun", true),
            Ok(Implementation::Boringtun)
        ));
        assert!(matches!(kind_of("taupe", true), Ok(Implementation::Taupe)));
        for (kind, has_program) in [
            ("boringtun", false),
            ("taupe", false),
            ("go", true),
            ("", true),
        ] {
            assert!(kind_of(kind, has_program).is_err(), "{kind:?}");
        }
    }
}
