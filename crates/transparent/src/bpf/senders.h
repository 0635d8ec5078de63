/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The sender of a packet instead of the creator of its socket.
 *
 * A selected application may send by a socket that it was started with or that it
 * received. Address hooks do not run if such a socket is already connected, raw, or of
 * ICMP. If the kernel's functions can be traced, security.h sees each sender; before
 * Linux 6.5 it misses splice and sendfile. In all other cases datagrams are judged at
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
inline_always struct sock *sock_of(struct __sk_buff *skb)
{
	return kernel(((struct sk_buff *)skb)->sk);
}

/* Checks that the kernel has created a socket for itself. The kernel sends by these
 * while any task runs. Some have a file, for example those of NFS since Linux 5.18.
 * Subflows of MPTCP are created by the kernel too, but for a process, to whose
 * connection they are grafted. */
inline_always bool is_made_by_kernel(struct sock *sk)
{
	struct socket *socket = kernel(sk->sk_socket);

	return kernel_bit(sk, sk_kern_sock) && (!socket || kernel(socket->sk) == sk);
}

/* Checks that senders are determined at egress. */
inline_always bool guesses(const struct state *state)
{
	bool has_sendpage = member_exists(((struct proto_ops *)0)->sendpage);

	return !now_of(state->queued) && (has_sendpage || !now_of(state->traced));
}

/* Checks that a process has the socket open. */
inline_always bool is_open_by_process(struct sock *sk)
{
	struct socket___file *socket = (void *)kernel(sk->sk_socket);

	return socket && kernel(socket->file) && !is_made_by_kernel(sk);
}

/* Checks that the running task sends a packet of this socket. By sockets that carry a
 * tunnel (L2TP, OpenVPN, ESP in UDP) the kernel sends while any task runs. */
inline_always bool is_sent_by_caller(struct bpf_sock *full, struct sock *sk)
{
	bool is_udp = full->protocol == IPPROTO_UDP || full->protocol == IPPROTO_UDPLITE;

	if (!is_udp && full->type != SOCK_RAW && full->protocol != IPPROTO_ICMP &&
	    full->protocol != IPPROTO_ICMPV6)
		return false;
	if (!is_open_by_process(sk))
		return false;
	return !is_udp || full->type == SOCK_RAW || !kernel(((struct udp_sock *)sk)->encap_type);
}

/* The sender of a packet whose socket is not selected. */
enum sender {
	/* Irrelevant for the verdict. */
	SENDER_ANY,
	/* The running task. */
	SENDER_CALLER,
	/* Unknown. Under LOCK_EVERYBODY every socket that a process has created or used
	 * has storage. This one is older, and no process was found to have it. */
	SENDER_UNKNOWN,
};

apart enum sender sender_of(struct __sk_buff *skb, struct bpf_sock *full, u32 verdict)
{
	struct state *state = get_state();
	struct sock *sk;
	bool is_for_all, is_guessed;

	if (!state)
		return SENDER_ANY;
	is_for_all = now_of(state->lock) == LOCK_EVERYBODY;
	is_guessed = full->protocol != IPPROTO_TCP && guesses(state);
	if (!is_guessed && !is_for_all)
		return SENDER_ANY;
	sk = sock_of(skb);
	if (!is_here(sk, state))
		return SENDER_ANY;
	if (is_guessed && is_sent_by_caller(full, sk))
		return SENDER_CALLER;
	if (verdict == UNMARKED && is_for_all &&
	    (kernel(sk->sk_socket) ? is_open_by_process(sk) : !is_made_by_kernel(sk)))
		return SENDER_UNKNOWN;
	return SENDER_ANY;
}

/* Combined with DIRECT: the running task has sent by this socket before, as the same
 * program and under the same rules. */
#define SETTLED (1 << 8)

apart u32 verdict_before(struct bpf_sock *sk)
{
	struct owner *owner = bpf_sk_storage_get(&sockets, sk, NULL, 0);
	struct state *state = get_state();

	if (!owner)
		return verdict_of_connection(sk);
	if (state && now_of(owner->verdict) == DIRECT && now_of(owner->who) && guesses(state) &&
	    now_of(owner->who) == who_runs(now_of(state->generation)))
		return DIRECT | SETTLED;
	return owner->verdict;
}

/*
 * Returns the verdict on the socket of a packet that leaves. UNTOLD: the packet must be
 * dropped, and has been counted. The socket may so far have the verdict of an unselected
 * creator, or none. The comparison of paths leaves 32 bytes of stack to the caller, so
 * larger steps are in functions of their own.
 */
inline_always u32 verdict_leaving(struct __sk_buff *skb, struct bpf_sock *sk)
{
	u32 verdict = verdict_before(sk);
	struct bpf_sock *full;
	struct state *state;

	if (verdict & SETTLED)
		return DIRECT;
	if (verdict != UNMARKED && verdict != DIRECT)
		return verdict;
	full = bpf_sk_fullsock(sk);
	if (!full)
		return verdict;
	switch (sender_of(skb, full, verdict)) {
	case SENDER_ANY:
		return verdict;
	case SENDER_UNKNOWN:
		count(R_OWNER_UNKNOWN);
		return UNTOLD;
	case SENDER_CALLER:
		break;
	}
	state = get_state();
	if (!state)
		return verdict;
	verdict = used(full, state, true);
	if (verdict == UNTOLD)
		count(R_PATH_TOO_DEEP);
	if (verdict == UNMARKED) {
		count(R_SOCKET_WITHOUT_STORAGE);
		verdict = UNTOLD;
	}
	return verdict;
}
