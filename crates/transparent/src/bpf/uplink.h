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
 * Flows of remote hosts in the tunnel that have sent packets to a selected socket and have
 * no entry in `flows` yet. The kernel's replies without a socket (a SYN cookie, a reset)
 * are recognised by them within microseconds. It therefore does not matter that the
 * oldest entries are removed when there are many.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct flow_key);
	__type(value, u32);
} unsolicited_flows SEC(".maps");

/*
 * Fragmented DNS queries of selected sockets to direct destinations. The first fragment has
 * gone into the tunnel because of its port. The later fragments follow at once and in order.
 */
struct fragment_key {
	struct address remote;
	struct address local;
	u32 id;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct fragment_key);
	__type(value, u32);
} dns_fragments SEC(".maps");

/* The owner of a packet's socket. A forwarded packet has no socket on this machine. */
enum socket_owner { OWNER_UNKNOWN, OWNER_SELECTED, OWNER_OTHER, OWNER_FORWARDED };

/* Returns true if the socket is the kernel's own, so no process has a descriptor of it. */
static __always_inline bool is_sent_by_kernel(struct __sk_buff *skb)
{
	struct sock *sk = kernel_sock(skb);

	/* A socket closed by its process has no `struct socket` any more. */
	return core_read(sk->sk_socket) && !is_open_by_process(sk);
}

static __always_inline enum socket_owner sending_owner(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk, *full, *listener;

	if (!sk)
		return skb->ingress_ifindex ? OWNER_FORWARDED : OWNER_UNKNOWN;
	full = bpf_sk_fullsock(sk);
	if (full) {
		if (is_selected_socket(full))
			return OWNER_SELECTED;
		/* The kernel sends resets and errors by raw sockets of its own. A raw
		 * socket of a process could use the ports of another's flow. */
		return full->type == SOCK_RAW && is_sent_by_kernel(skb) ? OWNER_UNKNOWN :
									  OWNER_OTHER;
	}
	/* A connection that is being accepted belongs to the listener. */
	listener = bpf_get_listener_sock(sk);
	if (listener)
		return is_selected_socket(listener) ? OWNER_SELECTED : OWNER_OTHER;
	/* TIME_WAIT has no listener and no storage; its flow is known. */
	return OWNER_UNKNOWN;
}

/* Returns the owner of the socket that receives a packet of this flow, or an error about
 * one. */
static __always_inline enum socket_owner receiving_owner(struct __sk_buff *skb,
							 const struct flow_key *flow)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *sk;
	enum socket_owner owner;
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
		sk = bpf_sk_lookup_tcp(skb, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	else if (flow->protocol == IPPROTO_UDP)
		sk = bpf_sk_lookup_udp(skb, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	else
		return OWNER_UNKNOWN;
	/* TIME_WAIT is not found. */
	if (!sk)
		return OWNER_UNKNOWN;
	owner = is_selected_socket(sk) ? OWNER_SELECTED : OWNER_OTHER;
	bpf_sk_release(sk);
	return owner;
}

/* Fills in the owner of the flow that a packet opens. */
static __always_inline void read_flow_owner(struct __sk_buff *skb, enum opener opener,
					    struct flow_owner *owner)
{
	struct bpf_sock *sk = skb->sk, *socket;
	struct sock_verdict *stored;

	owner->opener = opener;
	if (opener == OPENED_BY_CLIENT)
		owner->interface = skb->ingress_ifindex;
	if (opener != OPENED_BY_SOCKET || !sk)
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

static __noinline u32 end_flow(struct state *state, const struct flow_key *key)
{
	struct flow *flow = bpf_map_lookup_elem(&flows, key);
	struct flow_owner owner;
	s32 *count;

	if (!flow)
		return 0;
	owner = flow->owner;
	if (bpf_map_delete_elem(&flows, key))
		return 0;
	__sync_fetch_and_add(&state->flow_count, -1);
	count = bpf_map_lookup_elem(&flow_owners, &owner);
	if (count)
		__sync_fetch_and_add(count, -1);
	return 0;
}

/* Enters a flow, unless its owner has its full share. */
static __noinline u32 open_flow(struct state *state, const struct flow_key *key,
				const struct flow *flow)
{
	s32 *count = bpf_map_lookup_elem(&flow_owners, &flow->owner), none = 0;
	long failed;

	if (!count) {
		bpf_map_update_elem(&flow_owners, &flow->owner, &none, BPF_NOEXIST);
		count = bpf_map_lookup_elem(&flow_owners, &flow->owner);
	}
	if (!count || READ_ONCE(*count) >= FLOWS_MAX - READ_ONCE(state->flow_count))
		return false;
	failed = bpf_map_update_elem(&flows, key, flow, BPF_NOEXIST);
	if (failed)
		/* Another CPU has entered it first. */
		return failed == -EEXIST;
	__sync_fetch_and_add(count, 1);
	__sync_fetch_and_add(&state->flow_count, 1);
	return true;
}

/* Records a packet of a flow. Returns false if there is no room for a new flow. */
static __always_inline bool record_flow(struct __sk_buff *skb, struct state *state,
					const struct flow_key *key, struct flow *old,
					enum opener opener)
{
	struct flow flow = { .last_seen = bpf_ktime_get_ns(), .ifindex = skb->ifindex };

	if (old && (old->owner.opener == OPENED_BY_REMOTE || old->owner.opener == opener)) {
		/* Not for every packet: CPUs would compete for the cache line. */
		if (old->ifindex != flow.ifindex || flow.last_seen - old->last_seen >= SECOND) {
			old->ifindex = flow.ifindex;
			old->last_seen = flow.last_seen;
		}
		return true;
	}
	if (old)
		end_flow(state, key);
	read_flow_owner(skb, opener, &flow.owner);
	if (!open_flow(state, key, &flow)) {
		WRITE_ONCE(state->flow_refused_at, flow.last_seen / SECOND);
		return false;
	}
	if (opener == OPENED_BY_REMOTE)
		bpf_map_delete_elem(&unsolicited_flows, key);
	return true;
}

/* Sends later fragments where the first has gone, since only the first has ports. */
static __always_inline u32 fragment_class(const struct packet *packet, u32 class)
{
	struct fragment_key fragment = {
		.remote = packet->flow.remote,
		.local = packet->flow.local,
		.id = packet->fragment_id,
	};
	u32 one = 1;

	if (packet->is_later_fragment) {
		if (class == CLASS_DIRECT && bpf_map_lookup_elem(&dns_fragments, &fragment))
			return CLASS_TUNNEL;
	} else if (class == CLASS_DIRECT) {
		/* Left by an earlier packet with the same identification. */
		bpf_map_delete_elem(&dns_fragments, &fragment);
	} else if (packet->flow.remote_port == htons(53) &&
		   bpf_map_update_elem(&dns_fragments, &fragment, &one, 0)) {
		return CLASS_DROP;
	}
	return class;
}

/* Returns the class of a packet that leaves, by its addresses and ports; `fragment_class` corrects it
 * for a fragment. A global function: otherwise the verifier would follow each kind of packet to the
 * end of the filter. */
global_func u32 leaving_class(struct __sk_buff *skb, struct packet *packet, u32 is_selected)
{
	struct state *state = get_state();
	u32 class;

	if (!packet || !state)
		return CLASS_DROP;
	class = egress_class(skb, &packet->flow, READ_ONCE(state->generation));
	if (is_link_traffic(packet) && (!is_selected || (stays_on_link(&packet->flow.remote) &&
							 next_hop_of(skb) != HOP_GATEWAY)))
		class = CLASS_DIRECT;
	return class;
}

/* Returns true if a packet outside the tunnel is a DNS query of a selected socket that
 * netfilter redirects to another port. Only the port to which the socket is connected
 * shows it. */
static __always_inline bool is_redirected_dns_query(struct __sk_buff *skb,
						    const struct packet *packet)
{
	struct bpf_sock *sk = skb->sk;

	if (sk)
		sk = bpf_sk_fullsock(sk);
	return sk && is_dns(sk->dst_port, packet->flow.protocol);
}

/* Returns true if a packet of an unselected application is blocked under KillSwitch =
 * all: every IP packet except the tunnel's own. ARP passes. */
static __always_inline bool is_blocked_by_lock(struct __sk_buff *skb, const struct state *state)
{
	struct bpf_sock *sk;

	if (likely(!blocks_all_traffic(state)))
		return false;
	if (skb->protocol != htons(ETH_P_IP) && skb->protocol != htons(ETH_P_IPV6))
		return false;
	sk = skb->sk;
	if (!sk)
		return true;
	sk = bpf_sk_fullsock(sk);
	if (!sk)
		return true;
	return verdict_at(sk) != EXEMPT;
}

SEC("classifier")
int taupe_out(struct __sk_buff *skb)
{
	enum socket_owner owner = sending_owner(skb);
	struct state *state = get_state();
	struct packet packet;
	struct flow *flow = NULL;
	bool is_unsolicited = false, is_selected, is_blocked;
	u32 class;

	if (!state)
		return TC_ACT_SHOT;
	is_selected = owner == OWNER_SELECTED ||
		      (owner == OWNER_FORWARDED && READ_ONCE(state->forwarded) &&
		       is_routed(skb));
	is_blocked = !is_selected && is_blocked_by_lock(skb, state);
	if (likely(!is_selected && !is_blocked && owner != OWNER_UNKNOWN))
		return TC_ACT_UNSPEC;
	if (has_label(skb, state, MAY_LEAVE))
		return TC_ACT_UNSPEC;
	read_packet(skb, &packet, EGRESS);
	if (packet.is_ip && !packet.is_later_fragment) {
		flow = bpf_map_lookup_elem(&flows, &packet.flow);
		if (!flow)
			is_unsolicited = bpf_map_lookup_elem(&unsolicited_flows, &packet.flow);
	}
	if (!is_selected && !is_blocked && !(flow || is_unsolicited))
		return TC_ACT_UNSPEC;
	if (may_bypass_tunnel(state) || (packet.is_discovery && !is_selected))
		return TC_ACT_UNSPEC;
	if (!packet.is_ip || packet.is_unparsable) {
		/* A packet socket speaks to the link itself, for example EAPOL or ARP. A
		 * packet of another socket has been encapsulated, for example in MPLS,
		 * and its destination is unknown. */
		if (!packet.is_ip && skb->sk && skb->sk->family == AF_PACKET)
			return TC_ACT_UNSPEC;
		count(R_UNREADABLE);
		return TC_ACT_SHOT;
	}
	if (owner == OWNER_FORWARDED) {
		switch (forward_path_of(skb, &packet.flow, state)) {
		case FORWARD_LOCAL:
			set_label(skb, state, MAY_LEAVE);
			return TC_ACT_UNSPEC;
		case FORWARD_INTRUSION:
			count(R_CLEAR_CLIENT);
			return TC_ACT_SHOT;
		case FORWARD_STALE:
			count(R_IN_UNKNOWN);
			return TC_ACT_SHOT;
		}
	}
	class = leaving_class(skb, &packet, is_selected);
	if (packet.is_fragment)
		class = fragment_class(&packet, class);
	if (class == CLASS_DIRECT) {
		if (owner == OWNER_SELECTED && is_redirected_dns_query(skb, &packet)) {
			count(R_DNS_LOCAL);
			return TC_ACT_SHOT;
		}
		/* The flow of a link-local destination that was behind a gateway before. */
		if (flow)
			end_flow(state, &packet.flow);
		set_label(skb, state, MAY_LEAVE);
		return TC_ACT_UNSPEC;
	}
	if (class != CLASS_TUNNEL) {
		count(R_OUT_CLASS);
		return TC_ACT_SHOT;
	}
	/* The tunnel may be up again by now, but not for packets that KillSwitch = all
	 * has blocked. */
	if (is_blocked || !READ_ONCE(state->up)) {
		count(R_OUT_DOWN);
		return TC_ACT_SHOT;
	}
	if (!packet.is_later_fragment &&
	    !record_flow(skb, state, &packet.flow, flow,
			 is_unsolicited ? OPENED_BY_REMOTE :
			 owner == OWNER_FORWARDED ? OPENED_BY_CLIENT :
							  OPENED_BY_SOCKET)) {
		count(R_OUT_FLOWS_FULL);
		return TC_ACT_SHOT;
	}
	count(R_OUT_TUNNEL);
	set_mark(skb, state, MARK_FLOW);
	return bpf_redirect(READ_ONCE(state->tun), 0);
}

/* Lets a packet from the tunnel pass to its socket or client. */
static __always_inline int accept_packet(struct __sk_buff *skb, const struct state *state)
{
	skb->mark = 0;
	skb->priority = state->mark;
	return TC_ACT_UNSPEC;
}

/*
 * The tunnel reaches only selected applications: a packet without a flow is delivered
 * only to a selected socket. Any other goes back to user space, which refuses it inside
 * the tunnel. The look-up is made here, where it also finds sockets bound to the uplink.
 */
static __always_inline int accept_unsolicited(struct __sk_buff *skb, const struct state *state,
					      const struct packet *packet)
{
	u32 one = 1;

	if (receiving_owner(skb, &packet->flow) != OWNER_SELECTED ||
	    bpf_map_update_elem(&unsolicited_flows, &packet->flow, &one, 0)) {
		count(R_IN_BOUNCED);
		set_mark(skb, state, MARK_FLOW);
		return bpf_redirect(READ_ONCE(state->tun), 0);
	}
	count(R_IN_DELIVERED);
	return accept_packet(skb, state);
}

SEC("classifier")
int taupe_in(struct __sk_buff *skb)
{
	struct state *state = get_state();
	struct packet packet;
	struct flow *flow;
	enum socket_owner owner;

	if (!state)
		return TC_ACT_SHOT;
	if (has_mark(skb, state, MARK_FLOW))
		return accept_packet(skb, state);
	if (has_mark(skb, state, MARK_CLIENT)) {
		set_label(skb, state, TO_CLIENT);
		return accept_packet(skb, state);
	}
	/* A container may have guessed the label. */
	if (has_label(skb, state, MAY_LEAVE) || has_label(skb, state, TO_CLIENT))
		skb->tc_index = 0;
	read_packet(skb, &packet, INGRESS);
	if (has_mark(skb, state, MARK_UNSOLICITED))
		return accept_unsolicited(skb, state, &packet);
	/* Later fragments are useless without the first. */
	if (!packet.is_ip || packet.is_later_fragment)
		return TC_ACT_UNSPEC;
	if (packet.is_unparsable) {
		count(R_UNREADABLE);
		return TC_ACT_SHOT;
	}
	/* Errors are also checked for sockets whose flow has been removed, since no
	 * filter at a socket sees them. */
	flow = bpf_map_lookup_elem(&flows, &packet.flow);
	if (likely(!flow && !packet.is_error))
		return TC_ACT_UNSPEC;
	if (is_link_traffic(&packet) || may_bypass_tunnel(state))
		return TC_ACT_UNSPEC;
	/* A link-local destination in the tunnel is behind a gateway. */
	if (!(flow && is_link_local(&packet.flow.remote)) &&
	    flow_class_on_link(&packet.flow, READ_ONCE(state->generation)) == CLASS_DIRECT)
		return TC_ACT_UNSPEC;
	if (flow && flow->owner.opener == OPENED_BY_CLIENT) {
		if (!READ_ONCE(state->forwarded)) {
			end_flow(state, &packet.flow);
			return TC_ACT_UNSPEC;
		}
		count(R_CLEAR_FLOW);
		return TC_ACT_SHOT;
	}
	owner = receiving_owner(skb, &packet.flow);
	if (!flow && owner != OWNER_SELECTED)
		return TC_ACT_UNSPEC;
	if (owner == OWNER_OTHER) {
		/* The selected socket has gone, and an unselected one has its ports now. */
		end_flow(state, &packet.flow);
		return TC_ACT_UNSPEC;
	}
	count(R_CLEAR_FLOW);
	return TC_ACT_SHOT;
}
