//! Options of BoringTun's command, from 0.3 to 0.7. Options without a meaning here are accepted, so
//! that scripts continue to work.

use super::device::{DeviceOrder, EXIT_STATUS};
use super::device::{descriptor, foreground, lanes_in, offloads, variable};
use super::{ArgumentError, Environment};
use crate::device_log::{Destination, Logging};
use crate::passed_descriptor::{Descriptor, TUN, UAPI};
use clap::{Parser, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use taupe_inspect::interface::InterfaceName;
use tracing_subscriber::filter::LevelFilter;

/// Userspace WireGuard by Taupe, called like BoringTun.
#[derive(Parser)]
#[command(name = "taupe", version = crate::command_line::VERSION, after_long_help = EXIT_STATUS)]
pub(super) struct Boringtun {
    /// Interface to create (1 to 15 bytes)
    #[arg(value_name = "INTERFACE_NAME", value_parser = InterfaceName::for_new)]
    interface: InterfaceName,
    /// Run and log in the foreground
    #[arg(short, long)]
    foreground: bool,
    /// Log level [default: error] [env: WG_LOG_LEVEL]
    ///
    /// error, info, debug or trace.
    #[arg(short, long, value_name = "LEVEL", hide_possible_values = true)]
    verbosity: Option<Verbosity>,
    /// Listening configuration socket [env: WG_UAPI_FD]
    #[arg(long, value_name = "FD", allow_negative_numbers = true)]
    uapi_fd: Option<Descriptor>,
    /// Open TUN [env: WG_TUN_FD]
    #[arg(long, value_name = "FD", allow_negative_numbers = true)]
    tun_fd: Option<Descriptor>,
    /// Log file of a background process [env: WG_LOG_FILE]
    #[arg(short, long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Write the process ID to this file [env: WG_PID_FILE]
    #[arg(long, value_name = "FILE")]
    pid_file: Option<PathBuf>,
    #[command(flatten)]
    _without_effect: WithoutEffect,
}

#[derive(clap::Args)]
#[command(next_help_heading = "Accepted without an effect")]
struct WithoutEffect {
    #[arg(short, long, value_name = "N")]
    threads: Option<usize>,
    #[arg(long, value_name = "FILE")]
    err: Option<PathBuf>,
    #[arg(long, value_name = "DIR")]
    work_dir: Option<PathBuf>,
    #[arg(long)]
    disable_drop_privileges: bool,
    #[arg(long)]
    disable_connected_udp: bool,
    #[arg(long)]
    disable_multi_queue: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Verbosity {
    Error,
    Info,
    Debug,
    Trace,
}

const LOG_LEVEL: &str = "WG_LOG_LEVEL";

impl Boringtun {
    pub(super) fn order(self, environment: Environment<'_>) -> Result<DeviceOrder, ArgumentError> {
        let file = |given: Option<PathBuf>, name| {
            let named = || environment(name).filter(|value: &OsString| !value.is_empty());
            given.or_else(|| named().map(PathBuf::from))
        };
        let number = |given: Option<Descriptor>, name| match given {
            Some(given) => Ok(given.number()),
            None => descriptor(name, environment),
        };
        let verbosity = match self.verbosity {
            Some(given) => given,
            None => verbosity(environment)?,
        };
        let background = file(self.log, "WG_LOG_FILE");
        Ok(DeviceOrder {
            interface: self.interface,
            foreground: self.foreground || foreground(environment),
            offloads: offloads(Vec::new(), environment)?,
            lanes: lanes_in(environment)?,
            tun: number(self.tun_fd, TUN)?,
            uapi: number(self.uapi_fd, UAPI)?,
            logging: Logging {
                level: verbosity.level(),
                background: background.map_or(Destination::Nowhere, Destination::File),
            },
            pid_file: file(self.pid_file, "WG_PID_FILE"),
        })
    }
}

fn verbosity(environment: Environment<'_>) -> Result<Verbosity, ArgumentError> {
    let Some(word) = variable(LOG_LEVEL, environment)? else {
        return Ok(Verbosity::Error);
    };
    Verbosity::from_str(&word, false).map_err(|_| ArgumentError::Variable {
        variable: LOG_LEVEL,
        value: word,
        reason: "it is none of error, info, debug and trace".into(),
    })
}

impl Verbosity {
    fn level(self) -> LevelFilter {
        match self {
            Self::Error => LevelFilter::ERROR,
            Self::Info => LevelFilter::INFO,
            Self::Debug => LevelFilter::DEBUG,
            Self::Trace => LevelFilter::TRACE,
        }
    }
}
