/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * DNS queries. A query of a selected application to a server outside is redirected to
 * the tunnel's name servers on its way through the tunnel. A query to a local resolver
 * would not leave the machine, and the resolver would send a query of its own outside
 * the tunnel. The local resolver's address is therefore replaced by an alias. The query
 * to the alias leaves by an uplink like any other and reaches the tunnel's name server.
 * The reply comes from the alias, and the application sees the address that it knows.
 *
 * Each local address has an alias of its own. Nothing has to be stored with the socket,
 * and a socket that queries several resolvers gets a reply from each. No host has these
 * aliases (240.0.0.0/7 is reserved, RFC 1112 section 4; 100::/64 is discarded, RFC
 * 6666), so a packet that bypassed the filters would reach nobody.
 */
#pragma once
#include "packet.h"
#include "verdict.h"

inline_always struct state *state_here(void *context)
{
	struct state *state = get_state();

	return state && state->netns == bpf_get_netns_cookie(context) ? state : NULL;
}

/* Makes the system call fail with this error. */
inline_always int refuse(u32 reason, s32 error)
{
	count(reason);
	bpf_set_retval(-error);
	return REFUSE;
}

inline_always struct address remote6(struct bpf_sock_addr *context)
{
	return (struct address){ { context->user_ip6[0], context->user_ip6[1], context->user_ip6[2],
				   context->user_ip6[3] } };
}

inline_always void set_remote6(struct bpf_sock_addr *context, const struct address *remote)
{
	context->user_ip6[0] = remote->words[0];
	context->user_ip6[1] = remote->words[1];
	context->user_ip6[2] = remote->words[2];
	context->user_ip6[3] = remote->words[3];
}

inline_always bool asks(const struct bpf_sock_addr *context)
{
	return is_question(context->user_port, context->protocol);
}

inline_always bool is_ipv4(const struct address *address)
{
	return !address->words[0] && !address->words[1] && address->words[2] == htonl(0xffff);
}

#define FIRST_BYTE htonl(0xff000000)
/* 240.x.y.z for 127.x.y.z, 100::1 for ::1; maps.rs assigns the others. */
#define LOOPBACK_4 htonl(0x7f000000)
#define STAND_IN_4 htonl(0xf0000000)
#define STAND_IN_6 htonl(0x01000000)

/* Returns true if an address is an alias. */
inline_always bool stands_in(const struct address *address)
{
	if (is_ipv4(address))
		return (address->words[3] & htonl(0xfe000000)) == STAND_IN_4;
	return address->words[0] == STAND_IN_6 && !address->words[1];
}

/* Replaces an address by its alias, or an alias by its address. Leaves other addresses
 * as they are. */
inline_always void exchange(struct address *address, u32 from_4, u32 to_4, u32 from_6, u32 to_6)
{
	struct address *other;
	u32 *words = address->words;

	if (is_ipv4(address) && (words[3] & FIRST_BYTE) == from_4) {
		words[3] = (words[3] & ~FIRST_BYTE) | to_4;
		return;
	}
	if (words[0] == from_6 && !words[1] && !words[2] && words[3] == htonl(1)) {
		words[0] = to_6;
		return;
	}
	other = bpf_map_lookup_elem(&stand_ins, address);
	if (other)
		*address = *other;
}

enum resolver { AS_ASKED, NO_RESOLVER };

/* Replaces the address of a local resolver that a selected socket queries. */
apart u32 resolver_for(struct address *asked, const struct state *state)
{
	u32 names = now_of(state->names);
	bool is_v4 = is_ipv4(asked);

	if (!(names & NAMES) || is_open(state))
		return AS_ASKED;
	if (!(names & (is_v4 ? NAMES_V4 : NAMES_V6)))
		return NO_RESOLVER;
	/* The unspecified address is this machine. */
	if (!asked->words[0] && !asked->words[1] && !asked->words[3] && (is_v4 || !asked->words[2]))
		asked->words[3] = is_v4 ? htonl(0x7f000001) : htonl(1);
	if (!stands_in(asked))
		exchange(asked, LOOPBACK_4, STAND_IN_4, 0, STAND_IN_6);
	return AS_ASKED;
}

/* Replaces an alias that has replied by the address that the socket has queried. Returns
 * false if the address is no alias. */
apart u32 has_asked(struct bpf_sock_addr *context, struct address *remote)
{
	struct state *state = state_here(context);
	struct owner *owner;

	if (!state || !context->sk || context->user_port != htons(53) || !stands_in(remote))
		return false;
	owner = bpf_sk_storage_get(&sockets, context->sk, NULL, 0);
	if (!owner || !is_inside(owner->verdict))
		return false;
	exchange(remote, STAND_IN_4, LOOPBACK_4, STAND_IN_6, 0);
	return true;
}

inline_always int answered4(struct bpf_sock_addr *context)
{
	struct address remote = mapped(context->user_ip4);

	if (has_asked(context, &remote))
		context->user_ip4 = remote.words[3];
	return ALLOW;
}

inline_always int answered6(struct bpf_sock_addr *context)
{
	struct address remote = remote6(context);

	if (has_asked(context, &remote))
		set_remote6(context, &remote);
	return ALLOW;
}

SEC("cgroup/recvmsg4")
int taupe_recvmsg4(struct bpf_sock_addr *context)
{
	return answered4(context);
}

SEC("cgroup/recvmsg6")
int taupe_recvmsg6(struct bpf_sock_addr *context)
{
	return answered6(context);
}

SEC("cgroup/getpeername4")
int taupe_peername4(struct bpf_sock_addr *context)
{
	return answered4(context);
}

SEC("cgroup/getpeername6")
int taupe_peername6(struct bpf_sock_addr *context)
{
	return answered6(context);
}

/*
 * Returns true if a packet on loopback is a DNS query of a selected socket. There are
 * three cases: the socket was connected to a resolver before it was selected; this
 * machine has the address only since a moment ago; or a netfilter rule redirects the
 * query to a local resolver at any port, so that only the port to which the socket is
 * connected shows it.
 */
apart bool is_asked_here(struct __sk_buff *skb, struct bpf_sock *sk)
{
	struct state *state = get_state();
	struct packet packet;

	if (!state || !(now_of(state->names) & NAMES) || is_open(state) || !chosen(sk))
		return false;
	read_packet(skb, &packet, OUT);
	if (!is_question(packet.flow.remote_port, packet.flow.protocol) &&
	    !is_question(sk->dst_port, packet.flow.protocol))
		return false;
	count(R_NAME_HERE);
	return true;
}

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct bpf_sock_addr_kern {
	u8 *uaddr;
	u32 uaddrlen;
};

#pragma clang attribute pop

/* Offset of the path in sockaddr_un. */
#define PATH_OFFSET 2

/* Returns the service that an AF_UNIX socket connects to, or 0. A function of its own,
 * since the comparison of rules leaves no stack for the path. */
apart u32 service_of(struct bpf_sock_addr *context)
{
	struct bpf_sock_addr_kern *whole = (void *)context;
	struct service_key key = {};
	u32 *service, length;

	/* A path may fill the address without a terminating NUL. */
	length = kernel(whole->uaddrlen) - PATH_OFFSET + 1;
	if (length > sizeof(key.path))
		length = sizeof(key.path);
	bpf_probe_read_kernel_str(key.path, length, kernel(whole->uaddr) + PATH_OFFSET);
	service = bpf_map_lookup_elem(&services, &key);
	return service ? *service : 0;
}

/*
 * Services that resolve names have sockets of their own. If the connection is refused,
 * the C library assumes that the service does not run, and queries name servers itself.
 * The system bus as a whole is refused only to applications that a rule names. Otherwise
 * a rule set that selects everything except some applications would refuse it to system
 * services.
 *
 * The loader does not support such programs (Linux 6.7); user space takes this one by
 * its name.
 */
SEC("classifier")
int taupe_unix(struct bpf_sock_addr *context)
{
	struct state *state = state_here(context);
	u32 service, names, bits, generation;

	if (!state)
		return ALLOW;
	names = now_of(state->names);
	if (!(names & NAMES) || is_open(state))
		return ALLOW;
	service = service_of(context);
	if (!service)
		return ALLOW;
	generation = now_of(state->generation);
	bits = task_bits((u64)bpf_get_current_task(), generation);
	if (service == SERVICE_BUS) {
		if (names & NAMES_BUS || !(bits & (RULE_ALLOW | RULE_UNTOLD)) || bits & RULE_EXEMPT)
			return ALLOW;
	} else {
		switch (verdict_of(bits, state, generation)) {
		case OWN:
		case DIRECT:
			return ALLOW;
		}
	}
	return refuse(R_NAME_SERVICE, ECONNREFUSED);
}
