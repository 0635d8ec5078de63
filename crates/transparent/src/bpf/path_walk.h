/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The paths of an executable and of a cgroup, compared with rules for paths. */
#pragma once
#include "identity.h"

/* A walk to the root. First the components from the leaf to the root, since the kernel has no links
 * downwards. Then, in the same memory, the hashes from the root to the leaf. */
struct path_walk {
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
	u64 components[PATH_DEPTH];
};

static long hash_step(u32 depth, void *context)
{
	struct path_walk *walk = context;
	struct state *state = get_state();
	u32 from_leaf = walk->count - 1 - depth;
	bool is_path = walk->space >> 1 == KIND_PATH;
	struct rule_set *rules;

	if (!state || depth >= walk->count || from_leaf >= PATH_DEPTH)
		return 1;
	rules = &state->rules[walk->space & 1];
	walk->hash = path_hash(walk->hash, walk->components[from_leaf]);
	/* Most depths have no rule. */
	if ((is_path ? rules->path_depths : rules->cgroup_depths) >> (depth & 31) & 1)
		walk->rule = add_path_rule(walk->rule, walk->space, walk->hash, !from_leaf);
	return 0;
}

/* Returns the rule for the path that has been walked. */
static __always_inline u64 walked_path_rule(struct path_walk *walk, u32 kind, u32 generation)
{
	walk->hash = 0;
	walk->rule = 0;
	walk->space = key_space(kind, generation);
	bpf_loop(PATH_DEPTH, hash_step, walk, 0);
	return walk->rule;
}

static long path_step(u32 round, void *context)
{
	struct path_walk *walk = context;
	struct dentry *parent = core_read(walk->dentry->d_parent);
	u32 count = walk->count;

	if (walk->dentry == core_read(walk->mount->mnt.mnt_root) || walk->dentry == parent) {
		struct mount *above = core_read(walk->mount->mnt_parent);

		if (above == walk->mount || !above) {
			walk->done = 1;
			return 1;
		}
		walk->dentry = core_read(walk->mount->mnt_mountpoint);
		walk->mount = above;
		return 0;
	}
	if (count >= PATH_DEPTH)
		return 1;
	walk->components[count] = component_hash((u64)core_read(walk->dentry->d_name.name));
	walk->count = count + 1;
	walk->dentry = parent;
	return 0;
}

global_func u64 path_rule(u64 file, u32 generation)
{
	struct file *executable = (struct file *)file;
	struct vfsmount *mount = core_read(executable->f_path.mnt);
	struct path_walk walk = {};

	walk.mount = core_container_of(mount, struct mount, mnt);
	walk.dentry = core_read(executable->f_path.dentry);
	bpf_loop(PATH_STEPS, path_step, &walk, 0);
	if (!walk.done)
		return RULE_UNDETERMINED;
	return walked_path_rule(&walk, KIND_PATH, generation);
}

static long cgroup_step(u32 round, void *context)
{
	struct path_walk *walk = context;
	struct kernfs_node *above = parent_node(walk->node);
	u32 count = walk->count;

	if (!above) {
		walk->done = 1;
		return 1;
	}
	if (count >= PATH_DEPTH)
		return 1;
	walk->components[count] = component_hash((u64)core_read(walk->node->name));
	walk->count = count + 1;
	walk->node = above;
	return 0;
}

struct cgroup_walk {
	struct kernfs_node *node;
	u32 generation;
	u32 bits;
	bool done;
};

static long cgroup_name_step(u32 round, void *context)
{
	struct cgroup_walk *walk = context;
	struct kernfs_node *above = parent_node(walk->node);

	if (!above) {
		walk->done = true;
		return 1;
	}
	walk->bits |= (u32)name_rule((u64)core_read(walk->node->name), KIND_CGROUP_NAME,
				     walk->generation);
	walk->node = above;
	return 0;
}

global_func u64 cgroup_name_rule(u64 task, u32 generation)
{
	struct cgroup_walk walk = {
		.node = cgroup_of((struct task_struct *)task),
		.generation = generation,
	};

	bpf_loop(PATH_STEPS, cgroup_name_step, &walk, 0);
	return walk.done ? walk.bits : walk.bits | RULE_UNDETERMINED;
}

global_func u64 cgroup_path_rule(u64 task, u32 generation)
{
	struct path_walk walk = {};

	walk.node = cgroup_of((struct task_struct *)task);
	bpf_loop(PATH_STEPS, cgroup_step, &walk, 0);
	if (!walk.done)
		return RULE_UNDETERMINED;
	return walked_path_rule(&walk, KIND_CGROUP_PATH, generation);
}
