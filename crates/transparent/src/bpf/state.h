/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The maps, which user space fills and which outlive it: state.rs and maps.rs
 * declare the same. Whoever changes a layout here changes SCHEMA, so that a
 * newer program doesn't take over maps of an older one.
 */
#pragma once
#include "kernel.h"

#define SCHEMA 39

/* What is to be done with a socket's packets. Most sockets that are none of ours
 * have no storage at all, so that they cost nothing. */
enum verdict {
	DIRECT = 0,
	TUNNEL = 1,
	/* The tunnel's own, which is never held back. */
	OWN = 2,
	/* Never in storage: the rules cannot be compared with the task. */
	UNTOLD = 3,
	/* Never in storage: there is none. */
	UNMARKED = 4,
	/* As TUNNEL: nobody chooses it any more, and what was said in the tunnel has not
	 * been ended yet. */
	LEAVING = 5,
};

/* Where a packet of a chosen socket goes by its destination. */
enum class {
	CLASS_TUNNEL = 1,
	CLASS_DIRECT = 2,
	CLASS_REFUSE = 3, /* the tunnel hasn't this family: say so at once */
	CLASS_DROP = 4,	  /* multicast and broadcast */
};

/*
 * What a rule says, in values of `names` and `exact`. These are the lower half of a value;
 * the upper half is the rule's number, which is the same in every generation. So a process
 * can keep a rule whose path or name it has no more, for as long as the rules have it.
 */
enum {
	RULE_ALLOW = 1 << 0,
	RULE_DISALLOW = 1 << 1,
	RULE_BITS = RULE_ALLOW | RULE_DISALLOW,
	/* Only in `processes`, while they learn new rules: these have it no more. */
	RULE_GONE = 1 << 3,
	/* Never in maps: of a task whose path is too deep to be compared. */
	RULE_UNTOLD = 1 << 4,
	/* Never in maps: of the tunnel's own process. */
	RULE_EXEMPT = 1 << 5,
	/* Only in `processes`: of the first process, which does not hand on a rule. */
	RULE_OF_INIT = 1 << 6,
	/* Never in maps: no rule names the task, and it has inherited one. */
	RULE_INHERITED = 1 << 7,
};
#define RULE_NUMBER 32

/* Kinds of rules: what is in the rule set at all. */
enum {
	KIND_NAME = 1 << 0,
	KIND_PATH = 1 << 1,
	KIND_CGROUP_NAME = 1 << 2,
	KIND_CGROUP_PATH = 1 << 3,
	KIND_UID = 1 << 4,
	/* Everything below a folder. */
	KIND_FOLDER = 1 << 5,
	/* The rule of a number. */
	KIND_RULE = 1 << 6,
};

/* Which rule a program has that no rule names. */
enum children {
	CHILDREN_OWN = 0,
	/* That of the program that started it. */
	CHILDREN_INHERIT = 1,
};

/*
 * Rules are replaced as a whole without a moment in between: the new set is
 * written beside the old one under the other value of the generation's lowest
 * bit, and one store of `generation` exchanges them. Every key begins with it.
 */
struct rule_set {
	u32 kinds;
	u32 everyone;	  /* bits for all tasks: rules about the root itself */
	u32 otherwise;	  /* enum verdict of a task that no rule names */
	u32 path_depths;  /* bit d: a rule for paths of d + 1 components */
	u32 cgroup_depths;
	u32 children;	  /* enum children */
};

/* What is held back while the tunnel is down. With LOCK_EVERYBODY each socket of the
 * namespace has storage, up or down: otherwise nothing tells it from other namespaces'
 * where it leaves. */
enum lock {
	LOCK_CHOSEN = 0,
	LOCK_EVERYBODY = 1,
	LOCK_NOBODY = 2,
};

/* Who answers questions for names of chosen applications, as bits. */
enum names {
	/* The tunnel has name servers of this family. */
	NAMES_V4 = 1 << 0,
	NAMES_V6 = 1 << 1,
	NAMES = NAMES_V4 | NAMES_V6,
	/* The system bus is left open, by which one can ask too. */
	NAMES_BUS = 1 << 2,
};

/* User space has this mapped and stores single words atomically. */
struct state {
	u32 schema;
	u32 up;	      /* somebody reads the TUN */
	u64 netns;    /* cookie of the one namespace in which all this acts */
	u32 daemon;   /* its process, numbered as in the first PID namespace; or 0 */
	u32 tun;      /* ifindex */
	u32 stamp;    /* of packets to and from the TUN; neither half is 0 */
	u32 generation;
	u32 lock;     /* enum lock */
	u32 secured;  /* the hook of BPF LSM has been called */
	u64 key[2];   /* of the hash of paths */
	struct rule_set rules[2];
	/* Entries of `flows`. User space counts them anew each time it removes some. */
	s32 flows;
	/* The second (bpf_ktime_get_ns) in which a flow was last refused. */
	u32 refused;
	u32 forwarded; /* what it forwards goes to the tunnel */
	u32 names;     /* enum names */
	u32 unseen; /* processes whose files could not be looked through */
	/* Rules were replaced in this second (bpf_ktime_get_ns), and not all processes have
	 * theirs yet; 0: they have. */
	u32 learning;
	u32 traced; /* taupe_sending is attached */
	u32 queued; /* a program decides on packets by NFQUEUE */
};

struct {
	MAP_UINT(type, MAP_ARRAY);
	MAP_UINT(max_entries, 1);
	MAP_UINT(map_flags, MAP_MMAPABLE);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct state);
} state SEC(".maps");

/* An application: the rule about executables that selects it, or where no such rule does an
 * executable; as a user runs it. Copies of an executable are one application by its rule. */
struct application {
	u64 inode; /* or the rule's number, where the device is NO_DEVICE */
	u32 device;
	u32 user;
};

#define NO_DEVICE (~0u)

/* The verdict lives with the socket. CLONE: what a listener accepts inherits. */
struct owner {
	u32 verdict;
	u32 generation; /* in which it was chosen */
	u64 who;	/* the task that was last found not to be chosen */
	/* Of a chosen socket, who has made it, or used it first. */
	struct application application;
};

struct {
	MAP_UINT(type, MAP_SK_STORAGE);
	MAP_UINT(map_flags, MAP_NO_PREALLOC | MAP_CLONE);
	MAP_TYPE(key, s32);
	MAP_TYPE(value, struct owner);
} sockets SEC(".maps");

/* Names of executables (lower case) and of cgroups. An exact name ends with
 * NUL, a wildcard doesn't; user space unites the bits of shorter prefixes. */
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
	MAP_UINT(type, MAP_LPM_TRIE);
	MAP_UINT(max_entries, 8192);
	MAP_UINT(map_flags, MAP_NO_PREALLOC);
	MAP_TYPE(key, struct name_key);
	MAP_TYPE(value, u64);
} names SEC(".maps");

/* Hashes of paths, user ids and numbers of rules. */
struct exact_key {
	u32 space; /* as above */
	u32 zero;
	u64 id;
};

struct {
	MAP_UINT(type, MAP_HASH);
	MAP_UINT(max_entries, 32768);
	MAP_UINT(map_flags, MAP_NO_PREALLOC);
	MAP_TYPE(key, struct exact_key);
	MAP_TYPE(value, u64);
} exact SEC(".maps");

/* A process of any namespace: numbers are used again, with another start. */
struct process_key {
	u64 start; /* by the monotonic clock */
	u32 id;	   /* as in the first PID namespace */
	u32 zero;
};

/* The rules of a process: values of `names` and `exact`, or 0. */
struct process {
	u64 own;	/* about its executable */
	u64 inherited;	/* from the program that started it */
	u64 executed;	/* when it began this program; 0: not seen */
	u32 generation; /* in which they hold */
	u32 zero;
};

/* User space makes it as large as there can be processes. */
struct {
	MAP_UINT(type, MAP_HASH);
	MAP_UINT(max_entries, 32768);
	MAP_UINT(map_flags, MAP_NO_PREALLOC);
	MAP_TYPE(key, struct process_key);
	MAP_TYPE(value, struct process);
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
	MAP_UINT(type, MAP_LPM_TRIE);
	MAP_UINT(max_entries, 65536);
	MAP_UINT(map_flags, MAP_NO_PREALLOC);
	MAP_TYPE(key, struct destination_key);
	MAP_TYPE(value, u32);
} destinations SEC(".maps");

/* Flows that went to the tunnel, as they are at the uplink; ports in network order.
 * An ICMP echo has its identifier as the local port. */
struct flow_key {
	struct address remote;
	struct address local;
	u16 local_port;
	u16 remote_port;
	u32 protocol;
};

/* Who has opened a flow. */
enum opener {
	OF_SOCKET = 0, /* a chosen one */
	OF_STRANGER = 1, /* somebody in the tunnel */
	OF_CLIENT = 2, /* somebody whose packets this machine forwards */
};

/*
 * Whose share of the table a flow takes. An application has one share, however many
 * processes and sockets it has. A user would be too much: on most machines all chosen
 * applications are one user's. A cgroup would be too much where a session has one, and too
 * little where a user may make as many as wanted.
 *
 * Strangers have one share. Clients have one for each interface that they come by, for
 * behind address translation they cannot be told apart.
 */
struct flow_owner {
	u32 opener; /* enum opener */
	u32 interface;
	struct application application; /* 0 where nobody has noted it */
};

struct flow {
	u64 seen; /* bpf_ktime_get_ns, to the second */
	u32 ifindex;
	u32 is_answered; /* by a packet from the tunnel */
	struct flow_owner owner;
};

/*
 * How many flows there may be. An owner may have as many as are free: one alone has half of
 * the table at most, two have a third each, and there is always room for another one's.
 */
#define FLOWS_MAX 65536

struct {
	MAP_UINT(type, MAP_HASH);
	MAP_UINT(max_entries, FLOWS_MAX);
	MAP_UINT(map_flags, MAP_NO_PREALLOC);
	MAP_TYPE(key, struct flow_key);
	MAP_TYPE(value, struct flow);
} flows SEC(".maps");

/* How many flows each owner has. */
struct {
	MAP_UINT(type, MAP_HASH);
	MAP_UINT(max_entries, FLOWS_MAX);
	MAP_UINT(map_flags, MAP_NO_PREALLOC);
	MAP_TYPE(key, struct flow_owner);
	MAP_TYPE(value, s32);
} flow_owners SEC(".maps");

/* Guarded uplinks: entered only after the filters are attached. */
struct uplink {
	u8 mac[6];
	u8 has_ethernet;
	u8 leads_out; /* a default route goes by it */
	/* The id of the link by which tcx has the filter; 0: it is in the device's
	 * clsact queue. */
	u32 link;
};

struct {
	MAP_UINT(type, MAP_HASH);
	MAP_UINT(max_entries, 1024);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, struct uplink);
} uplinks SEC(".maps");

/* This machine's addresses on guarded uplinks, and on which. */
struct {
	MAP_UINT(type, MAP_HASH);
	MAP_UINT(max_entries, 4096);
	MAP_UINT(map_flags, MAP_NO_PREALLOC);
	MAP_TYPE(key, struct address);
	MAP_TYPE(value, u32);
} locals SEC(".maps");

/*
 * Addresses that stand in for this machine's own where a resolver is asked there, and the
 * own ones for those: names.h says why. Loopback has them without being listed.
 */
struct {
	MAP_UINT(type, MAP_HASH);
	MAP_UINT(max_entries, 8192);
	MAP_UINT(map_flags, MAP_NO_PREALLOC);
	MAP_TYPE(key, struct address);
	MAP_TYPE(value, struct address);
} stand_ins SEC(".maps");

/* Services of this machine that resolve names, by the paths of their sockets. */
enum service {
	SERVICE_RESOLVER = 1,
	SERVICE_BUS = 2,
};

#define SERVICE_SIZE 56

struct service_key {
	u8 path[SERVICE_SIZE]; /* ends with NUL, and zeros behind it */
};

struct {
	MAP_UINT(type, MAP_HASH);
	MAP_UINT(max_entries, 64);
	MAP_UINT(map_flags, MAP_NO_PREALLOC);
	MAP_TYPE(key, struct service_key);
	MAP_TYPE(value, u32);
} services SEC(".maps");

/* Networks that this machine has an address in, and by which link. */
struct network_key {
	u32 prefix_len; /* bits of the address */
	struct address address;
};

struct {
	MAP_UINT(type, MAP_LPM_TRIE);
	MAP_UINT(max_entries, 4096);
	MAP_UINT(map_flags, MAP_NO_PREALLOC);
	MAP_TYPE(key, struct network_key);
	MAP_TYPE(value, u32);
} networks SEC(".maps");

/* Where chosen sockets listen, while sockets are looked through. */
struct listener {
	struct address address;
	u32 family;
	u16 port;
	u16 generation;
};

struct {
	MAP_UINT(type, MAP_HASH);
	MAP_UINT(max_entries, 4096);
	MAP_UINT(map_flags, MAP_NO_PREALLOC);
	MAP_TYPE(key, struct listener);
	MAP_TYPE(value, u32);
} listeners SEC(".maps");

/* Why something was refused or dropped; state.rs has a sentence for each. */
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
	R_IN_UNCHOSEN,
	R_CLEAR_CLIENT,
	R_NAME_FAMILY,
	R_NAME_HERE,
	R_NAME_SERVICE,
	R_OWNER_UNKNOWN,
	REASONS,
};

struct {
	MAP_UINT(type, MAP_PERCPU_ARRAY);
	MAP_UINT(max_entries, REASONS);
	MAP_TYPE(key, u32);
	MAP_TYPE(value, u64);
} counters SEC(".maps");

inline_always void count(u32 reason)
{
	u64 *counter = bpf_map_lookup_elem(&counters, &reason);

	/* Of this processor, yet a program may be preempted by another. */
	if (counter)
		__sync_fetch_and_add(counter, 1);
}

inline_always struct state *get_state(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&state, &zero);
}

#define now_of(word) (*(volatile typeof(word) *)&(word))

/* Whether this is a time when chosen applications go past the tunnel. */
inline_always bool is_open(const struct state *state)
{
	return now_of(state->lock) == LOCK_NOBODY && !now_of(state->up);
}

/* Whether this is a time when everybody is held back. */
inline_always bool is_shut(const struct state *state)
{
	return now_of(state->lock) == LOCK_EVERYBODY && !now_of(state->up);
}

/*
 * Between the TUN and an uplink a packet has the stamp as its mark: 32 bits that
 * nobody guesses, that survive the way from one device to the next, and that the
 * kernel clears where a packet comes from another namespace. Behind the uplink's
 * filter its priority has it, which is for the socket's filter to see, and the mark
 * is 0 again, for rules of firewalls and routing. Labels have half of the stamp, and
 * are in tc_index, for forwarding changes the priority.
 */
enum stamped {
	FROM_TUNNEL = 0,
	/* It belongs to no flow: who gets it is looked up where it arrives. */
	FROM_STRANGER = 1,
	/* It belongs to a flow that this machine forwards. */
	FOR_CLIENT = 2,
};

inline_always bool is_stamped(const struct __sk_buff *skb, const struct state *state,
			      enum stamped what)
{
	return skb->mark == (state->stamp ^ what);
}

inline_always void stamp(struct __sk_buff *skb, const struct state *state, enum stamped what)
{
	skb->mark = state->stamp ^ what;
}


/* What one filter has found out about a packet, for the next one that it comes by. */
enum label {
	/* It may leave: said by a link above this one, a VLAN's or that of PPP. */
	MAY_LEAVE = 0,
	/* It has come through the tunnel, for a client. */
	TO_CLIENT = 1,
};

inline_always bool has_label(const struct __sk_buff *skb, const struct state *state,
			     enum label label)
{
	return skb->tc_index == (u16)(state->stamp ^ label);
}

inline_always void put_label(struct __sk_buff *skb, const struct state *state, enum label label)
{
	skb->tc_index = (u16)(state->stamp ^ label);
}
