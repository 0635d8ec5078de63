/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The rules of processes. A process gets the rule about its executable when it executes
 * it. It keeps this rule until it executes another program, or the rule is removed: a
 * package upgrade may rename or remove the file meanwhile. A program that no rule names
 * has the rule of the program that started it (`Children = inherit`), across any number
 * of forks and execs.
 *
 *    fork    the child has its parent's rules: it runs the same program
 *    exec    the rule about the new executable is its own; the rule it had is inherited
 *    exit    its entry is removed
 *    new rules, and processes from before   taupe_learn goes through all processes;
 *            until all have their new rules, they keep the old ones too
 *
 * A process without an entry gets one when its rule is needed. It has come from another
 * network namespace, or there was no memory.
 */
#pragma once
#include "identity.h"

static __always_inline struct process_key process_key_of(struct task_struct *task)
{
	struct task_struct *leader = core_read(task->group_leader);
	struct process_key key = {
		.start = core_read(leader->start_time),
		.id = core_read(task->tgid),
	};

	return key;
}

static __noinline struct process *process_of(struct task_struct *task)
{
	struct process_key key = process_key_of(task);

	return bpf_map_lookup_elem(&processes, &key);
}

/* Returns true if a task is in the tunnel's network namespace. If the cookie is not
 * available (before Linux 5.14), user space gives the namespace's inode. */
static __always_inline bool is_task_in_netns(struct task_struct *task, const struct state *state)
{
	struct net *net = core_read(core_read(task->nsproxy)->net_ns);
#ifdef LINUX_5_10
	return core_read(net->ns.inum) == state->netns;
#else
	return core_read(net->net_cookie) == state->netns;
#endif
}

/* Returns a process's `struct upid` in the PID namespace of this depth. `numbers` is a
 * flexible array, to which no relocation applies. */
static __always_inline struct upid *upid_at(struct pid *pid, u32 level)
{
	u64 size = __builtin_preserve_type_info(*(struct upid *)0, 1);

	return (void *)&pid->numbers[0] + level * size;
}

/* Returns a process's PID in the PID namespace of the running task, or 0. */
static __always_inline u32 pid_for_reader(struct task_struct *task)
{
	struct task_struct *reader = bpf_get_current_task();
	struct pid *pid = core_read(task->thread_pid);
	u32 level = core_read(core_read(reader->thread_pid)->level);

	return level <= core_read(pid->level) ? core_read(upid_at(pid, level)->nr) : 0;
}

/* Returns true if a process serves the tunnel: its daemon, and those that carry its
 * packets. */
static __always_inline bool serves_tunnel(struct task_struct *task, const struct state *state)
{
	u32 id = core_read(task->tgid);

	/* 0 means none in the state, and that the PID could not be read. */
	if (!id)
		return false;
	return id == READ_ONCE(state->daemon) || id == READ_ONCE(state->packet_processes[0]) ||
	       id == READ_ONCE(state->packet_processes[1]);
}

/* Returns true if any rule is about executables. Otherwise nothing has to be stored. */
static __always_inline bool keeps_processes(const struct state *state, u32 generation)
{
	return state->rules[generation & 1].kinds & (KIND_NAME | KIND_PATH);
}

/* Returns the rule that a process hands on to programs that it starts. */
static __always_inline u64 inheritable_rule(const struct process *process)
{
	u64 own = process->own;

	return own & RULE_BITS && !(own & RULE_OF_PID1) ? own : process->inherited;
}

/* Maximum time in which processes learn new rules, in seconds. The process that has
 * replaced the rules may have been killed before all were learned. */
#define LEARNING_MAX 60

/* Checks that some processes have not learned the rules in use yet. */
static __always_inline bool is_learning(const struct state *state)
{
	u32 since = READ_ONCE(state->learning_since);

	return since && (s32)((u32)(bpf_ktime_get_ns() / 1000000000) - since) <= LEARNING_MAX;
}

/*
 * Returns the current value of a rule in this generation, 0 if the rule has been
 * removed. While processes learn new rules, a removed rule stays in effect: the
 * process's parent may be about to get a rule that replaces it, and no packet may leave
 * outside the tunnel until then.
 */
global_func u64 current_rule(u64 rule, u32 generation)
{
	struct state *state = get_state();
	u64 current = 0;

	if (rule & RULE_BITS)
		current = exact_rule(KIND_RULE, rule >> RULE_NUMBER_SHIFT, generation);
	if (!current && rule & RULE_BITS && state && is_learning(state))
		current = rule | RULE_GONE;
	return current;
}

/* Combines two rules of a process. A removed rule contributes its bits, but not its
 * number. */
static __always_inline u64 combine_current_rules(u64 one, u64 other)
{
	u64 first = one & RULE_GONE ? other : one, second = one & RULE_GONE ? one : other;

	if (second & RULE_GONE && first & RULE_BITS)
		return first | ((u32)second & ~RULE_GONE);
	return combine_rules(first, second);
}

/* Returns the rule that a running process inherits from its parent as it is now. */
static __always_inline u64 parent_rule(struct task_struct *task, u64 start, u32 generation)
{
	struct process *parent = process_of(core_read(task->real_parent));

	if (!parent)
		return 0;
	/* A program that the parent executed later has not started this process. */
	return current_rule(parent->executed > start ? parent->inherited :
						       inheritable_rule(parent),
			    generation);
}

/* Position of the inherited rule's bits in the result of entry_bits; the own rule's bits
 * are below. */
#define INHERITED_SHIFT 8

static __always_inline u32 entry_bits(const struct process *process)
{
	return ((u32)process->own & 0xff) |
	       ((u32)process->inherited & RULE_BITS) << INHERITED_SHIFT;
}

/*
 * Stores the rules of a process, with `rule` as the rule about its executable, and
 * returns their bits. Unless it has just `executed` a program, the process keeps the
 * rule that it has.
 */
global_func u32 store_process(u64 of, u64 rule, u32 generation, u32 executed)
{
	struct task_struct *task = (struct task_struct *)of;
	struct process_key key = process_key_of(task);
	struct process *old = bpf_map_lookup_elem(&processes, &key);
	struct process new = { .own = rule, .generation = generation };
	struct state *state = get_state();
	bool inherits;

	if (!state)
		return RULE_UNDETERMINED;
	inherits = state->rules[generation & 1].children == CHILDREN_INHERIT;
	if (key.id == 1)
		new.own |= RULE_OF_PID1;
	if (executed) {
		new.executed = bpf_ktime_get_ns();
		if (old && inherits)
			new.inherited = current_rule(inheritable_rule(old), generation);
	} else {
		if (old) {
			new.executed = old->executed;
			new.own = combine_current_rules(new.own,
							current_rule(old->own, generation));
			if (old->generation == generation)
				new.own |= old->own & RULE_UNDETERMINED;
			if (inherits)
				new.inherited = current_rule(old->inherited, generation);
		}
		if (inherits)
			new.inherited = combine_current_rules(
				parent_rule(task, key.start, generation), new.inherited);
	}
	bpf_map_update_elem(&processes, &key, &new, 0);
	/* The process may have ended before the entry was made. */
	if (core_read(core_read(task->signal)->live.counter) <= 0)
		bpf_map_delete_elem(&processes, &key);
	return entry_bits(&new);
}

/* Returns the entry of a process if it was made by the rules in use. */
static __noinline struct process *current_entry(struct task_struct *task,
						const struct state *state, u32 generation)
{
	struct process *process = process_of(task);

	if (!process || process->generation != generation)
		return NULL;
	if ((process->own | process->inherited) & RULE_GONE && !is_learning(state))
		return NULL;
	return process;
}

/*
 * Stores the rules of a process's parent if that has no entry. User space cannot list processes
 * outside its PID namespace, so `taupe_learn` has not seen these.
 */
global_func u32 store_parent(u64 of, u32 generation)
{
	struct task_struct *task = (struct task_struct *)of;
	struct state *state = get_state();
	struct task_struct *parent;

	if (!state || !keeps_processes(state, generation) ||
	    state->rules[generation & 1].children != CHILDREN_INHERIT ||
	    current_entry(task, state, generation))
		return 0;
	parent = core_read(task->real_parent);
	if (core_read(parent->flags) & PF_KTHREAD || current_entry(parent, state, generation) ||
	    !is_task_in_netns(parent, state))
		return 0;
	return store_process((u64)parent, executable_rule((u64)parent, generation), generation,
			     false);
}

/* ---- Where processes begin and end ---- */

static __noinline void delete_process(struct task_struct *task)
{
	struct process_key key = process_key_of(task);

	bpf_map_delete_elem(&processes, &key);
}

static __noinline void copy_process(struct task_struct *from, struct task_struct *to)
{
	struct process_key key = process_key_of(to);
	struct process *process = process_of(from);
	struct process copy;

	if (!process)
		return;
	copy = *process;
	bpf_map_update_elem(&processes, &key, &copy, 0);
}

SEC("tp_btf/sched_process_fork")
int taupe_fork(u64 *arguments)
{
	/* As numbers: the verifier does not let checked pointers be used like this. */
	struct task_struct *parent = (void *)core_read(arguments[0]);
	struct task_struct *child = (void *)core_read(arguments[1]);
	struct state *state = get_state();
	u32 generation;

	if (!state || core_read(parent->tgid) == core_read(child->tgid) ||
	    core_read(parent->flags) & PF_KTHREAD)
		return 0;
	generation = READ_ONCE(state->generation);
	if (!keeps_processes(state, generation))
		return 0;
	if (!process_of(parent)) {
		if (!is_task_in_netns(parent, state))
			return 0;
		store_parent((u64)parent, generation);
		store_process((u64)parent, executable_rule((u64)parent, generation), generation,
			      false);
	}
	copy_process(parent, child);
	return 0;
}

SEC("tp_btf/sched_process_exec")
int taupe_exec(u64 *arguments)
{
	struct task_struct *task = (void *)core_read(arguments[0]);
	struct state *state = get_state();
	u32 generation;

	if (!state)
		return 0;
	generation = READ_ONCE(state->generation);
	if (!keeps_processes(state, generation)) {
		/* Later rules must not apply to the program that ends here. */
		delete_process(task);
		return 0;
	}
	if (!process_of(task) && !is_task_in_netns(task, state))
		return 0;
	store_process((u64)task, executable_rule((u64)task, generation), generation, true);
	return 0;
}

/* ---- Processes from before ---- */

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

static __always_inline bool is_executing(struct task_struct *task)
{
	return core_field_exists(task->in_execve) && core_read_bit(task, in_execve);
}

/*
 * Gives all processes of this network namespace their rules. Writes a byte for each
 * whose rules have changed, since its children have to be visited again.
 */
SEC("iter/task")
int taupe_learn(struct bpf_iter__task *context)
{
	struct task_struct *task = core_read(context->task);
	struct state *state = get_state();
	struct process *process;
	u64 own = 0, inherited = 0, rule = 0;
	u64 program;
	u32 generation;
	u8 one = 1;

	if (!state || !task)
		return 0;
	generation = READ_ONCE(state->generation);
	/* A process that is ending has no executable. A thread has its leader's entry,
	 * unless the leader has ended. */
	if (!core_read(task->mm) ||
	    (core_read(task->group_leader) != task &&
	     core_read(core_read(task->group_leader)->mm)) ||
	    !is_task_in_netns(task, state))
		return 0;
	if (!keeps_processes(state, generation)) {
		delete_process(task);
		return 0;
	}
	/* taupe_exec will enter it in a moment. */
	if (is_executing(task))
		return 0;
	program = core_read(task->self_exec_id);
	process = process_of(task);
	if (process && process->generation == generation) {
		own = process->own;
		inherited = process->inherited;
	} else {
		rule = executable_rule((u64)task, generation);
	}
	store_process((u64)task, rule, generation, false);
	/* The process has executed another program meanwhile, and the entry of
	 * taupe_exec has been overwritten. */
	if (core_read(task->self_exec_id) != program)
		store_process((u64)task, executable_rule((u64)task, generation), generation, true);
	process = process_of(task);
	if (process && (process->own != own || process->inherited != inherited))
		bpf_seq_write(context->meta->seq, &one, sizeof(one));
	return 0;
}
