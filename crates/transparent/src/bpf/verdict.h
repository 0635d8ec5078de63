/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The verdict on a task, and on a socket. */
#pragma once
#include "processes.h"
#include "subflow.h"

/*
 * Returns the bits of the rules about a task: of the rules that name it, or else of the
 * one that it has inherited. The tunnel's own process is exempt, and no rule applies to
 * kernel threads.
 */
alone u32 task_bits(u64 of, u32 generation)
{
	struct task_struct *task = (struct task_struct *)of;
	struct state *state = get_state();
	const struct rule_set *rules;
	struct process *process;
	u32 bits, entry = 0;

	if (!state)
		return RULE_UNTOLD;
	rules = &state->rules[generation & 1];
	if (kernel(task->flags) & PF_KTHREAD)
		return RULE_DISALLOW;
	if (kernel(task->tgid) == (s32)now_of(state->daemon))
		return RULE_EXEMPT;
	bits = rules->everyone;
	if (bits & RULE_ALLOW)
		return bits;
	if (keeps_processes(state, generation)) {
		process = entry_of(task, state, generation);
		entry = process ? entry_bits(process)
				: enter_process(of, executable_rule(of, generation), generation,
						false);
		bits |= entry & (RULE_BITS | RULE_UNTOLD);
	}
	if (!(bits & RULE_ALLOW))
		bits |= surroundings_bits(task, rules->kinds, generation);
	entry = entry >> INHERITED & RULE_BITS;
	return bits & RULE_BITS || !entry ? bits : bits | entry | RULE_INHERITED;
}

/*
 * Allowed tasks go into the tunnel. A task that may be allowed but cannot be compared is
 * UNTOLD. Disallowed tasks bypass the tunnel. All others get the default of the rule
 * set.
 */
inline_always u32 verdict_of(u32 bits, const struct state *state, u32 generation)
{
	if (bits & RULE_EXEMPT)
		return OWN;
	if (bits & RULE_ALLOW)
		return TUNNEL;
	if (bits & RULE_UNTOLD)
		return UNTOLD;
	if (bits & RULE_DISALLOW)
		return DIRECT;
	/* The task may be about to inherit a rule. */
	if (is_learning(state) && state->rules[~generation & 1].otherwise == TUNNEL)
		return TUNNEL;
	return state->rules[generation & 1].otherwise;
}

/* A function of its own, since its callers have no stack left. */
apart u32 verdict_by(u32 bits, u32 generation)
{
	struct state *state = get_state();

	return state ? verdict_of(bits, state, generation) : UNTOLD;
}

inline_always u32 verdict_on(u64 task, u32 generation)
{
	enter_parent(task, generation);
	return verdict_by(task_bits(task, generation), generation);
}

/* Returns true if verdicts apply to this socket of the kernel. */
inline_always bool is_here(struct sock *sk, const struct state *state)
{
	u16 family = kernel(sk->__sk_common.skc_family);

	return (family == AF_INET || family == AF_INET6) &&
	       kernel(kernel(sk->__sk_common.skc_net.net)->net_cookie) == state->netns;
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
inline_always struct address local_of(struct sock *sk)
{
	struct sock_common___ends *ends = (void *)sk;
	struct address address = {};

	if (kernel(ends->skc_family) == AF_INET)
		address.words[0] = kernel(ends->skc_rcv_saddr);
	else if (member_exists(ends->skc_v6_rcv_saddr))
		address = kernel(ends->skc_v6_rcv_saddr);
	return address;
}

inline_always bool is_inside(u32 verdict)
{
	return verdict == TUNNEL || verdict == LEAVING;
}

/* Returns the stored verdict on a packet's socket; or UNMARKED. */
inline_always u32 verdict_at(struct bpf_sock *sk)
{
	struct owner *owner = bpf_sk_storage_get(&sockets, sk, NULL, 0);

	return owner ? owner->verdict : verdict_of_connection(sk);
}

/* Returns true if a packet's socket is a selected application's. */
inline_always bool chosen(struct bpf_sock *sk)
{
	return is_inside(verdict_at(sk));
}

/* Returns true if a verdict is stored. */
inline_always bool is_noted(u32 verdict, const struct state *state)
{
	return verdict == TUNNEL || verdict == OWN || now_of(state->lock) == LOCK_EVERYBODY;
}

/* Fills in the application of a task, which is given as a number. A function of its own,
 * since its callers have no stack left. */
apart u32 read_application(u64 of, struct application *application)
{
	struct task_struct *task = (struct task_struct *)of;
	struct mm_struct *memory = kernel(task->mm);
	struct file *executable = kernel(memory->exe_file);
	struct inode *inode = kernel(executable->f_inode);
	struct super_block *super = kernel(inode->i_sb);
	struct cred *cred = kernel(task->real_cred);
	struct process *process = process_of(task);
	u64 rule = process ? heritage(process) : 0;

	application->user = kernel(cred->uid).val;
	if (rule & RULE_ALLOW) {
		application->inode = rule >> RULE_NUMBER;
		application->device = NO_DEVICE;
		return 0;
	}
	application->inode = kernel(inode->i_ino);
	application->device = kernel(super->s_dev);
	return 0;
}

/* Stores the verdict on a socket. Returns false if there is no memory for it. */
inline_always bool note_for(void *sk, u32 verdict, u32 generation, u64 task)
{
	struct owner *owner = bpf_sk_storage_get(&sockets, sk, NULL, SK_STORAGE_CREATE);

	if (!owner)
		return false;
	if (is_inside(verdict) && !is_inside(owner->verdict))
		read_application(task, &owner->application);
	owner->generation = generation;
	now_of(owner->verdict) = verdict;
	return true;
}

inline_always bool note(void *sk, u32 verdict, u32 generation)
{
	return note_for(sk, verdict, generation, (u64)bpf_get_current_task());
}

/* Mixes a word into a value. From one value, two different words never give the same
 * result. */
inline_always u64 mixed(u64 value, u64 word)
{
	value = (value ^ word) * 0x9e3779b97f4a7c15ULL;
	return value ^ value >> 32;
}

/* Identifies the running task. The value changes after an exec and with the rules; if
 * there are rules about users or cgroups, also with these. Never 0. */
alone u64 who_runs(u32 generation)
{
	struct task_struct *task = bpf_get_current_task();
	struct task_struct *leader = kernel(task->group_leader);
	u64 who = mixed(generation, kernel(leader->start_time));
	struct state *state = get_state();
	u32 kinds = state ? state->rules[generation & 1].kinds : 0;

	who = mixed(who, (u64)kernel(task->tgid));
	who = mixed(who, kernel(task->self_exec_id));
	if (kinds & KIND_UID) {
		struct cred *cred = kernel(task->real_cred);

		who = mixed(who, kernel(cred->uid).val);
	}
	if (kinds & (KIND_CGROUP_NAME | KIND_CGROUP_PATH)) {
		struct kernfs_node *node = cgroup_of(task);

		who = mixed(who, kernel(node->id));
	}
	return who | 1;
}

/* Stores the verdict that `used` has found for the running task and an unselected
 * socket. A function of its own, since its caller has no stack left. */
apart u32 remember(void *sk, u32 verdict, u32 generation, u64 who)
{
	struct state *state = get_state();
	struct owner *owner = bpf_sk_storage_get(&sockets, sk, NULL, 0);

	if (verdict == UNTOLD || !state)
		return UNTOLD;
	if (is_noted(verdict, state) && !(owner && verdict == DIRECT))
		return note(sk, verdict, generation) ? verdict : UNMARKED;
	if (who && verdict == DIRECT) {
		if (!owner)
			owner = bpf_sk_storage_get(&sockets, sk, NULL, SK_STORAGE_CREATE);
		if (owner)
			now_of(owner->who) = who;
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
 * `often`: the socket is used frequently, so the result for a task is cached.
 */
apart u32 used(void *sk, const struct state *state, bool often)
{
	struct owner *owner = bpf_sk_storage_get(&sockets, sk, NULL, 0);
	u32 generation = now_of(state->generation);
	u32 verdict;
	u64 who = 0;

	if (owner && now_of(owner->verdict) != DIRECT) {
		if (now_of(owner->generation) == generation)
			return owner->verdict;
	} else if (often) {
		who = who_runs(generation);
		if (owner && now_of(owner->who) == who)
			return DIRECT;
	}
	verdict = verdict_on((u64)bpf_get_current_task(), generation);
	if (owner && now_of(owner->verdict) != DIRECT) {
		/* A socket used under new rules is not released by them. */
		if (verdict == TUNNEL)
			owner->generation = generation;
		return owner->verdict;
	}
	return remember(sk, verdict, generation, who);
}
