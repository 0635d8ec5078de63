/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Lists, which user space reads as a file. */
#pragma once
#include "verdict.h"

struct seq_file;

static long (*bpf_seq_write)(struct seq_file *to, const void *from, u32 size) = (void *)127;
static u64 (*bpf_get_socket_cookie)(void *sock) = (void *)46;

/* The same in every kernel that has iterators. */
struct bpf_iter_meta {
	struct seq_file *seq;
	u64 session_id;
	u64 seq_num;
};

struct bpf_iter__bpf_sk_storage_map {
	struct bpf_iter_meta *meta;
	void *map;
	struct sock *sk;
	struct owner *owner;
};

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct sock_common___ends {
	u16 skc_family;
	u16 skc_dport;
	u32 skc_daddr;
	u32 skc_rcv_saddr;
	s32 skc_bound_dev_if;
	struct address skc_v6_daddr;
	struct address skc_v6_rcv_saddr;
};

struct list_head {
	struct list_head *next;
};

struct net___list {
	struct list_head list;
	u64 net_cookie;
};

#pragma clang attribute pop

/* A chosen socket: reset.rs has the same. */
struct chosen_socket {
	u64 cookie;
	struct address local;
	struct address remote;
	u32 interface;
	u16 local_port;	 /* as a number */
	u16 remote_port; /* in network order */
	u16 family;
	u16 protocol;
	u32 state;
};

SEC("iter/bpf_sk_storage_map")
int taupe_chosen(struct bpf_iter__bpf_sk_storage_map *context)
{
	struct chosen_socket chosen = {};
	struct owner *owner = context->owner;
	struct sock *sk = context->sk;
	struct sock_common___ends *ends = (void *)sk;

	if (!sk || !owner || owner->verdict != TUNNEL)
		return 0;
	chosen.cookie = bpf_get_socket_cookie(sk);
	chosen.family = kernel(ends->skc_family);
	chosen.protocol = kernel(sk->sk_protocol);
	chosen.state = kernel(sk->__sk_common.skc_state);
	chosen.interface = kernel(ends->skc_bound_dev_if);
	chosen.local_port = kernel(sk->__sk_common.skc_num);
	chosen.remote_port = kernel(ends->skc_dport);
	if (chosen.family == AF_INET) {
		chosen.local.words[0] = kernel(ends->skc_rcv_saddr);
		chosen.remote.words[0] = kernel(ends->skc_daddr);
	} else if (member_exists(ends->skc_v6_daddr)) {
		chosen.local = kernel(ends->skc_v6_rcv_saddr);
		chosen.remote = kernel(ends->skc_v6_daddr);
	}
	bpf_seq_write(context->meta->seq, &chosen, sizeof(chosen));
	return 0;
}

/* A network namespace that exists, or the end of their list. */
struct namespace {
	u64 is_end;
	u64 cookie;
};

/* More than these are not listed to the end. */
#define NAMESPACES_MAX 1024

/*
 * All network namespaces. They are linked in a circle with the list's head, for
 * which a number is listed that nobody has. The kernel frees none meanwhile.
 */
SEC("iter/task")
int taupe_namespaces(struct bpf_iter__task *context)
{
	struct nsproxy *proxy = kernel(bpf_get_current_task()->nsproxy);
	struct net___list *first = (void *)kernel(proxy->net_ns), *net = first;
	struct seq_file *seq = context->meta->seq;
	struct namespace namespace = {};

	/* Once, not for every task. */
	if (context->meta->seq_num || !first)
		return 0;
	for (int i = 0; i < NAMESPACES_MAX; i++) {
		struct list_head *next = kernel(net->list.next);

		namespace.cookie = kernel(net->net_cookie);
		if (!next || bpf_seq_write(seq, &namespace, sizeof(namespace)))
			return 0;
		net = (void *)next - __builtin_preserve_field_info(((struct net___list *)0)->list, 0);
		if (net == first) {
			namespace.is_end = 1;
			bpf_seq_write(seq, &namespace, sizeof(namespace));
			return 0;
		}
	}
	return 0;
}
