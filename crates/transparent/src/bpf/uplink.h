/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The filters of each guarded uplink. Out: packets of chosen sockets turn into
 * the TUN. In: what claims to belong to a flow that is in the tunnel is dropped.
 */
#pragma once
#include "packet.h"
#include "verdict.h"

#define SECOND 1000000000ULL

/* What the socket of a packet says of it. */
enum said { UNKNOWN, OURS, OTHERS };

inline_always enum said socket_says(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk, *full, *listener;

	if (!sk)
		/* Forwarded packets have none, and are not ours. */
		return skb->ingress_ifindex ? OTHERS : UNKNOWN;
	full = bpf_sk_fullsock(sk);
	if (full) {
		if (chosen(full))
			return OURS;
		/* The kernel answers by raw sockets of its own: resets, and errors. */
		return full->type == SOCK_RAW ? UNKNOWN : OTHERS;
	}
	/* A connection that is being accepted is the listener's. */
	listener = bpf_get_listener_sock(sk);
	if (listener)
		return chosen(listener) ? OURS : OTHERS;
	/* TIME_WAIT has no listener and no storage: its flow is known. */
	return UNKNOWN;
}

/* Notes that a flow lives; false where there is no place for a new one. */
inline_always bool note_flow(struct __sk_buff *skb, const struct flow_key *key, struct flow *old)
{
	u64 now = bpf_ktime_get_ns();
	struct flow flow = { .seen = now, .ifindex = skb->ifindex };

	/* Not at every packet: processors would fight for the line. */
	if (old && old->ifindex == flow.ifindex && now - old->seen < SECOND)
		return true;
	return bpf_map_update_elem(&flows, key, &flow, 0) == 0;
}

/* Whether what isn't a chosen application's is held back with it: everything, but the
 * tunnel's own packets, and those that tell where a neighbour is. */
inline_always bool is_shut_in(struct __sk_buff *skb, const struct state *state)
{
	struct bpf_sock *sk;
	struct owner *owner;

	if (likely(!is_shut(state)))
		return false;
	if (skb->protocol != htons(ETH_P_IP) && skb->protocol != htons(ETH_P_IPV6))
		return false;
	sk = skb->sk;
	if (!sk)
		return true;
	sk = bpf_sk_fullsock(sk);
	if (!sk)
		return true;
	owner = bpf_sk_storage_get(&sockets, sk, NULL, 0);
	return !owner || owner->verdict != OWN;
}

SEC("classifier")
int taupe_out(struct __sk_buff *skb)
{
	enum said said = socket_says(skb);
	struct state *state = get_state();
	struct packet packet;
	struct flow *flow = NULL;
	u32 way;

	if (!state)
		return SHOT;
	if (said != OURS && is_shut_in(skb, state))
		said = OURS;
	if (likely(said == OTHERS))
		return NEXT;
	read_packet(skb, &packet, OUT);
	if (!packet.is_ip || packet.is_discovery)
		return NEXT;
	if (!packet.is_later_fragment)
		flow = bpf_map_lookup_elem(&flows, &packet.flow);
	if (said == UNKNOWN && !flow)
		return NEXT;
	if (is_open(state))
		return NEXT;
	way = way_of(&packet.flow, now_of(state->generation));
	if (way == CLASS_DIRECT)
		return NEXT;
	if (way != CLASS_TUNNEL) {
		count(R_OUT_CLASS);
		return SHOT;
	}
	if (!now_of(state->up)) {
		count(R_OUT_DOWN);
		return SHOT;
	}
	if (!packet.is_later_fragment && !note_flow(skb, &packet.flow, flow)) {
		count(R_OUT_FLOWS_FULL);
		return SHOT;
	}
	count(R_OUT_TUNNEL);
	stamp(skb, state);
	return bpf_redirect(now_of(state->tun), 0);
}

SEC("classifier")
int taupe_in(struct __sk_buff *skb)
{
	struct state *state = get_state();
	struct packet packet;

	if (!state)
		return SHOT;
	if (is_stamped(skb, state)) {
		skb->priority = state->stamp;
		return NEXT;
	}
	read_packet(skb, &packet, IN);
	/* Later fragments come to nothing without the first. */
	if (!packet.is_ip || packet.is_later_fragment ||
	    !bpf_map_lookup_elem(&flows, &packet.flow) || is_open(state) ||
	    way_of(&packet.flow, now_of(state->generation)) == CLASS_DIRECT)
		return NEXT;
	count(R_CLEAR_FLOW);
	return SHOT;
}
