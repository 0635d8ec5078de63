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

static __always_inline struct state *state_in_netns(void *context)
{
	struct state *state = get_state();

	return state && state->netns == bpf_get_netns_cookie(context) ? state : NULL;
}

/* Makes the system call fail with this error. */
static __always_inline int refuse(u32 reason, s32 error)
{
	count(reason);
	bpf_set_retval(-error);
	return REFUSE;
}

static __always_inline struct address read_remote6(struct bpf_sock_addr *context)
{
	return (struct address){ { context->user_ip6[0], context->user_ip6[1], context->user_ip6[2],
				   context->user_ip6[3] } };
}

static __always_inline void write_remote6(struct bpf_sock_addr *context,
					  const struct address *remote)
{
	context->user_ip6[0] = remote->words[0];
	context->user_ip6[1] = remote->words[1];
	context->user_ip6[2] = remote->words[2];
	context->user_ip6[3] = remote->words[3];
}

static __always_inline bool is_dns_query(const struct bpf_sock_addr *context)
{
	return is_dns(context->user_port, context->protocol);
}

static __always_inline bool is_ipv4(const struct address *address)
{
	return !address->words[0] && !address->words[1] && address->words[2] == htonl(0xffff);
}

#define FIRST_BYTE htonl(0xff000000)
/* 240.x.y.z for 127.x.y.z, 100::1 for ::1; maps.rs assigns the others. */
#define LOOPBACK_4 htonl(0x7f000000)
#define ALIAS_4 htonl(0xf0000000)
#define ALIAS_6 htonl(0x01000000)

/* Returns true if an address is an alias. */
static __always_inline bool is_alias(const struct address *address)
{
	if (is_ipv4(address))
		return (address->words[3] & htonl(0xfe000000)) == ALIAS_4;
	return address->words[0] == ALIAS_6 && !address->words[1];
}

/* Replaces an address by its alias, or an alias by its address. Leaves other addresses
 * as they are. */
static __always_inline void swap_alias(struct address *address, u32 from_4, u32 to_4, u32 from_6,
				       u32 to_6)
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
	other = bpf_map_lookup_elem(&resolver_aliases, address);
	if (other)
		*address = *other;
}

enum resolver { RESOLVER_FOUND, NO_RESOLVER };

/* Replaces the address of a local resolver that a selected socket queries by its alias.
 * Returns NO_RESOLVER if the tunnel has no name server of the address's family. */
static __noinline u32 redirect_resolver(struct address *resolver, const struct state *state)
{
	u32 dns = READ_ONCE(state->dns);
	bool is_v4 = is_ipv4(resolver);

	if (!(dns & DNS_SERVERS) || may_bypass_tunnel(state))
		return RESOLVER_FOUND;
	if (!(dns & (is_v4 ? DNS_V4 : DNS_V6)))
		return NO_RESOLVER;
	/* The unspecified address is this machine. */
	if (!resolver->words[0] && !resolver->words[1] && !resolver->words[3] &&
	    (is_v4 || !resolver->words[2]))
		resolver->words[3] = is_v4 ? htonl(0x7f000001) : htonl(1);
	if (!is_alias(resolver))
		swap_alias(resolver, LOOPBACK_4, ALIAS_4, 0, ALIAS_6);
	return RESOLVER_FOUND;
}

/* Replaces an alias that has replied by the address that the socket has queried. Returns
 * false if the address is no alias. */
static __noinline u32 restore_resolver(struct bpf_sock_addr *context, struct address *remote)
{
	struct state *state = state_in_netns(context);
	struct sock_verdict *stored;

	if (!state || !context->sk || context->user_port != htons(53) || !is_alias(remote))
		return false;
	stored = bpf_sk_storage_get(&sockets, context->sk, NULL, 0);
	if (!stored || !is_tunnelled(stored->verdict))
		return false;
	swap_alias(remote, ALIAS_4, LOOPBACK_4, ALIAS_6, 0);
	return true;
}

static __always_inline int restore_address4(struct bpf_sock_addr *context)
{
	struct address remote = v4_mapped(context->user_ip4);

	if (restore_resolver(context, &remote))
		context->user_ip4 = remote.words[3];
	return ALLOW;
}

static __always_inline int restore_address6(struct bpf_sock_addr *context)
{
	struct address remote = read_remote6(context);

	if (restore_resolver(context, &remote))
		write_remote6(context, &remote);
	return ALLOW;
}

SEC("cgroup/recvmsg4")
int taupe_recvmsg4(struct bpf_sock_addr *context)
{
	return restore_address4(context);
}

SEC("cgroup/recvmsg6")
int taupe_recvmsg6(struct bpf_sock_addr *context)
{
	return restore_address6(context);
}

SEC("cgroup/getpeername4")
int taupe_peername4(struct bpf_sock_addr *context)
{
	return restore_address4(context);
}

SEC("cgroup/getpeername6")
int taupe_peername6(struct bpf_sock_addr *context)
{
	return restore_address6(context);
}

/*
 * Returns true if a packet on loopback is a DNS query of a selected socket. There are
 * three cases:
 *
 *    - The socket was connected to a resolver before it was selected.
 *    - The address was assigned to this machine only a moment ago, so it has no alias yet.
 *    - A netfilter rule redirects the query to a local resolver, at any port. Only the port
 *      to which the socket is connected shows that it is a query.
 */
static __noinline bool is_local_dns_query(struct __sk_buff *skb, struct bpf_sock *sk)
{
	struct state *state = get_state();
	struct packet packet;

	if (!state || !(READ_ONCE(state->dns) & DNS_SERVERS) || may_bypass_tunnel(state) ||
	    !is_selected_socket(sk))
		return false;
	read_packet(skb, &packet, EGRESS);
	if (!is_dns(packet.flow.remote_port, packet.flow.protocol) &&
	    !is_dns(sk->dst_port, packet.flow.protocol))
		return false;
	count(R_DNS_LOCAL);
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
static __noinline u32 service_of(struct bpf_sock_addr *context)
{
	struct bpf_sock_addr_kern *kernel_context = (void *)context;
	struct service_key key = {};
	u32 *service, length;

	/* A path may fill the address without a terminating NUL. */
	length = core_read(kernel_context->uaddrlen) - PATH_OFFSET + 1;
	if (length > sizeof(key.path))
		length = sizeof(key.path);
	bpf_probe_read_kernel_str(key.path, length, core_read(kernel_context->uaddr) + PATH_OFFSET);
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
	struct state *state = state_in_netns(context);
	u32 service, dns, bits, generation;

	if (!state)
		return ALLOW;
	dns = READ_ONCE(state->dns);
	if (!(dns & DNS_SERVERS) || may_bypass_tunnel(state))
		return ALLOW;
	service = service_of(context);
	if (!service)
		return ALLOW;
	generation = READ_ONCE(state->generation);
	bits = task_bits((u64)bpf_get_current_task(), generation);
	if (service == SERVICE_BUS) {
		if (dns & DNS_ALLOW_BUS || !(bits & (RULE_ALLOW | RULE_UNDETERMINED)) ||
		    bits & RULE_EXEMPT)
			return ALLOW;
	} else {
		switch (verdict_of(bits, state, generation)) {
		case EXEMPT:
		case DIRECT:
			return ALLOW;
		}
	}
	return refuse(R_DNS_SERVICE, ECONNREFUSED);
}
