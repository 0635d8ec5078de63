/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Compares a task with the rules: the name and path of its executable, its cgroup and
 * its user. processes.h stores the rule about the executable; the rest is read when
 * needed.
 *
 * Everything is read from the task in the kernel as it is now. A process need not have
 * been seen at its start, and an executable that was upgraded still has its path. A
 * thread has the executable of its process.
 *
 * There is no per-CPU scratch memory, since a program that runs for a system call can be
 * preempted by another on the same CPU. Everything is on the stack, which has 512 bytes
 * for a program and all functions that it calls. The comparison of paths uses all of
 * them.
 */
#pragma once
#include "state.h"
/* Before Linux 5.12 a global function takes no pointer to a structure. */
#ifndef LINUX_5_10
#define siphash_func global_func
#endif
#include "siphash.h"

/* Maximum number of path components that are compared. */
#define PATH_DEPTH 32
/* Maximum number of steps to the root: components, and mounts that are crossed. */
#define PATH_STEPS 64
#define NAME_LEN_MAX 255

static __always_inline u32 key_space(u32 kind, u32 generation)
{
	return kind << 1 | (generation & 1);
}

/* ---- Names ---- */

/* Lower-cases the ASCII letters among eight bytes. */
static __always_inline u64 ascii_lower(u64 word)
{
	const u64 ones = 0x0101010101010101ULL, high = ones << 7;
	u64 low = word & ~high;
	u64 from_a = low + (0x80 - 'A') * ones;
	u64 above_z = low + (0x7f - 'Z') * ones;

	return word | ((from_a & ~above_z & ~word & high) >> 2);
}

/* Combines two rules for one task: "allow" wins. The number is the first rule's, unless
 * only the second allows. */
static __always_inline u64 combine_rules(u64 one, u64 other)
{
	bool is_second = !(one & RULE_BITS) || (other & RULE_ALLOW && !(one & RULE_ALLOW));
	u64 number = (is_second ? other : one) >> RULE_NUMBER_SHIFT;

	return number << RULE_NUMBER_SHIFT | (u32)(one | other);
}

global_func u64 name_rule(u64 name, u32 kind, u32 generation)
{
	struct name_key key = {};
	s64 size;
	u64 *rule;

	size = bpf_probe_read_kernel_str(key.bytes, sizeof(key.bytes), (void *)name);
	if (size <= 0)
		return 0;
	if (kind == KIND_NAME)
		for (int i = 0; i < NAME_SIZE / 8; i++)
			key.words[i] = ascii_lower(key.words[i]);
	key.space = key_space(kind, generation);
	/* A name that was cut ends with NUL here, where a rule's would continue. Only a
	 * wildcard can match it, since user space accepts no rule of that length. */
	key.prefix_len = 32 + 8 * size;
	rule = bpf_map_lookup_elem(&names, &key);
	return rule ? *rule : 0;
}

/* ---- Paths ---- */

/* Bytes that are read at a time. More would leave too little stack to the functions that hash them. */
#ifdef LINUX_5_10
#define CHUNK 32
#else
#define CHUNK 16
#endif

/* SipHash of one component of a path. */
global_func u64 component_hash(u64 name)
{
	struct state *state = get_state();
	struct siphash sip;
	u32 length = 0;
	u64 chunk[CHUNK / 8 + 1];

	if (!state)
		return 0;
	siphash_init(&sip, state->key);
	for (int i = 0; i < (NAME_LEN_MAX + 1) / CHUNK; i++) {
		s64 size;

		__builtin_memset(chunk, 0, sizeof(chunk));
		size = bpf_probe_read_kernel_str(chunk, CHUNK + 1, (void *)(name + i * CHUNK));
		if (size <= 0)
			break;
		length += size - 1;
		for (int w = 0; w < CHUNK / 8; w++) {
			if (8 * (w + 1) > size - 1)
				return siphash_final(&sip, chunk[w] | (u64)length << 56);
			siphash_word(&sip, chunk[w]);
		}
	}
	return siphash_final(&sip, (u64)length << 56);
}

/* Returns the hash of a path from the hash of its directory and its last component. A
 * function that the verifier checks once, and not at each step. */
global_func u64 path_hash(u64 above, u64 component)
{
	struct state *state = get_state();
	struct siphash sip;

	if (!state)
		return 0;
	siphash_init(&sip, state->key);
	siphash_word(&sip, above);
	siphash_word(&sip, component);
	return siphash_final(&sip, 16ULL << 56);
}

static __always_inline u64 exact_rule(u32 kind, u64 id, u32 generation)
{
	struct exact_key key = { .space = key_space(kind, generation), .id = id };
	u64 *rule = bpf_map_lookup_elem(&exact, &key);

	return rule ? *rule : 0;
}

/* Combines the rule for a path with those for the directories above it, by the hash of
 * the path. `is_end`: the path is complete. The rule of a cgroup applies to all groups
 * below it too. A function that the verifier checks once, whatever each step has found. */
global_func u64 add_path_rule(u64 rule, u32 space, u64 hash, u32 is_end)
{
	u32 kind = space >> 1;

	if (kind == KIND_PATH && !is_end)
		kind = KIND_DIRECTORY;
	return combine_rules(rule, exact_rule(kind, hash, space & 1));
}

/* ---- Cgroups ---- */

static __always_inline struct kernfs_node *parent_node(struct kernfs_node *node)
{
	struct kernfs_node___rcu *newer = (void *)node;

	if (core_field_exists(newer->__parent))
		return core_read(newer->__parent);
	return core_read(node->parent);
}

static __always_inline struct kernfs_node *cgroup_of(struct task_struct *task)
{
	struct css_set *set = core_read(task->cgroups);
	struct cgroup *cgroup = core_read(set->dfl_cgrp);

	return core_read(cgroup->kn);
}

/* ---- From the leaf to the root ---- */

/* path_rule, cgroup_path_rule, cgroup_name_rule */
#ifdef LINUX_5_10
#include "path_lookup.h"
#else
#include "path_walk.h"
#endif

/* ---- Users ---- */

static __always_inline u32 user_of(struct task_struct *task)
{
	struct cred *cred = core_read(task->real_cred);

	return core_read(cred->uid).val;
}

global_func u32 user_bits(u64 task, u32 generation)
{
	return exact_rule(KIND_UID, user_of((struct task_struct *)task), generation);
}

/* Returns true if the rules are about another user than the task's. A function of its own,
 * since task_bits has no stack left. */
static __noinline u32 is_of_other_user(struct task_struct *task, u32 generation)
{
	struct state *state = get_state();
	u32 user = state ? state->rules[generation & 1].user : ANY_USER;

	return user != ANY_USER && user != user_of(task);
}

/* ---- All of it ---- */

/* Returns the rule about a task's executable. */
static __always_inline u64 executable_rule(u64 task, u32 generation)
{
	struct mm_struct *memory = core_read(((struct task_struct *)task)->mm);
	struct file *executable = core_read(memory->exe_file);
	struct state *state = get_state();
	u64 rule = 0;
	u32 kinds;

	if (!state)
		return RULE_UNDETERMINED;
	kinds = state->rules[generation & 1].kinds;
	if (kinds & KIND_NAME) {
		struct dentry *dentry = core_read(executable->f_path.dentry);

		rule = name_rule((u64)core_read(dentry->d_name.name), KIND_NAME, generation);
	}
	if (kinds & KIND_PATH && !(rule & RULE_ALLOW))
		rule = combine_rules(rule, path_rule((u64)executable, generation));
	return rule;
}

/* Returns the bits of the rules about a task's user and cgroup. Stops at the first rule
 * that allows, since no other rule can change that. */
static __always_inline u32 user_and_cgroup_bits(struct task_struct *task, u32 kinds, u32 generation)
{
	u32 bits = 0;

	if (kinds & KIND_UID)
		bits |= user_bits((u64)task, generation);
	if (kinds & KIND_CGROUP_NAME && !(bits & RULE_ALLOW))
		bits |= (u32)cgroup_name_rule((u64)task, generation);
	if (kinds & KIND_CGROUP_PATH && !(bits & RULE_ALLOW))
		bits |= (u32)cgroup_path_rule((u64)task, generation);
	return bits;
}
