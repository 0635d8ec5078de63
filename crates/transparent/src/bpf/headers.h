/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Headers of IP, and bytes of a packet. */
#pragma once
#include "state.h"

struct ipv4 {
	u8 version_length;
	u8 tos;
	u16 length;
	u16 id;
	u16 fragment;
	u8 ttl;
	u8 protocol;
	u16 checksum;
	u32 source;
	u32 destination;
};

struct ipv6 {
	u32 version;
	u16 length;
	u8 next;
	u8 hop_limit;
	struct address source;
	struct address destination;
};

static __always_inline struct address v4_mapped(u32 ipv4)
{
	return (struct address){ { 0, 0, htonl(0xffff), ipv4 } };
}

static __always_inline bool is_equal(const struct address *a, const struct address *b)
{
	return a->words[0] == b->words[0] && a->words[1] == b->words[1] &&
	       a->words[2] == b->words[2] && a->words[3] == b->words[3];
}

/* Returns the offset of the IP header from the start of the packet as a program sees it. */
global_func u32 ip_offset(struct __sk_buff *skb)
{
	struct sk_buff *kernel_skb = (void *)skb;

	return core_read(kernel_skb->head) + core_read(kernel_skb->network_header) -
	       core_read(kernel_skb->data);
}

/* Loads bytes at an offset from the IP header. The first helper reads the linear part of
 * the packet, which contains most packets as a whole. Some drivers leave only the first
 * headers there. The second helper reads the rest, with offsets from the start of the
 * packet as the program sees it. */
static __always_inline bool load_bytes(struct __sk_buff *skb, u32 offset, void *to, u32 size)
{
	if (likely(!bpf_skb_load_bytes_relative(skb, offset, to, size, BPF_HDR_START_NET)))
		return true;
	return !bpf_skb_load_bytes(skb, ip_offset(skb) + offset, to, size);
}
