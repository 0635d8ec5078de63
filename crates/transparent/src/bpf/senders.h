/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Sockets by their sender instead of their maker.
 *
 * A selected application may send by a socket that it was started with or was handed. Hooks
 * of addresses do not run where such a socket is connected already, raw or of ICMP. But
 * datagrams leave while the system call that sends them runs, so at egress the running task
 * is their sender. That is not so of TCP, which also sends from timers and on behalf of
 * acknowledgements: whichever task runs then has nothing to do with the packet.
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

#pragma clang attribute pop

/* The kernel's structure of a packet's socket, as an address that loads take. */
inline_always struct sock *sock_of(struct __sk_buff *skb)
{
	return kernel(((struct sk_buff *)skb)->sk);
}

/* Checks that a process has the socket open. The kernel's own sockets have no file, and send
 * while any task runs. */
inline_always bool is_open_by_process(struct sock *sk)
{
	struct socket___file *socket = (void *)kernel(sk->sk_socket);

	return socket && kernel(socket->file);
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

/*
 * The verdict on the socket of a packet that leaves; UNTOLD where the packet has to be
 * dropped, which is counted. Until now the socket may have been noted as an unselected
 * maker's, or not at all.
 */
inline_always u32 verdict_leaving(struct __sk_buff *skb, struct bpf_sock *sk)
{
	u32 verdict = verdict_at(sk);
	struct bpf_sock *full;
	struct state *state;
	struct sock *kernels;
	bool is_for_all;

	if (verdict != UNMARKED && verdict != DIRECT)
		return verdict;
	state = get_state();
	full = bpf_sk_fullsock(sk);
	if (!state || !full)
		return verdict;
	is_for_all = now_of(state->lock) == LOCK_EVERYBODY;
	if (full->protocol == IPPROTO_TCP && !is_for_all)
		return verdict;
	kernels = sock_of(skb);
	if (!is_here(kernels, state))
		return verdict;
	if (is_sent_by_caller(full, kernels)) {
		verdict = used(full, state, true);
		if (verdict == UNTOLD)
			count(R_PATH_TOO_DEEP);
		if (verdict == UNMARKED) {
			count(R_SOCKET_WITHOUT_STORAGE);
			verdict = UNTOLD;
		}
		return verdict;
	}
	/* Under this lock every socket that a process has made or used has storage. This one is
	 * older, and no process was found that has it. */
	if (verdict == UNMARKED && is_for_all &&
	    (!kernel(kernels->sk_socket) || is_open_by_process(kernels))) {
		count(R_OWNER_UNKNOWN);
		return UNTOLD;
	}
	return verdict;
}
