/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The flow of a packet.
 *
 * An ICMP error belongs to the flow of the packet that it quotes. Offsets count from the
 * IP header, so the link header does not matter.
 */
#pragma once
#include "destination.h"
#include "headers.h"

enum direction { EGRESS, INGRESS };

struct packet {
	struct flow_key flow;
	/* The identification that all fragments of a packet share. */
	u32 fragment_id;
	u8 hop_limit;
	bool is_ip;
	bool is_fragment;
	/* A fragment other than the first: it has no ports. */
	bool is_later_fragment;
	/* Neighbour or router discovery that no router has forwarded. */
	bool is_discovery;
	/* An ICMP error about another packet, whose flow this is. */
	bool is_error;
	/* The fields of the flow are after more extension headers than are followed
	 * here, or in another fragment of an error. No legitimate sender does that. */
	bool is_unparsable;
};

/* Offset and protocol of a header's payload. */
struct payload {
	u32 offset;
	u32 protocol;
};

/* As many as every host must process (RFC 8504 section 5.3). */
#define EXTENSIONS_MAX 8

static __always_inline bool read_ipv4(struct __sk_buff *skb, u32 offset, struct packet *packet,
				      enum direction direction, struct payload *payload)
{
	struct flow_key *flow = &packet->flow;
	struct ipv4 ip;

	if (!load_bytes(skb, offset, &ip, sizeof(ip)))
		return false;
	flow->local = v4_mapped(direction == EGRESS ? ip.source : ip.destination);
	flow->remote = v4_mapped(direction == EGRESS ? ip.destination : ip.source);
	packet->is_fragment = ip.fragment & htons(0x3fff);
	packet->is_later_fragment = ip.fragment & htons(0x1fff);
	packet->fragment_id = ip.id;
	payload->protocol = ip.protocol;
	payload->offset = offset + 4 * (ip.version_length & 15);
	return true;
}

static __always_inline bool is_extension(u32 protocol)
{
	return protocol == IPPROTO_HOPOPTS || protocol == IPPROTO_ROUTING ||
	       protocol == IPPROTO_DSTOPTS || protocol == IPPROTO_FRAGMENT ||
	       protocol == IPPROTO_AH;
}

/* A walk along the extension headers of a packet. */
struct extension_walk {
	struct __sk_buff *skb;
	struct packet *packet;
	struct payload payload;
};

static long extension_step(u32 step, struct extension_walk *walk)
{
	struct packet *packet = walk->packet;
	struct {
		u8 next;
		u8 length;
		u16 fragment;
		u32 id;
	} extension;
	u32 protocol = walk->payload.protocol;

	if (!is_extension(protocol))
		return 1;
	/* Each has at least eight bytes. A first fragment may end before them, which the kernel
	 * accepts. */
	if (!load_bytes(walk->skb, walk->payload.offset, &extension, sizeof(extension))) {
		packet->is_unparsable = true;
		return 1;
	}
	walk->payload.protocol = extension.next;
	if (protocol == IPPROTO_FRAGMENT) {
		walk->payload.offset += 8;
		packet->is_fragment = extension.fragment & htons(0xfff9);
		packet->is_later_fragment = extension.fragment & htons(0xfff8);
		packet->fragment_id = extension.id;
		return packet->is_later_fragment;
	}
	walk->payload.offset += 8 + (protocol == IPPROTO_AH ? 4 : 8) * extension.length;
	return 0;
}

static __always_inline bool read_ipv6(struct __sk_buff *skb, u32 offset, struct packet *packet,
				      enum direction direction, struct payload *payload)
{
	struct flow_key *flow = &packet->flow;
	struct extension_walk walk = { .skb = skb, .packet = packet };
	struct ipv6 ip;

	if (!load_bytes(skb, offset, &ip, sizeof(ip)))
		return false;
	flow->local = direction == EGRESS ? ip.source : ip.destination;
	flow->remote = direction == EGRESS ? ip.destination : ip.source;
	packet->hop_limit = ip.hop_limit;
	walk.payload.protocol = ip.next;
	walk.payload.offset = offset + sizeof(ip);
	/* Most packets have none. */
	if (unlikely(is_extension(ip.next)))
		bpf_loop(EXTENSIONS_MAX, extension_step, &walk, 0);
	*payload = walk.payload;
	/* The payload of a later fragment begins with no header. */
	if (!packet->is_later_fragment)
		packet->is_unparsable |= is_extension(payload->protocol);
	return true;
}

/* Reads the ports of a protocol other than ICMP; 0 if it has none. */
static __always_inline void read_ports(struct __sk_buff *skb, struct packet *packet,
				       enum direction direction, const struct payload *payload)
{
	struct {
		u16 source;
		u16 destination;
	} ports = {};

	switch (payload->protocol) {
	case IPPROTO_TCP:
	case IPPROTO_UDP:
	case IPPROTO_DCCP:
	case IPPROTO_SCTP:
	case IPPROTO_UDPLITE:
		load_bytes(skb, payload->offset, &ports, sizeof(ports));
	}
	packet->flow.local_port = direction == EGRESS ? ports.source : ports.destination;
	packet->flow.remote_port = direction == EGRESS ? ports.destination : ports.source;
}

struct icmp {
	u8 type;
	u8 code;
	u16 checksum;
	u16 id;
	u16 sequence;
};

static __always_inline bool is_icmp(u32 protocol)
{
	return protocol == IPPROTO_ICMP || protocol == IPPROTO_ICMPV6;
}

/* Unreachable, source quench, redirect, time exceeded, parameter problem. */
static __always_inline bool is_icmp_error(u32 protocol, u8 type)
{
	if (protocol == IPPROTO_ICMPV6)
		return type < 128;
	return type == 3 || type == 4 || type == 5 || type == 11 || type == 12;
}

/* Fills in the fields of a packet that are not zero. A global function: otherwise the verifier
 * would follow each caller once for each kind of packet. */
global_func u32 read_headers(struct __sk_buff *skb, struct packet *packet, u32 direction)
{
	bool is_v6 = skb->protocol == htons(ETH_P_IPV6), is_out = direction == EGRESS;
	struct payload payload = {};
	struct icmp icmp = {};
	struct address to;

	if (!packet)
		return 0;
	if (!is_v6 && skb->protocol != htons(ETH_P_IP))
		return 0;
	packet->is_ip = is_v6 ? read_ipv6(skb, 0, packet, direction, &payload)
			      : read_ipv4(skb, 0, packet, direction, &payload);
	if (!packet->is_ip)
		return 0;
	packet->flow.protocol = payload.protocol;
	if (packet->is_later_fragment)
		return 0;
	if (!is_icmp(payload.protocol)) {
		read_ports(skb, packet, direction, &payload);
		return 0;
	}
	if (!load_bytes(skb, payload.offset, &icmp, sizeof(icmp))) {
		packet->is_unparsable = packet->is_fragment;
		return 0;
	}
	if (!is_icmp_error(payload.protocol, icmp.type)) {
		packet->is_discovery = is_v6 && icmp.type >= 133 && icmp.type <= 137 &&
				       packet->hop_limit == 255;
		packet->flow.local_port = icmp.id;
		return 0;
	}
	/* The quoted packet went in the opposite direction. The quote begins with its IP
	 * header, even for a fragment, so ports are read where the kernel reads them. A
	 * quote that is cut before the ports says nothing to the kernel either. */
	packet->is_error = true;
	packet->is_unparsable |= packet->is_fragment;
	to = packet->flow.remote;
	direction = is_out ? INGRESS : EGRESS;
	payload.offset += sizeof(icmp);
	is_v6 = payload.protocol == IPPROTO_ICMPV6;
	if (!(is_v6 ? read_ipv6(skb, payload.offset, packet, direction, &payload)
		    : read_ipv4(skb, payload.offset, packet, direction, &payload)))
		return 0;
	/* The error must go to the sender of the quoted packet. Otherwise an application
	 * could reach any host outside the tunnel with it. */
	if (is_out && !is_equal(&to, &packet->flow.remote))
		packet->is_unparsable = true;
	packet->flow.protocol = payload.protocol;
	if (is_icmp(payload.protocol)) {
		if (load_bytes(skb, payload.offset, &icmp, sizeof(icmp)))
			packet->flow.local_port = icmp.id;
	} else {
		read_ports(skb, packet, direction, &payload);
	}
	packet->is_fragment = packet->is_later_fragment = false;
	return 0;
}

static __always_inline void read_packet(struct __sk_buff *skb, struct packet *packet,
					enum direction direction)
{
	*packet = (struct packet){};
	read_headers(skb, packet, direction);
}

static __always_inline bool is_dhcp(const struct flow_key *flow)
{
	return flow->protocol == IPPROTO_UDP &&
	       ((flow->local_port == htons(68) && flow->remote_port == htons(67)) ||
		(flow->local_port == htons(546) && flow->remote_port == htons(547)));
}

/* Returns true for broadcast and for link-local IPv6, unicast or multicast. */
static __always_inline bool stays_on_link(const struct address *address)
{
	const u32 *words = address->words;

	if (!words[0] && !words[1] && words[2] == htonl(0xffff))
		return words[3] == 0xffffffff;
	return is_link_local(address) || (words[0] & htonl(0xffff0000)) == htonl(0xff020000);
}

/* Returns true for traffic of the link itself: DHCP and discovery. A selected
 * application could make any packet look like this, so its own are direct only on the
 * link. If a DHCP client is selected, it renews its lease by broadcast. Replies come
 * from any address. */
static __always_inline bool is_link_traffic(const struct packet *packet)
{
	return packet->is_discovery || is_dhcp(&packet->flow);
}
