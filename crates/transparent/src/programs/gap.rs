//! Protection that transparent mode lacks on some kernels and in some environments.

use std::fmt;
use std::sync::atomic::Ordering;

use taupe_config::file::Forwarded;

use super::{Place, Programs};

/// A protection of transparent mode that does not work here, usually because the kernel lacks a
/// feature.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gap {
    /// TCP connections that a process passes to another, or starts it with, are classified late or
    /// not at all.
    Handover,
    /// Sockets of some address families are not refused.
    Families,
    /// Forwarded packets are blocked only by the filters of links.
    Forwarding,
    /// Connections to services that resolve names are not refused.
    Services,
    /// Another program decides on packets by NFQUEUE, and the senders of packets are unknown.
    Queues,
    /// TCP connections that processes outside this PID namespace had before the tunnel came up are
    /// not classified.
    Outsiders,
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Handover => {
                "TCP connections that other programs hand to selected applications, or start them \
                 with, bypass the tunnel, since this kernel does not let its functions be traced \
                 (`taupe doctor` says why)"
            }
            Self::Families => {
                "chosen applications that send below IP (AF_PACKET, AF_PPPOX, AF_XDP) or by SMC, \
                 RDS, RXRPC or TIPC do so past the tunnel, since no program of BPF LSM runs on this \
                 kernel (`taupe doctor` says why)"
            }
            Self::Forwarding => {
                "what this machine forwards goes past the tunnel by links that appear while Taupe \
                 does not run, since this kernel takes no eBPF programs in netfilter (Linux 6.4, \
                 CONFIG_NETFILTER_BPF_LINK)"
            }
            Self::Services => {
                "chosen applications that ask systemd-resolved, nscd or avahi by a Unix socket or \
                 the system bus (where /etc/nsswitch.conf has resolve or mdns, or nscd runs) have \
                 their names asked past the tunnel, since this kernel does not let such \
                 connections be refused (Linux 6.7)"
            }
            Self::Queues => {
                "if a selected application was started with an open socket, its datagrams by that \
                 socket bypass the tunnel, since another program decides on packets by NFQUEUE \
                 and this kernel does not let its functions be traced (`taupe doctor` says why): \
                 end that program, or use KillSwitch = all"
            }
            Self::Outsiders => {
                "selected applications outside this PID namespace cannot be listed from here. \
                 Their TCP connections from before the tunnel came up bypass it, and so do the \
                 programs that they had started by then: start Taupe in the machine's own PID \
                 namespace (for a container, --pid=host), or start these applications after Taupe"
            }
        })
    }
}

impl Programs {
    /// Returns the gaps that were found when the programs were attached.
    #[must_use]
    pub fn gaps(&self) -> Vec<Gap> {
        let mut gaps = Vec::new();
        for (name, place, _) in self.way.programs() {
            let gap = match place {
                Place::Entry(_) => Gap::Handover,
                Place::Security(_) => Gap::Families,
                _ => continue,
            };
            if !self.pins.link(name).exists() && !gaps.contains(&gap) {
                gaps.push(gap);
            }
        }
        let is_forwarding = self.forwarded() == Forwarded::Tunnel;
        if is_forwarding && !self.guards_forwarding() {
            gaps.push(Gap::Forwarding);
        }
        if self.names().any() && !Self::refuses_services(&self.pins) {
            gaps.push(Gap::Services);
        }
        let state = &self.maps.state;
        if state.queued.load(Ordering::Relaxed) != 0 && state.traced.load(Ordering::Relaxed) == 0 {
            gaps.push(Gap::Queues);
        }
        if state.unseen.load(Ordering::Relaxed) != 0 {
            gaps.push(Gap::Outsiders);
        }
        gaps
    }
}
