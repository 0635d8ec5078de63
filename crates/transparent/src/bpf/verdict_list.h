/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Lists the verdicts on processes and their rules, for user space. */
#pragma once
#include "records.h"
#include "verdict.h"

SEC("iter/task")
int taupe_verdicts(struct bpf_iter__task *context)
{
	struct task_struct *task = core_read(context->task);
	struct state *state = get_state();
	struct process_record record = {};
	struct process *process;
	u32 generation;

	if (!state || !task || core_read(task->group_leader) != task ||
	    !is_task_in_netns(task, state))
		return 0;
	generation = READ_ONCE(state->generation);
	record.id = pid_for_reader(task);
	record.bits = task_bits((u64)task, generation);
	record.verdict = verdict_of(record.bits, state, generation);
	process = process_of(task);
	if (process) {
		record.own = process->own;
		record.inherited = process->inherited;
		if (state->rules[generation & 1].children == CHILDREN_INHERIT)
			record.handed_on = inheritable_rule(process);
	}
	bpf_seq_write(context->meta->seq, &record, sizeof(record));
	return 0;
}
