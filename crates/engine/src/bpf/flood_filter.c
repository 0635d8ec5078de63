/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The flood filter, a socket filter: what a socket for handshakes keeps while it is
 * flooded. Messages by their type and length, and of those
 *
 *   - answers to what this device has sent, some 16, by the index that they repeat;
 *   - what comes from somebody who has sent one up to 12.9 s before, as whoever means it does,
 *     though one try be lost: Rekey-Timeout is 5 s (whitepaper §6.1). From made-up addresses
 *     hardly any comes twice. Of any one of them some are kept, and of what is more than that
 *     some 500 a second of all: it may be somebody else who says that it is from them;
 *   - of the others some 500 a second, whichever come first. Where all the flood is no
 *     message, there are no more.
 *
 * All else ends here, before any program copies it or is woken for it. What is kept is
 * judged as ever: nobody is let in by this. Of datagrams that the kernel has merged the
 * first decides, and those after it go the same way: data of a peer that happens to follow
 * its initiation and to be as long.
 *
 * Who has sent a message is remembered in Bloom filters, one for each generation of 4.3 s,
 * with four bits for each sender. What there is of one sender is in one line of the
 * processor's cache: to fetch it is most of what this takes. Of those who come for the first
 * time a seventieth is taken for others when there are 400,000 a second, and most when there
 * are 2,000,000: then they are looked at, as without this. Processors may overwrite each
 * other's bits: then a sender is not remembered, and waits 5 s more.
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

/* Powers of two, as a division takes long: 4.3 s, and 8.4 ms. */
#define GENERATION_BITS 32
#define TURN_BITS 23

/* The present one and three before it: what is 4.3 to 12.9 s old is in those three. */
#define GENERATIONS 4

/* What is kept of one sender in a generation, or a few less: both parts of a hybrid
 * initiation, when they are sent again, and with a cookie. */
#define KEPT_OF_ONE 8

/* The upper byte says of which generation a word is, and the others are its bits: so
 * that of another one is empty, and nobody has to empty it. After 256 generations, 18
 * minutes, what is left of one is taken for the present one: then more is kept. */
#define BITS 56
#define OF_GENERATION(generation) ((u64)(generation) << BITS)

struct block {
	u64 words[GENERATIONS];
};

/* 16 MiB. */
#define BLOCKS (1 << 19)

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

/* The messages that there are: taupe_protocol knows them. Of an answer, where the index is
 * that it repeats; of others 0. */
struct {
	MAP_UINT(type, MAP_HASH);
	MAP_UINT(max_entries, 64);
	MAP_TYPE(key, struct shape);
	MAP_TYPE(value, u32);
} shapes SEC(".maps");

/* Answers to one message that are kept: to a hybrid one some parts, and each twice. */
#define ANSWERS 16

/* The indices, random numbers, in what this device has sent last and may be answered, and how
 * many answers have been kept. */
struct {
	MAP_UINT(type, MAP_LRU_HASH);
	MAP_UINT(max_entries, 16384);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, u32);
} awaited SEC(".maps");

/* Of newcomers, and of those who repeat themselves: what is kept in one turn. */
#define EARLY 4

struct early {
	u64 turn;
	u64 count;
};

struct {
	MAP_UINT(type, MAP_ARRAY);
	MAP_UINT(max_entries, 2);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct early);
} early SEC(".maps");

/* How many datagrams have not been kept. */
struct {
	MAP_UINT(type, MAP_PERCPU_ARRAY);
	MAP_UINT(max_entries, 1);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, u64);
} dropped SEC(".maps");

/* Nobody on the network can choose where a sender is remembered. */
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
	u64 word = block->words[generation % GENERATIONS];

	return word >> BITS == generation && (word & bits) == bits;
}

enum sender {
	/* It has not been heard of. */
	NEWCOMER,
	/* It has, and enough of its messages are kept for now. */
	REPEATS,
	/* It has sent a message before. */
	KNOWN,
};

/* Remembers the sender, and says who it is. */
inline_always enum sender meet(struct __sk_buff *skb, u64 now)
{
	u8 generation = now >> GENERATION_BITS;
	u64 tag = tag_of(skb), bits = bits_of(tag), *word;
	u32 at = tag % BLOCKS;
	struct block *block = bpf_map_lookup_elem(&blocks, &at);

	if (!block)
		return KNOWN;
	word = &block->words[generation % GENERATIONS];
	if (*word >> BITS != generation)
		*word = OF_GENERATION(generation);
	*word |= bits;
	if (!has(block, generation - 1, bits) && !has(block, generation - 2, bits) &&
	    !has(block, generation - 3, bits))
		return NEWCOMER;
	/* Of each message that is kept there are bits too, in order. */
	for (int i = 0; i < KEPT_OF_ONE; i++) {
		tag = tag << 27 | tag >> 37;
		bits = bits_of(tag);
		if ((*word & bits) != bits) {
			*word |= bits;
			return KNOWN;
		}
	}
	return REPEATS;
}

/* How many datagrams the kernel has merged into this. */
inline_always u64 datagrams(const struct __sk_buff *skb)
{
	return skb->gso_segs > 1 ? skb->gso_segs : 1;
}

/* Whether this is among the first of such senders, with all that is merged into it. Once there
 * were enough, it is read only: all processors look at it. */
inline_always bool is_early(const struct __sk_buff *skb, u32 sender, u64 now)
{
	struct early *all = bpf_map_lookup_elem(&early, &sender);
	u64 turn = now >> TURN_BITS;

	if (!all)
		return true;
	if (turn > all->turn) {
		all->turn = turn;
		all->count = 0;
	}
	if (all->count + datagrams(skb) > EARLY)
		return false;
	all->count += datagrams(skb);
	return true;
}

inline_always bool is_kept(struct __sk_buff *skb)
{
	struct shape shape = {};
	u32 *place, *answers, index, sender;
	u64 now;

	shape.length = skb->gso_size ? skb->gso_size : skb->len - UDP_HEADER_LEN;
	if (bpf_skb_load_bytes(skb, UDP_HEADER_LEN, shape.kind, sizeof(shape.kind)))
		return false;
	place = bpf_map_lookup_elem(&shapes, &shape);
	if (!place)
		return false;
	if (*place) {
		if (bpf_skb_load_bytes(skb, UDP_HEADER_LEN + *place, &index, sizeof(index)))
			return false;
		answers = bpf_map_lookup_elem(&awaited, &index);
		if (answers && *answers < ANSWERS) {
			*answers += datagrams(skb);
			return true;
		}
	}
	now = bpf_ktime_get_boot_ns();
	sender = meet(skb, now);
	return sender == KNOWN || is_early(skb, sender, now);
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
