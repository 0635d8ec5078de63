/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Checks that a device is guarded: Taupe's filter sees all packets that leave by it, and
 * sees them before any other filter, which could redirect them. Filters of other tunnels
 * may come first, since they pass on packets that are not theirs.
 *
 * A map entry is not enough. The interface's number may belong to another device by now,
 * and a filter may have been removed, or preceded by another, while no process could
 * notice. The device itself is therefore checked for each packet.
 *
 * tcx programs run first, in their order; then the filters of the clsact queue, by
 * priority (sch_handle_egress in net/core/dev.c).
 */
#pragma once
#include "state.h"

/* Priority of our filter in a clsact queue: the first one. */
#define CLSACT_PRIORITY 1

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct bpf_link {
	u32 id;
};

/* Programs have their functions' names, cut to 15 characters. */
struct bpf_prog_aux {
	char name[16];
};

struct bpf_prog {
	struct bpf_prog_aux *aux;
};

struct bpf_mprog_fp {
	struct bpf_prog *prog;
};

struct bpf_mprog_cp {
	struct bpf_link *link;
};

struct bpf_mprog_bundle;

/* Since Linux 6.6, as everything named after tcx. */
struct bpf_mprog_entry {
	struct bpf_mprog_fp fp_items[64];
	struct bpf_mprog_bundle *parent;
};

struct bpf_mprog_bundle {
	struct bpf_mprog_cp cp_items[64];
};

struct tcf_proto {
	u32 prio;
};

struct mini_Qdisc {
	struct tcf_proto *filter_list;
};

struct tcx_entry {
	struct mini_Qdisc *miniq;
	struct bpf_mprog_bundle bundle;
};

struct net_device {
	s32 ifindex;
	const u8 *dev_addr;
	struct bpf_mprog_entry *tcx_egress;
};

/* Before Linux 6.6. */
struct net_device___clsact {
	struct mini_Qdisc *miniq_egress;
};

#pragma clang attribute pop

/* Returns the device's clsact queue; NULL if tcx programs precede it. */
static __always_inline struct mini_Qdisc *clsact_of(struct net_device *device)
{
	struct net_device___clsact *older = (void *)device;
	struct bpf_mprog_entry *entry;
	struct tcx_entry *container;

	if (!core_field_exists(device->tcx_egress))
		return core_read(older->miniq_egress);
	entry = core_read(device->tcx_egress);
	if (!entry || core_read(entry->fp_items[0].prog))
		return NULL;
	container = core_container_of(core_read(entry->parent), struct tcx_entry, bundle);
	return core_read(container->miniq);
}

/* "taupe_", the prefix of the programs of all tunnels and versions, as in clsact.rs. A
 * string would need a section of its own. */
#define NAME_TAUPE 0x5f6570756174ULL
#define NAME_MASK ((1ULL << 48) - 1)

static __always_inline bool is_taupe_program(struct bpf_prog *program)
{
	struct bpf_prog_aux *aux = core_read(program->aux);
	u64 name;

	return program && !bpf_probe_read_kernel(&name, sizeof(name), aux->name) &&
	       (name & NAME_MASK) == NAME_TAUPE;
}

/* Maximum number of tcx programs (BPF_MPROG_MAX). */
#define PROGRAMS_MAX 64

/* A walk along the programs of a device, with their links. */
struct tcx_walk {
	struct bpf_mprog_fp *program;
	struct bpf_mprog_cp *link;
	/* Distances to the next. The sizes of the types cannot be asked for: a kernel without tcx
	 * has no such types, and aya refuses the object then. */
	u64 to_next_program;
	u64 to_next_link;
	u32 id;
	bool is_found;
};

static long tcx_step(u32 step, struct tcx_walk *walk)
{
	struct bpf_link *found = core_read(walk->link->link);

	if (found && core_read(found->id) == walk->id) {
		walk->is_found = true;
		return 1;
	}
	if (!is_taupe_program(core_read(walk->program->prog)))
		return 1;
	walk->program = (void *)walk->program + walk->to_next_program;
	walk->link = (void *)walk->link + walk->to_next_link;
	return 0;
}

/* Returns true if only filters of other tunnels precede the link in tcx. */
static __always_inline bool is_first_in_tcx(struct net_device *device, u32 link)
{
	struct bpf_mprog_bundle *bundle;
	struct bpf_mprog_entry *entry;
	struct tcx_walk walk = { .id = link };

	if (!core_field_exists(device->tcx_egress))
		return false;
	entry = core_read(device->tcx_egress);
	if (!entry)
		return false;
	bundle = core_read(entry->parent);
	walk.program = &entry->fp_items[0];
	walk.link = &bundle->cp_items[0];
	walk.to_next_program = (void *)&entry->fp_items[1] - (void *)walk.program;
	walk.to_next_link = (void *)&bundle->cp_items[1] - (void *)walk.link;
	bpf_loop(PROGRAMS_MAX, tcx_step, &walk, 0);
	return walk.is_found;
}

/* Returns the device that a packet has arrived by or leaves by. */
static __always_inline struct net_device *device_of(struct __sk_buff *skb)
{
	return core_read(((struct sk_buff *)skb)->dev);
}

static __always_inline bool is_guarded(struct net_device *device)
{
	u32 ifindex = core_read(device->ifindex);
	struct uplink *uplink = bpf_map_lookup_elem(&uplinks, &ifindex);
	struct mini_Qdisc *queue;
	struct tcf_proto *first;

	if (!uplink)
		return false;
	if (uplink->link_id)
		return is_first_in_tcx(device, uplink->link_id);
	queue = clsact_of(device);
	if (!queue)
		return false;
	first = core_read(queue->filter_list);
	return first && core_read(first->prio) == CLSACT_PRIORITY << 16;
}
