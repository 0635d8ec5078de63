/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Creation and addressing of sockets. These programs run for every program on the
 * machine, in every container. Each first checks that the socket is in the tunnel's
 * network namespace.
 */
#pragma once
#include "guards.h"
#include "dns.h"
#include "packet.h"
#include "senders.h"
#include "verdict.h"

SEC("cgroup/sock_create")
int taupe_socket(struct bpf_sock *sk)
{
	struct state *state = state_in_netns(sk);
	u32 generation, verdict;

	if (!state)
		return ALLOW;
	generation = READ_ONCE(state->generation);
	verdict = verdict_on((u64)bpf_get_current_task(), generation);
	if (verdict == UNDETERMINED)
		return refuse(R_PATH_TOO_DEEP, ENAMETOOLONG);
	if (!is_verdict_stored(verdict, state))
		return ALLOW;
	/* The kernel creates further sockets for these: subflows for MPTCP; for SMC and
	 * SCTP, sockets that carry no verdict. Programs that ask for these protocols can
	 * do without them. */
	if (verdict == TUNNEL &&
	    (sk->protocol == IPPROTO_MPTCP || sk->protocol == IPPROTO_SMC ||
	     sk->protocol == IPPROTO_SCTP))
		return refuse(R_PROTOCOL_REFUSED, EPROTONOSUPPORT);
	if (!store_verdict(sk, verdict, generation))
		return refuse(R_SOCKET_WITHOUT_STORAGE, ENOBUFS);
	/* Generates the cookie by which the socket can be ended later. */
	bpf_get_socket_cookie(sk);
	return ALLOW;
}

/* Applies the destination's class at once, while the application can get an error. */
static __noinline int apply_class(struct bpf_sock_addr *context, const struct address *remote,
				  const struct state *state, bool is_send)
{
	struct flow_key flow = {
		.remote = *remote,
		.remote_port = context->user_port,
		.protocol = context->protocol,
	};
	u32 class;

	if (may_bypass_tunnel(state))
		return ALLOW;
	/* The unspecified address is this machine. */
	if (!remote->words[3] && !remote->words[0] && !remote->words[1] &&
	    (!remote->words[2] || remote->words[2] == htonl(0xffff)))
		return ALLOW;
	class = flow_class_on_link(&flow, READ_ONCE(state->generation));
	if (class == CLASS_REFUSE)
		return refuse(is_send ? R_SEND_REFUSED : R_CONNECT_REFUSED, ENETUNREACH);
	if (class == CLASS_TUNNEL && !READ_ONCE(state->up))
		return refuse(is_send ? R_SEND_DOWN : R_CONNECT_DOWN,
			      is_send ? EPERM : ENETUNREACH);
	return ALLOW;
}

/*
 * Returns the verdict on a socket that is bound or connected. The kernel itself connects
 * further subflows while any task runs, so their connection keeps its verdict.
 */
static __always_inline u32 verdict_on_address(struct bpf_sock_addr *context,
					      const struct state *state)
{
	struct sock *connection = mptcp_connection_of(context);
	struct sock_verdict *stored;
	u8 tcp_state;

	if (!connection)
		return verdict_on_use(context->sk, state, false);
	tcp_state = core_read(connection->__sk_common.skc_state);
	if (tcp_state == TCP_CLOSE || tcp_state == TCP_SYN_SENT || tcp_state == TCP_LISTEN)
		return verdict_on_use(connection, state, false);
	stored = bpf_sk_storage_get(&sockets, connection, NULL, 0);
	return stored ? stored->verdict : DIRECT;
}

/* Returns true if a socket is bound to the TUN. Nothing can be reached that way: the TUN
 * has no address and no route, and its filter drops packets that do not come from the
 * uplinks. */
static __always_inline bool is_bound_to_tun(struct bpf_sock_addr *context,
					    const struct state *state)
{
	u32 tun = READ_ONCE(state->tun);

	return tun && context->sk->bound_dev_if == tun;
}

/*
 * Checks the address that a socket connects or sends to. The address of a local resolver
 * is replaced by its alias.
 */
static __always_inline int check_address(struct bpf_sock_addr *context, struct address *remote,
					 bool is_send)
{
	struct state *state = state_in_netns(context);

	if (!state || !context->sk)
		return ALLOW;
	if (is_bound_to_tun(context, state))
		return refuse(R_TUN_MISUSED, ENETUNREACH);
	switch (is_send ? verdict_on_use(context->sk, state, true) :
			  verdict_on_address(context, state)) {
	case EXEMPT:
		return ALLOW;
	case DIRECT:
		if (!blocks_all_traffic(state))
			return ALLOW;
		break;
	case UNDETERMINED:
		return refuse(R_PATH_TOO_DEEP, ENAMETOOLONG);
	case UNCLASSIFIED:
		return refuse(R_SOCKET_WITHOUT_STORAGE, ENOBUFS);
	default:
		if (is_dns_query(context) && redirect_resolver(remote, state) == NO_RESOLVER)
			return refuse(R_DNS_FAMILY, ENETUNREACH);
	}
	return apply_class(context, remote, state, is_send);
}

static __always_inline int check_address4(struct bpf_sock_addr *context, bool is_send)
{
	struct address remote = v4_mapped(context->user_ip4);
	int allowed = check_address(context, &remote, is_send);

	context->user_ip4 = remote.words[3];
	return allowed;
}

static __always_inline int check_address6(struct bpf_sock_addr *context, bool is_send)
{
	struct address remote = read_remote6(context);
	int allowed = check_address(context, &remote, is_send);

	write_remote6(context, &remote);
	return allowed;
}

SEC("cgroup/connect4")
int taupe_connect4(struct bpf_sock_addr *context)
{
	return check_address4(context, false);
}

SEC("cgroup/sendmsg4")
int taupe_sendmsg4(struct bpf_sock_addr *context)
{
	return check_address4(context, true);
}

SEC("cgroup/connect6")
int taupe_connect6(struct bpf_sock_addr *context)
{
	return check_address6(context, false);
}

SEC("cgroup/sendmsg6")
int taupe_sendmsg6(struct bpf_sock_addr *context)
{
	return check_address6(context, true);
}

/* A bound socket will listen or reply, so it belongs to the task that binds it. */
static __always_inline int check_bind(struct bpf_sock_addr *context)
{
	struct state *state = state_in_netns(context);

	if (!state || !context->sk)
		return ALLOW;
	if (is_bound_to_tun(context, state))
		return refuse(R_TUN_MISUSED, EADDRNOTAVAIL);
	switch (verdict_on_address(context, state)) {
	case UNDETERMINED:
		return refuse(R_PATH_TOO_DEEP, ENAMETOOLONG);
	case UNCLASSIFIED:
		return refuse(R_SOCKET_WITHOUT_STORAGE, ENOBUFS);
	}
	return ALLOW;
}

SEC("cgroup/bind4")
int taupe_bind4(struct bpf_sock_addr *context)
{
	return check_bind(context);
}

SEC("cgroup/bind6")
int taupe_bind6(struct bpf_sock_addr *context)
{
	return check_bind(context);
}

/*
 * The second layer, for devices without the filters: mainly an uplink that has appeared
 * while no process could guard it.
 */
static __noinline int check_unguarded_egress(struct __sk_buff *skb, u32 verdict)
{
	struct state *state = get_state();
	struct packet packet;

	if (!state)
		return REFUSE;
	if (is_tunnelled(verdict)) {
		if (may_bypass_tunnel(state))
			return ALLOW;
	} else {
		if (verdict == EXEMPT || !blocks_all_traffic(state))
			return ALLOW;
		read_packet(skb, &packet, EGRESS);
		if (is_link_traffic(&packet) ||
		    egress_class(skb, &packet.flow, READ_ONCE(state->generation)) == CLASS_DIRECT)
			return ALLOW;
	}
	if (is_guarded(device_of(skb)))
		return ALLOW;
	count(R_OUT_UNGUARDED);
	return REFUSE;
}

SEC("cgroup_skb/egress")
int taupe_leave(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;
	u32 verdict;

	if (!sk)
		return ALLOW;
	if (skb->ifindex == LOOPBACK_IFINDEX)
		return is_local_dns_query(skb, sk) ? REFUSE : ALLOW;
	verdict = egress_verdict(skb, sk);
	if (verdict == UNCLASSIFIED)
		return ALLOW;
	if (verdict == UNDETERMINED)
		return REFUSE;
	return check_unguarded_egress(skb, verdict);
}

/*
 * A packet from outside the tunnel is not for a selected socket, and a packet from the
 * tunnel is for no other: not for sockets that listen on the same port, or at a lower
 * layer. Such packets are dropped silently, so that nobody outside learns of the socket.
 *
 * Link-local senders are direct, as link-local destinations are. Groups are received
 * only where packets may be sent to them.
 */
SEC("cgroup_skb/ingress")
int taupe_arrive(struct __sk_buff *skb)
{
	struct state *state = get_state();
	struct packet packet;
	u32 generation;

	if (!state || !skb->sk || skb->ifindex == LOOPBACK_IFINDEX)
		return ALLOW;
	if (skb->priority == state->mark) {
		if (is_selected_socket(skb->sk))
			return ALLOW;
		count(R_IN_UNSELECTED);
		return REFUSE;
	}
	if (may_bypass_tunnel(state) || !is_selected_socket(skb->sk))
		return ALLOW;
	read_packet(skb, &packet, INGRESS);
	generation = READ_ONCE(state->generation);
	if (is_link_traffic(&packet) ||
	    (flow_class_on_link(&packet.flow, generation) == CLASS_DIRECT &&
	     destination_class(&packet.flow.local, generation) != CLASS_DROP))
		return ALLOW;
	count(R_CLEAR_SOCKET);
	return REFUSE;
}
