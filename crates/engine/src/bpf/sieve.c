/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What a socket for handshakes keeps during a flood:
 *
 *   - nothing that is no message by its type and length;
 *   - responses and cookies, for who is flooded still begins handshakes;
 *   - an initiation of somebody who has sent one 4.3 to 6.4 s before, as whoever means it
 *     does: Rekey-Timeout is 5 s (whitepaper §6.1), and from made-up addresses hardly any
 *     comes twice;
 *   - of the others some hundred a second, whichever come first. Where all the flood is no
 *     message, those are all there are;
 *   - what the kernel has merged, for that may be data in part.
 *
 * All else ends here, before any program copies it or is woken for it. What is kept is
 * judged as ever: nobody is let in by this.
 *
 * Who has sent an initiation is remembered in Bloom filters, one for each generation of
 * 2.15 s, with four bits for each sender. What there is of one sender is in one or two
 * lines of the processor's cache: to fetch them is most of what this takes. Of 100,000 senders a second less than 1 % are taken for others, which
 * lets them through to be looked at, and costs nobody else anything. Processors may
 * overwrite each other's bits: then a sender is not remembered, and waits 5 s more.
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

/* Types of messages, and their bytes. */
enum {
	INITIATION = 1,
	RESPONSE = 2,
	COOKIE_REPLY = 3,
	/* The first byte of a part of a hybrid message. */
	HYBRID_INITIATION = 0x48,
	HYBRID_RESPONSE = 0x49,

	INITIATION_LEN = 148,
	RESPONSE_LEN = 92,
	COOKIE_REPLY_LEN = 64,
	/* The least of any part: index, and mac1 or a tag. */
	HYBRID_LEN = 28,
};

/* Powers of two, as a division takes as long as all else: 2.15 s, and 8.4 ms. */
#define GENERATION_BITS 31
#define TURN_BITS 23

/* The second or the third generation after that of the first initiation. */
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

#define BLOCKS (1 << 16)

struct {
	MAP_UINT(type, MAP_ARRAY);
	MAP_UINT(max_entries, BLOCKS);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct block);
} blocks SEC(".maps");

/* Newcomers that are kept in one turn: some 500 a second. */
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
	return bit_of(tag, 16) | bit_of(tag, 24) | bit_of(tag, 32) | bit_of(tag, 40);
}

inline_always bool has(const struct block *block, u8 generation, u64 bits)
{
	u64 wanted = OF_GENERATION(generation) | bits;
	u64 word = block->words[generation % GENERATIONS];

	return word >> BITS == generation && (word & wanted) == wanted;
}

/* Remembers the sender. Whether it has sent an initiation some 5 s before. */
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

/* Whether a newcomer is among the first. */
inline_always bool is_early(u64 now)
{
	u32 zero = 0;
	struct newcomers *all = bpf_map_lookup_elem(&newcomers, &zero);
	u64 turn = now >> TURN_BITS;

	if (!all)
		return true;
	if (all->turn != turn) {
		all->turn = turn;
		all->count = 0;
	}
	all->count += 1;
	return all->count <= NEWCOMERS;
}

inline_always bool is_kept(struct __sk_buff *skb)
{
	u32 length = skb->len - UDP_HEADER_LEN;
	u8 kind[4];
	u64 now;

	if (skb->gso_segs > 1)
		return true;
	if (bpf_skb_load_bytes(skb, UDP_HEADER_LEN, kind, sizeof(kind)))
		return false;
	switch (kind[0]) {
	case INITIATION:
		/* The rest of the type is zeros. */
		if (length != INITIATION_LEN || kind[1] | kind[2] | kind[3])
			return false;
		break;
	case HYBRID_INITIATION:
		if (length < HYBRID_LEN)
			return false;
		break;
	case RESPONSE:
		return length == RESPONSE_LEN;
	case COOKIE_REPLY:
		return length == COOKIE_REPLY_LEN;
	case HYBRID_RESPONSE:
		return length >= HYBRID_LEN;
	default:
		return false;
	}
	now = bpf_ktime_get_boot_ns();
	return comes_again(skb, now) || is_early(now);
}

SEC("socket")
int sieve(struct __sk_buff *skb)
{
	u32 zero = 0;
	u64 *count;

	if (is_kept(skb))
		return KEEP;
	count = bpf_map_lookup_elem(&dropped, &zero);
	if (count)
		*count += 1;
	return DROP;
}

char _license[] SEC("license") = "Dual MIT/GPL";
