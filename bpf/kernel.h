/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The parts of the kernel that these programs use.
 *
 * There are three kinds: contexts and helpers, which are stable interfaces
 * (include/uapi/linux/bpf.h); constants of protocols; and structures of the running
 * kernel. Structures declare only the members that are read. The loader replaces their
 * offsets by those of the running kernel (CO-RE, `preserve_access_index`).
 */
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int s32;
typedef long long s64;
typedef _Bool bool;

#define true 1
#define false 0
#define NULL ((void *)0)

#define SEC(name) __attribute__((section(name), used))
#define __always_inline inline __attribute__((__always_inline__))
/* A function with a stack frame of its own. It uses no map that is not pinned, nor does a global
 * function or the body of a bpf_loop: programs of types that aya does not know are loaded with all
 * of these functions and the pinned maps alone (raw_load.rs). */
#define __noinline __attribute__((__noinline__))
/* A global function: the verifier checks it once by itself, and not again for each caller. It
 * takes pointers to the program's context and, since Linux 5.12, to structures on the caller's
 * stack, which it must compare with NULL. Before Linux 6.3 the caller must have initialised such
 * a structure. Other pointers are passed as numbers. */
#define global_func __attribute__((__noinline__))
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#define READ_ONCE(word) (*(volatile typeof(word) *)&(word))
#define WRITE_ONCE(word, value) (READ_ONCE(word) = (value))
#define ntohs(x) __builtin_bswap16(x)
#define htons(x) __builtin_bswap16(x)
#define htonl(x) __builtin_bswap32(x)

/* ---- Contexts (uapi) ---- */

struct bpf_sock {
	u32 bound_dev_if;
	u32 family;
	u32 type;
	u32 protocol;
	u32 mark;
	u32 priority;
	u32 src_ip4;
	u32 src_ip6[4];
	u32 src_port;
	u16 dst_port;
	u16 : 16;
	u32 dst_ip4;
	u32 dst_ip6[4];
	u32 state;
	s32 rx_queue_mapping;
};

struct __sk_buff {
	u32 len;
	u32 pkt_type;
	u32 mark;
	u32 queue_mapping;
	u32 protocol;
	u32 vlan_present;
	u32 vlan_tci;
	u32 vlan_proto;
	u32 priority;
	u32 ingress_ifindex;
	u32 ifindex;
	u32 tc_index;
	u32 cb[5];
	u32 hash;
	u32 tc_classid;
	u32 data;
	u32 data_end;
	u32 napi_id;
	u32 family;
	u32 remote_ip4;
	u32 local_ip4;
	u32 remote_ip6[4];
	u32 local_ip6[4];
	u32 remote_port;
	u32 local_port;
	u32 data_meta;
	u64 flow_keys;
	u64 tstamp;
	u32 wire_len;
	u32 gso_segs;
	struct bpf_sock *sk;
	u32 gso_size;
};

struct bpf_sock_addr {
	u32 user_family;
	u32 user_ip4;
	u32 user_ip6[4];
	u32 user_port;
	u32 family;
	u32 type;
	u32 protocol;
	u32 msg_src_ip4;
	u32 msg_src_ip6[4];
	struct bpf_sock *sk __attribute__((aligned(8)));
};

struct bpf_sock_tuple {
	union {
		struct {
			u32 saddr;
			u32 daddr;
			u16 sport;
			u16 dport;
		} ipv4;
		struct {
			u32 saddr[4];
			u32 daddr[4];
			u16 sport;
			u16 dport;
		} ipv6;
	};
};

_Static_assert(__builtin_offsetof(struct bpf_sock, state) == 72, "uapi");
_Static_assert(__builtin_offsetof(struct __sk_buff, sk) == 168, "uapi");
_Static_assert(__builtin_offsetof(struct __sk_buff, gso_size) == 176, "uapi");
_Static_assert(__builtin_offsetof(struct bpf_sock_addr, sk) == 64, "uapi");

/* ---- Maps (uapi), as the loader reads them from BTF ---- */

#define __uint(name, value) int(*name)[value]
#define __type(name, type) typeof(type) *name

enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_LPM_TRIE = 11,
	BPF_MAP_TYPE_SK_STORAGE = 24,

	BPF_NOEXIST = 1,

	BPF_F_NO_PREALLOC = 1 << 0,
	BPF_F_CLONE = 1 << 9,
	BPF_F_MMAPABLE = 1 << 10,
};

/* ---- Helpers (uapi) ---- */

struct file;
struct net_device;
struct seq_file;
struct socket;
struct task_struct;

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static u64 (*bpf_ktime_get_ns)(void) = (void *)5;
static long (*bpf_skb_store_bytes)(struct __sk_buff *skb, u32 offset, const void *from, u32 len, u64 flags) = (void *)9;
static long (*bpf_skb_load_bytes)(const void *skb, u32 offset, void *to, u32 len) = (void *)26;
static u64 (*bpf_get_current_pid_tgid)(void) = (void *)14;
static long (*bpf_redirect)(u32 ifindex, u64 flags) = (void *)23;
static struct task_struct *(*bpf_get_current_task)(void) = (void *)35;
static long (*bpf_skb_change_head)(struct __sk_buff *skb, u32 len, u64 flags) = (void *)43;
static long (*bpf_skb_load_bytes_relative)(const void *skb, u32 offset, void *to, u32 len, u32 start) = (void *)68;
static struct bpf_sock *(*bpf_sk_lookup_tcp)(void *context, struct bpf_sock_tuple *tuple, u32 size, u64 netns, u64 flags) = (void *)84;
static struct bpf_sock *(*bpf_sk_lookup_udp)(void *context, struct bpf_sock_tuple *tuple, u32 size, u64 netns, u64 flags) = (void *)85;
static long (*bpf_sk_release)(void *sock) = (void *)86;
static struct bpf_sock *(*bpf_sk_fullsock)(struct bpf_sock *sk) = (void *)95;
static struct bpf_sock *(*bpf_get_listener_sock)(struct bpf_sock *sk) = (void *)98;
static void *(*bpf_sk_storage_get)(void *map, void *sk, void *value, u64 flags) = (void *)107;
static long (*bpf_probe_read_kernel)(void *to, u32 size, const void *from) = (void *)113;
static long (*bpf_probe_read_kernel_str)(void *to, u32 size, const void *from) = (void *)115;
static long (*bpf_seq_write)(struct seq_file *to, const void *from, u32 size) = (void *)127;
static void *(*bpf_skc_to_tcp_sock)(struct bpf_sock *sk) = (void *)137;
static u64 (*bpf_get_socket_cookie)(void *sock) = (void *)46;
static u64 (*bpf_ktime_get_boot_ns)(void) = (void *)125;
static u64 (*bpf_get_netns_cookie)(void *context) = (void *)122;
static struct socket *(*bpf_sock_from_file)(struct file *file) = (void *)162;
static long (*bpf_loop)(u32 rounds, void *body, void *context, u64 flags) = (void *)181;
static long (*bpf_set_retval)(s32 value) = (void *)187;
static void *(*bpf_skc_to_mptcp_sock)(void *sk) = (void *)196;

enum {
	BPF_HDR_START_NET = 1,
	BPF_SK_STORAGE_GET_F_CREATE = 1,
	BPF_F_INGRESS = 1,
};
/* The namespace of the packet's device, as a 64-bit number. */
#define BPF_F_CURRENT_NETNS ((u64)-1)

/* Return values of a filter, the same for tcx and clsact. */
enum {
	TC_ACT_UNSPEC = -1,
	TC_ACT_SHOT = 2,
};

/* Return values of a netfilter program. */
enum {
	NF_DROP = 0,
	NF_ACCEPT = 1,
};

/* Return values of a cgroup program. */
enum {
	REFUSE = 0,
	ALLOW = 1,
};

/* ---- Constants ---- */

enum {
	AF_UNIX = 1,
	AF_INET = 2,
	AF_INET6 = 10,
	AF_PACKET = 17,
	AF_RDS = 21,
	AF_PPPOX = 24,
	AF_TIPC = 30,
	AF_RXRPC = 33,
	AF_SMC = 43,
	AF_XDP = 44,
	SOCK_STREAM = 1,
	SOCK_RAW = 3,

	/* A kernel thread (include/linux/sched.h). */
	PF_KTHREAD = 0x00200000,

	/* TCP states (include/net/tcp_states.h). */
	TCP_ESTABLISHED = 1,
	TCP_SYN_SENT = 2,
	TCP_SYN_RECV = 3,
	TCP_TIME_WAIT = 6,
	TCP_CLOSE = 7,
	TCP_CLOSE_WAIT = 8,
	TCP_LISTEN = 10,
	TCP_NEW_SYN_RECV = 12,

	ETH_P_IP = 0x0800,
	ETH_P_IPV6 = 0x86dd,
	LOOPBACK_IFINDEX = 1,

	IPPROTO_HOPOPTS = 0,
	IPPROTO_ICMP = 1,
	IPPROTO_TCP = 6,
	IPPROTO_UDP = 17,
	IPPROTO_DCCP = 33,
	IPPROTO_ROUTING = 43,
	IPPROTO_FRAGMENT = 44,
	IPPROTO_AH = 51,
	IPPROTO_ICMPV6 = 58,
	IPPROTO_DSTOPTS = 60,
	IPPROTO_SCTP = 132,
	IPPROTO_UDPLITE = 136,
	IPPROTO_SMC = 256,
	IPPROTO_MPTCP = 262,

	EPERM = 1,
	EEXIST = 17,
	ENAMETOOLONG = 36,
	EPROTONOSUPPORT = 93,
	EAFNOSUPPORT = 97,
	EADDRNOTAVAIL = 99,
	ENETUNREACH = 101,
	ENOBUFS = 105,
	ECONNREFUSED = 111,
};

/* ---- Structures of the running kernel ---- */

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct qstr {
	const unsigned char *name;
};

struct dentry {
	struct dentry *d_parent;
	struct qstr d_name;
};

struct vfsmount {
	struct dentry *mnt_root;
};

struct mount {
	struct mount *mnt_parent;
	struct dentry *mnt_mountpoint;
	struct vfsmount mnt;
};

struct path {
	struct vfsmount *mnt;
	struct dentry *dentry;
};

struct super_block {
	u32 s_dev;
};

struct inode {
	unsigned long i_ino;
	struct super_block *i_sb;
};

struct file {
	struct path f_path;
	struct inode *f_inode;
};

struct mm_struct {
	struct file *exe_file;
};

struct kernfs_node {
	struct kernfs_node *parent;
	const char *name;
	u64 id;
};

/* Since Linux 6.15. */
struct kernfs_node___rcu {
	struct kernfs_node *__parent;
};

struct cgroup {
	struct kernfs_node *kn;
};

struct css_set {
	struct cgroup *dfl_cgrp;
};

typedef struct {
	u32 val;
} kuid_t;

struct cred {
	kuid_t uid;
};

typedef struct {
	s32 counter;
} atomic_t;

struct signal_struct {
	atomic_t live;
};

struct upid {
	s32 nr;
	void *ns;
};

struct pid {
	u32 level;
	struct upid numbers[1];
};

struct task_struct {
	u32 flags;
	s32 tgid;
	u64 start_time;
	u64 self_exec_id;
	u32 in_execve : 1;
	struct task_struct *real_parent;
	struct task_struct *group_leader;
	struct pid *thread_pid;
	struct mm_struct *mm;
	struct cred *real_cred;
	struct css_set *cgroups;
	struct signal_struct *signal;
	struct nsproxy *nsproxy;
};

struct ns_common {
	u32 inum;
};

struct net {
	u64 net_cookie;
	struct ns_common ns;
};

struct nsproxy {
	struct net *net_ns;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct sock_common {
	u16 skc_family;
	u16 skc_num;
	unsigned char skc_state;
	possible_net_t skc_net;
};

struct socket;

struct sock {
	struct sock_common __sk_common;
	struct socket *sk_socket;
	u8 sk_padding : 1;
	u8 sk_kern_sock : 1;
	u16 sk_type;
	u16 sk_protocol;
};

struct socket {
	struct sock *sk;
};

struct list_head {
	struct list_head *next;
};

struct sk_buff {
	struct net_device *dev;
	struct sock *sk;
	unsigned char *head;
	unsigned char *data;
	u16 network_header;
};

#pragma clang attribute pop

/* The context of netfilter programs. */
struct nf_hook_state;

struct bpf_nf_ctx {
	struct nf_hook_state *state;
	struct sk_buff *skb;
};

/* The same in every kernel that has iterators. */
struct bpf_iter_meta {
	struct seq_file *seq;
	u64 session_id;
	u64 seq_num;
};

/* The contexts of iterators: arguments of eight bytes each. */
struct bpf_iter__task_file {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	u64 fd;
	struct file *file;
};

struct bpf_iter__tcp {
	struct bpf_iter_meta *meta;
	struct sock_common *sk_common;
	u64 uid;
};

/* CO-RE, as in libbpf's bpf_core_read.h. */

#define core_field_exists(member) __builtin_preserve_field_info(member, 2)

/* container_of, with the offset of the running kernel. */
#define core_container_of(pointer, type, member)                                            \
	((void *)(pointer) - __builtin_preserve_field_info(((type *)0)->member, 0))

/* Reads a bit of a kernel structure, wherever it has this bit; 0 where the address is bad. */
#define core_read_bit(structure, member)                                                    \
	({                                                                                  \
		u64 bits_ = 0;                                                              \
		u32 size_ = __builtin_preserve_field_info((structure)->member, 1);          \
		u64 at_ = (u64)(structure) +                                                \
			  __builtin_preserve_field_info((structure)->member, 0);            \
		bpf_probe_read_kernel(&bits_, size_, (void *)at_);                          \
		bits_ <<= __builtin_preserve_field_info((structure)->member, 4);            \
		bits_ >> __builtin_preserve_field_info((structure)->member, 5);             \
	})

/* Reads a member of a kernel structure; 0 where the address is bad: if the helper fails, it writes
 * zeros (bpf_probe_read_kernel_common, in kernel/trace/bpf_trace.c or, in newer kernels,
 * include/linux/bpf.h). A check of its result would double the paths that the verifier follows. */
#define core_read(member)                                                                   \
	({                                                                                  \
		typeof(member) value_;                                                      \
		bpf_probe_read_kernel(&value_, sizeof(value_), &(member));                  \
		value_;                                                                     \
	})
