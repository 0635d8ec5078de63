/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The verdict on a task, and on a socket. */
#pragma once
#include "processes.h"
#include "subflow.h"

/*
 * Returns the bits of the rules about a task: of the rules that name it, or else of the
 * one that it has inherited. The tunnel's own processes are exempt, and no rule applies to
 * kernel threads, or to tasks of other users if the rules are about one user.
 */
global_func u32 task_bits(u64 of, u32 generation)
{
	struct task_struct *task = (struct task_struct *)of;
	struct state *state = get_state();
	const struct rule_set *rules;
	struct process *process;
	u32 bits, entry = 0;

	if (!state)
		return RULE_UNDETERMINED;
	if (core_read(task->flags) & PF_KTHREAD)
		return RULE_DISALLOW;
	if (serves_tunnel(task, state))
		return RULE_EXEMPT;
	if (is_of_other_user(task, generation))
		return RULE_DISALLOW | RULE_OTHER_USER;
	rules = &state->rules[generation & 1];
	bits = rules->all_tasks;
	if (bits & RULE_ALLOW)
		return bits;
	if (keeps_processes(state, generation)) {
		process = current_entry(task, state, generation);
		entry = process ? entry_bits(process)
				: store_process(of, executable_rule(of, generation), generation,
						false);
		bits |= entry & (RULE_BITS | RULE_UNDETERMINED);
	}
	if (!(bits & RULE_ALLOW))
		bits |= user_and_cgroup_bits(task, rules->kinds, generation);
	entry = entry >> INHERITED_SHIFT & RULE_BITS;
	return bits & RULE_BITS || !entry ? bits : bits | entry | RULE_INHERITED;
}

/*
 * Allowed tasks go into the tunnel. A task that may be allowed but cannot be compared is
 * UNDETERMINED. Disallowed tasks bypass the tunnel. All others get the default of the
 * rule set.
 */
static __always_inline u32 verdict_of(u32 bits, const struct state *state, u32 generation)
{
	if (bits & RULE_EXEMPT)
		return EXEMPT;
	if (bits & RULE_ALLOW)
		return TUNNEL;
	if (bits & RULE_UNDETERMINED)
		return UNDETERMINED;
	if (bits & RULE_DISALLOW)
		return DIRECT;
	/* The task may be about to inherit a rule. */
	if (is_learning(state) && state->rules[~generation & 1].default_verdict == TUNNEL)
		return TUNNEL;
	return state->rules[generation & 1].default_verdict;
}

/* A function of its own, since its callers have no stack left. */
static __noinline u32 verdict_of_bits(u32 bits, u32 generation)
{
	struct state *state = get_state();

	return state ? verdict_of(bits, state, generation) : UNDETERMINED;
}

static __always_inline u32 verdict_on(u64 task, u32 generation)
{
	store_parent(task, generation);
	return verdict_of_bits(task_bits(task, generation), generation);
}

/* Returns true if verdicts apply to this socket of the kernel. */
static __always_inline bool is_in_netns(struct sock *sk, const struct state *state)
{
	u16 family = core_read(sk->__sk_common.skc_family);

	return (family == AF_INET || family == AF_INET6) &&
	       core_read(core_read(sk->__sk_common.skc_net.net)->net_cookie) == state->netns;
}

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct sock_common___ends {
	u16 skc_family;
	u16 skc_dport;
	u32 skc_daddr;
	u32 skc_rcv_saddr;
	s32 skc_bound_dev_if;
	struct address skc_v6_daddr;
	struct address skc_v6_rcv_saddr;
	struct {
		u64 counter;
	} skc_cookie;
};

#pragma clang attribute pop

/* Returns a socket's own address; IPv4 in the first word. */
static __always_inline struct address local_address(struct sock *sk)
{
	struct sock_common___ends *ends = (void *)sk;
	struct address address = {};

	if (core_read(ends->skc_family) == AF_INET)
		address.words[0] = core_read(ends->skc_rcv_saddr);
	else if (core_field_exists(ends->skc_v6_rcv_saddr))
		address = core_read(ends->skc_v6_rcv_saddr);
	return address;
}

/* Returns true if this verdict sends a socket's packets into the tunnel. */
static __always_inline bool is_tunnelled(u32 verdict)
{
	return verdict == TUNNEL || verdict == LEAVING;
}

/* Returns the stored verdict on a packet's socket; or UNCLASSIFIED. */
static __always_inline u32 verdict_at(struct bpf_sock *sk)
{
	struct sock_verdict *stored = bpf_sk_storage_get(&sockets, sk, NULL, 0);

	return stored ? stored->verdict : mptcp_verdict(sk);
}

/* Returns true if a packet's socket is a selected application's. */
static __always_inline bool is_selected_socket(struct bpf_sock *sk)
{
	return is_tunnelled(verdict_at(sk));
}

/* Returns true if a verdict is stored. */
static __always_inline bool is_verdict_stored(u32 verdict, const struct state *state)
{
	return verdict == TUNNEL || verdict == EXEMPT || READ_ONCE(state->lock) == LOCK_ALL;
}

/* Fills in the application of a task, which is given as a number. A function of its own,
 * since its callers have no stack left. */
static __noinline u32 read_application(u64 of, struct application *application)
{
	struct task_struct *task = (struct task_struct *)of;
	struct mm_struct *memory = core_read(task->mm);
	struct file *executable = core_read(memory->exe_file);
	struct inode *inode = core_read(executable->f_inode);
	struct super_block *super = core_read(inode->i_sb);
	struct process *process = process_of(task);
	u64 rule = process ? inheritable_rule(process) : 0;

	application->user = user_of(task);
	if (rule & RULE_ALLOW) {
		application->inode = rule >> RULE_NUMBER_SHIFT;
		application->device = NO_DEVICE;
		return 0;
	}
	application->inode = core_read(inode->i_ino);
	application->device = core_read(super->s_dev);
	return 0;
}

/* Stores the verdict on a socket. Returns false if there is no memory for it. */
static __always_inline bool store_verdict_for(void *sk, u32 verdict, u32 generation, u64 task)
{
	struct sock_verdict *stored =
		bpf_sk_storage_get(&sockets, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);

	if (!stored)
		return false;
	if (is_tunnelled(verdict) && !is_tunnelled(stored->verdict))
		read_application(task, &stored->application);
	stored->generation = generation;
	WRITE_ONCE(stored->verdict, verdict);
	return true;
}

static __always_inline bool store_verdict(void *sk, u32 verdict, u32 generation)
{
	return store_verdict_for(sk, verdict, generation, (u64)bpf_get_current_task());
}

/* Mixes a word into a value. From one value, two different words never give the same
 * result. */
static __always_inline u64 hash_mix(u64 value, u64 word)
{
	value = (value ^ word) * 0x9e3779b97f4a7c15ULL;
	return value ^ value >> 32;
}

/* Identifies the running task. The value changes after an exec and with the rules; if
 * there are rules about users or cgroups, also with these. Never 0. */
global_func u64 current_task_id(u32 generation)
{
	struct task_struct *task = bpf_get_current_task();
	struct task_struct *leader = core_read(task->group_leader);
	u64 task_id = hash_mix(generation, core_read(leader->start_time));
	struct state *state = get_state();
	const struct rule_set *rules = state ? &state->rules[generation & 1] : NULL;
	u32 kinds = rules ? rules->kinds : 0;

	task_id = hash_mix(task_id, (u64)core_read(task->tgid));
	task_id = hash_mix(task_id, core_read(task->self_exec_id));
	if (kinds & KIND_UID || (rules && rules->user != ANY_USER))
		task_id = hash_mix(task_id, user_of(task));
	if (kinds & (KIND_CGROUP_NAME | KIND_CGROUP_PATH)) {
		struct kernfs_node *node = cgroup_of(task);

		task_id = hash_mix(task_id, core_read(node->id));
	}
	return task_id | 1;
}

/* Stores the verdict that `verdict_on_use` has found for the running task and an
 * unselected socket. A function of its own, since its caller has no stack left. */
static __noinline u32 cache_verdict(void *sk, u32 verdict, u32 generation, u64 task_id)
{
	struct state *state = get_state();
	struct sock_verdict *stored = bpf_sk_storage_get(&sockets, sk, NULL, 0);

	if (verdict == UNDETERMINED || !state)
		return UNDETERMINED;
	if (is_verdict_stored(verdict, state) && !(stored && verdict == DIRECT))
		return store_verdict(sk, verdict, generation) ? verdict : UNCLASSIFIED;
	if (task_id && verdict == DIRECT) {
		if (!stored)
			stored = bpf_sk_storage_get(&sockets, sk, NULL,
						    BPF_SK_STORAGE_GET_F_CREATE);
		if (stored)
			WRITE_ONCE(stored->unselected_task, task_id);
	}
	return verdict;
}

/*
 * Returns the verdict on a socket that the running task uses. The socket belongs to its
 * creator until a selected task uses it, and to that task from then on. It therefore
 * does not matter if systemd or a launcher has created it, or the same process before an
 * exec. The reverse never happens: a task that receives a selected application's socket
 * is in the tunnel with it, as is all data that the socket has still to send.
 *
 * `is_frequent`: the socket is used frequently, so the result for a task is cached.
 */
static __noinline u32 verdict_on_use(void *sk, const struct state *state, bool is_frequent)
{
	struct sock_verdict *stored = bpf_sk_storage_get(&sockets, sk, NULL, 0);
	u32 generation = READ_ONCE(state->generation);
	u32 verdict;
	u64 task_id = 0;

	if (stored && READ_ONCE(stored->verdict) != DIRECT) {
		if (READ_ONCE(stored->generation) == generation)
			return stored->verdict;
	} else if (is_frequent) {
		task_id = current_task_id(generation);
		if (stored && READ_ONCE(stored->unselected_task) == task_id)
			return DIRECT;
	}
	verdict = verdict_on((u64)bpf_get_current_task(), generation);
	if (stored && READ_ONCE(stored->verdict) != DIRECT) {
		/* A socket used under new rules is not released by them. */
		if (verdict == TUNNEL)
			stored->generation = generation;
		return stored->verdict;
	}
	return cache_verdict(sk, verdict, generation, task_id);
}
