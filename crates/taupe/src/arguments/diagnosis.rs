//! The command lines of `taupe status`, `top`, `flows`, `events`, `metrics`, `doctor` and `report`.

use super::{DoctorOrder, EventsOrder, FlowsOrder, MetricsOrder, ReportOrder, StatusOrder};
use clap::{Args, ValueHint};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

pub(super) const STATUS: &str = "\
Reasons for degraded:
  - The tunnel's process has ended without `taupe down`; its traffic is blocked.
  - A peer with an Endpoint in the file does not answer. (A peer without one
    starts handshakes itself. It is silent after it has left, which is no
    fault.)
  - The name servers do not answer, or name queries bypass the tunnel.
  - An endpoint's name has no address, or no route leads to an endpoint.
  - Another device has the same PrivateKey and peer.
  - An uplink is not guarded.
  - A peer needs a PqPrivateKey of this side, and there is none.
  - Another program has changed a network setting of the tunnel.
  - An application has all the flows that it may have.
  - The state of selected applications in the kernel cannot be read.";

pub(super) const STATUS_JSON: &str = "\
JSON:
  An object with `schema` (1; members are added without notice), `state` (up,
  degraded, down, or null without tunnels) and `tunnels`, a list of objects with
    interface, state, mode (transparent, marks, adapter; null if unknown), file,
    since (Unix time)
    findings      reasons why the tunnel is not up: objects with code, text and
                peer (the key, or null if it is not about a peer)
    notes         sentences
    gaps          promises of transparent mode that Taupe cannot keep on this
                  kernel, or where it was started: objects with code and text.
                  Codes: handover, families, forwarding, services, queues,
                  outsiders
    kill_switch   app, all or off; null if no applications are selected, or if
                  their state in the kernel cannot be read
    rules         of the file: line, key, application
    apps_of_user  the only user whose applications these rules select, or null
    forwarded     true if the tunnel carries forwarded traffic
    uplinks       name, guarded
    counters      name, count, text: packets sent, delivered, refused, dropped
    peers         public_key, name (in the file, or null), endpoint,
                  latest_handshake (Unix time), unanswered_handshakes,
                  received_bytes, sent_bytes,
                  post_quantum (wanted, latched, session, suite, text; null if
                  unknown), lanes (receiving, remote, interleaved; null without
                  a session, or if the device has one lane)
  No private or preshared key is in it.";

pub(super) const STATUS_CODES: &str = "\
Codes of findings:
  the process   process-ended, process-silent, changing, down
  peers         no-handshake, handshake-old, peer-silent, key-shared,
                no-pq-private-key
  endpoints     udp-swallowed, no-route, no-carrier, next-hop-silent,
                endpoint-unresolved
  names         names-past-tunnel (queries bypass the tunnel),
                name-servers-silent (selected applications ask, and no server of
                a family answers)
  applications  uplink-unguarded, flows-refused (an application has all the
                flows that it may have), unknown-layout, out-of-reach (their
                state in the kernel cannot be read)
  settings      changed by another program since `up`: link-changed,
                mtu-changed, addresses-changed, dns-changed, routes-changed,
                rules-changed, firewall-changed, mark-changed, sysctl-changed;
                settings-unknown; bypass-route (a route that was added since
                leads around the tunnel)";

pub(super) const STATUS_STATUS: &str = "\
Exit status (of several tunnels, that of the worst):
  0  The tunnel is up.
  1  The tunnel is down, or there is none.
  2  The tunnel is degraded: it is there, and a part of it does not work.
  3  Unknown: wrong usage, no such tunnel, or no permission to look.";

pub(super) const STATUS_EXAMPLES: &str = "\
Examples:
  sudo taupe status
  sudo taupe status --watch
  sudo taupe status home --json";

pub(super) const EVENTS: &str = "\
At the start, Taupe prints a line for each tunnel and for each peer with a session. Then it prints \
a line for each change, until a signal arrives or standard output is closed. It reads the state once a \
second, and misses shorter changes. If it cannot read the state, it reports this once and continues.\n\n\
A session ends three minutes after the latest handshake.";

pub(super) const EVENTS_JSON: &str = "\
JSON (one object per line):
  time (Unix time), tunnel, event. Events up and down have no other fields.
  The others have:
    degraded                    findings, as in `taupe status --json`
    finding-begun               code, text, peer (key, or null)
    finding-ended               code, peer
    peer-connected, peer-gone   public_key, name, endpoint
    peer-roamed                 the same, and from: the endpoint before";

pub(super) const EVENTS_COMMAND: &str = "\
Command:
  --exec runs COMMAND with /bin/sh once for each event, and waits for its end.
  The command gets the event as JSON on standard input, and in its environment:
  TAUPE_EVENT, TAUPE_TUNNEL, TAUPE_PEER (name or key), TAUPE_ENDPOINT,
  TAUPE_TEXT (the line that is printed, at most 4096 bytes).";

pub(super) const EVENTS_STATUS: &str = "\
Exit status:
  0  Standard output was closed.
  1  The state cannot be read, or there is no such tunnel.
  2  Wrong usage.";

pub(super) const EVENTS_EXAMPLES: &str = "\
Examples:
  sudo taupe events --json
  sudo taupe events --exec 'logger \"$TAUPE_TEXT\"' home";

#[cfg(feature = "top")]
pub(super) const TOP: &str = "\
Until you press `q`, Taupe shows tunnels with the reasons for their states, peers, applications with \
their rates, dropped packets with their reasons, and connections. The key `?` lists the keys.\n\n\
Three keys change the selected application: `a` sends it through the tunnel, `d` lets it bypass the \
tunnel, `x` removes its entry from the file. Taupe shows the `taupe app` command and asks first.\n\n\
Rates are bytes per second: of encrypted packets for tunnels and peers, of payload for applications \
and connections. UDP outside tunnels is not counted. A connection that ends between two readings is missing in the rate of its \
application. At most 16384 connections are read.\n\n\
The terminal needs 60 columns and 16 lines. NO_COLOR turns colours off.";

#[cfg(feature = "top")]
pub(super) const TOP_STATUS: &str = "\
Exit status:
  0  Ended by a key or a signal.
  1  Standard output is not a terminal, the terminal fails, or a change that
     was still running at the end failed.
  2  Wrong usage.";

#[cfg(feature = "top")]
pub(super) const TOP_EXAMPLES: &str = "\
Examples:
  sudo taupe top
  sudo taupe top --interval 5";

pub(super) const FLOWS: &str = "\
Taupe prints one line for each TCP connection, for each UDP socket that is connected, and for each \
other UDP flow in a tunnel. Traffic that stays on this machine is left out. So is traffic that this \
machine forwards, because it has no socket. At most 65536 flows are listed.\n\n\
The verdict is `tunnel`, `direct` (bypasses every tunnel) or `refused` (blocked). Bytes count \
payload; those of UDP outside the tunnel are not counted. The remote address is the one that the \
application used, even if it is a resolver on this machine and one of the tunnel's name servers \
answers.\n\n\
With --follow, Taupe prints a line when a flow begins (+), ends (-) or changes its verdict (=), \
until a signal arrives or standard output is closed. It reads the flows once a second, and misses \
shorter ones. If it cannot read them, for example because the tunnel is down, it reports this once and \
continues.";

pub(super) const FLOWS_JSON: &str = "\
JSON:
  An object with `schema` (1), `truncated` and `flows`, a list of objects with
    protocol (tcp, udp), local, remote (null: none yet), tunnel (null: none),
    verdict, pid, application (both null if no process has the socket any more),
    uid, sent_bytes, received_bytes (null: not counted), why (the rule that
    decided)
  With --follow: one such object per line, with `event`: begun, changed or
  ended.";

pub(super) const FLOWS_STATUS: &str = "\
Exit status:
  0  Printed.
  1  The flows cannot be listed, or there is no such tunnel.
  2  Wrong usage.";

pub(super) const FLOWS_EXAMPLES: &str = "\
Examples:
  sudo taupe flows
  sudo taupe flows home --follow";

pub(super) const METRICS: &str = "\
Without --listen and --unix, Taupe prints the figures of all tunnels and WireGuard devices of this \
network namespace once, as OpenMetrics text. With them, it serves the figures at the path /metrics \
until a signal arrives. The path /readyz answers 200, or 503 if there is no device, or if no process \
carries the packets of a tunnel.\n\n\
The figures contain public keys and names of peers, but no secrets and no endpoints. There is no \
authentication: everybody who reaches the port can read them. The socket of --unix is for root and \
its group.";

pub(super) const METRICS_NAMES: &str = "\
Metrics:
  taupe_build_info{version}
  taupe_tunnel_state{tunnel, state}                  1 for the state it has
  taupe_tunnel_findings{tunnel, code}                as in `taupe status --json`
  taupe_capture_dropped_packets_total{tunnel, reason}    by its eBPF programs
  taupe_application_processes{tunnel, key, application}    running now
  taupe_peers{device}, taupe_device_lanes{device}
  taupe_dropped_packets_total{device, reason}
  taupe_handshakes_total{device, result}    initiated, responded, unanswered
  taupe_queue_segments_total{device, action}    marked, dropped-as-signal,
                                                dropped-over-limit
  and the histograms, with the label {device}:
  taupe_handshake_duration_seconds    from an initiation to the response
  taupe_queue_wait_seconds            in the fair queue, of delayed packets
  and with the labels {device, public_key, name} for each peer:
  taupe_peer_received_bytes_total, taupe_peer_sent_bytes_total
  taupe_peer_latest_handshake_timestamp_seconds
  taupe_peer_unanswered_handshakes
  A device with more than 1000 peers has no names. Devices of other programs
  have only figures of peers.";

pub(super) const METRICS_STATUS: &str = "\
Exit status:
  0  Printed.
  1  The state cannot be read, or the address or path cannot be served.
  2  Wrong usage.";

pub(super) const METRICS_EXAMPLES: &str = "\
Examples:
  sudo taupe metrics
  sudo taupe metrics --listen 127.0.0.1:9586
  curl http://127.0.0.1:9586/metrics";

pub(super) const DOCTOR: &str = "\
Taupe tests the kernel by loading programs and removing them again. It stores results of these tests \
that are not failures until the next reboot, and prints their age.";

pub(super) const DOCTOR_JSON: &str = "\
JSON:
  An object with `schema` (1), `fails` and `checks`, a list of objects with
  name, result (ok, warn, fail; unknown if the check needs root), text and fix
  (null if there is nothing to do).";

pub(super) const DOCTOR_STATUS: &str = "\
Exit status:
  0  No check fails. There may be warnings, and checks that need root.
  1  A check fails, or cannot be made.
  2  Wrong usage.";

pub(super) const DOCTOR_EXAMPLES: &str = "\
Examples:
  sudo taupe doctor
  sudo taupe doctor home";

pub(super) const REPORT: &str = "\
The report is a Markdown text: versions, `doctor`, `status`, connections, links, routes and rules, \
the tunnels' files and the end of the log. Keys, commands of files and everything that looks like a \
key are replaced. Read it before you pass it on: it contains addresses and names of programs and \
networks. --hide-endpoints removes endpoints too.";

pub(super) const REPORT_STATUS: &str = "\
Exit status:
  0  Written.
  1  Failed; standard error says why.
  2  Wrong usage.";

pub(super) const REPORT_EXAMPLES: &str = "\
Examples:
  sudo taupe report -o report.md
  sudo taupe report home --hide-endpoints";

#[derive(Args)]
struct TunnelArgument {
    /// File NAME.conf, or NAME of a tunnel [default: all]
    #[arg(value_name = "CONF", value_hint = ValueHint::FilePath)]
    file: Option<OsString>,
}

#[derive(Args)]
pub(super) struct StatusArguments {
    #[command(flatten)]
    tunnel: TunnelArgument,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// List all peers, not only 40
    #[arg(long)]
    peers: bool,
    /// Repeat every SECONDS (1 without a value)
    ///
    /// On a terminal, each output overwrites the one before. With `--json`, each status is one line.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true,
        default_missing_value = "1", value_parser = clap::value_parser!(u16).range(1..))]
    watch: Option<u16>,
}

impl StatusArguments {
    pub(super) fn order(self) -> StatusOrder {
        StatusOrder {
            file: self.tunnel.file,
            json: self.json,
            all_peers: self.peers,
            watch: self
                .watch
                .map(|seconds| Duration::from_secs(seconds.into())),
        }
    }
}

#[cfg(feature = "top")]
#[derive(Args)]
pub(super) struct TopArguments {
    /// Read everything every SECONDS
    #[arg(long, value_name = "SECONDS", default_value = "1",
        value_parser = clap::value_parser!(u16).range(1..))]
    interval: u16,
}

#[cfg(feature = "top")]
impl TopArguments {
    pub(super) fn order(self) -> super::TopOrder {
        super::TopOrder {
            interval: Duration::from_secs(self.interval.into()),
        }
    }
}

#[derive(Args)]
pub(super) struct EventsArguments {
    #[command(flatten)]
    tunnel: TunnelArgument,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Run a shell command for each event
    #[arg(long, value_name = "COMMAND")]
    exec: Option<OsString>,
}

impl EventsArguments {
    pub(super) fn order(self) -> EventsOrder {
        EventsOrder {
            file: self.tunnel.file,
            json: self.json,
            command: self.exec,
        }
    }
}

#[derive(Args)]
pub(super) struct MetricsArguments {
    /// Serve them at an address and port
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Serve them at a Unix socket
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    unix: Option<PathBuf>,
    /// Use the format that node_exporter reads
    #[arg(long)]
    prometheus: bool,
}

impl MetricsArguments {
    pub(super) fn order(self) -> MetricsOrder {
        MetricsOrder {
            listen: self.listen,
            unix: self.unix,
            prometheus: self.prometheus,
        }
    }
}

#[derive(Args)]
pub(super) struct FlowsArguments {
    #[command(flatten)]
    tunnel: TunnelArgument,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Continue, and print changes
    #[arg(short, long)]
    follow: bool,
}

impl FlowsArguments {
    pub(super) fn order(self) -> FlowsOrder {
        FlowsOrder {
            file: self.tunnel.file,
            json: self.json,
            follow: self.follow,
        }
    }
}

#[derive(Args)]
pub(super) struct DoctorArguments {
    /// Also check this file, or NAME in /etc/wireguard
    #[arg(value_name = "CONF", value_hint = ValueHint::FilePath)]
    file: Option<OsString>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Ignore stored results and test again
    #[arg(long)]
    fresh: bool,
}

impl DoctorArguments {
    pub(super) fn order(self) -> DoctorOrder {
        DoctorOrder {
            file: self.file,
            json: self.json,
            fresh: self.fresh,
        }
    }
}

#[derive(Args)]
pub(super) struct ReportArguments {
    #[command(flatten)]
    tunnel: TunnelArgument,
    /// Write to this file instead of standard output
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,
    /// Leave out the endpoints of peers
    #[arg(long)]
    hide_endpoints: bool,
}

impl ReportArguments {
    pub(super) fn order(self) -> ReportOrder {
        ReportOrder {
            file: self.tunnel.file,
            output: self.output,
            hide_endpoints: self.hide_endpoints,
        }
    }
}
