/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The sender of a packet instead of the creator of its socket.
 *
 * A selected application may send by a socket that it was started with or that it
 * received. Address hooks do not run if such a socket is already connected, raw, or of
 * ICMP. If the kernel's functions can be traced, security.h sees each sender; before
 * Linux 6.5 it misses splice and sendfile. In all other cases datagrams get a verdict at
 * egress: they leave within the system call that sends them, so the running task is
 * their sender. There are two exceptions, in which no sender is assumed:
 *
 *    TCP      also sends from timers and on acknowledgements
 *    NFQUEUE  a packet leaves while the program runs that has decided on it
 */
#pragma once
#include "verdict.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct socket___file {
	struct file *file;
};

struct udp_sock {
	u8 encap_type;
};

/* Until Linux 6.5. */
struct proto_ops {
	void *sendpage;
};

#pragma clang attribute pop

/* Returns the kernel's structure of a packet's socket, as an address for loads. */
static __always_inline struct sock *kernel_sock(struct __sk_buff *skb)
{
	return core_read(((struct sk_buff *)skb)->sk);
}

/* Checks that the kernel has created a socket for itself. The kernel sends by these
 * while any task runs. Some have a file, for example those of NFS since Linux 5.18.
 * Subflows of MPTCP are created by the kernel too, but for a process, to whose
 * connection they are grafted. */
static __always_inline bool is_kernel_sock(struct sock *sk)
{
	struct socket *socket = core_read(sk->sk_socket);

	return core_read_bit(sk, sk_kern_sock) && (!socket || core_read(socket->sk) == sk);
}

/* Returns true if the sender of a packet is inferred at egress. */
static __always_inline bool infers_sender(const struct state *state)
{
	bool has_sendpage = core_field_exists(((struct proto_ops *)0)->sendpage);

	return !READ_ONCE(state->nfqueue_active) &&
	       (has_sendpage || !READ_ONCE(state->senders_traced));
}

/* Checks that a process has the socket open. */
static __always_inline bool is_open_by_process(struct sock *sk)
{
	struct socket___file *socket = (void *)core_read(sk->sk_socket);

	return socket && core_read(socket->file) && !is_kernel_sock(sk);
}

/* Checks that the running task sends a packet of this socket. By sockets that carry a
 * tunnel (L2TP, OpenVPN, ESP in UDP) the kernel sends while any task runs. */
static __always_inline bool is_sent_by_current(struct bpf_sock *full, struct sock *sk)
{
	bool is_udp = full->protocol == IPPROTO_UDP || full->protocol == IPPROTO_UDPLITE;

	if (!is_udp && full->type != SOCK_RAW && full->protocol != IPPROTO_ICMP &&
	    full->protocol != IPPROTO_ICMPV6)
		return false;
	if (!is_open_by_process(sk))
		return false;
	return !is_udp || full->type == SOCK_RAW || !core_read(((struct udp_sock *)sk)->encap_type);
}

/* The sender of a packet whose socket is not selected. */
enum sender {
	/* Irrelevant for the verdict. */
	SENDER_ANY,
	/* The running task. */
	SENDER_CURRENT,
	/* Unknown. Under LOCK_ALL every socket that a process has created or used
	 * has storage. This one is older, and no process was found to have it. */
	SENDER_UNKNOWN,
};

static __noinline enum sender sender_of(struct __sk_buff *skb, struct bpf_sock *full, u32 verdict)
{
	struct state *state = get_state();
	struct sock *sk;
	bool is_for_all, is_inferred;

	if (!state)
		return SENDER_ANY;
	is_for_all = READ_ONCE(state->lock) == LOCK_ALL;
	is_inferred = full->protocol != IPPROTO_TCP && infers_sender(state);
	if (!is_inferred && !is_for_all)
		return SENDER_ANY;
	sk = kernel_sock(skb);
	if (!is_in_netns(sk, state))
		return SENDER_ANY;
	if (is_inferred && is_sent_by_current(full, sk))
		return SENDER_CURRENT;
	if (verdict == UNCLASSIFIED && is_for_all &&
	    (core_read(sk->sk_socket) ? is_open_by_process(sk) : !is_kernel_sock(sk)))
		return SENDER_UNKNOWN;
	return SENDER_ANY;
}

/* Combined with DIRECT: the running task has sent by this socket before, as the same
 * program and under the same rules. */
#define CACHED (1 << 8)

static __noinline u32 known_verdict(struct bpf_sock *sk)
{
	struct sock_verdict *stored = bpf_sk_storage_get(&sockets, sk, NULL, 0);
	struct state *state = get_state();

	if (!stored)
		return mptcp_verdict(sk);
	if (state && READ_ONCE(stored->verdict) == DIRECT &&
	    READ_ONCE(stored->unselected_task) && infers_sender(state) &&
	    READ_ONCE(stored->unselected_task) == current_task_id(READ_ONCE(state->generation)))
		return DIRECT | CACHED;
	return stored->verdict;
}

/*
 * Returns the verdict on the socket of a packet that leaves. UNDETERMINED: the packet must
 * be dropped, and has been counted. The socket may so far have the verdict of an unselected
 * creator, or none. The comparison of paths leaves 32 bytes of stack to the caller, so
 * larger steps are in functions of their own.
 */
static __always_inline u32 egress_verdict(struct __sk_buff *skb, struct bpf_sock *sk)
{
	u32 verdict = known_verdict(sk);
	struct bpf_sock *full;
	struct state *state;

	if (verdict & CACHED)
		return DIRECT;
	if (verdict != UNCLASSIFIED && verdict != DIRECT)
		return verdict;
	full = bpf_sk_fullsock(sk);
	if (!full)
		return verdict;
	switch (sender_of(skb, full, verdict)) {
	case SENDER_ANY:
		return verdict;
	case SENDER_UNKNOWN:
		count(R_OWNER_UNKNOWN);
		return UNDETERMINED;
	case SENDER_CURRENT:
		break;
	}
	state = get_state();
	if (!state)
		return verdict;
	verdict = verdict_on_use(full, state, true);
	if (verdict == UNDETERMINED)
		count(R_PATH_TOO_DEEP);
	if (verdict == UNCLASSIFIED) {
		count(R_SOCKET_WITHOUT_STORAGE);
		verdict = UNDETERMINED;
	}
	return verdict;
}
