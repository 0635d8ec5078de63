/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Sockets that are older than the hooks. */
#pragma once
#include "verdict.h"

static __always_inline int report(struct bpf_iter_meta *meta, u8 what)
{
	bpf_seq_write(meta->seq, &what, sizeof(what));
	return 0;
}

static __always_inline struct listener listener_of(struct sock *sk, const struct state *state)
{
	struct listener listener = {
		.address = local_address(sk),
		.family = core_read(sk->__sk_common.skc_family),
		.port = core_read(sk->__sk_common.skc_num),
		.generation = READ_ONCE(state->generation),
	};

	return listener;
}

/* Returns true if the process that replaces the rules runs this pass now. */
static __always_inline bool is_permitted(enum pass pass, u32 generation, const struct state *state)
{
	return READ_ONCE(state->permitted_pass) == ((u64)generation << PASS_SHIFT | pass);
}

/*
 * Goes through the files of all processes, three times. A socket shared by several
 * processes is selected if one of them is, so the first pass selects. The second pass
 * marks sockets that no rule selects any more. User space ends their conversations, and
 * the third pass releases them. Until then they stay in the tunnel. A connection is
 * never released, and neither is a socket that the second pass has missed: the third one
 * only marks it, until rules are replaced again.
 */
static __always_inline bool is_connection(struct sock *sk)
{
	u8 tcp_state = core_read(sk->__sk_common.skc_state);
	u16 protocol = core_read(sk->sk_protocol);

	return (protocol == IPPROTO_TCP || protocol == IPPROTO_MPTCP) &&
	       tcp_state != TCP_CLOSE && tcp_state != TCP_LISTEN;
}

/* The same as store_verdict_for, in a function of its own that leaves the stack to the
 * comparison of paths. */
static __noinline u32 store_verdict_for_task(struct sock *sk, u32 verdict, u32 generation, u64 task)
{
	return store_verdict_for(sk, verdict, generation, task);
}

/* Notes where a selected socket listens. Returns false if there is no memory for it. A function of
 * its own, since its caller has no stack left. */
static __noinline bool note_listener(struct sock *sk)
{
	struct state *state = get_state();
	u16 protocol = core_read(sk->sk_protocol);
	struct listener listener;
	u32 one = 1;

	if (!state || (protocol != IPPROTO_TCP && protocol != IPPROTO_MPTCP) ||
	    core_read(sk->__sk_common.skc_state) != TCP_LISTEN)
		return true;
	listener = listener_of(sk, state);
	return !bpf_map_update_elem(&listeners, &listener, &one, 0);
}

static __always_inline int classify(struct bpf_iter__task_file *context, enum pass pass)
{
	struct task_struct *task = context->task;
	struct file *file = context->file;
	struct state *state = get_state();
	struct socket *socket;
	struct sock_verdict *stored;
	struct sock *sk;
	u32 generation, verdict;

	if (!state || !task || !file)
		return 0;
	socket = bpf_sock_from_file(file);
	if (!socket)
		return 0;
	/* A process that is ending has no executable to compare. */
	if (!core_read(task->mm))
		return 0;
	sk = socket->sk;
	if (!sk || !is_in_netns(sk, state))
		return 0;
	generation = READ_ONCE(state->generation);
	if (!is_permitted(pass, generation, state))
		return 0;
	stored = bpf_sk_storage_get(&sockets, sk, NULL, 0);
	if (stored && stored->generation == generation && stored->verdict != DIRECT &&
	    stored->verdict != LEAVING)
		return 0;
	/* As a number: the verifier does not let a checked pointer be used like this. */
	verdict = verdict_on((u64)core_read(context->task), generation);
	/* An existing socket cannot be refused, so it goes into the tunnel. */
	if (verdict == UNDETERMINED)
		verdict = TUNNEL;
	if (verdict == DIRECT && stored) {
		if (pass == PASS_SELECT || stored->generation == generation)
			return 0;
		if (pass == PASS_RELEASE && stored->verdict == TUNNEL) {
			/* So that this pass does not release it by another descriptor. */
			stored->generation = generation;
			WRITE_ONCE(stored->verdict, LEAVING);
		} else if (is_tunnelled(stored->verdict) &&
			   (pass == PASS_MARK_LEAVING || is_connection(sk))) {
			WRITE_ONCE(stored->verdict, LEAVING);
		} else {
			WRITE_ONCE(stored->verdict, DIRECT);
		}
		return 0;
	}
	if (!is_verdict_stored(verdict, state))
		return 0;
	if (!store_verdict_for_task(sk, verdict, generation, (u64)core_read(context->task)))
		return report(context->meta, REPORT_UNMARKED);
	bpf_get_socket_cookie(sk);
	if (verdict == TUNNEL && !note_listener(sk))
		return report(context->meta, REPORT_UNMARKED);
	if (verdict == TUNNEL && pass == PASS_RELEASE)
		return report(context->meta, REPORT_SELECTED);
	return 0;
}

SEC("iter/task_file")
int taupe_classify(struct bpf_iter__task_file *context)
{
	return classify(context, PASS_SELECT);
}

SEC("iter/task_file")
int taupe_leaving(struct bpf_iter__task_file *context)
{
	return classify(context, PASS_MARK_LEAVING);
}

SEC("iter/task_file")
int taupe_release(struct bpf_iter__task_file *context)
{
	return classify(context, PASS_RELEASE);
}

/*
 * Connections that wait to be accepted belong to no process yet, and may be older than
 * the verdict that they would inherit from their listener. To be read after the
 * iterators above.
 */
SEC("iter/tcp")
int taupe_pending(struct bpf_iter__tcp *context)
{
	struct sock_common *common = context->sk_common;
	struct state *state = get_state();
	struct sock *sk = (void *)common;
	struct listener listener;
	struct sock_verdict *stored;
	u32 generation, verdict = TUNNEL;
	u8 tcp_state;

	if (!state || !common)
		return 0;
	/* Sockets in other states have no `struct sock`, or belong to a process. */
	tcp_state = core_read(common->skc_state);
	if (tcp_state != TCP_ESTABLISHED && tcp_state != TCP_SYN_RECV &&
	    tcp_state != TCP_CLOSE_WAIT)
		return 0;
	if (core_read(sk->sk_socket))
		return 0;
	generation = READ_ONCE(state->generation);
	if (!is_permitted(PASS_PENDING, generation, state))
		return 0;
	/* It has already inherited a verdict. */
	stored = bpf_sk_storage_get(&sockets, common, NULL, 0);
	if (stored && (stored->verdict != DIRECT || stored->generation == generation))
		return 0;
	listener = listener_of(sk, state);
	if (!bpf_map_lookup_elem(&listeners, &listener)) {
		/* A listener on all addresses. */
		listener.address = (struct address){};
		if (!bpf_map_lookup_elem(&listeners, &listener))
			verdict = DIRECT;
	}
	if (!is_verdict_stored(verdict, state))
		return 0;
	if (!store_verdict(common, verdict, generation))
		return report(context->meta, REPORT_UNMARKED);
	bpf_get_socket_cookie(common);
	return verdict == TUNNEL ? report(context->meta, REPORT_SELECTED) : 0;
}
