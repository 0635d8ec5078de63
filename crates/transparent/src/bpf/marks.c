/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Selected applications in adapter mode, for kernels that lack the features of
 * transparent mode: one object, for Linux 5.10 and newer. Rules are compared with tasks
 * as in transparent mode. A selected socket gets a mark, by which the system routes its
 * packets into the tunnel. The socket stays its creator's.
 *
 * scripts/bpf compiles it.
 */
#define LINUX_5_10
#include "daemon.h"
#include "verdict_list.h"
#include "destination.h"
#include "verdict.h"

/* EPERM is the only possible error before Linux 5.18. */
SEC("cgroup/sock_create")
int taupe_mark(struct bpf_sock *sk)
{
	struct task_struct *task = bpf_get_current_task();
	struct state *state = get_state();
	u32 generation, verdict;

	if (!state || !is_task_in_netns(task, state))
		return ALLOW;
	generation = READ_ONCE(state->generation);
	verdict = verdict_on((u64)task, generation);
	if (verdict == UNDETERMINED) {
		count(R_PATH_TOO_DEEP);
		return REFUSE;
	}
	if (verdict != TUNNEL)
		return ALLOW;
	/* Refused as in transparent mode. */
	if (sk->protocol == IPPROTO_MPTCP || sk->protocol == IPPROTO_SMC ||
	    sk->protocol == IPPROTO_SCTP) {
		count(R_PROTOCOL_REFUSED);
		return REFUSE;
	}
	if (!store_verdict(sk, TUNNEL, generation))
		return REFUSE;
	sk->mark = state->mark;
	return ALLOW;
}

static __always_inline bool read_destination(struct __sk_buff *skb, struct address *to)
{
	u32 ipv4;

	if (skb->protocol == htons(ETH_P_IPV6))
		return load_bytes(skb, __builtin_offsetof(struct ipv6, destination), to,
				  sizeof(*to));
	if (skb->protocol != htons(ETH_P_IP) ||
	    !load_bytes(skb, __builtin_offsetof(struct ipv4, destination), &ipv4, sizeof(ipv4)))
		return false;
	*to = v4_mapped(ipv4);
	return true;
}

static __always_inline bool is_marked(struct bpf_sock *sk)
{
	return sk && bpf_sk_storage_get(&sockets, sk, NULL, 0);
}

/*
 * The second layer: packets for the tunnel leave only by the TUN, whatever has happened
 * to rules, routes or the mark.
 */
SEC("cgroup_skb/egress")
int taupe_keep(struct __sk_buff *skb)
{
	struct state *state = get_state();
	struct address remote;

	if (skb->ifindex == LOOPBACK_IFINDEX || !is_marked(skb->sk))
		return ALLOW;
	if (!state)
		return REFUSE;
	if (READ_ONCE(state->up) ? skb->ifindex == READ_ONCE(state->tun) : may_bypass_tunnel(state))
		return ALLOW;
	if (read_destination(skb, &remote) &&
	    (destination_class(&remote, READ_ONCE(state->generation)) == CLASS_DIRECT ||
	     (is_link_local(&remote) && next_hop_of(skb) == HOP_DESTINATION)))
		return ALLOW;
	count(R_OUT_UNGUARDED);
	return REFUSE;
}

/* Helpers that read tasks require a license compatible with the GPL. */
char _license[] SEC("license") = "Dual MIT/GPL";
