/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Packets that this machine forwards for its clients: containers, virtual machines,
 * users of its hotspot. With `forwarded` set they go through the tunnel like packets of
 * selected applications.
 *
 * A client's packet leaves for any network except one in which this machine has an
 * address by a link without a default route. A packet to such a network is for a client.
 * It comes from another client, or from a destination that bypasses the tunnel, or
 * through the tunnel.
 */
#pragma once
#include "guards.h"
#include "packet.h"

/* The direction of a forwarded packet. */
enum passage {
	/* From one client to another, or to a client by a permitted path. */
	INSIDE,
	/* To any other destination. */
	OUTWARD,
	/* To a client, from outside the tunnel. */
	INTRUDING,
	/* From the tunnel to a client that has gone: must not leave. */
	ASTRAY,
};

/* Returns true if this machine has routed a packet that leaves by an interface. A packet
 * from a bridge or another namespace has a different source address. */
inline_always bool is_routed(struct __sk_buff *skb)
{
	struct net_device *device = device_of(skb);
	const u8 *address = kernel(device->dev_addr);
	u32 ifindex = skb->ifindex;
	struct uplink *uplink = bpf_map_lookup_elem(&uplinks, &ifindex);
	u16 own[3] = {}, source[3] = {};

	if (!uplink || !uplink->has_ethernet)
		return true;
	if (bpf_probe_read_kernel(own, sizeof(own), address) ||
	    bpf_skb_load_bytes(skb, 6, source, sizeof(source)))
		return true;
	return own[0] == source[0] && own[1] == source[1] && own[2] == source[2];
}

/* Returns true if the address is in a network of this machine on the interface. */
inline_always bool is_near(const struct address *address, u32 ifindex)
{
	struct network_key key = { .prefix_len = 128, .address = *address };
	u32 *link = bpf_map_lookup_elem(&networks, &key);

	return link && *link == ifindex;
}

inline_always bool leads_out(u32 ifindex)
{
	struct uplink *uplink = bpf_map_lookup_elem(&uplinks, &ifindex);

	return !uplink || uplink->leads_out;
}

apart u32 passage_of(struct __sk_buff *skb, const struct flow_key *flow,
		     const struct state *state)
{
	bool is_out = leads_out(skb->ifindex), is_here = is_near(&flow->remote, skb->ifindex);
	struct flow_key back = {
		.remote = flow->local,
		.remote_port = flow->local_port,
		.protocol = flow->protocol,
	};

	if (has_label(skb, state, TO_CLIENT))
		return is_here || !is_out ? INSIDE : ASTRAY;
	if (!is_here || is_out)
		return OUTWARD;
	if (is_near(&flow->local, skb->ingress_ifindex) && !leads_out(skb->ingress_ifindex))
		return INSIDE;
	return way_of(&back, now_of(state->generation)) == CLASS_DIRECT ? INSIDE : INTRUDING;
}

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct nf_hook_state {
	struct net_device *in;
	struct net_device *out;
};

#pragma clang attribute pop

/*
 * The second layer: packets are forwarded only between devices that have the filters.
 * The loader does not support netfilter programs; user space takes this one by its name.
 */
SEC("classifier")
int taupe_forward(struct bpf_nf_ctx *context)
{
	struct nf_hook_state *hook = context->state;
	struct state *state = get_state();

	if (!state)
		return NF_DROP;
	if (!now_of(state->forwarded) || is_open(state))
		return NF_ACCEPT;
	if (is_guarded(kernel(hook->in)) && is_guarded(kernel(hook->out)))
		return NF_ACCEPT;
	count(R_OUT_UNGUARDED);
	return NF_DROP;
}
