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
control group, so that the application's own rule selects it; no rule is added. If the application \
is not running, the probe runs as the user who called sudo, otherwise as the user `nobody`. Each \
packet of the probe has a random text in it, and the report says where the capture saw that text, \
not what the probe's socket returned.\n\n\
To verify the capture, Taupe sends one control packet at the beginning and one at the end, from a \
process that is not selected. If every process is selected or blocked, a packet socket sends them. \
If the capture does not see them, the result is \"not observed\". Probes go to the configured name \
servers and routers, the tunnel's endpoint, the local link (mDNS, broadcast), and documentation \
addresses (RFC 5737, RFC 3849), where no host answers. Everything that Taupe creates for this ends \
with it, even if it is killed: the probe's copy exists only in memory, in a mount namespace of the \
probe.";

pub(super) const PROVE_VERDICTS: &str = "\
Verdicts of probes:
  through the tunnel    The packet entered the tunnel and no other interface.
  blocked               The capture saw no packet. The socket's error follows.
  not seen              A resolver on this machine got the query, and no packet
                        was seen. The resolver may have answered itself, or it
                        encrypts its queries.
  LEAKED                The packet left by another interface.
  bypass (in file)      The packet left outside the tunnel, as the file says
                        about its destination (such as DisallowedIPs).
  not tried             A right or an address is missing; the reason follows.";

pub(super) const PROVE_LIMITS: &str = "\
Limits:
  Received packets are not judged: the capture also sees decrypted packets at
  the uplink.
  A socket that closes before Taupe has listed all sockets is missed; its
  packets count as those to which no socket fits. So do packets of raw and ping
  sockets, and packets whose destination a rule of the packet filter changes
  (DNAT in OUTPUT).
  The probe is not the application: it cannot use connections that are open
  already. An application with the same user can disturb it.";

pub(super) const PROVE_JSON: &str = "\
JSON:
  An object with `schema` (1), `result` (nothing-found, leak, not-observed) and
    reasons       codes: control-not-seen, packets-lost, tables-full,
                  sockets-unknown, probe-not-started, probe-not-selected,
                  probe-ended, no-probe-sent, interrupted
    application, tunnel, is_up, kill_switch (effect; null while it is up)
    steps         as in `taupe explain --json`
    processes     their ids
    flows         as in `taupe flows --json`
    seconds, requested_seconds, uplinks (names)
    traffic       counts of packets: wireguard_sent, wireguard_received,
                  leaked_packets, bypassing_packets, other_packets,
                  unattributed_packets, lost_packets; leaked and unattributed:
                  at most 20 flows each with interface, protocol (number),
                  source, destination, packets, after_ms;
                  uncounted_endpoints: endpoints of peers whose received
                  packets are not counted
    probe         sentence about the probe
    probes        objects with name, verdict (tunnel, blocked, not-seen, leaked,
                  by-file, not-tried), destination, interface,
                  seen_destination, after_ms, note; null if unknown
    control       tried, seen, destination, interface, by_packet_socket, note";

pub(super) const PROVE_STATUS: &str = "\
Exit status:
  0  No leak was found.
  1  A packet left outside the tunnel; the report names it.
  2  Wrong usage.
  3  Not observed: the capture missed the control or lost packets, the probe did
     not match the application's rule, a signal ended the run, or no tunnel
     selects the application.";

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
    /// Use this tunnel [default: the one selecting APP]
    #[arg(long, value_name = "NAME")]
    tunnel: Option<String>,
    /// Observe for this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60,
        value_parser = clap::value_parser!(u16).range(1..=3600))]
    duration: u16,
    /// Send the STUN probe to this server
    ///
    /// The port is 3478 unless it is given.
    #[arg(long, value_name = "ADDRESS[:PORT]")]
    stun: Option<StunServer>,
    /// Do not verify the capture with a control packet
    ///
    /// Without the control, `no leak` can also mean that the capture saw nothing.
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

/// Address of a STUN server. A name would have to be looked up outside the tunnel.
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
