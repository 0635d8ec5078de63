/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * SipHash-1-3 (Aumasson, Bernstein: "SipHash: a fast short-input PRF", 2012). It is
 * keyed, so nobody can construct a path that has the hash of a rule.
 */
#pragma once
#include "kernel.h"

struct sip {
	u64 v0, v1, v2, v3;
};

inline_always u64 rotate(u64 word, int by)
{
	return word << by | word >> (64 - by);
}

inline_always void sip_round(struct sip *s)
{
	s->v0 += s->v1;
	s->v1 = rotate(s->v1, 13) ^ s->v0;
	s->v0 = rotate(s->v0, 32);
	s->v2 += s->v3;
	s->v3 = rotate(s->v3, 16) ^ s->v2;
	s->v0 += s->v3;
	s->v3 = rotate(s->v3, 21) ^ s->v0;
	s->v2 += s->v1;
	s->v1 = rotate(s->v1, 17) ^ s->v2;
	s->v2 = rotate(s->v2, 32);
}

inline_always void sip_begin(struct sip *s, const u64 key[2])
{
	s->v0 = key[0] ^ 0x736f6d6570736575ULL;
	s->v1 = key[1] ^ 0x646f72616e646f6dULL;
	s->v2 = key[0] ^ 0x6c7967656e657261ULL;
	s->v3 = key[1] ^ 0x7465646279746573ULL;
}

inline_always void sip_word(struct sip *s, u64 word)
{
	s->v3 ^= word;
	sip_round(s);
	s->v0 ^= word;
}

inline_always u64 sip_end(struct sip *s, u64 last)
{
	sip_word(s, last);
	s->v2 ^= 0xff;
	sip_round(s);
	sip_round(s);
	sip_round(s);
	return s->v0 ^ s->v1 ^ s->v2 ^ s->v3;
}
