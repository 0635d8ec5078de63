/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The process that serves the tunnel, and the end of processes. */
#pragma once
#include "processes.h"

/*
 * Makes the reader the daemon, and finds the packet processes that it has named. In a PID
 * namespace a process cannot learn PIDs outside in another way.
 */
SEC("iter/task")
int taupe_adopt(struct bpf_iter__task *context)
{
	struct task_struct *task = core_read(context->task);
	struct state *state = get_state();
	u32 id;

	if (!state)
		return 0;
	WRITE_ONCE(state->daemon, bpf_get_current_pid_tgid() >> 32);
	if (!task || core_read(task->group_leader) != task)
		return 0;
	id = pid_for_reader(task);
	if (!id)
		return 0;
#pragma unroll
	for (int i = 0; i < PACKET_PROCESSES; i++) {
		if (id == state->named_packet_processes[i])
			WRITE_ONCE(state->packet_processes[i], core_read(task->tgid));
	}
	return 0;
}

/*
 * When a process that serves the tunnel has ended, nobody reads the TUN, and packets sent
 * there would be lost silently. Setting the tunnel down lets applications get an error
 * instead.
 */
SEC("tp_btf/sched_process_exit")
int taupe_exit(u64 *arguments)
{
	struct task_struct *task = (void *)arguments[0];
	struct state *state = get_state();
	struct signal_struct *signal;
	u32 id;

	signal = core_read(task->signal);
	/* Other threads of the process are still running. */
	if (!state || core_read(signal->live.counter) > 0)
		return 0;
	delete_process(task);
	if (!serves_tunnel(task, state))
		return 0;
	WRITE_ONCE(state->up, 0);
	/* The PID will be reused. */
	id = core_read(task->tgid);
	if (id == state->daemon)
		WRITE_ONCE(state->daemon, 0);
#pragma unroll
	for (int i = 0; i < PACKET_PROCESSES; i++) {
		if (id == state->packet_processes[i])
			WRITE_ONCE(state->packet_processes[i], 0);
	}
	return 0;
}
