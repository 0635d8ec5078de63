//! The command line of `taupe`: one table of commands.

use super::device::DeviceArguments;
use super::{Action, ArgumentError, Environment, Order, TunnelOrder};
use super::{applications, diagnosis, exec, prove, tunnels, web};
use crate::command_line::common::{
    ALLOWED_IPS_EXAMPLES, ALLOWED_IPS_STATUS, AllowedIps, CHECK_EXAMPLES, CHECK_JSON, CHECK_STATUS,
    CheckArguments, EXIT_STATUS, FILES, FileArgument, RETRIES, STRIP_EXAMPLES, STRIP_STATUS, Wg,
    joined,
};
use crate::command_line::proxy::{self, ProxyArguments};
use crate::wg;
use clap::{Parser, Subcommand};
use std::ffi::OsString;
use taupe_config::file::Compatibility;
use tunnels::OutputOptions;

const EXAMPLES: &str = "\
Examples:
  taupe check ./home.conf
  sudo taupe up ./home.conf
  sudo taupe status
  sudo taupe down home";

/// Follows [`RETRIES`].
const DEVICE_VARIABLES: &str = "
  LOG_LEVEL, TAUPE_LANES          As for `taupe device`.
  TAUPE_OFFLOAD                   As for `taupe device`.";

/// Userspace WireGuard.
#[derive(Parser)]
#[command(name = "taupe", version = crate::command_line::VERSION, about = crate::command_line::ABOUT)]
#[command(after_long_help = text(&[EXIT_STATUS, FILES, EXAMPLES]))]
pub(super) struct Taupe {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Bring up the tunnel of a file
    #[command(after_long_help = text(&[
        tunnels::UP, &[RETRIES, tunnels::RETRIES_EXCEPTION, DEVICE_VARIABLES].concat(),
        tunnels::UP_STATUS, FILES, tunnels::UP_EXAMPLES,
    ]))]
    Up(tunnels::UpArguments),
    /// Take a tunnel down and undo all changes of `up`
    ///
    /// This works even if the tunnel's process was killed.
    #[command(after_long_help = text(&[tunnels::DOWN_STATUS, FILES, tunnels::DOWN_EXAMPLES]))]
    Down(tunnels::DownArguments),
    /// Block the selected applications until their tunnel is up
    #[command(after_long_help = text(&[
        tunnels::LOCK, tunnels::LOCK_UNIT, tunnels::LOCK_STATUS, FILES, tunnels::LOCK_EXAMPLES,
    ]))]
    Lock(FileArgument),
    /// Apply an edited file to its running tunnel
    ///
    /// Sessions of peers that stay continue.
    #[command(after_long_help = text(&[
        tunnels::RELOAD, &[RETRIES, tunnels::RETRIES_EXCEPTION].concat(),
        tunnels::RELOAD_STATUS, FILES,
        tunnels::RELOAD_EXAMPLES,
    ]))]
    Reload(tunnels::ReloadArguments),
    /// Write the current state of a tunnel to its file
    #[command(after_long_help = text(&[
        tunnels::SAVE, tunnels::SAVE_STATUS, FILES, tunnels::SAVE_EXAMPLES,
    ]))]
    Save(FileArgument),
    /// Print a file in the format of `wg setconf`
    #[command(after_long_help = text(&[STRIP_STATUS, FILES, STRIP_EXAMPLES]))]
    Strip(FileArgument),
    /// Check a file and print every mistake with its fix
    ///
    /// Nothing is changed, and no name is looked up.
    #[command(after_long_help = text(&[CHECK_JSON, CHECK_STATUS, FILES, CHECK_EXAMPLES]))]
    Check(CheckArguments),
    /// Run a command with a tunnel as its only network
    #[command(after_long_help = text(&[
        exec::EXEC, &[RETRIES, DEVICE_VARIABLES].concat(), exec::EXEC_STATUS, FILES,
        exec::EXEC_EXAMPLES,
    ]))]
    Exec(exec::ExecArguments),
    /// Show which rule decides about an application's packets
    #[command(after_long_help = text(&[
        applications::EXPLAIN, applications::EXPLAIN_JSON, applications::EXPLAIN_STATUS, FILES,
        applications::EXPLAIN_EXAMPLES,
    ]))]
    Explain(applications::ExplainArguments),
    /// Change which applications a tunnel selects
    #[command(after_long_help = text(&[
        applications::APP, applications::APP_STATUS, FILES, applications::APP_EXAMPLES,
    ]))]
    App(applications::AppArguments),
    /// Show tunnel state, the reason for it, and drop counters
    #[command(after_long_help = text(&[
        diagnosis::STATUS, diagnosis::STATUS_JSON, diagnosis::STATUS_CODES,
        diagnosis::STATUS_STATUS, diagnosis::STATUS_EXAMPLES,
    ]))]
    Status(diagnosis::StatusArguments),
    /// Watch tunnels, applications and connections live
    #[cfg(feature = "top")]
    #[command(after_long_help = text(&[
        diagnosis::TOP, diagnosis::TOP_STATUS, diagnosis::TOP_EXAMPLES,
    ]))]
    Top(diagnosis::TopArguments),
    /// List connections, their applications and their tunnels
    #[command(after_long_help = text(&[
        diagnosis::FLOWS, diagnosis::FLOWS_JSON, diagnosis::FLOWS_STATUS,
        diagnosis::FLOWS_EXAMPLES,
    ]))]
    Flows(diagnosis::FlowsArguments),
    /// Test whether an application's traffic leaks
    #[command(after_long_help = text(&[
        prove::PROVE, prove::PROVE_VERDICTS, prove::PROVE_LIMITS, prove::PROVE_JSON,
        prove::PROVE_STATUS, prove::PROVE_EXAMPLES,
    ]))]
    Prove(prove::ProveArguments),
    /// Print changes of tunnels as they happen
    #[command(after_long_help = text(&[
        diagnosis::EVENTS, diagnosis::EVENTS_JSON, diagnosis::EVENTS_COMMAND,
        diagnosis::EVENTS_STATUS, diagnosis::EVENTS_EXAMPLES,
    ]))]
    Events(diagnosis::EventsArguments),
    /// Print or serve figures for a monitoring system
    #[command(after_long_help = text(&[
        diagnosis::METRICS, diagnosis::METRICS_NAMES, diagnosis::METRICS_STATUS,
        diagnosis::METRICS_EXAMPLES,
    ]))]
    Metrics(diagnosis::MetricsArguments),
    /// Show tunnels, applications and rates in a browser
    #[command(after_long_help = text(&[web::WEB, web::WEB_STATUS, web::WEB_EXAMPLES]))]
    Web(web::WebArguments),
    /// Check whether this system can run tunnels
    #[command(after_long_help = text(&[
        diagnosis::DOCTOR, diagnosis::DOCTOR_JSON, diagnosis::DOCTOR_STATUS,
        diagnosis::DOCTOR_EXAMPLES,
    ]))]
    Doctor(diagnosis::DoctorArguments),
    /// Write a text for a bug report, without secrets
    #[command(after_long_help = text(&[
        diagnosis::REPORT, diagnosis::REPORT_STATUS, diagnosis::REPORT_EXAMPLES,
    ]))]
    Report(diagnosis::ReportArguments),
    /// Serve a tunnel as a SOCKS and HTTP proxy, without root
    #[command(after_long_help = text(&[
        proxy::PROXY, RETRIES, proxy::PROXY_STATUS, FILES, proxy::PROXY_EXAMPLES,
    ]))]
    Proxy(ProxyArguments),
    /// Compute a list of networks without some others
    #[command(after_long_help = text(&[ALLOWED_IPS_STATUS, ALLOWED_IPS_EXAMPLES]))]
    AllowedIps(AllowedIps),
    #[command(flatten)]
    Wg(Wg),
    /// Run a WireGuard interface that `wg` configures
    Device(DeviceArguments),
}

/// Joins paragraphs and sections of a long help.
fn text(parts: &[&str]) -> String {
    parts.join("\n\n")
}

impl Taupe {
    pub(super) fn order(
        self,
        arguments: &[OsString],
        environment: Environment<'_>,
    ) -> Result<Order, ArgumentError> {
        let tunnel = |action, argument: FileArgument, output: OutputOptions| {
            Order::Tunnel(TunnelOrder {
                compatibility: Compatibility::Taupe,
                action,
                file: argument.file,
                verbose: output.is_verbose(environment),
            })
        };
        Ok(match self.command {
            Command::Up(up) => tunnel(up.action(environment)?, up.file, up.output),
            Command::Down(down) => down.order(environment),
            Command::Reload(reload) => tunnel(Action::Reload, reload.file, reload.output),
            Command::Lock(file) => tunnel(Action::Lock, file, OutputOptions::DEFAULT),
            Command::Save(file) => tunnel(Action::Save, file, OutputOptions::DEFAULT),
            Command::Strip(file) => tunnel(Action::Strip, file, OutputOptions::DEFAULT),
            Command::Check(check) => Order::Check {
                file: check.file.file,
                json: check.json,
            },
            Command::Exec(exec) => Order::Exec(exec.order(environment)?),
            Command::Explain(explain) => Order::Explain(explain.order()),
            Command::App(app) => Order::App(app.order()),
            Command::Status(status) => Order::Status(status.order()),
            #[cfg(feature = "top")]
            Command::Top(top) => Order::Top(top.order()),
            Command::Flows(flows) => Order::Flows(flows.order()),
            Command::Prove(prove) => Order::Prove(prove.order()),
            Command::Events(events) => Order::Events(events.order()),
            Command::Metrics(metrics) => Order::Metrics(metrics.order()),
            Command::Web(web) => Order::Web(web.order()),
            Command::Doctor(doctor) => Order::Doctor(doctor.order()),
            Command::Report(report) => Order::Report(report.order()),
            Command::Proxy(proxy) => Order::Proxy(proxy.order(environment)),
            Command::AllowedIps(AllowedIps { networks, except }) => Order::AllowedIps {
                networks: joined(networks),
                except: joined(except),
            },
            Command::Wg(_) => Order::Wg {
                compatibility: wg::Compatibility::Taupe,
                arguments: std::iter::once("taupe".into())
                    .chain(arguments.iter().skip(1).cloned())
                    .collect(),
            },
            Command::Device(device) => Order::Device(device.order(environment)?),
        })
    }
}
