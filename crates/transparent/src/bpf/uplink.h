/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The filters of each guarded uplink. Out: packets of selected sockets and of clients
 * are redirected into the TUN. In: a packet that claims to belong to a flow in the
 * tunnel is dropped, and a packet from the tunnel is let in.
 */
#pragma once
#include "forward.h"
#include "packet.h"
#include "senders.h"
#include "verdict.h"

#define SECOND 1000000000ULL

/*
 * Flows of strangers in the tunnel that have sent packets to a selected socket and have
 * no entry in `flows` yet. The kernel's replies without a socket (a SYN cookie, a reset)
 * are recognised by them within microseconds. It therefore does not matter that the
 * oldest entries are removed when there are many.
 */
struct {
	MAP_UINT(type, MAP_LRU_HASH);
	MAP_UINT(max_entries, 16384);
	MAP_TYPE(key, struct flow_key);
	MAP_TYPE(value, u32);
} strangers SEC(".maps");

/*
 * Fragmented packets of selected sockets whose first fragment has gone into the tunnel
 * because of its port. The later fragments follow at once and in order.
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

/* The owner of a packet by its socket. FORWARDED packets have none. */
enum said { UNKNOWN, OURS, OTHERS, FORWARDED };

/* Returns true if the socket is the kernel's own, so no process has a descriptor of it. */
inline_always bool is_kernels(struct __sk_buff *skb)
{
	struct sock *sk = sock_of(skb);

	/* A socket closed by its process has no `struct socket` any more. */
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
		/* The kernel sends resets and errors by raw sockets of its own. A raw
		 * socket of a process could use the ports of another's flow. */
		return full->type == SOCK_RAW && is_kernels(skb) ? UNKNOWN : OTHERS;
	}
	/* A connection that is being accepted belongs to the listener. */
	listener = bpf_get_listener_sock(sk);
	if (listener)
		return chosen(listener) ? OURS : OTHERS;
	/* TIME_WAIT has no listener and no storage; its flow is known. */
	return UNKNOWN;
}

/* Returns the owner of the socket that receives a packet of this flow, or an error about
 * one. */
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

/* Fills in the owner of the flow that a packet opens. */
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

/* Enters a flow, unless its owner has its full share. */
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
		/* Another CPU has entered it first. */
		return failed == -EEXIST;
	__sync_fetch_and_add(count, 1);
	__sync_fetch_and_add(&state->flows, 1);
	return true;
}

/* Records a packet of a flow. Returns false if there is no room for a new flow. */
inline_always bool note_flow(struct __sk_buff *skb, struct state *state,
			     const struct flow_key *key, struct flow *old, enum opener opener)
{
	struct flow flow = { .seen = bpf_ktime_get_ns(), .ifindex = skb->ifindex };

	if (old && (old->owner.opener == OF_STRANGER || old->owner.opener == opener)) {
		/* Not for every packet: CPUs would compete for the cache line. */
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

/* Sends later fragments where the first has gone, since only the first has ports. */
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
		/* Left by an earlier packet with the same identification. */
		bpf_map_delete_elem(&asked, &whole);
	} else if (packet->flow.remote_port == htons(53) &&
		   bpf_map_update_elem(&asked, &whole, &one, 0)) {
		return CLASS_DROP;
	}
	return way;
}

/* Returns true if a packet outside the tunnel is a DNS query of a selected socket that
 * netfilter redirects to another port. Only the port to which the socket is connected
 * shows it. */
inline_always bool is_led_elsewhere(struct __sk_buff *skb, const struct packet *packet)
{
	struct bpf_sock *sk = skb->sk;

	if (sk)
		sk = bpf_sk_fullsock(sk);
	return sk && is_question(sk->dst_port, packet->flow.protocol);
}

/* Returns true if a packet of an unselected application is blocked under KillSwitch =
 * all: every IP packet except the tunnel's own. ARP passes. */
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
		/* A packet socket speaks to the link itself, for example EAPOL or ARP. A
		 * packet of another socket has been encapsulated, for example in MPLS,
		 * and its destination is unknown. */
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
		/* The flow of a link-local destination that was behind a gateway before. */
		if (flow)
			end_flow(state, &packet.flow);
		put_label(skb, state, MAY_LEAVE);
		return NEXT;
	}
	if (way != CLASS_TUNNEL) {
		count(R_OUT_CLASS);
		return SHOT;
	}
	/* The tunnel may be up again by now, but not for packets that KillSwitch = all
	 * has blocked. */
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

/* Lets a packet from the tunnel pass to its socket or client. */
inline_always int let_in(struct __sk_buff *skb, const struct state *state)
{
	skb->mark = 0;
	skb->priority = state->stamp;
	return NEXT;
}

/*
 * The tunnel reaches only selected applications: a packet without a flow is delivered
 * only to a selected socket. Any other goes back to user space, which refuses it inside
 * the tunnel. The look-up is made here, where it also finds sockets bound to the uplink.
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
	/* A container may have guessed the label. */
	if (has_label(skb, state, MAY_LEAVE) || has_label(skb, state, TO_CLIENT))
		skb->tc_index = 0;
	read_packet(skb, &packet, IN);
	if (is_stamped(skb, state, FROM_STRANGER))
		return let_stranger_in(skb, state, &packet);
	/* Later fragments are useless without the first. */
	if (!packet.is_ip || packet.is_later_fragment)
		return NEXT;
	if (packet.is_hidden) {
		count(R_UNREADABLE);
		return SHOT;
	}
	/* Errors are also checked for sockets whose flow has been removed, since no
	 * filter at a socket sees them. */
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
		/* The selected socket has gone, and an unselected one has its ports now. */
		end_flow(state, &packet.flow);
		return NEXT;
	}
	count(R_CLEAR_FLOW);
	return SHOT;
}
