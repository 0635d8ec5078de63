/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The maps. User space fills them, and they outlive it. state.rs and maps.rs declare the
 * same layouts, and a test compares them with the BTF of the objects. A change of a layout
 * must change SCHEMA, so that a newer program does not take over the maps of an older one.
 */
#pragma once
#include "kernel.h"

#define SCHEMA 43

/* The verdict on a socket. Most sockets that are not selected have no storage at all, so
 * they cost nothing. */
enum verdict {
	DIRECT = 0,
	TUNNEL = 1,
	/* The tunnel's own process, which is never blocked. */
	EXEMPT = 2,
	/* Never in storage: the rules cannot be compared with the task. */
	UNDETERMINED = 3,
	/* Never in storage: the socket has no verdict. */
	UNCLASSIFIED = 4,
	/* As TUNNEL: no rule selects the socket any more, but its conversations in the
	 * tunnel have not been ended yet. */
	LEAVING = 5,
};

/* Classes of destinations for packets of selected sockets. */
enum class {
	CLASS_TUNNEL = 1,
	CLASS_DIRECT = 2,
	CLASS_REFUSE = 3, /* the tunnel lacks this family: fail at once */
	CLASS_DROP = 4,	  /* multicast and broadcast */
};

/*
 * Bits of rules in the values of `names` and `exact`. They are the lower half of a
 * value. The upper half is the rule's number, which is the same in every generation. A
 * process can therefore keep a rule after its executable has been renamed, as long as
 * the rule exists.
 */
enum {
	RULE_ALLOW = 1 << 0,
	RULE_DISALLOW = 1 << 1,
	RULE_BITS = RULE_ALLOW | RULE_DISALLOW,
	/* Only in `processes`, while new rules are being learned: these lack the rule. */
	RULE_GONE = 1 << 3,
	/* Never in maps: the task's path is too deep to be compared. */
	RULE_UNDETERMINED = 1 << 4,
	/* Never in maps: the tunnel's own process. */
	RULE_EXEMPT = 1 << 5,
	/* Only in `processes`: PID 1, which does not hand on its own rule. */
	RULE_OF_PID1 = 1 << 6,
	/* Never in maps: no rule names the task, and it has inherited one. */
	RULE_INHERITED = 1 << 7,
	/* Never in maps: the rules are about the tasks of another user. */
	RULE_OTHER_USER = 1 << 8,
};
#define RULE_NUMBER_SHIFT 32

/* Kinds of rules; in `rule_set`, the kinds that occur. */
enum {
	KIND_NAME = 1 << 0,
	KIND_PATH = 1 << 1,
	KIND_CGROUP_NAME = 1 << 2,
	KIND_CGROUP_PATH = 1 << 3,
	KIND_UID = 1 << 4,
	/* Everything below a directory. */
	KIND_DIRECTORY = 1 << 5,
	/* A rule by its number. */
	KIND_RULE = 1 << 6,
};

/* The rule of a program that no rule names. */
enum children {
	CHILDREN_OWN = 0,
	/* The rule of the program that started it. */
	CHILDREN_INHERIT = 1,
};

/*
 * Rules are replaced as a whole without a gap. The new set is written beside the old
 * one, under the other value of the generation's lowest bit. One store of `generation`
 * then switches to it. Every key begins with the generation.
 */
struct rule_set {
	u32 kinds;
	u32 all_tasks;	     /* bits for all tasks: rules about the root itself */
	u32 default_verdict; /* enum verdict of a task that no rule names */
	u32 path_depths;     /* bit d: a rule for paths of d + 1 components */
	u32 cgroup_depths;
	u32 children;	     /* enum children */
	u32 user;	     /* the only user whose tasks are selected, or ANY_USER */
};

#define ANY_USER 0xffffffff

/* Kill switch: the traffic that is blocked while the tunnel is down. With LOCK_ALL
 * each socket of the namespace has storage, up or down. Otherwise nothing would
 * distinguish it from sockets of other namespaces at egress. */
enum lock {
	LOCK_SELECTED = 0,
	LOCK_ALL = 1,
	LOCK_OFF = 2,
};

/* Handling of DNS queries of selected applications, as bits. */
enum dns_handling {
	/* The tunnel has name servers of this family. */
	DNS_V4 = 1 << 0,
	DNS_V6 = 1 << 1,
	DNS_SERVERS = DNS_V4 | DNS_V6,
	/* The system bus stays open, although it can be used for queries. */
	DNS_ALLOW_BUS = 1 << 2,
};

/* The tunnel's packet process and that of its outer device. */
enum { PACKET_PROCESSES = 2 };

/*
 * Passes over open sockets that give them verdicts (classify.h). Anybody who reads a pinned
 * iterator runs its pass. A pass therefore acts only while the process that replaces the
 * rules permits it.
 */
enum pass {
	PASS_SELECT = 1,
	PASS_MARK_LEAVING = 2,
	PASS_RELEASE = 3,
	PASS_PENDING = 4,
};

/* Reports of a pass to user space about a socket, each one byte. */
enum report {
	/* It bypasses the tunnel. */
	REPORT_UNMARKED = 1,
	/* One of the last two passes has selected it. Programs that run may not know yet. */
	REPORT_SELECTED = 2,
};

/* Mapped into user space, which stores single words atomically. The fields up to `mark` are
 * the same in every layout. */
struct state {
	u32 schema;
	u32 up;		/* a process reads the TUN */
	u64 netns;	/* cookie of the only namespace in which all this acts */
	u32 daemon;	/* PID of that process in the initial PID namespace, or 0 */
	u32 tun;	/* ifindex */
	u32 mark;	/* of packets to and from the TUN; neither half is 0 */
	u32 generation; /* of the rules in use */
	u32 lock;	/* enum lock */
	u32 lsm_active; /* set when the hook of BPF LSM is called */
	u64 key[2];	/* of the hash of paths */
	struct rule_set rules[2];
	/* Number of entries in `flows`. User space counts again whenever it removes
	 * some. */
	s32 flow_count;
	/* The second (bpf_ktime_get_ns) in which a flow was last refused. */
	u32 flow_refused_at;
	u32 forwarded;		/* forwarded packets go into the tunnel */
	u32 dns;		/* enum dns_handling */
	u32 unlisted_processes; /* processes whose files could not be listed */
	/* The second (bpf_ktime_get_ns) in which rules were replaced, while some
	 * processes still have the old ones; 0 otherwise. */
	u32 learning_since;
	u32 senders_traced;	/* taupe_sending is attached */
	u32 nfqueue_active;	/* another program decides on packets by NFQUEUE */
	/* PIDs of the packet processes in the daemon's PID namespace, or 0 */
	u32 named_packet_processes[PACKET_PROCESSES];
	/* the same in the initial PID namespace, or 0 while taupe_adopt has not found them */
	u32 packet_processes[PACKET_PROCESSES];
	/* The permitted pass; above PASS_SHIFT, the generation of rules for which it is
	 * permitted. A process that is killed leaves a permission that ends with that
	 * generation. */
	u64 permitted_pass;
};
#define PASS_SHIFT 32

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, u32);
	__type(value, struct state);
} state SEC(".maps");

/* An application: the rule about executables that selects it, or an executable if no
 * such rule does; and the user. Copies of an executable selected by one rule are one
 * application. */
struct application {
	u64 inode; /* or the rule's number if the device is NO_DEVICE */
	u32 device;
	u32 user;
};

#define NO_DEVICE (~0u)

/* The verdict is stored with the socket. CLONE: accepted sockets inherit it. */
struct sock_verdict {
	u32 verdict;
	u32 generation;	     /* in which it was selected */
	u64 unselected_task; /* the task that was last found not to be selected */
	/* For a selected socket: the application that created or first used it. */
	struct application application;
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, s32);
	__type(value, struct sock_verdict);
} sockets SEC(".maps");

/* Names of executables (lower case) and of cgroups. An exact name ends with NUL, a
 * wildcard does not. User space merges the bits of shorter prefixes. */
#define NAME_SIZE 240

struct name_key {
	u32 prefix_len; /* bits, of what follows */
	u32 space;	/* KIND_* << 1 | generation & 1 */
	union {
		u64 words[NAME_SIZE / 8];
		u8 bytes[NAME_SIZE];
	};
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 8192);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct name_key);
	__type(value, u64);
} names SEC(".maps");

/* Hashes of paths, user IDs and numbers of rules. */
struct exact_key {
	u32 space; /* as above */
	u32 zero;
	u64 id;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 32768);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct exact_key);
	__type(value, u64);
} exact SEC(".maps");

/* A process of any namespace. PIDs are reused, with another start time. */
struct process_key {
	u64 start; /* by the monotonic clock */
	u32 id;	   /* PID in the initial PID namespace */
	u32 zero;
};

/* The rules of a process: values of `names` and `exact`, or 0. */
struct process {
	u64 own;	/* about its executable */
	u64 inherited;	/* from the program that started it */
	u64 executed;	/* start time of this program; 0: not seen */
	u32 generation; /* generation of these values */
	u32 zero;
};

/* User space sets max_entries to the maximum number of processes. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 32768);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct process_key);
	__type(value, struct process);
} processes SEC(".maps");

/* An address of either family: IPv4 is ::ffff:0:0/96. */
struct address {
	u32 words[4];
};

struct destination_key {
	u32 prefix_len; /* bits: 32 more than the address's */
	u32 space;	/* generation & 1 */
	struct address address;
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct destination_key);
	__type(value, u32);
} destinations SEC(".maps");

/* Flows in the tunnel, with their addresses at the uplink; ports in network order. An
 * ICMP echo has its identifier as the local port.
 *
 * The layout of this key, and the size of the value, are the same in every layout of the
 * maps, since each version reads the flows of others. To change them, give the map another
 * name: user space recognises the type by its size only. state.rs asserts the offsets. */
struct flow_key {
	struct address remote;
	struct address local;
	u16 local_port;
	u16 remote_port;
	u32 protocol;
};

/* The side that opened a flow. */
enum opener {
	OPENED_BY_SOCKET = 0, /* a selected socket */
	OPENED_BY_REMOTE = 1, /* a remote host in the tunnel */
	OPENED_BY_CLIENT = 2, /* a client whose packets this machine forwards */
};

/*
 * The owner whose share of the table a flow takes. An application has one share, for all
 * its processes and sockets. A share per user would be too coarse: on most machines one
 * user runs all selected applications. A share per cgroup would be too coarse where a
 * session has only one, and too fine where a user may create any number.
 *
 * Remote hosts have one share together. Clients have one share for each interface by which
 * they arrive, since address translation may hide several behind one address.
 */
struct flow_owner {
	u32 opener; /* enum opener */
	u32 interface;
	struct application application; /* 0 if nobody has recorded it */
};

/* Its size is the same in every layout, see flow_key. */
struct flow {
	u64 last_seen; /* bpf_ktime_get_ns, with a resolution of a second */
	u32 ifindex;
	u32 is_answered; /* by a packet from the tunnel */
	struct flow_owner owner;
};

/*
 * Maximum number of flows. An owner may have as many flows as there are free entries: a
 * single owner at most half of the table, two owners a third each. There is always room
 * for another owner.
 */
#define FLOWS_MAX 65536

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, FLOWS_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct flow_key);
	__type(value, struct flow);
} flows SEC(".maps");

/* Number of flows of each owner. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, FLOWS_MAX);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct flow_owner);
	__type(value, s32);
} flow_owners SEC(".maps");

/* Guarded uplinks. Entered only after the filters are attached. */
struct uplink {
	u8 mac[6];
	u8 has_ethernet;
	u8 has_default_route;
	/* ID of the link by which tcx has the filter; 0: the filter is in the device's
	 * clsact queue. */
	u32 link_id;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, struct uplink);
} uplinks SEC(".maps");

/* This machine's addresses on guarded uplinks, with the interfaces. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct address);
	__type(value, u32);
} locals SEC(".maps");

/*
 * Resolver aliases: addresses that stand for this machine's own in DNS queries, and the
 * reverse entries; see dns.h. The aliases of loopback need no entries.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct address);
	__type(value, struct address);
} resolver_aliases SEC(".maps");

/* Local services that resolve names, by the paths of their sockets. */
enum service {
	SERVICE_RESOLVER = 1,
	SERVICE_BUS = 2,
};

#define SERVICE_SIZE 56

struct service_key {
	u8 path[SERVICE_SIZE]; /* NUL-terminated and padded with zeros */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct service_key);
	__type(value, u32);
} services SEC(".maps");

/* Networks in which this machine has an address, with the interfaces. */
struct network_key {
	u32 prefix_len; /* bits of the address */
	struct address address;
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct network_key);
	__type(value, u32);
} networks SEC(".maps");

/* Addresses at which selected sockets listen, while sockets are classified. */
struct listener {
	struct address address;
	u32 family;
	u16 port;
	u16 generation;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct listener);
	__type(value, u32);
} listeners SEC(".maps");

/* Counters of refused and dropped packets; state.rs describes each. */
enum reason {
	R_SOCKET_WITHOUT_STORAGE,
	R_PROTOCOL_REFUSED,
	R_CONNECT_REFUSED,
	R_CONNECT_DOWN,
	R_SEND_REFUSED,
	R_SEND_DOWN,
	R_OUT_TUNNEL,
	R_OUT_DOWN,
	R_OUT_CLASS,
	R_OUT_FLOWS_FULL,
	R_OUT_UNGUARDED,
	R_IN_DELIVERED,
	R_IN_BOUNCED,
	R_IN_UNKNOWN,
	R_CLEAR_FLOW,
	R_CLEAR_SOCKET,
	R_PATH_TOO_DEEP,
	R_TUN_MISUSED,
	R_FAMILY_REFUSED,
	R_UNREADABLE,
	R_IN_UNSELECTED,
	R_CLEAR_CLIENT,
	R_DNS_FAMILY,
	R_DNS_LOCAL,
	R_DNS_SERVICE,
	R_OWNER_UNKNOWN,
	REASONS,
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, REASONS);
	__type(key, u32);
	__type(value, u64);
} counters SEC(".maps");

static __always_inline void count(u32 reason)
{
	u64 *counter = bpf_map_lookup_elem(&counters, &reason);

	/* Per CPU, yet another program may preempt this one. */
	if (counter)
		__sync_fetch_and_add(counter, 1);
}

static __always_inline struct state *get_state(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&state, &zero);
}

/* Returns true while the traffic of selected applications may bypass the tunnel. */
static __always_inline bool may_bypass_tunnel(const struct state *state)
{
	return READ_ONCE(state->lock) == LOCK_OFF && !READ_ONCE(state->up);
}

/* Returns true while all traffic is blocked. */
static __always_inline bool blocks_all_traffic(const struct state *state)
{
	return READ_ONCE(state->lock) == LOCK_ALL && !READ_ONCE(state->up);
}

/*
 * Between the TUN and an uplink a packet has the tunnel's mark: 32 random bits that
 * nobody can guess. It survives the redirection from one device to the other, and the
 * kernel clears it when a packet comes from another namespace. The uplink's filter moves
 * the mark to the priority, for the filter at the socket. It sets skb->mark to 0 again, for
 * rules of firewalls and routing. Labels are half of the mark, in tc_index, since
 * forwarding changes the priority.
 */
enum packet_mark {
	/* It belongs to a flow of this machine. */
	MARK_FLOW = 0,
	/* It belongs to no flow: its receiver is looked up on arrival. */
	MARK_UNSOLICITED = 1,
	/* It belongs to a flow that this machine forwards. */
	MARK_CLIENT = 2,
};

static __always_inline bool has_mark(const struct __sk_buff *skb, const struct state *state,
				     enum packet_mark kind)
{
	return skb->mark == (state->mark ^ kind);
}

static __always_inline void set_mark(struct __sk_buff *skb, const struct state *state,
				     enum packet_mark kind)
{
	skb->mark = state->mark ^ kind;
}

/* The verdict of one filter on a packet, for the next filter that sees it. */
enum label {
	/* It may leave: decided on a link above this one, a VLAN or PPP. */
	MAY_LEAVE = 0,
	/* It came through the tunnel, for a client. */
	TO_CLIENT = 1,
};

static __always_inline bool has_label(const struct __sk_buff *skb, const struct state *state,
				      enum label label)
{
	return skb->tc_index == (u16)(state->mark ^ label);
}

static __always_inline void set_label(struct __sk_buff *skb, const struct state *state,
				      enum label label)
{
	skb->tc_index = (u16)(state->mark ^ label);
}
