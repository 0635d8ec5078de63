//! The tested implementations of WireGuard: how each is installed, started and configured.
//!
//! [`Implementation`] describes the userspace programs. A started program gives a [`Tunnel`]: one
//! interface at a [`Place`], configured with `wg`. An implementation elsewhere, such as the kernel
//! of a virtual machine behind a TAP interface, implements [`Place`] and makes its [`Tunnel`] with
//! [`Tunnel::at`]; tests treat both alike.

mod install;
mod keys;
mod tunnel;

pub use keys::{Keys, PqKeys};
pub use tunnel::{PeerSettings, Place, Settings, Tunnel};

use crate::ensure;
use crate::error::{Error, Result};
use crate::host::Host;
use crate::process::{Process, attempt, poll_until};
use crate::sandbox::scratch;
use crate::uapi;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

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
    /// Tailscale's fork of the Go implementation. Its library leaves endpoints to the program that
    /// embeds it, so it takes part in measurements but not in the tests of interoperation.
    WireguardGoTailscale,
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
    /// The name of the processor in Go, if it is not the processor of this machine.
    processor: Option<&'static str>,
    /// Arguments before and after the name of the interface that keep the program in the
    /// foreground.
    arguments: (&'static [&'static str], &'static [&'static str]),
    /// Variable that enables verbose logging.
    environment: (&'static str, &'static str),
    workers: WorkerSetting,
    quirks: Quirks,
}

/// Source of a program.
#[derive(Debug)]
enum Source {
    /// Built by this workspace.
    Workspace,
    /// A module for the Go toolchain, and its checksum as in `go.sum`.
    GoModule(&'static str, &'static str),
    /// A crate and the program in it.
    Crate(&'static str, &'static str),
}

/// Times that an implementation reports for its handshakes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum HandshakeTimes {
    /// The time of the handshake.
    #[default]
    Exact,
    /// The time of the last timer tick before the handshake. On a busy machine it is some seconds
    /// early.
    LastTick,
    /// The age of the handshake, which cannot be compared with the clock.
    Age,
}

/// Setting for the number of threads that carry packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WorkerSetting {
    /// An environment variable.
    Variable(&'static str),
    /// An option, if the program prints it when it is called with these arguments.
    Option(&'static str, &'static [&'static str]),
}

/// Additions to the command that starts an implementation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StartOptions {
    /// Options at the end of the command.
    pub arguments: Vec<String>,
    /// Environment variables.
    pub variables: Vec<(String, String)>,
}

/// Known deviations of an implementation. Without quirks it does everything that the tests require.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quirks {
    /// The times of handshakes that `wg show` reports.
    pub handshake_times: HandshakeTimes,
    /// The program may end when its listening port is changed under traffic.
    pub listen_port_is_final: bool,
    /// The program keeps sending from an outer address that the machine has lost.
    pub outer_address_is_final: bool,
    /// The program sends only to configured endpoints. It learns none from datagrams.
    pub needs_endpoints: bool,
}

const NO_QUIRKS: Quirks = Quirks {
    handshake_times: HandshakeTimes::Exact,
    listen_port_is_final: false,
    outer_address_is_final: false,
    needs_endpoints: false,
};

impl Implementation {
    /// The implementations that Taupe is tested with.
    pub const PEERS: [Self; 3] = [Self::WireguardGo, Self::Boringtun, Self::Gotatun];

    const fn description(self) -> Description {
        match self {
            Self::Taupe => Description {
                name: "taupe",
                version: env!("CARGO_PKG_VERSION"),
                source: Source::Workspace,
                processor: None,
                arguments: (&["device"], &["-f"]),
                environment: ("LOG_LEVEL", "verbose"),
                workers: WorkerSetting::Option("--lanes", &["device", "--help"]),
                quirks: NO_QUIRKS,
            },
            Self::WireguardGo => Description {
                name: "wireguard-go",
                version: "v0.0.0-20260522210424-ecfc5a8d5446",
                source: Source::GoModule(
                    "golang.zx2c4.com/wireguard",
                    "h1:cqHQ3AycTHvM2R7ikgyX57D+XvtcSnGylsLkOVhta/w=",
                ),
                processor: None,
                arguments: (&["-f"], &[]),
                environment: ("LOG_LEVEL", "verbose"),
                workers: WorkerSetting::Variable("GOMAXPROCS"),
                quirks: NO_QUIRKS,
            },
            Self::WireguardGoTailscale => Description {
                name: "wireguard-go-tailscale",
                version: "v0.0.0-20260928213032-417aef361226",
                source: Source::GoModule(
                    "github.com/tailscale/wireguard-go",
                    "h1:v3Lpj2iHPWQDqeCwemQPz4fWweIEMLqBkwJqCjRyJQc=",
                ),
                processor: None,
                arguments: (&["-f"], &[]),
                environment: ("LOG_LEVEL", "verbose"),
                workers: WorkerSetting::Variable("GOMAXPROCS"),
                quirks: Quirks {
                    needs_endpoints: true,
                    ..NO_QUIRKS
                },
            },
            Self::Boringtun => Description {
                name: "boringtun",
                version: "0.7.1",
                source: Source::Crate("boringtun-cli", "boringtun-cli"),
                processor: None,
                arguments: (&["-f", "--disable-drop-privileges"], &[]),
                environment: ("WG_LOG_LEVEL", "debug"),
                workers: WorkerSetting::Variable("WG_THREADS"),
                quirks: Quirks {
                    handshake_times: HandshakeTimes::Age,
                    // 0.7.1: it connects a socket to each peer and keeps it.
                    outer_address_is_final: true,
                    ..NO_QUIRKS
                },
            },
            Self::Gotatun => Description {
                name: "gotatun",
                version: "0.10.2",
                source: Source::Crate("gotatun-cli", "gotatun"),
                processor: None,
                arguments: (&["-f", "--disable-drop-privileges"], &[]),
                environment: ("WG_LOG_LEVEL", "debug"),
                // 0.10.2: it carries packets in tasks of tokio's threads.
                workers: WorkerSetting::Variable("TOKIO_WORKER_THREADS"),
                quirks: Quirks {
                    // 0.10.2: `timers.rs` stamps a session with `TimeCurrent`.
                    handshake_times: HandshakeTimes::LastTick,
                    // 0.10.2: its TUN reader finds a closed channel while the sockets are
                    // recreated, treats that as an error, and ends.
                    listen_port_is_final: true,
                    ..NO_QUIRKS
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

    /// As [`install`](Self::install), for guests with 64-bit ARM. This works for programs in Go.
    ///
    /// # Errors
    ///
    /// As [`install`](Self::install).
    pub fn install_for_arm64(self) -> Result<PathBuf> {
        install::install(&Description {
            processor: Some("arm64"),
            ..self.description()
        })
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
        let options = StartOptions {
            arguments: options.iter().map(|&option| option.to_owned()).collect(),
            ..StartOptions::default()
        };
        self.launch(host, interface, &options, true)
    }

    /// As [`start_with`](Self::start_with), but with the program's default logging: for
    /// measurements.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn start_quietly(
        self,
        host: &Host,
        interface: &str,
        options: &StartOptions,
    ) -> Result<Tunnel> {
        self.launch(host, interface, options, false)
    }

    /// Returns the options that set the number of threads that carry packets, or `None` if this
    /// program has no such setting.
    ///
    /// # Errors
    ///
    /// [`Error::Missing`], [`Error::Start`].
    pub fn with_workers(self, count: usize) -> Result<Option<StartOptions>> {
        let count = count.to_string();
        match self.behaves_like().description().workers {
            WorkerSetting::Variable(name) => Ok(Some(StartOptions {
                variables: vec![(name.to_owned(), count)],
                ..StartOptions::default()
            })),
            WorkerSetting::Option(option, help) => {
                let mut command = Command::new(self.program()?);
                command.args(help);
                let shown = attempt("this machine", command, None)?;
                Ok(mentions(&shown.stdout, option).then(|| StartOptions {
                    arguments: vec![option.to_owned(), count],
                    ..StartOptions::default()
                }))
            }
        }
    }

    /// Returns the program's path below the cache folder; `None` for Taupe, which is not there.
    pub fn path_in_cache(self) -> Option<PathBuf> {
        install::path_in_cache(&self.description())
    }

    fn launch(
        self,
        host: &Host,
        interface: &str,
        options: &StartOptions,
        talkative: bool,
    ) -> Result<Tunnel> {
        let program = self.program()?.display().to_string();
        let words = self.command(&program, interface);
        let words = words.iter().chain(&options.arguments);
        let words: Vec<&str> = words.map(String::as_str).collect();
        let mut command = host.command(&words);
        let (variable, level) = self.behaves_like().description().environment;
        if talkative {
            command.env(variable, level);
        } else {
            command.env_remove(variable);
        }
        let variables = options.variables.iter();
        command.envs(variables.map(|(name, value)| (name, value)));
        let mut process = Process::start(host.name(), command)?;
        // Programs start within milliseconds, and a benchmark compares these times.
        let [limit, pause] = [Duration::from_secs(10), Duration::from_millis(1)];
        poll_until("configuration socket", limit, pause, || {
            if !process.runs()? {
                let result = process.output();
                return Err(Error::unmet(format!("{} ended: {result}", self.name())));
            }
            // A program may listen before it has the interface, and answers when it has it.
            Ok(uapi::exchange(interface, "get=1\n\n").is_ok())
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

/// Returns true if a help text names an option.
fn mentions(help: &str, option: &str) -> bool {
    let is_in_name = |letter: char| letter.is_alphanumeric() || letter == '-';
    let mut names = help.split(|letter| !is_in_name(letter));
    names.any(|name| name == option)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_found_in_a_help_text_by_their_full_name() {
        let help = "Options:\n  -l, --lanes <N>  Number\n      --log=LEVEL\n";
        assert!(mentions(help, "--lanes") && mentions(help, "--log"));
        for other in ["--lane", "lanes", "--lanes-of", "--lo"] {
            assert!(!mentions(help, other), "{other}");
        }
    }

    #[test]
    fn workers_are_set_as_each_program_has_it() -> Result<()> {
        let go = Implementation::WireguardGoTailscale.with_workers(4)?;
        let go = go.ok_or_else(|| Error::unmet("it has a setting"))?;
        assert_eq!(go.arguments, [""; 0]);
        assert_eq!(go.variables, [("GOMAXPROCS".to_owned(), "4".to_owned())]);
        Ok(())
    }

    #[test]
    fn kind_needs_a_known_program() {
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
