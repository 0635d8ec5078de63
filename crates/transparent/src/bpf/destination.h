/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The class of a destination, and the next hop to it. */
#pragma once
#include "headers.h"

/* Returns the class of an address. An address without an entry is dropped. */
static __always_inline u32 destination_class(const struct address *address, u32 generation)
{
	struct destination_key key = {
		.prefix_len = 32 + 128,
		.space = generation & 1,
		.address = *address,
	};
	u32 *class = bpf_map_lookup_elem(&destinations, &key);

	return class ? *class : CLASS_DROP;
}

static __always_inline bool is_dns(u16 port, u32 protocol)
{
	return port == htons(53) && (protocol == IPPROTO_UDP || protocol == IPPROTO_TCP);
}

/* 169.254.0.0/16 and fe80::/10. Routers must not forward these (RFC 3927 section 7, RFC
 * 4291 section 2.5.6), yet some do: in clouds, 169.254.169.254 is behind the default
 * gateway. */
static __always_inline bool is_link_local(const struct address *address)
{
	const u32 *words = address->words;

	if (!words[0] && !words[1] && words[2] == htonl(0xffff))
		return (words[3] & htonl(0xffff0000)) == htonl(0xa9fe0000);
	return (words[0] & htonl(0xffc00000)) == htonl(0xfe800000);
}

/* Returns the class of a selected socket's flow. `is_neighbour`: the destination is the next
 * hop, so a link-local one is direct. */
static __always_inline u32 flow_class(const struct flow_key *flow, u32 generation,
				      bool is_neighbour)
{
	u32 class = is_neighbour && is_link_local(&flow->remote) ?
			    CLASS_DIRECT :
			    destination_class(&flow->remote, generation);

	if (class == CLASS_DIRECT && is_dns(flow->remote_port, flow->protocol))
		return CLASS_TUNNEL;
	return class;
}

/* Returns the class of a selected socket's flow by its addresses alone, with link-local
 * addresses as neighbours. DNS queries go through the tunnel even if the server is on
 * the link. If the tunnel lacks their family, user space answers that there is no route. */
static __always_inline u32 flow_class_on_link(const struct flow_key *flow, u32 generation)
{
	return flow_class(flow, generation, true);
}

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct sk_buff___routed {
	unsigned long _skb_refdst;
};

struct rtable {
	u8 rt_uses_gateway;
};

struct rt6_info {
	u32 rt6i_flags;
};

#pragma clang attribute pop

#define REFDST_NOREF 1UL
#define RTF_GATEWAY 2

/* The next hop of an outgoing packet, by the route that the kernel has found. */
enum next_hop {
	/* No route: a packet socket has addressed it. */
	HOP_UNKNOWN,
	HOP_DESTINATION,
	HOP_GATEWAY,
};

static __always_inline enum next_hop next_hop_of(struct __sk_buff *skb)
{
	struct sk_buff___routed *routed = (void *)skb;
	unsigned long route = core_read(routed->_skb_refdst) & ~REFDST_NOREF;
	bool is_gateway;

	if (!route)
		return HOP_UNKNOWN;
	if (skb->protocol == htons(ETH_P_IPV6))
		is_gateway = core_read(((struct rt6_info *)route)->rt6i_flags) & RTF_GATEWAY;
	else
		is_gateway = core_read(((struct rtable *)route)->rt_uses_gateway);
	return is_gateway ? HOP_GATEWAY : HOP_DESTINATION;
}

/* Returns the class of a selected socket's packet. A link-local destination is direct
 * only if it is itself the next hop. */
static __always_inline u32 egress_class(struct __sk_buff *skb, const struct flow_key *flow,
					u32 generation)
{
	return flow_class(flow, generation, next_hop_of(skb) == HOP_DESTINATION);
}
