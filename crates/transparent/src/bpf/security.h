/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Programs at the kernel's security hooks, for sockets that the cgroup hooks do not see.
 * A kernel may not support them. Then the rest still works, and the daemon reports the
 * missing feature.
 */
#pragma once
#include "senders.h"
#include "verdict.h"

/* Classifies a socket that the running task uses, and that another task may have
 * created. */
static __always_inline int classify_on_use(struct sock *sk, bool is_frequent)
{
	struct state *state = get_state();

	if (!state || !sk || !is_in_netns(sk, state))
		return 0;
	/* This hook cannot refuse anything. */
	switch (verdict_on_use(sk, state, is_frequent)) {
	case UNDETERMINED:
		if (store_verdict(sk, TUNNEL, READ_ONCE(state->generation)))
			break;
		/* fallthrough */
	case UNCLASSIFIED:
		count(R_SOCKET_WITHOUT_STORAGE);
	}
	return 0;
}

/* A socket received in a message, or taken from another process. */
SEC("fentry/security_file_receive")
int taupe_received(u64 *arguments)
{
	struct socket *socket = bpf_sock_from_file((struct file *)arguments[0]);

	return socket ? classify_on_use(socket->sk, false) : 0;
}

/* A listener inherited from the process that started this one. */
SEC("fentry/security_socket_accept")
int taupe_accepting(u64 *arguments)
{
	struct socket *listener = (struct socket *)arguments[0];

	return classify_on_use(listener->sk, false);
}

/* The accepted connection, which may be older than the listener's verdict. */
SEC("fentry/security_sock_graft")
int taupe_accepted(u64 *arguments)
{
	return classify_on_use((struct sock *)arguments[0], false);
}

/*
 * A process sends by an open socket, also with splice, sendfile (Linux 6.5) and
 * io_uring. For a connection that a program was started with, no other hook shows the
 * sender. The kernel's own sockets send while any task runs.
 */
SEC("fentry/security_socket_sendmsg")
int taupe_sending(u64 *arguments)
{
	struct socket *socket = (struct socket *)arguments[0];
	struct sock *sk = socket->sk;

	return sk && is_open_by_process(sk) ? classify_on_use(sk, true) : 0;
}

/* Packets of these are sent by sockets of the kernel, which carry no verdict. */
#define CARRIED_FAMILIES (1ULL << AF_RDS | 1ULL << AF_TIPC | 1ULL << AF_RXRPC | 1ULL << AF_SMC)
/* These send below IP. */
#define LINK_FAMILIES (1ULL << AF_PACKET | 1ULL << AF_PPPOX | 1ULL << AF_XDP)

/*
 * Sockets that no other hook sees. Sockets below IP are refused only to applications
 * that a rule names. Otherwise a rule set that selects everything except some
 * applications would also refuse programs that keep the link up (DHCP clients,
 * wpa_supplicant, pppd), and the tunnel needs the link.
 */
SEC("lsm/socket_create")
int taupe_family(u64 *arguments)
{
	struct task_struct *task = bpf_get_current_task();
	struct state *state = get_state();
	u64 family = arguments[0];
	u32 generation, bits;
	bool is_carried;

	if (!state || !is_task_in_netns(task, state))
		return 0;
	if (!READ_ONCE(state->lsm_active))
		WRITE_ONCE(state->lsm_active, 1);
	/* The kernel's own sockets. */
	if (arguments[3] || family > 63)
		return 0;
	is_carried = CARRIED_FAMILIES >> family & 1;
	if (!is_carried && !(LINK_FAMILIES >> family & 1))
		return 0;
	generation = READ_ONCE(state->generation);
	bits = task_bits((u64)task, generation);
	if (is_carried ? (bits & RULE_EXEMPT || verdict_of(bits, state, generation) == DIRECT)
		       : !(bits & (RULE_ALLOW | RULE_UNDETERMINED)))
		return 0;
	count(R_FAMILY_REFUSED);
	return -EAFNOSUPPORT;
}
