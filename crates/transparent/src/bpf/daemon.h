/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The process that serves the tunnel, and the end of processes. */
#pragma once
#include "processes.h"

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
 * When the daemon is gone nobody reads the TUN, and what is sent there would be
 * lost without a word. So that applications are told instead.
 */
SEC("tp_btf/sched_process_exit")
int taupe_exit(u64 *arguments)
{
	struct task_struct *task = (void *)arguments[0];
	struct state *state = get_state();
	struct signal_struct *signal;

	signal = kernel(task->signal);
	/* Other threads of it still run. */
	if (!state || kernel(signal->live.counter) > 0)
		return 0;
	forget_process(task);
	if (kernel(task->tgid) != (s32)state->daemon)
		return 0;
	now_of(state->up) = 0;
	/* Its number will be somebody else's. */
	now_of(state->daemon) = 0;
	return 0;
}
