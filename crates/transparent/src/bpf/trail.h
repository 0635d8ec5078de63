/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Where an executable and a cgroup are, as rules about paths see it. */
#pragma once
#include "identity.h"

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
