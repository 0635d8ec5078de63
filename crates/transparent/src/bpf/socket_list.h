/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Lists of sockets, network namespaces and processes, which user space reads as files. */
#pragma once
#include "records.h"
#include "verdict.h"

struct bpf_iter__bpf_sk_storage_map {
	struct bpf_iter_meta *meta;
	void *map;
	struct sock *sk;
	struct sock_verdict *value;
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct net___list {
	struct list_head list;
	u64 net_cookie;
};

#pragma clang attribute pop

/* Fills in a socket's record. The socket may be about to be freed, so its cookie is read,
 * not generated. */
global_func u32 read_socket(u64 of, struct socket_record *record)
{
	struct sock *sk = (struct sock *)of;
	struct sock_common___ends *ends = (void *)sk;

	if (!record)
		return 0;
	record->cookie = core_read(ends->skc_cookie.counter);
	if (!record->cookie)
		record->cookie = ANY_COOKIE;
	record->family = core_read(ends->skc_family);
	record->protocol = core_read(sk->sk_protocol);
	record->state = core_read(sk->__sk_common.skc_state);
	record->interface = core_read(ends->skc_bound_dev_if);
	record->local_port = core_read(sk->__sk_common.skc_num);
	record->remote_port = core_read(ends->skc_dport);
	record->local = local_address(sk);
	if (record->family == AF_INET)
		record->remote.words[0] = core_read(ends->skc_daddr);
	else if (core_field_exists(ends->skc_v6_daddr))
		record->remote = core_read(ends->skc_v6_daddr);
	return 0;
}

/* Writes a socket to the list. */
static __always_inline void write_socket(struct seq_file *seq, struct sock *sk, bool is_leaving)
{
	struct socket_record record = { .is_leaving = is_leaving };

	read_socket((u64)sk, &record);
	bpf_seq_write(seq, &record, sizeof(record));
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

	subflows->next = core_read(subflows->next->next);
	if (!subflows->next || subflows->next == subflows->end)
		return 1;
	subflow = core_container_of(subflows->next, struct mptcp_subflow_context, node);
	write_socket(subflows->seq, core_read(subflow->tcp_sock), subflows->is_leaving);
	return 0;
}

/* Lists the subflows of an MPTCP connection. The kernel ends such a connection only if
 * its subflows are ended. A plain loop is too complex for the verifier of Linux 6.1,
 * which does not see that its rounds are alike. */
static __always_inline void write_subflows(struct seq_file *seq, struct mptcp_sock *connection,
					   bool is_leaving)
{
	struct list_head *head = &connection->conn_list;
	struct subflows subflows = {
		.seq = seq, .next = head, .end = head, .is_leaving = is_leaving
	};

	bpf_loop(SUBFLOWS_MAX, subflow_step, &subflows, 0);
}

/* The socket is given as a number: a pointer that has been compared with NULL cannot be passed as a
 * number, which read_socket takes. A storage that is about to be freed has no socket any more. */
static __always_inline int write_selected(struct bpf_iter_meta *meta, struct sock *sk,
					  const struct sock_verdict *stored)
{
	bool is_leaving;

	if (!sk || !stored || !is_tunnelled(stored->verdict))
		return 0;
	is_leaving = stored->verdict == LEAVING;
	if (has_mptcp() && core_read(sk->sk_protocol) == IPPROTO_MPTCP)
		write_subflows(meta->seq, (struct mptcp_sock *)sk, is_leaving);
	else
		write_socket(meta->seq, sk, is_leaving);
	return 0;
}

SEC("iter/bpf_sk_storage_map")
int taupe_selected(struct bpf_iter__bpf_sk_storage_map *context)
{
	return write_selected(context->meta, core_read(context->sk), context->value);
}

/*
 * The two programs below take the place of the one above on a kernel that refuses
 * iterators over maps: this one lists sockets that processes have open, the other one
 * TCP connections of the reader's network namespace, which includes those that were
 * closed and still send.
 */
SEC("iter/task_file")
int taupe_open(struct bpf_iter__task_file *context)
{
	struct file *file = context->file;
	struct socket *socket;
	struct sock *sk;

	if (!file)
		return 0;
	socket = bpf_sock_from_file(file);
	if (!socket)
		return 0;
	sk = socket->sk;
	if (!sk)
		return 0;
	return write_selected(context->meta, core_read(socket->sk),
			      bpf_sk_storage_get(&sockets, sk, NULL, 0));
}

SEC("iter/tcp")
int taupe_tcp(struct bpf_iter__tcp *context)
{
	struct sock_common *common = context->sk_common;
	u8 tcp_state;

	if (!common)
		return 0;
	/* These have no `struct sock`. */
	tcp_state = core_read(common->skc_state);
	if (tcp_state == TCP_TIME_WAIT || tcp_state == TCP_NEW_SYN_RECV)
		return 0;
	return write_selected(context->meta, (struct sock *)core_read(context->sk_common),
			      bpf_sk_storage_get(&sockets, common, NULL, 0));
}

/* Maximum number of namespaces in the list. */
#define NAMESPACES_MAX 1024

struct namespace_walk {
	struct seq_file *seq;
	struct net___list *first;
	struct net___list *net;
};

static long namespace_step(u32 step, struct namespace_walk *walk)
{
	struct list_head *next = core_read(walk->net->list.next);
	struct namespace_record record = { .cookie = core_read(walk->net->net_cookie) };

	if (!next || bpf_seq_write(walk->seq, &record, sizeof(record)))
		return 1;
	walk->net = core_container_of(next, struct net___list, list);
	if (walk->net != walk->first)
		return 0;
	record.is_end = 1;
	bpf_seq_write(walk->seq, &record, sizeof(record));
	return 1;
}

/*
 * Lists all network namespaces. They form a circle with the list's head, for which a
 * number is listed that no namespace has. The kernel frees no namespace meanwhile.
 */
SEC("iter/task")
int taupe_namespaces(struct bpf_iter__task *context)
{
	struct nsproxy *proxy = core_read(bpf_get_current_task()->nsproxy);
	struct net___list *first = (void *)core_read(proxy->net_ns);
	struct namespace_walk walk = {
		.seq = context->meta->seq, .first = first, .net = first
	};

	/* Only once, not for every task. */
	if (context->meta->seq_num || !first)
		return 0;
	bpf_loop(NAMESPACES_MAX, namespace_step, &walk, 0);
	return 0;
}

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct task_struct___tasks {
	struct list_head tasks;
};

#pragma clang attribute pop

/* A walk along the list of all processes. */
struct process_search {
	struct list_head *next;
	struct list_head *end;
	u64 netns;
	void *namespace; /* the PID namespace in which the search began */
	u32 level;	 /* its depth */
	u32 outside;
};

/* Returns the PID namespace of this depth that contains a process. */
static __always_inline void *pid_namespace_at(struct pid *pid, u32 level)
{
	return core_read(upid_at(pid, level)->ns);
}

static long outside_step(u32 step, struct process_search *search)
{
	struct task_struct *task =
		core_container_of(search->next, struct task_struct___tasks, tasks);
	struct pid *pid = core_read(task->thread_pid);

	if (!(core_read(task->flags) & PF_KTHREAD) && pid &&
	    core_read(core_read(core_read(task->nsproxy)->net_ns)->net_cookie) == search->netns &&
	    (core_read(pid->level) < search->level ||
	     pid_namespace_at(pid, search->level) != search->namespace))
		search->outside++;
	search->next = core_read(search->next->next);
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
	struct task_struct *leader = core_read(task->group_leader);
	struct pid *pid = core_read(leader->thread_pid);
	struct state *state = get_state();
	struct process_search search = {};

	/* Only once, not for every task. */
	if (!state || context->meta->seq_num)
		return 0;
	search.netns = state->netns;
	search.level = core_read(pid->level);
	search.namespace = pid_namespace_at(pid, search.level);
	search.end = &((struct task_struct___tasks *)leader)->tasks;
	search.next = core_read(search.end->next);
	if (search.next)
		bpf_loop(PROCESSES_MAX, outside_step, &search, 0);
	bpf_seq_write(context->meta->seq, &search.outside, sizeof(search.outside));
	return 0;
}
