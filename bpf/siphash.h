/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * SipHash-1-3 (Aumasson, Bernstein: "SipHash: a fast short-input PRF", 2012). It is
 * keyed, so nobody can construct a path that has the hash of a rule.
 */
#pragma once
#include "kernel.h"

struct siphash {
	u64 v0, v1, v2, v3;
};

static __always_inline u64 rol64(u64 word, int by)
{
	return word << by | word >> (64 - by);
}

static __always_inline void sipround(struct siphash *s)
{
	s->v0 += s->v1;
	s->v1 = rol64(s->v1, 13) ^ s->v0;
	s->v0 = rol64(s->v0, 32);
	s->v2 += s->v3;
	s->v3 = rol64(s->v3, 16) ^ s->v2;
	s->v0 += s->v3;
	s->v3 = rol64(s->v3, 21) ^ s->v0;
	s->v2 += s->v1;
	s->v1 = rol64(s->v1, 17) ^ s->v2;
	s->v2 = rol64(s->v2, 32);
}

static __always_inline void siphash_init(struct siphash *s, const u64 key[2])
{
	s->v0 = key[0] ^ 0x736f6d6570736575ULL;
	s->v1 = key[1] ^ 0x646f72616e646f6dULL;
	s->v2 = key[0] ^ 0x6c7967656e657261ULL;
	s->v3 = key[1] ^ 0x7465646279746573ULL;
}

static __always_inline void siphash_mix(struct siphash *s, u64 word)
{
	s->v3 ^= word;
	sipround(s);
	s->v0 ^= word;
}

/* Programs for which the verifier would check the functions below once for each word define this as
 * `global_func`, before they include this file. Global functions compare pointers with NULL, and
 * return a number. */
#ifndef siphash_func
#define siphash_func static __always_inline
#endif

siphash_func u32 siphash_word(struct siphash *s, u64 word)
{
	if (s)
		siphash_mix(s, word);
	return 0;
}

siphash_func u64 siphash_final(struct siphash *s, u64 last)
{
	if (!s)
		return 0;
	siphash_mix(s, last);
	s->v2 ^= 0xff;
	sipround(s);
	sipround(s);
	sipround(s);
	return s->v0 ^ s->v1 ^ s->v2 ^ s->v3;
}
