/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Sockets that are older than the hooks. */
#pragma once
#include "verdict.h"

/* Reports a socket that bypasses the tunnel to user space. */
inline_always int miss(struct bpf_iter_meta *meta)
{
	u8 one = 1;

	bpf_seq_write(meta->seq, &one, sizeof(one));
	return 0;
}

inline_always struct listener listener_of(struct sock *sk, const struct state *state)
{
	struct listener listener = {
		.address = local_of(sk),
		.family = kernel(sk->__sk_common.skc_family),
		.port = kernel(sk->__sk_common.skc_num),
		.generation = now_of(state->generation),
	};

	return listener;
}

/*
 * Goes through the files of all processes, three times. A socket shared by several
 * processes is selected if one of them is, so the first pass selects. The second pass
 * marks sockets that no rule selects any more. User space ends their conversations, and
 * the third pass releases them. Until then they stay in the tunnel. A connection is
 * never released.
 */
enum pass { CHOOSE, MARK, LET_GO };

inline_always bool is_connection(struct sock *sk)
{
	u8 tcp_state = kernel(sk->__sk_common.skc_state);
	u16 protocol = kernel(sk->sk_protocol);

	return (protocol == IPPROTO_TCP || protocol == IPPROTO_MPTCP) &&
	       tcp_state != TCP_CLOSE && tcp_state != TCP_LISTEN;
}

/* The same as note_for, in a function of its own that leaves the stack to the comparison
 * of paths. */
apart u32 note_apart(struct sock *sk, u32 verdict, u32 generation, u64 task)
{
	return note_for(sk, verdict, generation, task);
}

inline_always int classify(struct bpf_iter__task_file *context, enum pass pass)
{
	struct task_struct *task = context->task;
	struct file *file = context->file;
	struct state *state = get_state();
	struct socket *socket;
	struct owner *owner;
	struct sock *sk;
	u32 generation, verdict;
	u16 protocol;

	if (!state || !task || !file)
		return 0;
	socket = bpf_sock_from_file(file);
	if (!socket)
		return 0;
	/* A process that is ending has no executable to compare. */
	if (!kernel(task->mm))
		return 0;
	sk = socket->sk;
	if (!sk || !is_here(sk, state))
		return 0;
	generation = now_of(state->generation);
	owner = bpf_sk_storage_get(&sockets, sk, NULL, 0);
	if (owner && owner->generation == generation && owner->verdict != DIRECT &&
	    owner->verdict != LEAVING)
		return 0;
	/* As a number: the verifier does not let a checked pointer be used like this. */
	verdict = verdict_on((u64)kernel(context->task), generation);
	/* An existing socket cannot be refused, so it goes into the tunnel. */
	if (verdict == UNTOLD)
		verdict = TUNNEL;
	if (verdict == DIRECT && owner) {
		if (pass == CHOOSE || owner->generation == generation)
			return 0;
		if (is_inside(owner->verdict) && (pass == MARK || is_connection(sk)))
			now_of(owner->verdict) = LEAVING;
		else
			now_of(owner->verdict) = DIRECT;
		return 0;
	}
	if (!is_noted(verdict, state))
		return 0;
	if (!note_apart(sk, verdict, generation, (u64)kernel(context->task)))
		return miss(context->meta);
	bpf_get_socket_cookie(sk);
	protocol = kernel(sk->sk_protocol);
	if (verdict == TUNNEL && (protocol == IPPROTO_TCP || protocol == IPPROTO_MPTCP) &&
	    kernel(sk->__sk_common.skc_state) == TCP_LISTEN) {
		struct listener listener = listener_of(sk, state);
		u32 one = 1;

		if (bpf_map_update_elem(&listeners, &listener, &one, 0))
			return miss(context->meta);
	}
	return 0;
}

SEC("iter/task_file")
int taupe_classify(struct bpf_iter__task_file *context)
{
	return classify(context, CHOOSE);
}

SEC("iter/task_file")
int taupe_leaving(struct bpf_iter__task_file *context)
{
	return classify(context, MARK);
}

SEC("iter/task_file")
int taupe_let_go(struct bpf_iter__task_file *context)
{
	return classify(context, LET_GO);
}

/*
 * Connections that wait to be accepted belong to no process yet, and may be older than
 * the verdict that they would inherit from their listener. To be read after the
 * iterators above.
 */
SEC("iter/tcp")
int taupe_heirs(struct bpf_iter__tcp *context)
{
	struct sock_common *common = context->sk_common;
	struct state *state = get_state();
	struct sock *sk = (void *)common;
	struct listener listener;
	struct owner *owner;
	u32 generation, verdict = TUNNEL;
	u8 tcp_state;

	if (!state || !common)
		return 0;
	/* Sockets in other states have no `struct sock`, or belong to a process. */
	tcp_state = kernel(common->skc_state);
	if (tcp_state != TCP_ESTABLISHED && tcp_state != TCP_SYN_RECV &&
	    tcp_state != TCP_CLOSE_WAIT)
		return 0;
	if (kernel(sk->sk_socket))
		return 0;
	generation = now_of(state->generation);
	/* It has already inherited a verdict. */
	owner = bpf_sk_storage_get(&sockets, common, NULL, 0);
	if (owner && (owner->verdict != DIRECT || owner->generation == generation))
		return 0;
	listener = listener_of(sk, state);
	if (!bpf_map_lookup_elem(&listeners, &listener)) {
		/* A listener on all addresses. */
		listener.address = (struct address){};
		if (!bpf_map_lookup_elem(&listeners, &listener))
			verdict = DIRECT;
	}
	if (!is_noted(verdict, state))
		return 0;
	if (!note(common, verdict, generation))
		return miss(context->meta);
	bpf_get_socket_cookie(common);
	return 0;
}
