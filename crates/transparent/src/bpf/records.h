/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The records that iterators write with bpf_seq_write and user space reads (records.rs). A
 * test compares both layouts by the BTF of the objects.
 *
 * Iterators that only report the number of something write one byte for each
 * (taupe_classify, taupe_learn), or a u32 (taupe_outside).
 */
#pragma once
#include "state.h"

/* BTF omits types that only local variables have. This pointer keeps the type of a record
 * there. No program uses it, and the loader ignores its section. */
#define RECORD(name) const struct name *name##_type SEC("records")

/* The verdict on a process, and its rules. */
struct process_record {
	u32 id; /* PID in the reader's PID namespace */
	u32 bits; /* RULE_* */
	u32 verdict;
	u32 zero;
	u64 own;
	u64 inherited;
	u64 handed_on; /* the rule for programs that it starts */
};
RECORD(process_record);

#ifndef LINUX_5_10

/* A selected socket. The same in every version, since each version reads the pinned iterators of
 * others (taupe_selected, taupe_open, taupe_tcp). To change it, give these iterators other names.
 * records.rs asserts the offsets. */
struct socket_record {
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
RECORD(socket_record);

/* A cookie that matches any socket (INET_DIAG_NOCOOKIE). */
#define ANY_COOKIE (~0ULL)

/* A network namespace, or the end of the list. */
struct namespace_record {
	u64 is_end;
	u64 cookie;
};
RECORD(namespace_record);

#endif
