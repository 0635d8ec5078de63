/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * MPTCP: the kernel creates subflows of a connection by itself, at any time. The verdict
 * is stored with the connection.
 */
#pragma once
#include "state.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct tcp_sock {
	bool is_mptcp;
};

struct inet_connection_sock {
	void *icsk_ulp_data;
};

struct mptcp_sock {
	struct list_head conn_list;
};

struct mptcp_subflow_context {
	struct list_head node;
	struct sock *conn;
	struct sock *tcp_sock;
};

struct hlist_node {
	struct hlist_node *next;
};

struct hlist_head {
	struct hlist_node *first;
};

struct bpf_local_storage {
	struct hlist_head list;
};

struct bpf_local_storage_data {
	void *smap;
	u8 data[8];
};

struct bpf_local_storage_elem {
	struct hlist_node snode;
	struct bpf_local_storage_data sdata;
};

struct sock___storage {
	struct bpf_local_storage *sk_bpf_storage;
};

#pragma clang attribute pop

/* A kernel without MPTCP lacks these types. */
static __always_inline bool has_mptcp(void)
{
	return core_field_exists(((struct mptcp_sock *)0)->conn_list);
}

/* Returns the connection of a subflow, or NULL. For hooks that hold the socket's lock. */
static __always_inline void *mptcp_connection_of(struct bpf_sock_addr *context)
{
	if (!has_mptcp() || context->type != SOCK_STREAM)
		return NULL;
	return bpf_skc_to_mptcp_sock(context->sk);
}

/* Maximum number of entries in a socket's storage that are searched. */
#define STORAGE_MAX 8

/* Returns the verdict in the storage of an MPTCP connection; or UNCLASSIFIED. */
global_func u32 stored_verdict(u64 of)
{
	struct sock___storage *connection = (void *)of;
	struct bpf_local_storage *storage = core_read(connection->sk_bpf_storage);
	struct hlist_node *node = core_read(storage->list.first);
	void *map = &sockets;

	for (u32 i = 0; node && i < STORAGE_MAX; i++) {
		struct bpf_local_storage_elem *element =
			core_container_of(node, struct bpf_local_storage_elem, snode);

		struct sock_verdict *stored = (void *)&element->sdata.data;

		/* A map begins with the part common to all maps. */
		if (core_read(element->sdata.smap) == core_read(map))
			return core_read(stored->verdict);
		node = core_read(node->next);
	}
	return UNCLASSIFIED;
}

/*
 * Returns the verdict on the MPTCP connection of a packet's socket; or UNCLASSIFIED.
 *
 * bpf_skc_to_mptcp_sock must not be called here. Until Linux 7.1 it mistakes the raw
 * sockets by which the kernel sends resets for TCP sockets, reads past their end and
 * follows the pointers there. Without the socket's lock it may also follow a context
 * that is NULL, or return a connection that has been freed. `core_read`, also in
 * stored_verdict, gives 0 for a bad address.
 */
static __always_inline u32 mptcp_verdict(struct bpf_sock *sk)
{
	struct mptcp_subflow_context *subflow;
	struct tcp_sock *tcp;

	if (!has_mptcp())
		return UNCLASSIFIED;
	tcp = bpf_skc_to_tcp_sock(sk);
	if (!tcp || ((struct sock *)tcp)->sk_type != SOCK_STREAM || !tcp->is_mptcp)
		return UNCLASSIFIED;
	subflow = ((struct inet_connection_sock *)tcp)->icsk_ulp_data;
	return stored_verdict((u64)core_read(subflow->conn));
}
