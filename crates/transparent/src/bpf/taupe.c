/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The eBPF programs of transparent mode, as one object.
 *
 *    sockets.h        creation, binding and addressing of sockets: which are selected
 *    dns.h            DNS queries to local resolvers
 *    senders.h        sockets by their sender
 *    security.h       sockets that the hooks above do not see
 *    uplink.h         the filters of uplinks, egress and ingress
 *    forward.h        packets that this machine forwards for others
 *    tunnel.h         the filters of the TUN
 *    classify.h       sockets from before the tunnel
 *    daemon.h         the process that serves the tunnel, and its end
 *    socket_list.h    lists of selected sockets and of namespaces, for user space
 *    verdict_list.h   the verdicts on processes, for user space
 *
 *    guards.h                   checks that a device has the filters
 *    verdict.h, identity.h      verdicts on tasks by the rules
 *    path_walk.h, path_lookup.h rules about paths; the latter for old kernels
 *    processes.h                rules that processes keep and hand on
 *    subflow.h                  subflows of MPTCP
 *    packet.h, headers.h        the flow of a packet
 *    destination.h              the class of a destination
 *    records.h                  the records of the lists
 *    state.h                    the maps
 *
 * scripts/bpf compiles it.
 */
#include "daemon.h"
#include "verdict_list.h"
#include "classify.h"
#include "socket_list.h"
#include "security.h"
#include "sockets.h"
#include "tunnel.h"
#include "uplink.h"

/* Helpers that read tasks require a license compatible with the GPL. */
char _license[] SEC("license") = "Dual MIT/GPL";
