/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Sockets that were there before the hooks, and the end of the daemon. */
#pragma once
#include "verdict.h"

/*
 * Goes through the files of all processes. Whoever reads this is the daemon: in
 * a PID namespace it has no other way to learn its number outside.
 *
 * A socket that several processes have is chosen if one of them is.
 */
SEC("iter/task_file")
int taupe_classify(struct bpf_iter__task_file *context)
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
	state->daemon = bpf_get_current_pid_tgid() >> 32;
	socket = bpf_sock_from_file(file);
	if (!socket)
		return 0;
	sk = socket->sk;
	if (!sk || kernel(kernel(sk->__sk_common.skc_net.net)->net_cookie) != state->netns)
		return 0;
	generation = now_of(state->generation);
	owner = bpf_sk_storage_get(&sockets, sk, NULL, 0);
	if (owner && owner->generation == generation && owner->verdict == TUNNEL)
		return 0;
	verdict = verdict_on(task, kernel(task->tgid), state, generation);
	if (!owner && verdict == TUNNEL)
		owner = bpf_sk_storage_get(&sockets, sk, NULL, SK_STORAGE_CREATE);
	if (!owner) {
		if (verdict == TUNNEL)
			count(R_SOCKET_WITHOUT_STORAGE);
		return 0;
	}
	owner->verdict = verdict;
	owner->generation = generation;
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
	return 0;
}
