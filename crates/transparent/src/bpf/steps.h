/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The same as trail.h for kernels without bpf_loop (before Linux 5.17) or without writes
 * to variable stack offsets (before 5.12): each component of a path is looked up from
 * the leaf again.
 */
#pragma once
#include "identity.h"

/* Returns the address of the name `back` components above an executable. If there are
 * fewer components, returns their number, which is smaller than any address. */
alone u64 path_part(u64 file, u32 back)
{
	struct file *executable = (struct file *)file;
	struct vfsmount *inner = kernel(executable->f_path.mnt);
	struct dentry *dentry = kernel(executable->f_path.dentry);
	/* container_of, with the running kernel's offset. */
	struct mount *mount = (void *)inner -
			      __builtin_preserve_field_info(((struct mount *)0)->mnt, 0);
	u32 count = 0;

	for (int step = 0; step < PATH_STEPS; step++) {
		struct dentry *parent = kernel(dentry->d_parent);

		if (dentry == kernel(mount->mnt.mnt_root) || dentry == parent) {
			struct mount *above = kernel(mount->mnt_parent);

			if (above == mount || !above)
				return count;
			dentry = kernel(mount->mnt_mountpoint);
			mount = above;
			continue;
		}
		if (count == back)
			return (u64)kernel(dentry->d_name.name);
		count++;
		dentry = parent;
	}
	return PATH_STEPS;
}

/* The same for a task's cgroup. */
alone u64 cgroup_part(u64 task, u32 back)
{
	struct kernfs_node *node = cgroup_of((struct task_struct *)task);
	u32 count = 0;

	for (int step = 0; step < PATH_STEPS; step++) {
		struct kernfs_node *above = node_above(node);

		if (!above)
			return count;
		if (count == back)
			return (u64)kernel(node->name);
		count++;
		node = above;
	}
	return PATH_STEPS;
}

/* Returns the rule for a path whose components `part` returns. */
inline_always u64 parts_rule(u64 (*part)(u64, u32), u64 of, u32 kind, u32 generation)
{
	struct state *state = get_state();
	u64 count = part(of, ~0U), hash = 0, rule = 0;
	u32 depths;

	if (!state || count > PATH_DEPTH)
		return RULE_UNTOLD;
	depths = kind == KIND_PATH ? state->rules[generation & 1].path_depths
				   : state->rules[generation & 1].cgroup_depths;
	for (u32 depth = 0; depth < PATH_DEPTH && depth < count; depth++) {
		u64 name = part(of, count - 1 - depth);

		/* It has been moved meanwhile. */
		if (name <= PATH_STEPS)
			return RULE_UNTOLD;
		hash = path_hash(hash, component_hash(name));
		/* Most depths have no rule. */
		if (depths >> depth & 1)
			rule = with_place(rule, space_of(kind, generation), hash,
					  depth + 1 == count);
	}
	return rule;
}

alone u64 path_rule(u64 file, u32 generation)
{
	return parts_rule(path_part, file, KIND_PATH, generation);
}

alone u64 cgroup_path_rule(u64 task, u32 generation)
{
	return parts_rule(cgroup_part, task, KIND_CGROUP_PATH, generation);
}

alone u64 cgroup_name_rule(u64 task, u32 generation)
{
	struct kernfs_node *node = cgroup_of((struct task_struct *)task);
	u32 bits = 0;

	for (int step = 0; step < PATH_STEPS; step++) {
		struct kernfs_node *above = node_above(node);

		if (!above)
			return bits;
		bits |= (u32)name_rule((u64)kernel(node->name), KIND_CGROUP_NAME, generation);
		node = above;
	}
	return bits | RULE_UNTOLD;
}
