//! All eBPF programs, with their attach points and the kernel features that they need.

use crate::syscall::attach_type;

/// Attach point of a program.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// The root cgroup: the name of the pinned link and the attach type.
    Cgroup(&'static str, u32),
    Tracepoint(&'static str),
    /// An iterator, which runs when the daemon reads it.
    Iterator(&'static str),
    /// An interface. The program is attached to each by itself.
    Filter,
    /// The entry of a kernel function; see [`Gap::Handover`](super::Gap::Handover).
    Entry(&'static str),
    /// A hook of BPF LSM; see [`Gap::Families`](super::Gap::Families).
    Security(&'static str),
}

/// The kernel function at whose entry the sender of a datagram is recorded.
pub(super) const SENDING: &str = "security_socket_sendmsg";

/// The programs of [`Way::Filters`](super::Way::Filters). The third field names the kernel features
/// for an error message.
pub(super) const FILTERS: [(&str, Place, &str); 35] = [
    (
        "taupe_socket",
        Place::Cgroup("socket", attach_type::SOCK_CREATE),
        "bpf_set_retval (Linux 5.18), type information and cgroup2",
    ),
    (
        "taupe_bind4",
        Place::Cgroup("bind4", attach_type::BIND4),
        CALLS,
    ),
    (
        "taupe_bind6",
        Place::Cgroup("bind6", attach_type::BIND6),
        CALLS,
    ),
    (
        "taupe_connect4",
        Place::Cgroup("connect4", attach_type::CONNECT4),
        CALLS,
    ),
    (
        "taupe_connect6",
        Place::Cgroup("connect6", attach_type::CONNECT6),
        CALLS,
    ),
    (
        "taupe_sendmsg4",
        Place::Cgroup("sendmsg4", attach_type::SENDMSG4),
        CALLS,
    ),
    (
        "taupe_sendmsg6",
        Place::Cgroup("sendmsg6", attach_type::SENDMSG6),
        CALLS,
    ),
    (
        "taupe_recvmsg4",
        Place::Cgroup("recvmsg4", attach_type::RECVMSG4),
        ANSWERS,
    ),
    (
        "taupe_recvmsg6",
        Place::Cgroup("recvmsg6", attach_type::RECVMSG6),
        ANSWERS,
    ),
    (
        "taupe_peername4",
        Place::Cgroup("peername4", attach_type::PEERNAME4),
        ANSWERS,
    ),
    (
        "taupe_peername6",
        Place::Cgroup("peername6", attach_type::PEERNAME6),
        ANSWERS,
    ),
    (
        "taupe_leave",
        Place::Cgroup("leave", attach_type::CGROUP_EGRESS),
        "storage of sockets and bpf_skc_to_tcp_sock in cgroup programs (Linux 5.9)",
    ),
    (
        "taupe_arrive",
        Place::Cgroup("arrive", attach_type::CGROUP_INGRESS),
        "storage of sockets and bpf_skc_to_tcp_sock in cgroup programs (Linux 5.9)",
    ),
    ("taupe_fork", Place::Tracepoint("sched_process_fork"), TRACE),
    ("taupe_exec", Place::Tracepoint("sched_process_exec"), TRACE),
    ("taupe_exit", Place::Tracepoint("sched_process_exit"), TRACE),
    ("taupe_learn", Place::Iterator("task"), TASKS),
    ("taupe_judged", Place::Iterator("task"), TASKS),
    ("taupe_adopt", Place::Iterator("task"), TASKS),
    ("taupe_classify", Place::Iterator("task_file"), FILES),
    ("taupe_leaving", Place::Iterator("task_file"), FILES),
    ("taupe_let_go", Place::Iterator("task_file"), FILES),
    (
        "taupe_heirs",
        Place::Iterator("tcp"),
        "iterators over TCP sockets (Linux 5.9)",
    ),
    (
        "taupe_chosen",
        Place::Iterator("bpf_sk_storage_map"),
        "iterators over the storage of sockets, and their cookies (Linux 5.12)",
    ),
    ("taupe_namespaces", Place::Iterator("task"), TASKS),
    (
        "taupe_outside",
        Place::Iterator("task"),
        "bpf_loop (Linux 5.17)",
    ),
    (
        "taupe_received",
        Place::Entry("security_file_receive"),
        HOOKS,
    ),
    (
        "taupe_accepting",
        Place::Entry("security_socket_accept"),
        HOOKS,
    ),
    ("taupe_accepted", Place::Entry("security_sock_graft"), HOOKS),
    ("taupe_sending", Place::Entry(SENDING), HOOKS),
    ("taupe_family", Place::Security("socket_create"), HOOKS),
    ("taupe_out", Place::Filter, PACKETS),
    ("taupe_in", Place::Filter, PACKETS),
    ("taupe_tun", Place::Filter, PACKETS),
    ("taupe_into", Place::Filter, PACKETS),
];

/// The programs of [`Way::Marks`](super::Way::Marks).
pub(super) const MARKS: [(&str, Place, &str); 8] = [
    (
        "taupe_mark",
        Place::Cgroup("mark", attach_type::SOCK_CREATE),
        "bpf_get_current_task and storage of sockets in cgroup programs (Linux 5.10), type \
         information and cgroup2",
    ),
    (
        "taupe_keep",
        Place::Cgroup("keep", attach_type::CGROUP_EGRESS),
        "storage of sockets in cgroup programs (Linux 5.9)",
    ),
    ("taupe_fork", Place::Tracepoint("sched_process_fork"), TRACE),
    ("taupe_exec", Place::Tracepoint("sched_process_exec"), TRACE),
    ("taupe_exit", Place::Tracepoint("sched_process_exit"), TRACE),
    ("taupe_learn", Place::Iterator("task"), TASKS),
    ("taupe_judged", Place::Iterator("task"), TASKS),
    ("taupe_adopt", Place::Iterator("task"), TASKS),
];

const CALLS: &str = "bpf_set_retval (Linux 5.18) and bpf_skc_to_mptcp_sock (Linux 5.19)";
const ANSWERS: &str = "programs at recvmsg and getpeername (Linux 5.8)";
const TRACE: &str = "BTF tracepoints (Linux 5.5)";
const TASKS: &str = "iterators over tasks (Linux 5.8)";
const HOOKS: &str = "security hooks";
const FILES: &str = "iterators over files and bpf_sock_from_file (Linux 5.11)";
pub(super) const PACKETS: &str = "bpf_skc_to_tcp_sock in packet filters (Linux 5.9)";

#[cfg(test)]
mod tests {
    use aya_obj::Object;

    use super::super::FILTERS_OBJECT;

    /// `bpf_skc_to_mptcp_sock`. Its caller must hold the socket's lock; see `bpf/subflow.h`.
    const SKC_TO_MPTCP_SOCK: i32 = 196;
    /// `BPF_JMP | BPF_CALL`.
    const CALL: u8 = 0x85;

    #[test]
    fn connections_of_mptcp_are_asked_for_where_sockets_are_locked() {
        let object = Object::parse(FILTERS_OBJECT).expect("an object");
        let asks = |function: &&aya_obj::Function| {
            let mut instructions = function.instructions.iter();
            instructions.any(|is| (is.code, is.src_reg(), is.imm) == (CALL, 0, SKC_TO_MPTCP_SOCK))
        };
        let functions = object.functions.values().filter(asks);
        let mut found: Vec<&str> = functions.map(|function| &*function.name).collect();
        found.sort_unstable();
        let locked = ["bind4", "bind6", "connect4", "connect6"];
        assert_eq!(found, locked.map(|hook| format!("taupe_{hook}")));
    }
}
