/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The process that serves the tunnel, and the end of processes. */
#pragma once
#include "processes.h"

/*
 * Makes the reader the daemon. In a PID namespace a process cannot learn its PID outside
 * in another way.
 */
SEC("iter/task")
int taupe_adopt(void *context)
{
	struct state *state = get_state();

	if (state)
		WRITE_ONCE(state->daemon, bpf_get_current_pid_tgid() >> 32);
	return 0;
}

/*
 * When the daemon has ended, nobody reads the TUN, and packets sent there would be lost
 * silently. Setting the tunnel down lets applications get an error instead.
 */
SEC("tp_btf/sched_process_exit")
int taupe_exit(u64 *arguments)
{
	struct task_struct *task = (void *)arguments[0];
	struct state *state = get_state();
	struct signal_struct *signal;

	signal = core_read(task->signal);
	/* Other threads of the process are still running. */
	if (!state || core_read(signal->live.counter) > 0)
		return 0;
	delete_process(task);
	if (core_read(task->tgid) != (s32)state->daemon)
		return 0;
	WRITE_ONCE(state->up, 0);
	/* The PID will be reused. */
	WRITE_ONCE(state->daemon, 0);
	return 0;
}
