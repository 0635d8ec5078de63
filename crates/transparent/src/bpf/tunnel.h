/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The filters of the TUN. A packet from user space is redirected to the ingress of the
 * uplink by which it would arrive without a tunnel. Routing, reverse-path filters,
 * connection tracking and SO_BINDTODEVICE therefore work as usual.
 */
#pragma once
#include "packet.h"

struct ethernet {
	u8 destination[6];
	u8 source[6];
	u16 protocol;
};

SEC("classifier")
int taupe_tun(struct __sk_buff *skb)
{
	struct state *state = get_state();
	struct uplink *uplink;
	struct packet packet;
	enum packet_mark origin = MARK_FLOW;
	struct flow *flow;
	u32 *local;
	u32 ifindex;

	if (!state)
		return TC_ACT_SHOT;
	read_packet(skb, &packet, INGRESS);
	/* Only unfragmented packets: the kernel would reassemble a fragment with
	 * fragments that a host on the link sends outside the tunnel. */
	if (!packet.is_ip || packet.is_fragment || packet.is_unparsable) {
		count(R_UNREADABLE);
		return TC_ACT_SHOT;
	}
	flow = bpf_map_lookup_elem(&flows, &packet.flow);
	local = bpf_map_lookup_elem(&locals, &packet.flow.local);
	if (flow) {
		ifindex = flow->ifindex;
		if (flow->owner.opener == OPENED_BY_CLIENT)
			origin = MARK_CLIENT;
		if (unlikely(!flow->is_answered))
			flow->is_answered = 1;
		count(R_IN_DELIVERED);
	} else if (local) {
		ifindex = *local;
		origin = MARK_UNSOLICITED;
	} else {
		count(R_IN_UNKNOWN);
		return TC_ACT_SHOT;
	}
	uplink = bpf_map_lookup_elem(&uplinks, &ifindex);
	if (!uplink) {
		count(R_IN_UNKNOWN);
		return TC_ACT_SHOT;
	}
	if (uplink->has_ethernet) {
		struct ethernet header = { .protocol = skb->protocol };

		__builtin_memcpy(header.destination, uplink->mac, 6);
		if (bpf_skb_change_head(skb, sizeof(header), 0) ||
		    bpf_skb_store_bytes(skb, 0, &header, sizeof(header), 0))
			return TC_ACT_SHOT;
	}
	set_mark(skb, state, origin);
	return bpf_redirect(ifindex, BPF_F_INGRESS);
}

/* Only the uplinks' filters may send packets to the TUN. Anybody can bind a socket to
 * the TUN, and the kernel itself sends packets to all interfaces. */
SEC("classifier")
int taupe_into(struct __sk_buff *skb)
{
	struct state *state = get_state();

	if (state && has_mark(skb, state, MARK_FLOW))
		return TC_ACT_UNSPEC;
	count(R_TUN_MISUSED);
	return TC_ACT_SHOT;
}
