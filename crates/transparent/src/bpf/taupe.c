/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The transparent client's part inside the kernel: one object.
 *
 *   sockets.h    where sockets are made, bound and addressed: who is chosen
 *   names.h      who is asked for names instead of this machine's resolvers
 *   senders.h    sockets by their sender
 *   security.h   sockets that the hooks above don't see
 *   uplink.h     the filters of uplinks: out into the TUN, in only for others
 *   forward.h    what this machine forwards for others
 *   tunnel.h     the filter of the TUN: back to the uplink
 *   lifecycle.h  sockets from before
 *   daemon.h     whose process serves the tunnel, and its end
 *   listing.h    chosen sockets, and namespaces, for user space
 *   judged.h     the verdicts on processes, for user space
 *
 *   guards.h                whether a device has the filters
 *   verdict.h, identity.h   what the rules say of a task
 *   processes.h             the rules that processes keep and hand on
 *   subflow.h               subflows of MPTCP
 *   packet.h                what flow a packet belongs to, and where that goes
 *   state.h                 the maps
 *
 * scripts/bpf compiles it.
 */
#include "daemon.h"
#include "judged.h"
#include "lifecycle.h"
#include "listing.h"
#include "security.h"
#include "sockets.h"
#include "tunnel.h"
#include "uplink.h"

/* Helpers that look into tasks are for programs that say this. */
char _license[] SEC("license") = "Dual MIT/GPL";
