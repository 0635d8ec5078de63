/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Lists the verdicts on processes and their rules, for user space. */
#pragma once
#include "verdict.h"

/* The same as in programs/processes.rs. */
struct judged {
	u32 id; /* PID in the reader's PID namespace */
	u32 bits;
	u32 verdict;
	u32 zero;
	u64 own;
	u64 inherited;
	u64 handed_on; /* the rule for programs that it starts */
};

/* Returns a process's PID in the PID namespace of the running task, or 0. */
inline_always u32 number_of(struct task_struct *task)
{
	struct task_struct *reader = bpf_get_current_task();
	struct pid *pid = kernel(task->thread_pid);
	u32 level = kernel(kernel(reader->thread_pid)->level);

	return level <= kernel(pid->level) ? kernel(number_at(pid, level)->nr) : 0;
}

SEC("iter/task")
int taupe_judged(struct bpf_iter__task *context)
{
	struct task_struct *task = kernel(context->task);
	struct state *state = get_state();
	struct judged judged = {};
	struct process *process;
	u32 generation;

	if (!state || !task || kernel(task->group_leader) != task || !runs_here(task, state))
		return 0;
	generation = now_of(state->generation);
	judged.id = number_of(task);
	judged.bits = task_bits((u64)task, generation);
	judged.verdict = verdict_of(judged.bits, state, generation);
	process = process_of(task);
	if (process) {
		judged.own = process->own;
		judged.inherited = process->inherited;
		if (state->rules[generation & 1].children == CHILDREN_INHERIT)
			judged.handed_on = heritage(process);
	}
	bpf_seq_write(context->meta->seq, &judged, sizeof(judged));
	return 0;
}
