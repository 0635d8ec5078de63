/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The flood filter: a socket filter for handshake sockets during a flood (flood.rs attaches it,
 * scripts/bpf compiles it). It drops datagrams before they wake a thread or are copied, and
 * keeps only those with the type and length of a handshake message that are
 *
 *   - answers to messages of this device, by the index that they repeat; about 16 each;
 *   - from known senders: those that also sent a message 4.3 to 12.9 s earlier. A genuine peer
 *     retries after Rekey-Timeout, 5 s (whitepaper §6.1), so it is known even if one attempt is
 *     lost. Spoofed addresses hardly ever repeat. About 8 messages of each sender are kept in
 *     4.3 s. Of further ones the filter keeps some 500 a second from all senders together,
 *     because an attacker may spoof the address of a genuine peer;
 *   - from new senders: some 500 a second, whichever come first.
 *
 * The filter authenticates nothing: the protocol checks each kept message as usual. If the
 * kernel has merged datagrams, the first one decides for all of them. The others may be data
 * messages of the same peer that follow its initiation and have the same length.
 *
 * Senders are remembered in Bloom filters, one per generation of 4.3 s, with four bits per
 * sender. All words of one sender share a cache line, because fetching it is most of the cost of
 * this filter. At 400,000 new senders a second, one in seventy is mistaken for a known one; at
 * 2,000,000 most are, and the filter then keeps them. Processors may overwrite each other's
 * bits: such a sender is forgotten, and waits another 5 s.
 */
#include "kernel.h"
#include "siphash.h"

#define KEEP (-1)
#define DROP 0

#define UDP_HEADER_LEN 8
#define IPV4_SOURCE 12
#define IPV6_SOURCE 8

/* Length of a generation and of a turn as powers of two nanoseconds, because a division is
 * slow: 4.3 s and 8.4 ms. */
#define GENERATION_BITS 32
#define TURN_BITS 23

/* The present generation and three before it. A sender whose last message is 4.3 to 12.9 s old is
 * always in one of those three. */
#define GENERATIONS 4

/* Messages kept of one known sender in a generation: both parts of a hybrid initiation, their
 * repetition, and both again with a cookie. A few fewer if their bits coincide. */
#define KEPT_OF_ONE 8

/* The upper byte of a word is its generation, the other seven are the bits of its Bloom filter.
 * A word of another generation counts as empty, so none need be cleared. The byte wraps after
 * 256 generations (18 minutes): an old word then passes for a present one, and the filter keeps
 * more messages. */
#define BITS 56
#define OF_GENERATION(generation) ((u64)(generation) << BITS)

struct block {
	u64 words[GENERATIONS];
};

/* 16 MiB. */
#define BLOCKS (1 << 19)

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BLOCKS);
	__type(key, u32);
	__type(value, struct block);
} blocks SEC(".maps");

/* Shape of a message: its first four bytes and its length. */
struct shape {
	u8 kind[4];
	u32 length;
};

/* The shapes of all handshake messages, from taupe_protocol. The value is the offset of the
 * receiver index if the message is an answer, otherwise 0. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, struct shape);
	__type(value, u32);
} shapes SEC(".maps");

/* Answers kept per message: a hybrid answer has several parts, and each may come twice. */
#define ANSWERS 16

/* The sender indices (random numbers) of the last messages that this device has sent and that
 * may be answered, each with the number of answers kept so far. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, u32);
	__type(value, u32);
} awaited SEC(".maps");

/* Datagrams kept per turn: of new senders, and of senders that repeat messages. */
#define EARLY 4

struct early {
	u64 turn;
	u64 count;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, u32);
	__type(value, struct early);
} early SEC(".maps");

/* Number of dropped datagrams. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} dropped SEC(".maps");

/* Key of the hash, so that nobody on the network can choose the bits of a sender. */
const volatile u64 secret[2] = {};

/* Returns a hash of the sender's address and port. */
static __always_inline u64 tag_of(struct __sk_buff *skb)
{
	const u64 key[2] = { secret[0], secret[1] };
	u64 address[2] = {};
	u16 port = 0;
	struct siphash sip;

	if (skb->protocol == htons(ETH_P_IPV6))
		bpf_skb_load_bytes_relative(skb, IPV6_SOURCE, address, 16, BPF_HDR_START_NET);
	else
		bpf_skb_load_bytes_relative(skb, IPV4_SOURCE, address, 4, BPF_HDR_START_NET);
	bpf_skb_load_bytes(skb, 0, &port, sizeof(port));
	siphash_init(&sip, key);
	siphash_word(&sip, address[0]);
	siphash_word(&sip, address[1]);
	return siphash_final(&sip, port);
}

/* Returns one bit of a word, chosen by eight bits of a tag. */
static __always_inline u64 bit_of(u64 tag, int shift)
{
	return 1ULL << ((tag >> shift & 0xff) * BITS >> 8);
}

/* Returns the four bits of a word that stand for a tag. */
static __always_inline u64 bits_of(u64 tag)
{
	return bit_of(tag, 18) | bit_of(tag, 26) | bit_of(tag, 34) | bit_of(tag, 42);
}

static __always_inline bool has(const struct block *block, u8 generation, u64 bits)
{
	u64 word = block->words[generation % GENERATIONS];

	return word >> BITS == generation && (word & bits) == bits;
}

enum sender {
	/* No message in the last generations. */
	NEWCOMER,
	/* Known, but KEPT_OF_ONE of its messages have been kept in this generation. */
	REPEATS,
	/* Has sent a message before. */
	KNOWN,
};

/* Remembers the sender, and returns its class. */
static __always_inline enum sender meet(struct __sk_buff *skb, u64 now)
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
	/* Each kept message sets further bits, in a fixed order: the first that are not all set
	 * are those of this message. */
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

/* Returns the number of datagrams that the kernel has merged into this one. */
static __always_inline u64 datagrams(const struct __sk_buff *skb)
{
	return skb->gso_segs > 1 ? skb->gso_segs : 1;
}

/* Returns true if this datagram, with all that are merged into it, is among the first EARLY of
 * its class in this turn. Once the turn is full, this only reads the counter, which all
 * processors share. */
static __always_inline bool is_early(const struct __sk_buff *skb, u32 sender, u64 now)
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

static __always_inline bool is_kept(struct __sk_buff *skb)
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
