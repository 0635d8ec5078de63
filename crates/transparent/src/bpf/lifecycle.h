/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Sockets that were there before the hooks, and the end of the daemon. */
#pragma once
#include "verdict.h"

/*
 * Whoever reads this is the daemon from then on: in a PID namespace it has no other
 * way to learn its number outside.
 */
SEC("iter/task")
int taupe_adopt(void *context)
{
	struct state *state = get_state();

	if (state)
		now_of(state->daemon) = bpf_get_current_pid_tgid() >> 32;
	return 0;
}

/*
 * Goes through the files of all processes. A socket that several processes have is
 * chosen if one of them is: it has to be read with all that are to be chosen first,
 * before sockets that nobody has chosen are let go.
 */
inline_always int classify(struct bpf_iter__task_file *context, bool lets_go)
{
	struct task_struct *task = context->task;
	struct file *file = context->file;
	struct state *state = get_state();
	struct socket *socket;
	struct owner *owner;
	struct sock *sk;
	u32 generation, verdict;

	if (!state || !task || !file)
		return 0;
	socket = bpf_sock_from_file(file);
	if (!socket)
		return 0;
	sk = socket->sk;
	if (!sk || !is_here(sk, state))
		return 0;
	generation = now_of(state->generation);
	owner = bpf_sk_storage_get(&sockets, sk, NULL, 0);
	if (owner && owner->generation == generation && owner->verdict != DIRECT)
		return 0;
	/* As a number, which a pointer that is checked isn't. */
	verdict = verdict_on((u64)kernel(context->task), generation);
	/* What is there already cannot be refused: it is rather in the tunnel. */
	if (verdict == UNTOLD)
		verdict = TUNNEL;
	if (verdict == DIRECT && owner) {
		if (lets_go && now_of(owner->generation) != generation)
			now_of(owner->verdict) = DIRECT;
		return 0;
	}
	if (!is_noted(verdict, state) || !note(sk, verdict, generation) || verdict != TUNNEL)
		return 0;
	if (kernel(sk->sk_protocol) == IPPROTO_TCP &&
	    kernel(sk->__sk_common.skc_state) == TCP_LISTEN) {
		struct listener listener = {
			.port = kernel(sk->__sk_common.skc_num),
			.generation = generation,
		};
		u32 one = 1;

		bpf_map_update_elem(&listeners, &listener, &one, 0);
	}
	return 0;
}

SEC("iter/task_file")
int taupe_classify(struct bpf_iter__task_file *context)
{
	return classify(context, false);
}

SEC("iter/task_file")
int taupe_let_go(struct bpf_iter__task_file *context)
{
	return classify(context, true);
}

/*
 * Connections that wait to be accepted belong to no process yet, and were made
 * before their listener had a verdict to inherit. To be read after the above.
 */
SEC("iter/tcp")
int taupe_heirs(struct bpf_iter__tcp *context)
{
	struct sock_common *common = context->sk_common;
	struct state *state = get_state();
	struct sock *sk = (void *)common;
	struct listener listener;
	u8 tcp_state;

	if (!state || !common)
		return 0;
	/* Others have no `struct sock`, or a process. */
	tcp_state = kernel(common->skc_state);
	if (tcp_state != TCP_ESTABLISHED && tcp_state != TCP_SYN_RECV &&
	    tcp_state != TCP_CLOSE_WAIT)
		return 0;
	if (kernel(sk->sk_socket))
		return 0;
	listener.port = kernel(common->skc_num);
	listener.generation = now_of(state->generation);
	if (!bpf_map_lookup_elem(&listeners, &listener))
		return 0;
	note(common, TUNNEL, now_of(state->generation));
	return 0;
}

/*
 * When the daemon is gone nobody reads the TUN, and what is sent there would be
 * lost without a word. So that applications are told instead.
 */
SEC("tp_btf/sched_process_exit")
int taupe_exit(u64 *arguments)
{
	struct task_struct *task = (void *)arguments[0];
	struct state *state = get_state();
	struct signal_struct *signal;

	if (!state || kernel(task->tgid) != (s32)state->daemon)
		return 0;
	signal = kernel(task->signal);
	/* Other threads of it still run. */
	if (kernel(signal->live.counter) > 0)
		return 0;
	now_of(state->up) = 0;
	/* Its number will be somebody else's. */
	now_of(state->daemon) = 0;
	return 0;
}
