/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Who a task is: the name and the path of its executable, its cgroup and its
 * user, compared with the rules. The answer is bits, allow and disallow; which
 * wins is verdict.h's.
 *
 * Everything is read from the task as it is now, in the kernel: no process
 * needs to have been seen starting, and an executable that was upgraded still
 * has its path. A thread has the executable of its process.
 *
 * There is no scratch memory per processor: a program that runs for a system
 * call can be preempted by another one on the same processor. All is on the
 * stack, of which there are 512 bytes.
 */
#pragma once
#include "siphash.h"
#include "state.h"

/* How deep a path is compared. */
#define PATH_DEPTH 32
/* Steps to the root: components, and mounts that are crossed. */
#define PATH_STEPS 64
#define NAME_LEN_MAX 255

inline_always u32 space_of(u32 kind, u32 generation)
{
	return kind << 1 | (generation & 1);
}

/* ---- Names ---- */

/* Lower-cases the ASCII letters among eight bytes. */
inline_always u64 lower(u64 word)
{
	const u64 ones = 0x0101010101010101ULL, high = ones << 7;
	u64 low = word & ~high;
	u64 from_a = low + (0x80 - 'A') * ones;
	u64 above_z = low + (0x7f - 'Z') * ones;

	return word | ((from_a & ~above_z & ~word & high) >> 2);
}

alone u32 name_bits(u64 name, u32 kind, u32 generation)
{
	struct name_key key = {};
	s64 size;
	u32 *bits;

	size = bpf_probe_read_kernel_str(key.bytes, sizeof(key.bytes), (void *)name);
	if (size <= 0)
		return 0;
	if (kind == KIND_NAME)
		for (int i = 0; i < NAME_SIZE / 8; i++)
			key.words[i] = lower(key.words[i]);
	key.space = space_of(kind, generation);
	/* A name that was cut ends with NUL here, where a rule's goes on: only a
	 * wildcard can match it, since user space takes no rule that long. */
	key.prefix_len = 32 + 8 * size;
	bits = bpf_map_lookup_elem(&names, &key);
	return bits ? *bits : 0;
}

/* ---- Paths ---- */

/* Bytes that are hashed at a time. */
#define PIECE 32

/* SipHash of one component of a path. */
alone u64 component_hash(u64 name)
{
	struct state *state = get_state();
	struct sip sip;
	u32 length = 0;
	u64 piece[PIECE / 8 + 1];

	if (!state)
		return 0;
	sip_begin(&sip, state->key);
	for (int i = 0; i < (NAME_LEN_MAX + 1) / PIECE; i++) {
		s64 size;

		__builtin_memset(piece, 0, sizeof(piece));
		size = bpf_probe_read_kernel_str(piece, PIECE + 1, (void *)(name + i * PIECE));
		if (size <= 0)
			break;
		length += size - 1;
		for (int w = 0; w < PIECE / 8; w++) {
			if (8 * (w + 1) > size - 1)
				return sip_end(&sip, piece[w] | (u64)length << 56);
			sip_word(&sip, piece[w]);
		}
	}
	return sip_end(&sip, (u64)length << 56);
}

/* The hash of a path, from that of the directory above and the last component. */
inline_always u64 path_hash(u64 above, u64 component, const struct state *state)
{
	struct sip sip;

	sip_begin(&sip, state->key);
	sip_word(&sip, above);
	sip_word(&sip, component);
	return sip_end(&sip, 16ULL << 56);
}

inline_always u32 exact_bits(u32 kind, u64 id, u32 generation)
{
	struct exact_key key = { .space = space_of(kind, generation), .id = id };
	u32 *bits = bpf_map_lookup_elem(&exact, &key);

	return bits ? *bits : 0;
}

/* Components from the leaf to the root, since there is no way from the root
 * down; then, in the same place, the hashes from the root to the leaf. */
struct trail {
	union {
		struct {
			struct mount *mount;
			struct dentry *dentry;
		};
		struct kernfs_node *node;
		struct {
			u64 hash;
			u32 bits;
			u32 depths;
		};
	};
	u32 count;
	union {
		u32 done;
		u32 space;
	};
	u64 parts[PATH_DEPTH];
};

static long fold_step(u32 depth, void *context)
{
	struct trail *trail = context;
	struct state *state = get_state();
	u32 from_leaf = trail->count - 1 - depth;
	struct exact_key key = {};
	u32 *found;

	if (!state || depth >= trail->count || from_leaf >= PATH_DEPTH)
		return 1;
	trail->hash = path_hash(trail->hash, trail->parts[from_leaf], state);
	/* Most depths have no rule. */
	if (!(trail->depths >> (depth & 31) & 1))
		return 0;
	key.space = trail->space;
	key.id = trail->hash;
	found = bpf_map_lookup_elem(&exact, &key);
	if (found)
		trail->bits |= *found >> RULE_BELOW | (from_leaf ? 0 : *found);
	return 0;
}

/* What rules say of the place that a trail has led from. */
inline_always u32 trail_bits(struct trail *trail, u32 kind, u32 generation)
{
	struct state *state = get_state();
	struct rule_set *rules;

	if (!state)
		return 0;
	rules = &state->rules[generation & 1];
	trail->hash = 0;
	trail->bits = 0;
	trail->depths = kind == KIND_PATH ? rules->path_depths : rules->cgroup_depths;
	trail->space = space_of(kind, generation);
	bpf_loop(PATH_DEPTH, fold_step, trail, 0);
	return trail->bits & RULE_BITS;
}

static long path_step(u32 round, void *context)
{
	struct trail *trail = context;
	struct dentry *parent = kernel(trail->dentry->d_parent);
	u32 count = trail->count;

	if (trail->dentry == kernel(trail->mount->mnt.mnt_root) || trail->dentry == parent) {
		struct mount *above = kernel(trail->mount->mnt_parent);

		if (above == trail->mount || !above) {
			trail->done = 1;
			return 1;
		}
		trail->dentry = kernel(trail->mount->mnt_mountpoint);
		trail->mount = above;
		return 0;
	}
	if (count >= PATH_DEPTH)
		return 1;
	trail->parts[count] = component_hash((u64)kernel(trail->dentry->d_name.name));
	trail->count = count + 1;
	trail->dentry = parent;
	return 0;
}

alone u32 path_bits(u64 file, u32 generation)
{
	struct file *executable = (struct file *)file;
	struct vfsmount *mount = kernel(executable->f_path.mnt);
	struct trail trail = {};

	/* container_of, with the running kernel's offset. */
	trail.mount = (void *)mount - __builtin_preserve_field_info(((struct mount *)0)->mnt, 0);
	trail.dentry = kernel(executable->f_path.dentry);
	bpf_loop(PATH_STEPS, path_step, &trail, 0);
	if (!trail.done)
		return RULE_UNTOLD;
	return trail_bits(&trail, KIND_PATH, generation);
}

/* ---- Cgroups ---- */

inline_always struct kernfs_node *node_above(struct kernfs_node *node)
{
	struct kernfs_node___rcu *newer = (void *)node;

	if (member_exists(newer->__parent))
		return kernel(newer->__parent);
	return kernel(node->parent);
}

static long cgroup_step(u32 round, void *context)
{
	struct trail *trail = context;
	struct kernfs_node *above = node_above(trail->node);
	u32 count = trail->count;

	if (!above) {
		trail->done = 1;
		return 1;
	}
	if (count >= PATH_DEPTH)
		return 1;
	trail->parts[count] = component_hash((u64)kernel(trail->node->name));
	trail->count = count + 1;
	trail->node = above;
	return 0;
}

struct climb {
	struct kernfs_node *node;
	u32 generation;
	u32 bits;
	bool done;
};

static long cgroup_name_step(u32 round, void *context)
{
	struct climb *climb = context;
	struct kernfs_node *above = node_above(climb->node);

	if (!above) {
		climb->done = true;
		return 1;
	}
	climb->bits |= name_bits((u64)kernel(climb->node->name), KIND_CGROUP_NAME, climb->generation);
	climb->node = above;
	return 0;
}

inline_always struct kernfs_node *cgroup_of(struct task_struct *task)
{
	struct css_set *set = kernel(task->cgroups);
	struct cgroup *cgroup = kernel(set->dfl_cgrp);

	return kernel(cgroup->kn);
}

alone u32 cgroup_name_bits(u64 task, u32 generation)
{
	struct climb climb = { .node = cgroup_of((struct task_struct *)task), .generation = generation };

	bpf_loop(PATH_STEPS, cgroup_name_step, &climb, 0);
	return climb.done ? climb.bits : climb.bits | RULE_UNTOLD;
}

alone u32 cgroup_path_bits(u64 task, u32 generation)
{
	struct trail trail = {};

	trail.node = cgroup_of((struct task_struct *)task);
	bpf_loop(PATH_STEPS, cgroup_step, &trail, 0);
	if (!trail.done)
		return RULE_UNTOLD;
	return trail_bits(&trail, KIND_CGROUP_PATH, generation);
}

/* ---- All of it ---- */

/* What the rules say about a task. Stops at the first that allows, which no
 * other rule can change. */
inline_always u32 task_bits(struct task_struct *task, u32 kinds, u32 generation)
{
	struct mm_struct *memory = kernel(task->mm);
	struct file *executable = kernel(memory->exe_file);
	u32 bits = 0;

	if (kinds & KIND_NAME) {
		struct dentry *dentry = kernel(executable->f_path.dentry);

		bits |= name_bits((u64)kernel(dentry->d_name.name), KIND_NAME, generation);
	}
	if (kinds & KIND_PATH && !(bits & RULE_ALLOW))
		bits |= path_bits((u64)executable, generation);
	if (kinds & KIND_UID && !(bits & RULE_ALLOW)) {
		struct cred *cred = kernel(task->real_cred);

		bits |= exact_bits(KIND_UID, kernel(cred->uid).val, generation);
	}
	if (kinds & KIND_CGROUP_NAME && !(bits & RULE_ALLOW))
		bits |= cgroup_name_bits((u64)task, generation);
	if (kinds & KIND_CGROUP_PATH && !(bits & RULE_ALLOW))
		bits |= cgroup_path_bits((u64)task, generation);
	return bits;
}
