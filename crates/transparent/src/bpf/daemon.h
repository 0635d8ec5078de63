/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The process that serves the tunnel, and the end of processes. */
#pragma once
#include "processes.h"

/* Returns true if any thread of a process runs. */
static __always_inline bool is_alive(struct task_struct *task)
{
	struct signal_struct *signal = core_read(task->signal);

	return core_read(signal->live.counter) > 0;
}

/*
 * Makes the reader the daemon, and finds the packet processes that it has named among its
 * children. Writes the index of each that is alive. A process in a PID namespace has
 * no other means to learn its PID in the initial namespace.
 */
SEC("iter/task")
int taupe_adopt(struct bpf_iter__task *context)
{
	struct task_struct *task = core_read(context->task);
	struct task_struct *parent;
	struct state *state = get_state();
	u32 id, daemon;

	if (!state)
		return 0;
	daemon = bpf_get_current_pid_tgid() >> 32;
	WRITE_ONCE(state->daemon, daemon);
	if (!task || core_read(task->group_leader) != task || !is_alive(task))
		return 0;
	parent = core_read(task->real_parent);
	id = pid_for_reader(task);
	if (!id || core_read(parent->tgid) != (s32)daemon)
		return 0;
#pragma unroll
	for (u32 i = 0; i < PACKET_PROCESSES; i++) {
		u32 index = i;

		if (id != state->named_packet_processes[i])
			continue;
		WRITE_ONCE(state->packet_processes[i], core_read(task->tgid));
		bpf_seq_write(context->meta->seq, &index, sizeof(index));
	}
	return 0;
}

/*
 * When a process that serves the tunnel has ended, nobody carries packets from the TUN, and
 * packets sent there would be lost silently. Setting the tunnel down lets applications get an error
 * instead.
 */
SEC("tp_btf/sched_process_exit")
int taupe_exit(u64 *arguments)
{
	struct task_struct *task = (void *)arguments[0];
	struct state *state = get_state();
	bool is_daemon;
	u32 id;

	/* Other threads of the process are still running. */
	if (!state || is_alive(task))
		return 0;
	delete_process(task);
	if (!serves_tunnel(task, state))
		return 0;
	WRITE_ONCE(state->up, 0);
	/* The PIDs will be reused. Packet processes end with their daemon. */
	id = core_read(task->tgid);
	is_daemon = id == state->daemon;
	if (is_daemon)
		WRITE_ONCE(state->daemon, 0);
#pragma unroll
	for (u32 i = 0; i < PACKET_PROCESSES; i++) {
		if (is_daemon || id == state->packet_processes[i])
			WRITE_ONCE(state->packet_processes[i], 0);
	}
	return 0;
}
