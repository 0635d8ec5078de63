/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Lists that user space reads as files. */
#pragma once
#include "verdict.h"

struct bpf_iter__bpf_sk_storage_map {
	struct bpf_iter_meta *meta;
	void *map;
	struct sock *sk;
	struct owner *owner;
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct net___list {
	struct list_head list;
	u64 net_cookie;
};

#pragma clang attribute pop

/* A selected socket; the same as in reset.rs. */
struct chosen_socket {
	u64 cookie;
	struct address local;
	struct address remote;
	u32 interface;
	u16 local_port;	 /* as a number */
	u16 remote_port; /* in network order */
	u16 family;
	u16 protocol;
	u16 state;
	u16 is_leaving;
};

/* A cookie that matches any socket (INET_DIAG_NOCOOKIE). */
#define ANY_COOKIE (~0ULL)

/* Writes a socket to the list. It may be about to be freed, so its cookie is read, not
 * generated. */
inline_always void tell(struct seq_file *seq, struct sock *sk, bool is_leaving)
{
	struct sock_common___ends *ends = (void *)sk;
	struct chosen_socket chosen = { .is_leaving = is_leaving };

	chosen.cookie = kernel(ends->skc_cookie.counter);
	if (!chosen.cookie)
		chosen.cookie = ANY_COOKIE;
	chosen.family = kernel(ends->skc_family);
	chosen.protocol = kernel(sk->sk_protocol);
	chosen.state = kernel(sk->__sk_common.skc_state);
	chosen.interface = kernel(ends->skc_bound_dev_if);
	chosen.local_port = kernel(sk->__sk_common.skc_num);
	chosen.remote_port = kernel(ends->skc_dport);
	chosen.local = local_of(sk);
	if (chosen.family == AF_INET)
		chosen.remote.words[0] = kernel(ends->skc_daddr);
	else if (member_exists(ends->skc_v6_daddr))
		chosen.remote = kernel(ends->skc_v6_daddr);
	bpf_seq_write(seq, &chosen, sizeof(chosen));
}

/* Maximum number of subflows listed; the kernel itself creates at most eight. */
#define SUBFLOWS_MAX 32

struct subflows {
	struct seq_file *seq;
	struct list_head *next;
	struct list_head *end;
	bool is_leaving;
};

static long subflow_step(u32 step, struct subflows *subflows)
{
	struct mptcp_subflow_context *subflow;

	subflows->next = kernel(subflows->next->next);
	if (!subflows->next || subflows->next == subflows->end)
		return 1;
	subflow = (void *)subflows->next -
		  __builtin_preserve_field_info(((struct mptcp_subflow_context *)0)->node, 0);
	tell(subflows->seq, kernel(subflow->tcp_sock), subflows->is_leaving);
	return 0;
}

/* Lists the subflows of an MPTCP connection. The kernel ends such a connection only if
 * its subflows are ended. A plain loop is too complex for the verifier of Linux 6.1,
 * which does not see that its rounds are alike. */
inline_always void tell_subflows(struct seq_file *seq, struct mptcp_sock *connection,
				 bool is_leaving)
{
	struct list_head *head = &connection->conn_list;
	struct subflows subflows = {
		.seq = seq, .next = head, .end = head, .is_leaving = is_leaving
	};

	bpf_loop(SUBFLOWS_MAX, subflow_step, &subflows, 0);
}

SEC("iter/bpf_sk_storage_map")
int taupe_chosen(struct bpf_iter__bpf_sk_storage_map *context)
{
	struct seq_file *seq = context->meta->seq;
	struct owner *owner = context->owner;
	struct sock *sk = context->sk;

	bool is_leaving;

	if (!sk || !owner || !is_inside(owner->verdict))
		return 0;
	is_leaving = owner->verdict == LEAVING;
	if (has_mptcp() && kernel(sk->sk_protocol) == IPPROTO_MPTCP)
		tell_subflows(seq, (struct mptcp_sock *)sk, is_leaving);
	else
		tell(seq, sk, is_leaving);
	return 0;
}

/* A network namespace, or the end of the list. */
struct namespace {
	u64 is_end;
	u64 cookie;
};

/* Maximum number of namespaces in the list. */
#define NAMESPACES_MAX 1024

/*
 * Lists all network namespaces. They form a circle with the list's head, for which a
 * number is listed that no namespace has. The kernel frees no namespace meanwhile.
 */
SEC("iter/task")
int taupe_namespaces(struct bpf_iter__task *context)
{
	struct nsproxy *proxy = kernel(bpf_get_current_task()->nsproxy);
	struct net___list *first = (void *)kernel(proxy->net_ns), *net = first;
	struct seq_file *seq = context->meta->seq;
	struct namespace namespace = {};

	/* Only once, not for every task. */
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

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct task_struct___tasks {
	struct list_head tasks;
};

#pragma clang attribute pop

/* A walk along the list of all processes. */
struct search {
	struct list_head *next;
	struct list_head *end;
	u64 netns;
	void *space; /* the PID namespace in which the search began */
	u32 level;   /* its depth */
	u32 outside;
};

/* Returns the PID namespace of this depth that contains a process. */
inline_always void *space_at(struct pid *pid, u32 level)
{
	return kernel(number_at(pid, level)->ns);
}

static long outside_step(u32 step, struct search *search)
{
	struct task_struct *task = (void *)search->next -
		__builtin_preserve_field_info(((struct task_struct___tasks *)0)->tasks, 0);
	struct pid *pid = kernel(task->thread_pid);

	if (!(kernel(task->flags) & PF_KTHREAD) && pid &&
	    kernel(kernel(kernel(task->nsproxy)->net_ns)->net_cookie) == search->netns &&
	    (kernel(pid->level) < search->level || space_at(pid, search->level) != search->space))
		search->outside++;
	search->next = kernel(search->next->next);
	return !search->next || search->next == search->end;
}

/* Maximum number of processes that are counted. */
#define PROCESSES_MAX (1 << 22)

/*
 * Counts the processes of the tunnel's network namespace outside the reader's PID
 * namespace, which iterators over tasks leave out. Processes form a circle.
 */
SEC("iter/task")
int taupe_outside(struct bpf_iter__task *context)
{
	struct task_struct *task = bpf_get_current_task();
	struct task_struct *leader = kernel(task->group_leader);
	struct pid *pid = kernel(leader->thread_pid);
	struct state *state = get_state();
	struct search search = {};

	/* Only once, not for every task. */
	if (!state || context->meta->seq_num)
		return 0;
	search.netns = state->netns;
	search.level = kernel(pid->level);
	search.space = space_at(pid, search.level);
	search.end = &((struct task_struct___tasks *)leader)->tasks;
	search.next = kernel(search.end->next);
	if (search.next)
		bpf_loop(PROCESSES_MAX, outside_step, &search, 0);
	bpf_seq_write(context->meta->seq, &search.outside, sizeof(search.outside));
	return 0;
}
