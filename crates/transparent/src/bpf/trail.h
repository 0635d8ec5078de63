/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The paths of an executable and of a cgroup, compared with rules for paths. */
#pragma once
#include "identity.h"

/* First the components from the leaf to the root, since the kernel has no links
 * downwards. Then, in the same memory, the hashes from the root to the leaf. */
struct trail {
	union {
		struct {
			struct mount *mount;
			struct dentry *dentry;
		};
		struct kernfs_node *node;
		struct {
			u64 hash;
			u64 rule;
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
	bool is_path = trail->space >> 1 == KIND_PATH;
	struct rule_set *rules;

	if (!state || depth >= trail->count || from_leaf >= PATH_DEPTH)
		return 1;
	rules = &state->rules[trail->space & 1];
	trail->hash = path_hash(trail->hash, trail->parts[from_leaf]);
	/* Most depths have no rule. */
	if ((is_path ? rules->path_depths : rules->cgroup_depths) >> (depth & 31) & 1)
		trail->rule = with_place(trail->rule, trail->space, trail->hash, !from_leaf);
	return 0;
}

/* Returns the rule for the path in the trail. */
inline_always u64 trail_rule(struct trail *trail, u32 kind, u32 generation)
{
	trail->hash = 0;
	trail->rule = 0;
	trail->space = space_of(kind, generation);
	bpf_loop(PATH_DEPTH, fold_step, trail, 0);
	return trail->rule;
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

alone u64 path_rule(u64 file, u32 generation)
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
	return trail_rule(&trail, KIND_PATH, generation);
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
	climb->bits |= (u32)name_rule((u64)kernel(climb->node->name), KIND_CGROUP_NAME, climb->generation);
	climb->node = above;
	return 0;
}

alone u64 cgroup_name_rule(u64 task, u32 generation)
{
	struct climb climb = { .node = cgroup_of((struct task_struct *)task), .generation = generation };

	bpf_loop(PATH_STEPS, cgroup_name_step, &climb, 0);
	return climb.done ? climb.bits : climb.bits | RULE_UNTOLD;
}

alone u64 cgroup_path_rule(u64 task, u32 generation)
{
	struct trail trail = {};

	trail.node = cgroup_of((struct task_struct *)task);
	bpf_loop(PATH_STEPS, cgroup_step, &trail, 0);
	if (!trail.done)
		return RULE_UNTOLD;
	return trail_rule(&trail, KIND_CGROUP_PATH, generation);
}
