/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The filters of the TUN. What user space wrote goes to the uplink that it would
 * have come by without a tunnel, so that routing, reverse path filters,
 * connection tracking and SO_BINDTODEVICE find everything as it should be.
 *
 * The tunnel reaches chosen applications and nobody else: without a flow only a
 * chosen socket gets a packet. For anything else it goes back to user space,
 * which refuses it inside the tunnel.
 */
#pragma once
#include "packet.h"
#include "verdict.h"

struct ethernet {
	u8 destination[6];
	u8 source[6];
	u16 protocol;
};

/* Whether a chosen socket waits for a packet that belongs to no flow. */
inline_always bool has_chosen_socket(struct __sk_buff *skb, const struct packet *packet)
{
	const struct flow_key *flow = &packet->flow;
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *sk;
	u32 size;
	bool is_chosen;

	if (skb->protocol == htons(ETH_P_IP)) {
		tuple.ipv4.saddr = flow->remote.words[3];
		tuple.ipv4.daddr = flow->local.words[3];
		tuple.ipv4.sport = flow->remote_port;
		tuple.ipv4.dport = flow->local_port;
		size = sizeof(tuple.ipv4);
	} else {
		__builtin_memcpy(tuple.ipv6.saddr, flow->remote.words, 16);
		__builtin_memcpy(tuple.ipv6.daddr, flow->local.words, 16);
		tuple.ipv6.sport = flow->remote_port;
		tuple.ipv6.dport = flow->local_port;
		size = sizeof(tuple.ipv6);
	}
	if (flow->protocol == IPPROTO_TCP)
		sk = bpf_sk_lookup_tcp(skb, &tuple, size, CURRENT_NETNS, 0);
	else if (flow->protocol == IPPROTO_UDP)
		sk = bpf_sk_lookup_udp(skb, &tuple, size, CURRENT_NETNS, 0);
	else
		return false;
	if (!sk)
		return false;
	is_chosen = chosen(sk);
	bpf_sk_release(sk);
	return is_chosen;
}

SEC("classifier")
int taupe_tun(struct __sk_buff *skb)
{
	struct state *state = get_state();
	struct uplink *uplink;
	struct packet packet;
	struct flow *flow = NULL;
	u32 *local;
	u32 ifindex;

	if (!state)
		return SHOT;
	read_packet(skb, &packet, IN);
	if (packet.is_ip && !packet.is_later_fragment)
		flow = bpf_map_lookup_elem(&flows, &packet.flow);
	local = bpf_map_lookup_elem(&locals, &packet.flow.local);
	if (flow) {
		ifindex = flow->ifindex;
	} else if (local) {
		if (!packet.is_later_fragment && !has_chosen_socket(skb, &packet)) {
			count(R_IN_BOUNCED);
			stamp(skb, state);
			return bpf_redirect(now_of(state->tun), 0);
		}
		ifindex = *local;
	} else {
		count(R_IN_UNKNOWN);
		return SHOT;
	}
	uplink = bpf_map_lookup_elem(&uplinks, &ifindex);
	if (!uplink) {
		count(R_IN_UNKNOWN);
		return SHOT;
	}
	if (uplink->has_ethernet) {
		struct ethernet header = { .protocol = skb->protocol };

		__builtin_memcpy(header.destination, uplink->mac, 6);
		if (bpf_skb_change_head(skb, sizeof(header), 0) ||
		    bpf_skb_store_bytes(skb, 0, &header, sizeof(header), 0))
			return SHOT;
	}
	stamp(skb, state);
	count(R_IN_DELIVERED);
	return bpf_redirect(ifindex, REDIRECT_INGRESS);
}

/* Nothing gets into the tunnel but what the filters send there: anybody can bind a
 * socket to the TUN, and the kernel itself likes to tell all interfaces something. */
SEC("classifier")
int taupe_into(struct __sk_buff *skb)
{
	struct state *state = get_state();

	if (state && is_stamped(skb, state))
		return NEXT;
	count(R_TUN_MISUSED);
	return SHOT;
}
