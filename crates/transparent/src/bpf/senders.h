/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Sockets by their sender instead of their maker.
 *
 * A selected application may send by a socket that it was started with or was handed. Hooks
 * of addresses do not run where such a socket is connected already, raw or of ICMP.
 * security.h sees each sender where the kernel lets its functions be traced; before Linux 6.5
 * all but those that splice or use sendfile. Elsewhere, and for these, datagrams are seen at
 * egress: they leave while the system call that sends them runs, so the running task is their
 * sender. That is not so in two cases, in which nothing is guessed:
 *
 *   TCP      also sends from timers and on behalf of acknowledgements
 *   NFQUEUE  a packet that a program has decided on leaves while that program runs
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

/* The kernel's structure of a packet's socket, as an address that loads take. */
inline_always struct sock *sock_of(struct __sk_buff *skb)
{
	return kernel(((struct sk_buff *)skb)->sk);
}

/* Checks that the kernel has made a socket for itself. It sends by these while any task runs.
 * Some have a file, as those of NFS since Linux 5.18. The kernel makes subflows of MPTCP too, but
 * for a process, whose connection they are grafted to. */
inline_always bool is_made_by_kernel(struct sock *sk)
{
	struct socket *socket = kernel(sk->sk_socket);

	return kernel_bit(sk, sk_kern_sock) && (!socket || kernel(socket->sk) == sk);
}

/* Checks that senders are looked for at egress. */
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

/* Checks that a packet of this socket is sent by the running task. The kernel sends by
 * sockets that carry a tunnel (L2TP, OpenVPN, ESP in UDP) while any task runs. */
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

/* What is known of the sender of a packet whose socket is not selected. */
enum sender {
	/* Nothing that changes the verdict. */
	SENDER_ANY,
	/* It is the running task. */
	SENDER_CALLER,
	/* Under LOCK_EVERYBODY every socket that a process has made or used has storage. This one
	 * is older, and no process was found that has it. */
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

/* Beside DIRECT: the running task has sent by this socket before, as the same program and
 * under the same rules. */
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
 * The verdict on the socket of a packet that leaves; UNTOLD where the packet has to be
 * dropped, which is counted. Until now the socket may have been noted as an unselected
 * maker's, or not at all. Comparing paths leaves 32 bytes of stack to the caller, so what
 * needs more is in functions of its own.
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
