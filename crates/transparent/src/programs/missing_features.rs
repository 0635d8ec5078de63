//! Protections of transparent mode that do not work on some kernels and in some environments.

use std::fmt;
use std::sync::atomic::Ordering;

use taupe_config::file::Forwarded;

use super::{AttachPoint, Attached, CaptureMode, Programs};
use crate::pins::Pins;
use crate::state::State;

/// A protection of transparent mode that does not work here, usually because the kernel lacks a
/// feature.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MissingFeature {
    /// TCP connections that a process passes to another, or starts it with, are classified late or
    /// not at all.
    SocketHandover,
    /// Sockets of some address families are not refused.
    SocketFamilies,
    /// Forwarded packets are blocked only by the filters of links.
    Forwarding,
    /// Connections to services that resolve names are not refused.
    NameServices,
    /// Another program decides on packets by NFQUEUE, and the senders of packets are unknown.
    Nfqueue,
    /// TCP connections that processes outside this PID namespace had before the tunnel came up are
    /// not classified.
    PidNamespaces,
}

impl fmt::Display for MissingFeature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SocketHandover => {
                "TCP connections that other programs hand to selected applications, or start them \
                 with, bypass the tunnel, since this kernel does not let its functions be traced"
            }
            Self::SocketFamilies => {
                "selected applications that send below IP (AF_PACKET, AF_PPPOX, AF_XDP) or by SMC, \
                 RDS, RXRPC or TIPC bypass the tunnel, since BPF LSM, or Taupe's program for it, does not run on this \
                 kernel"
            }
            Self::Forwarding => {
                "packets that this machine forwards bypass the tunnel by links that appear while \
                 Taupe does not run, since this kernel has no eBPF programs in netfilter (Linux \
                 6.4, CONFIG_NETFILTER_BPF_LINK)"
            }
            Self::NameServices => {
                "names of selected applications are resolved outside the tunnel if they ask \
                 systemd-resolved, nscd or avahi by a Unix socket or the system bus (if \
                 /etc/nsswitch.conf has resolve or mdns, or nscd runs), since this kernel cannot \
                 refuse such connections (Linux 6.7)"
            }
            Self::Nfqueue => {
                "if a selected application was started with an open socket, its datagrams by that \
                 socket bypass the tunnel, since another program decides on packets by NFQUEUE \
                 and this kernel does not let its functions be traced: end that program, or use \
                 KillSwitch = all"
            }
            Self::PidNamespaces => {
                "selected applications outside this PID namespace cannot be listed from here. \
                 Their TCP connections from before the tunnel came up bypass it, and so do the \
                 programs that they had started by then: start Taupe in the machine's own PID \
                 namespace (for a container, --pid=host), or start these applications after Taupe"
            }
        })
    }
}

impl Programs {
    /// Returns the features that were found missing when the programs were attached.
    #[must_use]
    pub fn missing_features(&self) -> Vec<MissingFeature> {
        missing_features(self.tunnel.mode, &self.tunnel.pins, &self.tunnel.maps.state)
    }
}

impl Attached {
    /// Like [`Programs::missing_features`], of programs that another process has attached.
    pub(crate) fn missing_features(&self) -> Vec<MissingFeature> {
        missing_features(self.mode, &self.pins, &self.state)
    }
}

fn missing_features(mode: CaptureMode, pins: &Pins, state: &State) -> Vec<MissingFeature> {
    let mut missing = Vec::new();
    for program in mode.programs() {
        let feature = match program.attach_point {
            AttachPoint::Entry(_) => MissingFeature::SocketHandover,
            AttachPoint::Security(_) => MissingFeature::SocketFamilies,
            _ => continue,
        };
        if !pins.link(program.name).exists() && !missing.contains(&feature) {
            missing.push(feature);
        }
    }
    if state.forwarded() == Forwarded::Tunnel && !Programs::guards_forwarding(pins) {
        missing.push(MissingFeature::Forwarding);
    }
    if state.dns().has_servers() && !Programs::refuses_services(pins) {
        missing.push(MissingFeature::NameServices);
    }
    if state.nfqueue_active.load(Ordering::Relaxed) != 0
        && state.senders_traced.load(Ordering::Relaxed) == 0
    {
        missing.push(MissingFeature::Nfqueue);
    }
    if state.unlisted_processes.load(Ordering::Relaxed) != 0 {
        missing.push(MissingFeature::PidNamespaces);
    }
    missing
}
