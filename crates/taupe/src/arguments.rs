//! From the command line and the environment to an [`Order`].
//!
//! The name that the program is called by decides how the rest is read:
//! `taupe-device` and `wireguard-go` are `taupe device`; `boringtun-cli` and
//! `boringtun` take that program's options; any other name is `taupe`.

mod boringtun;

use crate::interface::InterfaceName;
use crate::logging::Logging;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use taupe_engine::Offloads;

/// A device to run, and how.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Order {
    pub(crate) interface: InterfaceName,
    pub(crate) foreground: bool,
    pub(crate) offloads: Offloads,
    /// A TUN that the caller opened, by its number.
    pub(crate) tun: Option<RawFd>,
    /// A configuration socket that the caller listens on, by its number.
    pub(crate) uapi: Option<RawFd>,
    pub(crate) logging: Logging,
    /// Where the number of the background process is written.
    pub(crate) pid_file: Option<PathBuf>,
}

/// Why there is no order.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The command line is wrong, or asks for help or the version only.
    #[error(transparent)]
    CommandLine(#[from] clap::Error),
    /// A variable of the environment is wrong.
    #[error("the environment has {variable}={value}: {reason}")]
    Variable {
        variable: &'static str,
        value: String,
        reason: String,
    },
}

/// The value of a variable, if it is set.
pub(crate) type Environment<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// Reads a command line, whose first argument is the program's name.
///
/// # Errors
///
/// See [`Error`]. `--help` and `--version` are errors in this sense.
pub(crate) fn parse(arguments: &[OsString], environment: Environment<'_>) -> Result<Order, Error> {
    let path = arguments.first().map_or(Path::new("taupe"), Path::new);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    match &*name {
        "taupe-device" | "wireguard-go" => read::<DeviceProgram>(arguments, &name)?
            .device
            .order(environment),
        "boringtun-cli" | "boringtun" => {
            read::<boringtun::Boringtun>(arguments, &name)?.order(environment)
        }
        _ => match read::<Taupe>(arguments, "taupe")?.command {
            Command::Device(device) => device.order(environment),
        },
    }
}

fn read<P: Parser>(arguments: &[OsString], name: &str) -> Result<P, clap::Error> {
    let mut command = P::command().bin_name(name);
    let matches = command.try_get_matches_from_mut(arguments)?;
    P::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

const ABOUT: &str = "Userspace WireGuard";

const EXIT_STATUS: &str = "\
Exit status:
  0  In the background: the interface is there, its configuration socket answers.
     With -f: it ended by SIGTERM or SIGINT, or its interface or socket was removed.
  1  It could not be started, or could not go on; standard error says why.
  2  Wrong usage; nothing was done.";

const ENVIRONMENT: &str = "\
Environment:
  LOG_LEVEL              silent, error, warn (default), info, verbose or debug, trace.
                         Goes to standard error; from the background only when set.
  TAUPE_OFFLOAD          Offloads not to use, as for --no-offload.
  WG_PROCESS_FOREGROUND  1 is the same as -f.
  WG_TUN_FD              The number of an open TUN, instead of creating one.
  WG_UAPI_FD             The number of a listening socket, instead of
                         /var/run/wireguard/IFACE.sock.";

/// Userspace WireGuard.
#[derive(Parser)]
#[command(name = "taupe", version, about = ABOUT, after_help = EXIT_STATUS)]
struct Taupe {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a WireGuard interface, to be configured with `wg`
    Device(Device),
}

/// `taupe device` as a program of its own.
#[derive(Parser)]
#[command(name = "taupe", version, about = ABOUT)]
struct DeviceProgram {
    #[command(flatten)]
    device: Device,
}

#[derive(Args)]
#[command(after_help = format!("{ENVIRONMENT}\n\n{EXIT_STATUS}"))]
struct Device {
    /// The interface to create: 1 to 15 bytes
    #[arg(value_name = "IFACE")]
    interface: InterfaceName,
    /// Stay in the foreground, instead of returning once the interface answers
    #[arg(short, long)]
    foreground: bool,
    /// Do not use an offload of the kernel's; may be given more than once
    #[arg(long, value_name = "WHAT", value_delimiter = ',', ignore_case = true)]
    no_offload: Vec<Offload>,
}

impl Device {
    fn order(self, environment: Environment<'_>) -> Result<Order, Error> {
        let log_level = environment("LOG_LEVEL");
        let log_level = log_level.as_deref().map(|word| word.to_string_lossy());
        Ok(Order {
            interface: self.interface,
            foreground: self.foreground || foreground(environment),
            offloads: offloads(self.no_offload, environment)?,
            tun: descriptor(TUN, environment)?,
            uapi: descriptor(UAPI, environment)?,
            logging: Logging::from_log_level(log_level.as_deref()),
            pid_file: None,
        })
    }
}

/// An offload that can be done without.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Offload {
    /// TCP super-packets from and to the interface
    Tso,
    /// UDP super-packets from and to the interface
    Uso,
    /// Batches of datagrams sent in one piece
    Gso,
    /// Batches of datagrams received in one piece
    Gro,
    /// Checksums left to the other side; goes with `tso` and `uso`, which need it
    Checksum,
    /// All of them
    All,
}

const OFFLOAD: &str = "TAUPE_OFFLOAD";
const TUN: &str = "WG_TUN_FD";
const UAPI: &str = "WG_UAPI_FD";

fn offloads(mut without: Vec<Offload>, environment: Environment<'_>) -> Result<Offloads, Error> {
    if let Some(list) = variable(OFFLOAD, environment)? {
        let words = list
            .split(',')
            .map(str::trim)
            .filter(|word| !word.is_empty());
        for word in words {
            let offload = Offload::from_str(word, true).map_err(|_| Error::Variable {
                variable: OFFLOAD,
                value: list.clone(),
                reason: format!("{word:?} is none of tso, uso, gso, gro, checksum and all"),
            })?;
            without.push(offload);
        }
    }
    let mut offloads = Offloads::default();
    for offload in without {
        match offload {
            Offload::Tso => offloads.tun_tso = false,
            Offload::Uso => offloads.tun_uso = false,
            Offload::Gso => offloads.udp_gso = false,
            Offload::Gro => offloads.udp_gro = false,
            Offload::Checksum => (offloads.tun_tso, offloads.tun_uso) = (false, false),
            Offload::All => {
                offloads = Offloads {
                    tun_tso: false,
                    tun_uso: false,
                    udp_gso: false,
                    udp_gro: false,
                }
            }
        }
    }
    Ok(offloads)
}

fn foreground(environment: Environment<'_>) -> bool {
    environment("WG_PROCESS_FOREGROUND").is_some_and(|value| value == "1")
}

fn descriptor(name: &'static str, environment: Environment<'_>) -> Result<Option<RawFd>, Error> {
    let Some(value) = variable(name, environment)? else {
        return Ok(None);
    };
    value
        .parse()
        .map(Descriptor::number)
        .map_err(|error: NotDescriptor| Error::Variable {
            variable: name,
            value,
            reason: error.to_string(),
        })
}

/// A variable that is set and not empty.
fn variable(name: &'static str, environment: Environment<'_>) -> Result<Option<String>, Error> {
    let value = environment(name).filter(|value| !value.is_empty());
    value
        .map(OsString::into_string)
        .transpose()
        .map_err(|value| Error::Variable {
            variable: name,
            value: value.to_string_lossy().into_owned(),
            reason: "it is not UTF-8".into(),
        })
}

/// The number of a descriptor that was passed on, or -1 for none, which is what
/// BoringTun takes for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Descriptor(Option<RawFd>);

#[derive(Clone, Copy, Debug, thiserror::Error)]
enum NotDescriptor {
    #[error("it is not the number of a descriptor")]
    Syntax,
    #[error("descriptors 0 to 2 are the standard streams, pass another")]
    StandardStream,
}

impl Descriptor {
    fn number(self) -> Option<RawFd> {
        self.0
    }
}

impl std::str::FromStr for Descriptor {
    type Err = NotDescriptor;

    fn from_str(text: &str) -> Result<Self, NotDescriptor> {
        match text.parse() {
            Ok(-1) => Ok(Self(None)),
            Ok(0..=2) => Err(NotDescriptor::StandardStream),
            Ok(number @ 3..) => Ok(Self(Some(number))),
            Ok(_) | Err(_) => Err(NotDescriptor::Syntax),
        }
    }
}

#[cfg(test)]
mod tests;
