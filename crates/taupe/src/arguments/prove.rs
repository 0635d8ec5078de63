//! The command line of `taupe prove`.

use super::ProveOrder;
use clap::{Args, ValueHint};
use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

pub(super) const PROVE: &str = "\
Taupe captures every packet that leaves this machine, by any interface except loopback, and \
attributes it to a socket of the application, to the tunnel, or to others. Meanwhile a probe tries \
known leaks. The probe is a copy of Taupe that has the application's executable path, user and \
control group, so that the application's own rule selects it; no rule is added. (If the application \
does not run, the probe has the user who called sudo, or nobody.) Each packet of the \
probe has a random text in it, and the report says where the capture saw that text, not what the \
probe's socket returned.\n\n\
To show that the capture sees packets, Taupe sends one in clear at the beginning and one at the end, \
from a process that is not selected (by a packet socket if every process is selected or blocked). If it does not see them, the result is \"not observed\". No \
probe goes to a third party: destinations are this machine's resolvers and routers, the tunnel's \
endpoint, and addresses for documentation, which go nowhere. Everything that Taupe creates for this \
ends with it, even if it is killed: the probe's copy exists only in memory, in a mount namespace of \
the probe.";

pub(super) const PROVE_VERDICTS: &str = "\
Verdicts of probes:
  through the tunnel    It has entered the tunnel, and left in clear nowhere.
  blocked               It was seen nowhere. The error of the socket follows.
  LEFT IN CLEAR         It has left by another interface: a leak.
  bypasses by the file  It has left in clear, as the file says about its
                        destination (such as DisallowedIPs).
  not tried             A right or an address is missing; the reason follows.";

pub(super) const PROVE_LIMITS: &str = "\
Limits:
  Packets that arrive are not judged: a capture on this machine also shows those
  that come out of the tunnel at the uplink.
  A socket that is closed before Taupe has listed all sockets is missed; its
  packets are counted as those to which no socket fits. So are packets of raw
  and ping sockets.
  The probe is not the application: it cannot use connections that are open
  already. An application with the same user can disturb it.";

pub(super) const PROVE_JSON: &str = "\
JSON:
  An object with `schema` (1), `result` (nothing-found, leak, not-observed) and
    reasons       codes: control-not-seen, packets-lost, tables-full,
                  sockets-unknown, probe-not-started, probe-not-selected,
                  interrupted
    application, tunnel, is_up, kill_switch (effect; null while it is up)
    steps         as in `taupe explain --json`
    processes     their ids
    flows         as in `taupe flows --json`
    seconds, asked_seconds, uplinks (names)
    traffic       counts of packets: wireguard_sent, wireguard_received,
                  clear_packets, bypassing_packets, other_packets,
                  unattributed_packets, lost_packets; clear and unattributed:
                  at most 20 flows each with interface, protocol (number),
                  source, destination, packets, after_ms
    probe         sentence about the probe
    probes        objects with name, verdict (tunnel, blocked, left-in-clear,
                  by-file, not-tried), destination, interface,
                  seen_destination, after_ms, note; null if unknown
    control       tried, seen, destination, interface, by_packet_socket, note";

pub(super) const PROVE_STATUS: &str = "\
Exit status:
  0  Nothing of the application was seen in clear.
  1  Something has left in clear; the report names it.
  2  Wrong usage.
  3  Not observed: the capture was blind or has lost packets, the probe could
     not act as the application, a signal came, or no tunnel selects it.";

pub(super) const PROVE_EXAMPLES: &str = "\
Examples:
  sudo taupe prove curl
  sudo taupe prove --duration 10 --json firefox-esr
  sudo taupe prove --tunnel home 4711";

#[derive(Args)]
pub(super) struct ProveArguments {
    /// Path of an executable, its name in PATH, or a process ID
    #[arg(value_name = "APP", value_hint = ValueHint::CommandName)]
    app: OsString,
    /// Tunnel [default: the one that selects APP]
    #[arg(long, value_name = "NAME")]
    tunnel: Option<String>,
    /// Observe for this long
    #[arg(long, value_name = "SECONDS", default_value_t = 60,
        value_parser = clap::value_parser!(u16).range(1..=3600))]
    duration: u16,
    /// Send the STUN probe to this server
    ///
    /// The port is 3478 unless it is given.
    #[arg(long, value_name = "ADDRESS[:PORT]")]
    stun: Option<StunServer>,
    /// Send no packet in clear to test the capture
    #[arg(long)]
    no_control: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ProveArguments {
    pub(super) fn order(self) -> ProveOrder {
        ProveOrder {
            application: self.app,
            tunnel: self.tunnel,
            duration: Duration::from_secs(self.duration.into()),
            stun: self.stun.map(|StunServer(address)| address),
            control: !self.no_control,
            json: self.json,
        }
    }
}

/// Address of a STUN server. A name would have to be looked up in clear.
#[derive(Clone, Copy)]
struct StunServer(SocketAddr);

impl FromStr for StunServer {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const PORT: u16 = 3478;
        let address = || text.parse::<IpAddr>().map(|address| (address, PORT).into());
        let parsed = text.parse().or_else(|_| address());
        parsed
            .map(Self)
            .map_err(|_| "expected an address, such as 192.0.2.1 or [2001:db8::1]:3478")
    }
}
