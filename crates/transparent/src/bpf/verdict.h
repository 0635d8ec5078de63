/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The verdict on a task, and on a socket. */
#pragma once
#include "identity.h"

/*
 * Allowed wins; disallowed goes direct; what no rule names goes where the rule
 * set says. Neither this process nor the kernel's own threads are ever chosen.
 */
inline_always u32 verdict_on(struct task_struct *task, u32 process, const struct state *state,
			     u32 generation)
{
	const struct rule_set *rules = &state->rules[generation & 1];
	u32 bits;

	if (process == now_of(state->daemon) || !kernel(task->mm))
		return DIRECT;
	bits = rules->everyone;
	if (!(bits & RULE_ALLOW))
		bits |= task_bits(task, rules->kinds, generation);
	if (bits & RULE_ALLOW)
		return TUNNEL;
	if (bits & RULE_DISALLOW)
		return DIRECT;
	return rules->otherwise;
}

/* Whether a socket is a chosen application's. */
inline_always bool chosen(struct bpf_sock *sk)
{
	struct owner *owner = bpf_sk_storage_get(&sockets, sk, NULL, 0);

	return owner && owner->verdict == TUNNEL;
}
