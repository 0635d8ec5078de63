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

/* The path of a forwarded packet. */
enum forward_path {
	/* From one client to another, or to a client by a permitted path. */
	FORWARD_LOCAL,
	/* To any other destination. */
	FORWARD_OUT,
	/* To a client, from outside the tunnel. */
	FORWARD_INTRUSION,
	/* From the tunnel to a client that has gone: must not leave. */
	FORWARD_STALE,
};

/* Returns true if this machine has routed a packet that leaves by an interface. A packet
 * from a bridge or another namespace has a different source address. */
static __always_inline bool is_routed(struct __sk_buff *skb)
{
	struct net_device *device = device_of(skb);
	const u8 *address = core_read(device->dev_addr);
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
static __always_inline bool is_on_link(const struct address *address, u32 ifindex)
{
	struct network_key key = { .prefix_len = 128, .address = *address };
	u32 *link = bpf_map_lookup_elem(&networks, &key);

	return link && *link == ifindex;
}

static __always_inline bool has_default_route(u32 ifindex)
{
	struct uplink *uplink = bpf_map_lookup_elem(&uplinks, &ifindex);

	return !uplink || uplink->has_default_route;
}

static __noinline u32 forward_path_of(struct __sk_buff *skb, const struct flow_key *flow,
				      const struct state *state)
{
	bool is_out = has_default_route(skb->ifindex);
	bool is_near = is_on_link(&flow->remote, skb->ifindex);
	struct flow_key back = {
		.remote = flow->local,
		.remote_port = flow->local_port,
		.protocol = flow->protocol,
	};

	if (has_label(skb, state, TO_CLIENT))
		return is_near || !is_out ? FORWARD_LOCAL : FORWARD_STALE;
	if (!is_near || is_out)
		return FORWARD_OUT;
	if (is_on_link(&flow->local, skb->ingress_ifindex) &&
	    !has_default_route(skb->ingress_ifindex))
		return FORWARD_LOCAL;
	return flow_class_on_link(&back, READ_ONCE(state->generation)) == CLASS_DIRECT ?
		       FORWARD_LOCAL :
		       FORWARD_INTRUSION;
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
	if (!READ_ONCE(state->forwarded) || may_bypass_tunnel(state))
		return NF_ACCEPT;
	if (is_guarded(core_read(hook->in)) && is_guarded(core_read(hook->out)))
		return NF_ACCEPT;
	count(R_OUT_UNGUARDED);
	return NF_DROP;
}
