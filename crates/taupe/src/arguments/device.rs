//! Options of `taupe device`, and the environment variables with the same
//! effects.

use super::{ArgumentError, Environment};
use crate::device_log::Logging;
use crate::passed_descriptor::{Descriptor, NotDescriptor, TUN, UAPI};
use clap::{Args, Parser, ValueEnum};
use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::PathBuf;
use taupe_engine::Offloads;
use taupe_inspect::interface::InterfaceName;
use taupe_protocol::Lanes;

/// A device to run, and how.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DeviceOrder {
    pub(crate) interface: InterfaceName,
    pub(crate) foreground: bool,
    pub(crate) offloads: Offloads,
    pub(crate) lanes: Option<Lanes>,
    /// A TUN that the caller opened, by its number.
    pub(crate) tun: Option<RawFd>,
    /// A configuration socket that the caller listens on, by its number.
    pub(crate) uapi: Option<RawFd>,
    pub(crate) logging: Logging,
    /// File for the id of the background process.
    pub(crate) pid_file: Option<PathBuf>,
}

/// Settings of a device from the environment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DeviceSettings {
    pub(crate) offloads: Offloads,
    pub(crate) lanes: Option<Lanes>,
    pub(crate) logging: Logging,
}

impl DeviceSettings {
    pub(super) fn read(environment: Environment<'_>) -> Result<Self, ArgumentError> {
        Self::read_with(Vec::new(), None, environment)
    }

    fn read_with(
        no_offload: Vec<Offload>,
        lanes: Option<Lanes>,
        environment: Environment<'_>,
    ) -> Result<Self, ArgumentError> {
        let log_level = environment("LOG_LEVEL");
        let log_level = log_level.as_deref().map(|word| word.to_string_lossy());
        Ok(Self {
            offloads: offloads(no_offload, environment)?,
            lanes: match lanes {
                None => lanes_in(environment)?,
                given => given,
            },
            logging: Logging::from_log_level(log_level.as_deref()),
        })
    }
}

pub(super) const EXIT_STATUS: &str = "\
Exit status:
  0  In the background: the interface exists, and its configuration socket
     answers. With -f: SIGTERM or SIGINT ended it, or its interface or socket
     was removed.
  1  It could not start, or could not continue; standard error says why.
  2  Wrong usage; nothing was done.";

const EXAMPLES: &str = "\
Examples:
  sudo taupe device wg0
  sudo taupe set wg0 listen-port 51820 private-key ./key";

const ENVIRONMENT: &str = "\
Environment:
  LOG_LEVEL              silent, error, warn (default), info, verbose or debug,
                         trace. The log goes to standard error; a background
                         process logs only if it is set.
  TAUPE_LANES            Number of lanes, as for --lanes.
  TAUPE_OFFLOAD          Offloads not to use, as for --no-offload.
  WG_PROCESS_FOREGROUND  1 is the same as -f.
  WG_TUN_FD              Number of an open TUN to use instead of creating one.
  WG_UAPI_FD             Number of a listening socket to use instead of
                         /var/run/wireguard/IFACE.sock.";

/// `taupe device` as a program of its own.
#[derive(Parser)]
#[command(name = "taupe", version = crate::command_line::VERSION, about = crate::command_line::ABOUT)]
pub(super) struct DeviceProgram {
    #[command(flatten)]
    pub(super) device: DeviceArguments,
}

#[derive(Args)]
#[command(after_long_help = format!(
    "{}\n\n{ENVIRONMENT}\n\n{EXIT_STATUS}\n\n{EXAMPLES}", offload_table()
))]
pub(super) struct DeviceArguments {
    /// Interface to create (1 to 15 bytes)
    #[arg(value_name = "IFACE", value_parser = InterfaceName::for_new)]
    interface: InterfaceName,
    /// Stay in the foreground
    ///
    /// Without it, the command ends when the interface answers.
    #[arg(short, long)]
    foreground: bool,
    /// Do not use these offloads, separated by commas
    ///
    /// This option may be given more than once.
    #[arg(long, value_name = "WHAT", value_delimiter = ',', ignore_case = true)]
    #[arg(hide_possible_values = true)]
    no_offload: Vec<Offload>,
    /// Number of lanes: 1, 2, 4, 8 or 16
    ///
    /// A lane can use two processors, one in each direction. Default: half
    /// the number of processors, rounded down to one of these numbers.
    #[arg(long, value_name = "N", value_parser = parse_lanes)]
    lanes: Option<Lanes>,
}

impl DeviceArguments {
    pub(super) fn order(self, environment: Environment<'_>) -> Result<DeviceOrder, ArgumentError> {
        let settings = DeviceSettings::read_with(self.no_offload, self.lanes, environment)?;
        Ok(DeviceOrder {
            interface: self.interface,
            foreground: self.foreground || foreground(environment),
            offloads: settings.offloads,
            lanes: settings.lanes,
            tun: descriptor(TUN, environment)?,
            uapi: descriptor(UAPI, environment)?,
            logging: settings.logging,
            pid_file: None,
        })
    }
}

/// An offload that can be turned off.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum Offload {
    /// TCP super-packets from and to the interface
    Tso,
    /// UDP super-packets from and to the interface
    Uso,
    /// Batches of datagrams that are sent in one call
    Gso,
    /// Batches of datagrams that are received in one call
    Gro,
    /// Partial checksums, which `tso` and `uso` need
    Checksum,
    /// Encryption by AVX2, AVX-512 or NEON, X25519 by AVX-512
    Avx512,
    /// A filter in the kernel against floods of handshakes
    FloodFilter,
    /// Busy polling between short packets (for comparisons; not an offload)
    #[value(hide = true)]
    BusyPoll,
    /// Fair queue for low latency under load (not part of `all`)
    FairQueue,
    /// All offloads
    All,
}

/// Lists the offloads with their descriptions.
fn offload_table() -> String {
    let mut table = String::from("Offloads:");
    for offload in Offload::value_variants() {
        let value = offload.to_possible_value();
        let value = value.filter(|value| !value.is_hide_set());
        let help = value.as_ref().and_then(|value| value.get_help());
        if let (Some(value), Some(help)) = (&value, help) {
            table += &format!("\n  {:12}  {help}", value.get_name());
        }
    }
    table
}

const OFFLOAD: &str = "TAUPE_OFFLOAD";
const LANES: &str = "TAUPE_LANES";

pub(super) fn offloads(
    mut without: Vec<Offload>,
    environment: Environment<'_>,
) -> Result<Offloads, ArgumentError> {
    if let Some(list) = variable(OFFLOAD, environment)? {
        let words = list
            .split(',')
            .map(str::trim)
            .filter(|word| !word.is_empty());
        for word in words {
            let offload = Offload::from_str(word, true).map_err(|_| ArgumentError::Variable {
                variable: OFFLOAD,
                value: list.clone(),
                reason: format!(
                    "{word:?} is none of tso, uso, gso, gro, checksum, avx512, flood-filter, \
                     fair-queue and all"
                ),
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
            Offload::Avx512 => offloads.avx512 = false,
            Offload::FloodFilter => offloads.flood_filter = false,
            Offload::BusyPoll => offloads.busy_poll = false,
            Offload::FairQueue => offloads.fair_queue = false,
            Offload::Checksum => (offloads.tun_tso, offloads.tun_uso) = (false, false),
            Offload::All => {
                offloads = Offloads {
                    tun_tso: false,
                    tun_uso: false,
                    udp_gso: false,
                    udp_gro: false,
                    avx512: false,
                    flood_filter: false,
                    ..offloads
                }
            }
        }
    }
    Ok(offloads)
}

/// Returns the number of lanes in the environment.
pub(super) fn lanes_in(environment: Environment<'_>) -> Result<Option<Lanes>, ArgumentError> {
    let Some(value) = variable(LANES, environment)? else {
        return Ok(None);
    };
    let lanes = parse_lanes(&value).map_err(|error| ArgumentError::Variable {
        variable: LANES,
        value,
        reason: error.to_string(),
    })?;
    Ok(Some(lanes))
}

/// Parses a number of lanes.
fn parse_lanes(text: &str) -> Result<Lanes, NotLanes> {
    let count = text.parse().ok();
    count.and_then(Lanes::new).ok_or(NotLanes)
}

/// The text is not a number of lanes.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("it is not 1, 2, 4, 8 or 16")]
struct NotLanes;

pub(super) fn foreground(environment: Environment<'_>) -> bool {
    environment("WG_PROCESS_FOREGROUND").is_some_and(|value| value == "1")
}

pub(super) fn descriptor(
    name: &'static str,
    environment: Environment<'_>,
) -> Result<Option<RawFd>, ArgumentError> {
    let Some(value) = variable(name, environment)? else {
        return Ok(None);
    };
    value
        .parse()
        .map(Descriptor::number)
        .map_err(|error: NotDescriptor| ArgumentError::Variable {
            variable: name,
            value,
            reason: error.to_string(),
        })
}

/// Returns the value of a variable, unless it is empty.
pub(super) fn variable(
    name: &'static str,
    environment: Environment<'_>,
) -> Result<Option<String>, ArgumentError> {
    let value = environment(name).filter(|value| !value.is_empty());
    value
        .map(OsString::into_string)
        .transpose()
        .map_err(|value| ArgumentError::Variable {
            variable: name,
            value: value.to_string_lossy().into_owned(),
            reason: "it is not UTF-8".into(),
        })
}
