/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The filters of each guarded uplink. Out: packets of chosen sockets, and of clients,
 * turn into the TUN. In: what claims to belong to a flow that is in the tunnel is dropped, and
 * what has come through the tunnel is let in.
 */
#pragma once
#include "forward.h"
#include "packet.h"
#include "senders.h"
#include "verdict.h"

#define SECOND 1000000000ULL

/*
 * Those from the tunnel who have sent something for a chosen socket that belongs to no
 * flow yet. What the kernel answers by itself, without a socket that could be asked (a
 * SYN cookie, a reset), finds its way by this within microseconds; so it does not
 * matter that the oldest are forgotten when there are many.
 */
struct {
	MAP_UINT(type, MAP_LRU_HASH);
	MAP_UINT(max_entries, 16384);
	MAP_TYPE(key, struct flow_key);
	MAP_TYPE(value, u32);
} strangers SEC(".maps");

/*
 * Packets of chosen sockets in fragments, of which the first has gone to the tunnel
 * because of its port. The others follow it, at once and in order.
 */
struct whole {
	struct address remote;
	struct address local;
	u32 id;
};

struct {
	MAP_UINT(type, MAP_LRU_HASH);
	MAP_UINT(max_entries, 4096);
	MAP_TYPE(key, struct whole);
	MAP_TYPE(value, u32);
} asked SEC(".maps");

/* What the socket of a packet says of it; FORWARDED ones have none. */
enum said { UNKNOWN, OURS, OTHERS, FORWARDED };

/* Whether a socket is the kernel's own, which no process has a descriptor of. */
inline_always bool is_kernels(struct __sk_buff *skb)
{
	struct sock *sk = sock_of(skb);

	/* One that a process has closed has no socket any more. */
	return kernel(sk->sk_socket) && !is_open_by_process(sk);
}

inline_always enum said socket_says(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk, *full, *listener;

	if (!sk)
		return skb->ingress_ifindex ? FORWARDED : UNKNOWN;
	full = bpf_sk_fullsock(sk);
	if (full) {
		if (chosen(full))
			return OURS;
		/* The kernel answers by raw sockets of its own: resets, and errors. Anybody
		 * else's could have the ports of a flow that is not theirs. */
		return full->type == SOCK_RAW && is_kernels(skb) ? UNKNOWN : OTHERS;
	}
	/* A connection that is being accepted is the listener's. */
	listener = bpf_get_listener_sock(sk);
	if (listener)
		return chosen(listener) ? OURS : OTHERS;
	/* TIME_WAIT has no listener and no storage: its flow is known. */
	return UNKNOWN;
}

/* Whose socket gets a packet, or an error about one, of this flow. */
inline_always enum said receiver_says(struct __sk_buff *skb, const struct flow_key *flow)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *sk;
	enum said said;
	u32 size;

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
		return UNKNOWN;
	/* TIME_WAIT is not found. */
	if (!sk)
		return UNKNOWN;
	said = chosen(sk) ? OURS : OTHERS;
	bpf_sk_release(sk);
	return said;
}

/* Whose share a flow takes that a packet opens. */
inline_always void read_flow_owner(struct __sk_buff *skb, enum opener opener,
				   struct flow_owner *owner)
{
	struct bpf_sock *sk = skb->sk, *socket;
	struct owner *stored;

	owner->opener = opener;
	if (opener == OF_CLIENT)
		owner->interface = skb->ingress_ifindex;
	if (opener != OF_SOCKET || !sk)
		return;
	socket = bpf_sk_fullsock(sk);
	if (!socket)
		socket = bpf_get_listener_sock(sk);
	if (!socket)
		return;
	stored = bpf_sk_storage_get(&sockets, socket, NULL, 0);
	if (stored)
		owner->application = stored->application;
}

/* Removes a flow. */
apart u32 end_flow(struct state *state, const struct flow_key *key)
{
	struct flow *flow = bpf_map_lookup_elem(&flows, key);
	struct flow_owner owner;
	s32 *count;

	if (!flow)
		return 0;
	owner = flow->owner;
	if (bpf_map_delete_elem(&flows, key))
		return 0;
	__sync_fetch_and_add(&state->flows, -1);
	count = bpf_map_lookup_elem(&flow_owners, &owner);
	if (count)
		__sync_fetch_and_add(count, -1);
	return 0;
}

/* Enters a flow, if its owner may have another one. */
apart u32 open_flow(struct state *state, const struct flow_key *key, const struct flow *flow)
{
	s32 *count = bpf_map_lookup_elem(&flow_owners, &flow->owner), none = 0;
	long failed;

	if (!count) {
		bpf_map_update_elem(&flow_owners, &flow->owner, &none, UPDATE_NEW);
		count = bpf_map_lookup_elem(&flow_owners, &flow->owner);
	}
	if (!count || now_of(*count) >= FLOWS_MAX - now_of(state->flows))
		return false;
	failed = bpf_map_update_elem(&flows, key, flow, UPDATE_NEW);
	if (failed)
		/* Another processor has been faster. */
		return failed == -EEXIST;
	__sync_fetch_and_add(count, 1);
	__sync_fetch_and_add(&state->flows, 1);
	return true;
}

/* Notes that a flow lives; false where there is no place for a new one. */
inline_always bool note_flow(struct __sk_buff *skb, struct state *state,
			     const struct flow_key *key, struct flow *old, enum opener opener)
{
	struct flow flow = { .seen = bpf_ktime_get_ns(), .ifindex = skb->ifindex };

	if (old && (old->owner.opener == OF_STRANGER || old->owner.opener == opener)) {
		/* Not at every packet: processors would fight for the line. */
		if (old->ifindex != flow.ifindex || flow.seen - old->seen >= SECOND) {
			old->ifindex = flow.ifindex;
			old->seen = flow.seen;
		}
		return true;
	}
	if (old)
		end_flow(state, key);
	read_flow_owner(skb, opener, &flow.owner);
	if (!open_flow(state, key, &flow)) {
		now_of(state->refused) = flow.seen / SECOND;
		return false;
	}
	if (opener == OF_STRANGER)
		bpf_map_delete_elem(&strangers, key);
	return true;
}

/* Has later fragments go where the first has gone, which alone has the ports. */
inline_always u32 way_of_fragment(const struct packet *packet, u32 way)
{
	struct whole whole = {
		.remote = packet->flow.remote,
		.local = packet->flow.local,
		.id = packet->fragment_id,
	};
	u32 one = 1;

	if (packet->is_later_fragment) {
		if (way == CLASS_DIRECT && bpf_map_lookup_elem(&asked, &whole))
			return CLASS_TUNNEL;
	} else if (way == CLASS_DIRECT) {
		/* Of an earlier packet with the same number. */
		bpf_map_delete_elem(&asked, &whole);
	} else if (packet->flow.remote_port == htons(53) &&
		   bpf_map_update_elem(&asked, &whole, &one, 0)) {
		return CLASS_DROP;
	}
	return way;
}

/* Whether a packet past the tunnel is a chosen socket's question, which netfilter leads to
 * another port: only the port that the socket is connected to shows it. */
inline_always bool is_led_elsewhere(struct __sk_buff *skb, const struct packet *packet)
{
	struct bpf_sock *sk = skb->sk;

	if (sk)
		sk = bpf_sk_fullsock(sk);
	return sk && is_question(sk->dst_port, packet->flow.protocol);
}

/* Whether what isn't a chosen application's is held back with it: everything, but the
 * tunnel's own packets, and those that tell where a neighbour is. */
inline_always bool is_shut_in(struct __sk_buff *skb, const struct state *state)
{
	struct bpf_sock *sk;

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
	return verdict_at(sk) != OWN;
}

SEC("classifier")
int taupe_out(struct __sk_buff *skb)
{
	enum said said = socket_says(skb);
	struct state *state = get_state();
	struct packet packet;
	struct flow *flow = NULL;
	bool is_stranger = false, is_ours, is_held;
	u32 way;

	if (!state)
		return SHOT;
	is_ours = said == OURS ||
		  (said == FORWARDED && now_of(state->forwarded) && is_routed(skb));
	is_held = !is_ours && is_shut_in(skb, state);
	if (likely(!is_ours && !is_held && said != UNKNOWN))
		return NEXT;
	if (has_label(skb, state, MAY_LEAVE))
		return NEXT;
	read_packet(skb, &packet, OUT);
	if (packet.is_ip && !packet.is_later_fragment) {
		flow = bpf_map_lookup_elem(&flows, &packet.flow);
		if (!flow)
			is_stranger = bpf_map_lookup_elem(&strangers, &packet.flow);
	}
	if (!is_ours && !is_held && !(flow || is_stranger))
		return NEXT;
	if (is_open(state) || (packet.is_discovery && !is_ours))
		return NEXT;
	if (!packet.is_ip || packet.is_hidden) {
		/* A packet socket speaks to the link itself, by EAPOL or ARP. Another's
		 * packet has been put into something, MPLS for one, and who knows where
		 * that goes. */
		if (!packet.is_ip && skb->sk && skb->sk->family == AF_PACKET)
			return NEXT;
		count(R_UNREADABLE);
		return SHOT;
	}
	if (said == FORWARDED) {
		switch (passage_of(skb, &packet.flow, state)) {
		case INSIDE:
			put_label(skb, state, MAY_LEAVE);
			return NEXT;
		case INTRUDING:
			count(R_CLEAR_CLIENT);
			return SHOT;
		case ASTRAY:
			count(R_IN_UNKNOWN);
			return SHOT;
		}
	}
	way = way_out(skb, &packet.flow, now_of(state->generation));
	if (is_of_link(&packet) && (!is_ours || (stays_on_link(&packet.flow.remote) &&
						 next_hop_of(skb) != HOP_GATEWAY)))
		way = CLASS_DIRECT;
	if (packet.is_fragment)
		way = way_of_fragment(&packet, way);
	if (way == CLASS_DIRECT) {
		if (said == OURS && is_led_elsewhere(skb, &packet)) {
			count(R_NAME_HERE);
			return SHOT;
		}
		/* Of a link-local destination that was behind a gateway before. */
		if (flow)
			end_flow(state, &packet.flow);
		put_label(skb, state, MAY_LEAVE);
		return NEXT;
	}
	if (way != CLASS_TUNNEL) {
		count(R_OUT_CLASS);
		return SHOT;
	}
	/* It may be up by now, which is not for those that were held back with the others. */
	if (is_held || !now_of(state->up)) {
		count(R_OUT_DOWN);
		return SHOT;
	}
	if (!packet.is_later_fragment &&
	    !note_flow(skb, state, &packet.flow, flow,
		       is_stranger	   ? OF_STRANGER
		       : said == FORWARDED ? OF_CLIENT
					   : OF_SOCKET)) {
		count(R_OUT_FLOWS_FULL);
		return SHOT;
	}
	count(R_OUT_TUNNEL);
	stamp(skb, state, FROM_TUNNEL);
	return bpf_redirect(now_of(state->tun), 0);
}

/* Lets a packet from the tunnel pass to its socket, or its client. */
inline_always int let_in(struct __sk_buff *skb, const struct state *state)
{
	skb->mark = 0;
	skb->priority = state->stamp;
	return NEXT;
}

/*
 * The tunnel reaches chosen applications and nobody else: without a flow only a chosen
 * socket gets a packet. For anything else it goes back to user space, which refuses it
 * inside the tunnel. This is asked here, where sockets that are bound to the uplink are
 * found too.
 */
inline_always int let_stranger_in(struct __sk_buff *skb, const struct state *state,
				  const struct packet *packet)
{
	u32 one = 1;

	if (receiver_says(skb, &packet->flow) != OURS ||
	    bpf_map_update_elem(&strangers, &packet->flow, &one, 0)) {
		count(R_IN_BOUNCED);
		stamp(skb, state, FROM_TUNNEL);
		return bpf_redirect(now_of(state->tun), 0);
	}
	count(R_IN_DELIVERED);
	return let_in(skb, state);
}

SEC("classifier")
int taupe_in(struct __sk_buff *skb)
{
	struct state *state = get_state();
	struct packet packet;
	struct flow *flow;
	enum said said;

	if (!state)
		return SHOT;
	if (is_stamped(skb, state, FROM_TUNNEL))
		return let_in(skb, state);
	if (is_stamped(skb, state, FOR_CLIENT)) {
		put_label(skb, state, TO_CLIENT);
		return let_in(skb, state);
	}
	/* A container may have guessed it. */
	if (has_label(skb, state, MAY_LEAVE) || has_label(skb, state, TO_CLIENT))
		skb->tc_index = 0;
	read_packet(skb, &packet, IN);
	if (is_stamped(skb, state, FROM_STRANGER))
		return let_stranger_in(skb, state, &packet);
	/* Later fragments come to nothing without the first. */
	if (!packet.is_ip || packet.is_later_fragment)
		return NEXT;
	if (packet.is_hidden) {
		count(R_UNREADABLE);
		return SHOT;
	}
	/* Errors are for sockets whose flow has been forgotten, too: no filter at the
	 * socket sees them. */
	flow = bpf_map_lookup_elem(&flows, &packet.flow);
	if (likely(!flow && !packet.is_error))
		return NEXT;
	if (is_of_link(&packet) || is_open(state))
		return NEXT;
	/* A link-local destination in the tunnel is behind a gateway. */
	if (!(flow && is_link_local(&packet.flow.remote)) &&
	    way_of(&packet.flow, now_of(state->generation)) == CLASS_DIRECT)
		return NEXT;
	if (flow && flow->owner.opener == OF_CLIENT) {
		if (!now_of(state->forwarded)) {
			end_flow(state, &packet.flow);
			return NEXT;
		}
		count(R_CLEAR_FLOW);
		return SHOT;
	}
	said = receiver_says(skb, &packet.flow);
	if (!flow && said != OURS)
		return NEXT;
	if (said == OTHERS) {
		/* The chosen socket is gone, and an unchosen one has its ports now. */
		end_flow(state, &packet.flow);
		return NEXT;
	}
	count(R_CLEAR_FLOW);
	return SHOT;
}
