/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Creation and addressing of sockets. These programs run for every program on the
 * machine, in every container. Each first checks that the socket is in the tunnel's
 * network namespace.
 */
#pragma once
#include "guards.h"
#include "names.h"
#include "packet.h"
#include "senders.h"
#include "verdict.h"

SEC("cgroup/sock_create")
int taupe_socket(struct bpf_sock *sk)
{
	struct state *state = state_here(sk);
	u32 generation, verdict;

	if (!state)
		return ALLOW;
	generation = now_of(state->generation);
	verdict = verdict_on((u64)bpf_get_current_task(), generation);
	if (verdict == UNTOLD)
		return refuse(R_PATH_TOO_DEEP, ENAMETOOLONG);
	if (!is_noted(verdict, state))
		return ALLOW;
	/* The kernel creates further sockets for these: subflows for MPTCP; for SMC and
	 * SCTP, sockets that carry no verdict. Programs that ask for these protocols can
	 * do without them. */
	if (verdict == TUNNEL &&
	    (sk->protocol == IPPROTO_MPTCP || sk->protocol == IPPROTO_SMC ||
	     sk->protocol == IPPROTO_SCTP))
		return refuse(R_PROTOCOL_REFUSED, EPROTONOSUPPORT);
	if (!note(sk, verdict, generation))
		return refuse(R_SOCKET_WITHOUT_STORAGE, ENOBUFS);
	/* Generates the cookie by which the socket can be ended later. */
	bpf_get_socket_cookie(sk);
	return ALLOW;
}

/* Applies the destination's class at once, while the application can get an error. */
apart int directed(struct bpf_sock_addr *context, const struct address *remote,
		   const struct state *state, bool sends)
{
	struct flow_key flow = {
		.remote = *remote,
		.remote_port = context->user_port,
		.protocol = context->protocol,
	};
	u32 way;

	if (is_open(state))
		return ALLOW;
	/* The unspecified address is this machine. */
	if (!remote->words[3] && !remote->words[0] && !remote->words[1] &&
	    (!remote->words[2] || remote->words[2] == htonl(0xffff)))
		return ALLOW;
	way = way_of(&flow, now_of(state->generation));
	if (way == CLASS_REFUSE)
		return refuse(sends ? R_SEND_REFUSED : R_CONNECT_REFUSED, ENETUNREACH);
	if (way == CLASS_TUNNEL && !now_of(state->up))
		return refuse(sends ? R_SEND_DOWN : R_CONNECT_DOWN, sends ? EPERM : ENETUNREACH);
	return ALLOW;
}

/*
 * Returns the verdict on a socket that is bound or connected. The kernel itself connects
 * further subflows while any task runs, so their connection keeps its verdict.
 */
inline_always u32 used_by(struct bpf_sock_addr *context, const struct state *state)
{
	struct sock *connection = connection_of(context);
	struct owner *owner;
	u8 tcp_state;

	if (!connection)
		return used(context->sk, state, false);
	tcp_state = kernel(connection->__sk_common.skc_state);
	if (tcp_state == TCP_CLOSE || tcp_state == TCP_SYN_SENT || tcp_state == TCP_LISTEN)
		return used(connection, state, false);
	owner = bpf_sk_storage_get(&sockets, connection, NULL, 0);
	return owner ? owner->verdict : DIRECT;
}

/* Returns true if a socket is bound to the TUN. Nothing can be reached that way: the TUN
 * has no address and no route, and its filter drops packets that do not come from the
 * uplinks. */
inline_always bool is_bound_to_tun(struct bpf_sock_addr *context, const struct state *state)
{
	u32 tun = now_of(state->tun);

	return tun && context->sk->bound_dev_if == tun;
}

/*
 * Handles the address that a socket connects or sends to. A local resolver is replaced
 * by its alias from here on.
 */
inline_always int addressed(struct bpf_sock_addr *context, struct address *remote, bool sends)
{
	struct state *state = state_here(context);

	if (!state || !context->sk)
		return ALLOW;
	if (is_bound_to_tun(context, state))
		return refuse(R_TUN_MISUSED, ENETUNREACH);
	switch (sends ? used(context->sk, state, true) : used_by(context, state)) {
	case OWN:
		return ALLOW;
	case DIRECT:
		if (!is_shut(state))
			return ALLOW;
		break;
	case UNTOLD:
		return refuse(R_PATH_TOO_DEEP, ENAMETOOLONG);
	case UNMARKED:
		return refuse(R_SOCKET_WITHOUT_STORAGE, ENOBUFS);
	default:
		if (asks(context) && resolver_for(remote, state) == NO_RESOLVER)
			return refuse(R_NAME_FAMILY, ENETUNREACH);
	}
	return directed(context, remote, state, sends);
}

inline_always int addressed4(struct bpf_sock_addr *context, bool sends)
{
	struct address remote = mapped(context->user_ip4);
	int answer = addressed(context, &remote, sends);

	context->user_ip4 = remote.words[3];
	return answer;
}

inline_always int addressed6(struct bpf_sock_addr *context, bool sends)
{
	struct address remote = remote6(context);
	int answer = addressed(context, &remote, sends);

	set_remote6(context, &remote);
	return answer;
}

SEC("cgroup/connect4")
int taupe_connect4(struct bpf_sock_addr *context)
{
	return addressed4(context, false);
}

SEC("cgroup/sendmsg4")
int taupe_sendmsg4(struct bpf_sock_addr *context)
{
	return addressed4(context, true);
}

SEC("cgroup/connect6")
int taupe_connect6(struct bpf_sock_addr *context)
{
	return addressed6(context, false);
}

SEC("cgroup/sendmsg6")
int taupe_sendmsg6(struct bpf_sock_addr *context)
{
	return addressed6(context, true);
}

/* A bound socket will listen or reply, so it belongs to the task that binds it. */
inline_always int bound(struct bpf_sock_addr *context)
{
	struct state *state = state_here(context);

	if (!state || !context->sk)
		return ALLOW;
	if (is_bound_to_tun(context, state))
		return refuse(R_TUN_MISUSED, EADDRNOTAVAIL);
	switch (used_by(context, state)) {
	case UNTOLD:
		return refuse(R_PATH_TOO_DEEP, ENAMETOOLONG);
	case UNMARKED:
		return refuse(R_SOCKET_WITHOUT_STORAGE, ENOBUFS);
	}
	return ALLOW;
}

SEC("cgroup/bind4")
int taupe_bind4(struct bpf_sock_addr *context)
{
	return bound(context);
}

SEC("cgroup/bind6")
int taupe_bind6(struct bpf_sock_addr *context)
{
	return bound(context);
}

/*
 * The second layer, for devices without the filters: mainly an uplink that has appeared
 * while no process could guard it.
 */
apart int may_leave(struct __sk_buff *skb, u32 verdict)
{
	struct state *state = get_state();
	struct packet packet;

	if (!state)
		return REFUSE;
	if (is_inside(verdict)) {
		if (is_open(state))
			return ALLOW;
	} else {
		if (verdict == OWN || !is_shut(state))
			return ALLOW;
		read_packet(skb, &packet, OUT);
		if (is_of_link(&packet) ||
		    way_out(skb, &packet.flow, now_of(state->generation)) == CLASS_DIRECT)
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
		return is_asked_here(skb, sk) ? REFUSE : ALLOW;
	verdict = verdict_leaving(skb, sk);
	if (verdict == UNMARKED)
		return ALLOW;
	if (verdict == UNTOLD)
		return REFUSE;
	return may_leave(skb, verdict);
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
	if (skb->priority == state->stamp) {
		if (chosen(skb->sk))
			return ALLOW;
		count(R_IN_UNCHOSEN);
		return REFUSE;
	}
	if (is_open(state) || !chosen(skb->sk))
		return ALLOW;
	read_packet(skb, &packet, IN);
	generation = now_of(state->generation);
	if (is_of_link(&packet) ||
	    (way_of(&packet.flow, generation) == CLASS_DIRECT &&
	     class_of(&packet.flow.local, generation) != CLASS_DROP))
		return ALLOW;
	count(R_CLEAR_SOCKET);
	return REFUSE;
}
