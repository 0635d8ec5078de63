/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The flood filter, a socket filter: what a socket for handshakes keeps while it is
 * flooded. Messages by their type and length, and of those
 *
 *   - what comes from somebody who has sent one 4.3 to 6.4 s before, as whoever means it
 *     does: Rekey-Timeout is 5 s (whitepaper §6.1). From made-up addresses hardly any comes
 *     twice;
 *   - of the others some 500 a second, whichever come first. Where all the flood is no
 *     message, there are no more.
 *
 * All else ends here, before any program copies it or is woken for it. What is kept is
 * judged as ever: nobody is let in by this. Of datagrams that the kernel has merged the
 * first decides, and those after it go the same way: data of a peer that happens to follow
 * its initiation and to be as long.
 *
 * Who has sent a message is remembered in Bloom filters, one for each generation of 2.15 s,
 * with four bits for each sender. What there is of one sender is in one or two lines of the
 * processor's cache: to fetch them is most of what this takes. Of those who come for the
 * first time a hundredth is taken for others when there are 400,000 a second, and most when
 * there are 4,000,000: then they are looked at, as without this. Processors may overwrite
 * each other's bits: then a sender is not remembered, and waits 5 s more.
 *
 * It is attached while there is a flood (flood.rs), and scripts/bpf compiles it.
 */
#include "kernel.h"
#include "siphash.h"

#define KEEP (-1)
#define DROP 0

#define UDP_HEADER_LEN 8
#define IPV4_SOURCE 12
#define IPV6_SOURCE 8

/* Powers of two, as a division takes long: 2.15 s, and 8.4 ms. */
#define GENERATION_BITS 31
#define TURN_BITS 23

/* The second or the third generation after that of the first message. */
#define LATE 2
#define EARLY 3
#define GENERATIONS 4

/* The upper byte says of which generation a word is, and the others are its bits: so
 * that of one long ago is empty, and nobody has to empty it. */
#define BITS 56
#define OF_GENERATION(generation) ((u64)(generation) << BITS)

struct block {
	u64 words[GENERATIONS];
};

/* 8 MiB. */
#define BLOCKS (1 << 18)

struct {
	MAP_UINT(type, MAP_ARRAY);
	MAP_UINT(max_entries, BLOCKS);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct block);
} blocks SEC(".maps");

/* What a message looks like: its first four bytes, and how many it has. */
struct shape {
	u8 kind[4];
	u32 length;
};

/* The messages that there are: taupe_protocol knows them. */
struct {
	MAP_UINT(type, MAP_HASH);
	MAP_UINT(max_entries, 64);
	MAP_TYPE(key, struct shape);
	MAP_TYPE(value, u32);
} shapes SEC(".maps");

/* Newcomers that are kept in one turn. */
#define NEWCOMERS 4

struct newcomers {
	u64 turn;
	u64 count;
};

struct {
	MAP_UINT(type, MAP_ARRAY);
	MAP_UINT(max_entries, 1);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct newcomers);
} newcomers SEC(".maps");

/* How many datagrams have not been kept. */
struct {
	MAP_UINT(type, MAP_PERCPU_ARRAY);
	MAP_UINT(max_entries, 1);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, u64);
} dropped SEC(".maps");

/* Nobody can choose where a sender is remembered. */
const volatile u64 secret[2] = {};

/* A number that stands for address and port, distributed evenly. */
inline_always u64 tag_of(struct __sk_buff *skb)
{
	const u64 key[2] = { secret[0], secret[1] };
	u64 address[2] = {};
	u16 port = 0;
	struct sip sip;

	if (skb->protocol == htons(ETH_P_IPV6))
		bpf_skb_load_bytes_relative(skb, IPV6_SOURCE, address, 16, HDR_START_NET);
	else
		bpf_skb_load_bytes_relative(skb, IPV4_SOURCE, address, 4, HDR_START_NET);
	bpf_skb_load_bytes(skb, 0, &port, sizeof(port));
	sip_begin(&sip, key);
	sip_word(&sip, address[0]);
	sip_word(&sip, address[1]);
	return sip_end(&sip, port);
}

/* One of a word's bits, by eight of a tag. */
inline_always u64 bit_of(u64 tag, int shift)
{
	return 1ULL << ((tag >> shift & 0xff) * BITS >> 8);
}

/* Four bits of a word that stand for a tag. */
inline_always u64 bits_of(u64 tag)
{
	return bit_of(tag, 18) | bit_of(tag, 26) | bit_of(tag, 34) | bit_of(tag, 42);
}

inline_always bool has(const struct block *block, u8 generation, u64 bits)
{
	u64 wanted = OF_GENERATION(generation) | bits;
	u64 word = block->words[generation % GENERATIONS];

	return word >> BITS == generation && (word & wanted) == wanted;
}

/* Remembers the sender. Whether it has sent a message some 5 s before. */
inline_always bool comes_again(struct __sk_buff *skb, u64 now)
{
	u8 generation = now >> GENERATION_BITS;
	u64 tag = tag_of(skb), bits = bits_of(tag), *word;
	u32 at = tag % BLOCKS;
	struct block *block = bpf_map_lookup_elem(&blocks, &at);

	if (!block)
		return true;
	word = &block->words[generation % GENERATIONS];
	if (*word >> BITS != generation)
		*word = OF_GENERATION(generation);
	*word |= bits;
	return has(block, generation - LATE, bits) || has(block, generation - EARLY, bits);
}

/* How many datagrams the kernel has merged into this. */
inline_always u64 datagrams(const struct __sk_buff *skb)
{
	return skb->gso_segs > 1 ? skb->gso_segs : 1;
}

/* Whether a newcomer is among the first. Once there were enough, this is read only: all
 * processors look at it. */
inline_always bool is_early(const struct __sk_buff *skb, u64 now)
{
	u32 zero = 0;
	struct newcomers *all = bpf_map_lookup_elem(&newcomers, &zero);
	u64 turn = now >> TURN_BITS;

	if (!all)
		return true;
	if (turn > all->turn) {
		all->turn = turn;
		all->count = 0;
	}
	if (all->count >= NEWCOMERS)
		return false;
	all->count += datagrams(skb);
	return true;
}

inline_always bool is_kept(struct __sk_buff *skb)
{
	struct shape shape = {};
	u64 now;

	shape.length = skb->gso_size ? skb->gso_size : skb->len - UDP_HEADER_LEN;
	if (bpf_skb_load_bytes(skb, UDP_HEADER_LEN, shape.kind, sizeof(shape.kind)))
		return false;
	if (!bpf_map_lookup_elem(&shapes, &shape))
		return false;
	now = bpf_ktime_get_boot_ns();
	return comes_again(skb, now) || is_early(skb, now);
}

SEC("socket")
int flood_filter(struct __sk_buff *skb)
{
	u32 zero = 0;
	u64 *count;

	if (is_kept(skb))
		return KEEP;
	count = bpf_map_lookup_elem(&dropped, &zero);
	if (count)
		*count += datagrams(skb);
	return DROP;
}

char _license[] SEC("license") = "Dual MIT/GPL";
