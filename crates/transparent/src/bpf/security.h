/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Programs at the kernel's security hooks, for what the hooks of cgroups don't see. A
 * kernel may lack the means for these: then the rest holds, and the daemon says what
 * doesn't.
 */
#pragma once
#include "senders.h"
#include "verdict.h"

/* A task uses a socket that another one may have made. */
inline_always int handed(struct sock *sk, bool often)
{
	struct state *state = get_state();

	if (!state || !sk || !is_here(sk, state))
		return 0;
	/* Nothing can be refused here. */
	switch (used(sk, state, often)) {
	case UNTOLD:
		if (note(sk, TUNNEL, now_of(state->generation)))
			break;
		/* fallthrough */
	case UNMARKED:
		count(R_SOCKET_WITHOUT_STORAGE);
	}
	return 0;
}

/* By a message from another process, or by taking it out of one. */
SEC("fentry/security_file_receive")
int taupe_received(u64 *arguments)
{
	struct socket *socket = bpf_sock_from_file((struct file *)arguments[0]);

	return socket ? handed(socket->sk, false) : 0;
}

/* A listener that was inherited from whoever started the process. */
SEC("fentry/security_socket_accept")
int taupe_accepting(u64 *arguments)
{
	struct socket *listener = (struct socket *)arguments[0];

	return handed(listener->sk, false);
}

/* And the connection, which was made before the listener had a verdict. */
SEC("fentry/security_sock_graft")
int taupe_accepted(u64 *arguments)
{
	return handed((struct sock *)arguments[0], false);
}

/*
 * Something is sent by a socket that a process has open, also with splice, sendfile (Linux
 * 6.5) and io_uring. It is the only hook at which the sender by a connection is known that
 * its program was started with. The kernel's own sockets send while any task runs.
 */
SEC("fentry/security_socket_sendmsg")
int taupe_sending(u64 *arguments)
{
	struct socket *socket = (struct socket *)arguments[0];
	struct sock *sk = socket->sk;

	return sk && is_open_by_process(sk) ? handed(sk, true) : 0;
}

/* Their packets are sent by the kernel's own sockets, which carry no verdict. */
#define CARRIED_FAMILIES (1ULL << AF_RDS | 1ULL << AF_TIPC | 1ULL << AF_RXRPC | 1ULL << AF_SMC)
/* These send below IP. */
#define LINK_FAMILIES (1ULL << AF_PACKET | 1ULL << AF_PPPOX | 1ULL << AF_XDP)

/*
 * Sockets that no other hook sees. What is below IP is refused to whom a rule names: what
 * keeps a link going (DHCP clients, wpa_supplicant, pppd) would be chosen too where
 * everything is that isn't disallowed, and the tunnel needs the link.
 */
SEC("lsm/socket_create")
int taupe_family(u64 *arguments)
{
	struct task_struct *task = bpf_get_current_task();
	struct state *state = get_state();
	u64 family = arguments[0];
	u32 generation, bits;
	bool is_carried;

	if (!state || !runs_here(task, state))
		return 0;
	if (!now_of(state->secured))
		now_of(state->secured) = 1;
	/* The kernel's own. */
	if (arguments[3] || family > 63)
		return 0;
	is_carried = CARRIED_FAMILIES >> family & 1;
	if (!is_carried && !(LINK_FAMILIES >> family & 1))
		return 0;
	generation = now_of(state->generation);
	bits = task_bits((u64)task, generation);
	if (is_carried ? (bits & RULE_EXEMPT || verdict_of(bits, state, generation) == DIRECT)
		       : !(bits & (RULE_ALLOW | RULE_UNTOLD)))
		return 0;
	count(R_FAMILY_REFUSED);
	return -EAFNOSUPPORT;
}
