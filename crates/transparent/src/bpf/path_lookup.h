/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The same as path_walk.h for kernels without bpf_loop (before Linux 5.17) or without
 * writes to variable stack offsets (before 5.12): each component of a path is looked up
 * from the leaf again.
 */
#pragma once
#include "identity.h"

/* Returns the address of the name `back` components above an executable. If there are
 * fewer components, returns their number, which is smaller than any address. */
global_func u64 path_component(u64 file, u32 back)
{
	struct file *executable = (struct file *)file;
	struct vfsmount *inner = core_read(executable->f_path.mnt);
	struct dentry *dentry = core_read(executable->f_path.dentry);
	struct mount *mount = core_container_of(inner, struct mount, mnt);
	u32 count = 0;

	for (int step = 0; step < PATH_STEPS; step++) {
		struct dentry *parent = core_read(dentry->d_parent);

		if (dentry == core_read(mount->mnt.mnt_root) || dentry == parent) {
			struct mount *above = core_read(mount->mnt_parent);

			if (above == mount || !above)
				return count;
			dentry = core_read(mount->mnt_mountpoint);
			mount = above;
			continue;
		}
		if (count == back)
			return (u64)core_read(dentry->d_name.name);
		count++;
		dentry = parent;
	}
	return PATH_STEPS;
}

/* The same for a task's cgroup. */
global_func u64 cgroup_component(u64 task, u32 back)
{
	struct kernfs_node *node = cgroup_of((struct task_struct *)task);
	u32 count = 0;

	for (int step = 0; step < PATH_STEPS; step++) {
		struct kernfs_node *above = parent_node(node);

		if (!above)
			return count;
		if (count == back)
			return (u64)core_read(node->name);
		count++;
		node = above;
	}
	return PATH_STEPS;
}

/* Returns the rule for a path whose components `component` returns. */
static __always_inline u64 components_rule(u64 (*component)(u64, u32), u64 of, u32 kind,
					   u32 generation)
{
	struct state *state = get_state();
	u64 count = component(of, ~0U), hash = 0, rule = 0;
	u32 depths;

	if (!state || count > PATH_DEPTH)
		return RULE_UNDETERMINED;
	depths = kind == KIND_PATH ? state->rules[generation & 1].path_depths
				   : state->rules[generation & 1].cgroup_depths;
	for (u32 depth = 0; depth < PATH_DEPTH && depth < count; depth++) {
		u64 name = component(of, count - 1 - depth);

		/* It has been moved meanwhile. */
		if (name <= PATH_STEPS)
			return RULE_UNDETERMINED;
		hash = path_hash(hash, component_hash(name));
		/* Most depths have no rule. */
		if (depths >> depth & 1)
			rule = add_path_rule(rule, key_space(kind, generation), hash,
					     depth + 1 == count);
	}
	return rule;
}

global_func u64 path_rule(u64 file, u32 generation)
{
	return components_rule(path_component, file, KIND_PATH, generation);
}

global_func u64 cgroup_path_rule(u64 task, u32 generation)
{
	return components_rule(cgroup_component, task, KIND_CGROUP_PATH, generation);
}

global_func u64 cgroup_name_rule(u64 task, u32 generation)
{
	struct kernfs_node *node = cgroup_of((struct task_struct *)task);
	u32 bits = 0;

	for (int step = 0; step < PATH_STEPS; step++) {
		struct kernfs_node *above = parent_node(node);

		if (!above)
			return bits;
		bits |= (u32)name_rule((u64)core_read(node->name), KIND_CGROUP_NAME, generation);
		node = above;
	}
	return bits | RULE_UNDETERMINED;
}
