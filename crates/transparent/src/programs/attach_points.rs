//! All eBPF programs, with their attach points and the kernel features that they need.

#[cfg(doc)]
use super::{CaptureMode, MissingFeature};
use crate::syscall::attach_type;

/// Attach point of a program.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AttachPoint {
    /// The root cgroup: the name of the pinned link and the attach type.
    Cgroup(&'static str, u32),
    Tracepoint(&'static str),
    /// An iterator, which runs when the daemon reads it.
    Iterator(&'static str),
    /// An iterator over a map. A kernel may refuse it, for example in lockdown. Other iterators then
    /// take its place.
    MapIterator(&'static str),
    /// An interface. The program is attached to each by itself.
    Filter,
    /// The entry of a kernel function; see [`MissingFeature::SocketHandover`].
    Entry(&'static str),
    /// A hook of BPF LSM; see [`MissingFeature::SocketFamilies`].
    Security(&'static str),
}

/// A program of an object.
pub(super) struct ProgramSpec {
    /// The program's name in the object, as `bpftool prog` shows it.
    pub(super) name: &'static str,
    pub(super) attach_point: AttachPoint,
    /// The kernel features that it needs, for an error message.
    pub(super) needs: &'static str,
}

impl ProgramSpec {
    pub(super) fn is_iterator(&self) -> bool {
        matches!(
            self.attach_point,
            AttachPoint::Iterator(_) | AttachPoint::MapIterator(_)
        )
    }
}

const fn spec(name: &'static str, attach_point: AttachPoint, needs: &'static str) -> ProgramSpec {
    ProgramSpec {
        name,
        attach_point,
        needs,
    }
}

/// The kernel function at whose entry the sender of a datagram is recorded.
pub(super) const SENDING: &str = "security_socket_sendmsg";

/// The programs of [`CaptureMode::TrafficControl`].
pub(super) static TRAFFIC_CONTROL: [ProgramSpec; 37] = [
    spec(
        "taupe_socket",
        AttachPoint::Cgroup("socket", attach_type::SOCK_CREATE),
        "bpf_set_retval (Linux 5.18), type information and cgroup2",
    ),
    spec(
        "taupe_bind4",
        AttachPoint::Cgroup("bind4", attach_type::BIND4),
        CALLS,
    ),
    spec(
        "taupe_bind6",
        AttachPoint::Cgroup("bind6", attach_type::BIND6),
        CALLS,
    ),
    spec(
        "taupe_connect4",
        AttachPoint::Cgroup("connect4", attach_type::CONNECT4),
        CALLS,
    ),
    spec(
        "taupe_connect6",
        AttachPoint::Cgroup("connect6", attach_type::CONNECT6),
        CALLS,
    ),
    spec(
        "taupe_sendmsg4",
        AttachPoint::Cgroup("sendmsg4", attach_type::SENDMSG4),
        CALLS,
    ),
    spec(
        "taupe_sendmsg6",
        AttachPoint::Cgroup("sendmsg6", attach_type::SENDMSG6),
        CALLS,
    ),
    spec(
        "taupe_recvmsg4",
        AttachPoint::Cgroup("recvmsg4", attach_type::RECVMSG4),
        ANSWERS,
    ),
    spec(
        "taupe_recvmsg6",
        AttachPoint::Cgroup("recvmsg6", attach_type::RECVMSG6),
        ANSWERS,
    ),
    spec(
        "taupe_peername4",
        AttachPoint::Cgroup("peername4", attach_type::PEERNAME4),
        ANSWERS,
    ),
    spec(
        "taupe_peername6",
        AttachPoint::Cgroup("peername6", attach_type::PEERNAME6),
        ANSWERS,
    ),
    spec(
        "taupe_leave",
        AttachPoint::Cgroup("leave", attach_type::CGROUP_EGRESS),
        "storage of sockets and bpf_skc_to_tcp_sock in cgroup programs (Linux 5.9)",
    ),
    spec(
        "taupe_arrive",
        AttachPoint::Cgroup("arrive", attach_type::CGROUP_INGRESS),
        "storage of sockets and bpf_skc_to_tcp_sock in cgroup programs (Linux 5.9)",
    ),
    spec(
        "taupe_fork",
        AttachPoint::Tracepoint("sched_process_fork"),
        TRACE,
    ),
    spec(
        "taupe_exec",
        AttachPoint::Tracepoint("sched_process_exec"),
        TRACE,
    ),
    spec(
        "taupe_exit",
        AttachPoint::Tracepoint("sched_process_exit"),
        TRACE,
    ),
    spec("taupe_learn", AttachPoint::Iterator("task"), TASKS),
    spec("taupe_verdicts", AttachPoint::Iterator("task"), TASKS),
    spec("taupe_adopt", AttachPoint::Iterator("task"), TASKS),
    spec("taupe_classify", AttachPoint::Iterator("task_file"), FILES),
    spec("taupe_leaving", AttachPoint::Iterator("task_file"), FILES),
    spec("taupe_release", AttachPoint::Iterator("task_file"), FILES),
    spec(
        "taupe_pending",
        AttachPoint::Iterator("tcp"),
        "iterators over TCP sockets (Linux 5.9)",
    ),
    spec(
        "taupe_selected",
        AttachPoint::MapIterator("bpf_sk_storage_map"),
        "iterators over the storage of sockets, and their cookies (Linux 5.12)",
    ),
    spec("taupe_open", AttachPoint::Iterator("task_file"), FILES),
    spec(
        "taupe_tcp",
        AttachPoint::Iterator("tcp"),
        "iterators over TCP sockets (Linux 5.9)",
    ),
    spec("taupe_namespaces", AttachPoint::Iterator("task"), TASKS),
    spec(
        "taupe_outside",
        AttachPoint::Iterator("task"),
        "bpf_loop (Linux 5.17)",
    ),
    spec(
        "taupe_received",
        AttachPoint::Entry("security_file_receive"),
        HOOKS,
    ),
    spec(
        "taupe_accepting",
        AttachPoint::Entry("security_socket_accept"),
        HOOKS,
    ),
    spec(
        "taupe_accepted",
        AttachPoint::Entry("security_sock_graft"),
        HOOKS,
    ),
    spec("taupe_sending", AttachPoint::Entry(SENDING), HOOKS),
    spec(
        "taupe_family",
        AttachPoint::Security("socket_create"),
        HOOKS,
    ),
    spec("taupe_out", AttachPoint::Filter, PACKETS),
    spec("taupe_in", AttachPoint::Filter, PACKETS),
    spec("taupe_tun", AttachPoint::Filter, PACKETS),
    spec("taupe_into", AttachPoint::Filter, PACKETS),
];

/// The programs of [`CaptureMode::Fwmark`].
pub(super) static FWMARK: [ProgramSpec; 8] = [
    spec(
        "taupe_mark",
        AttachPoint::Cgroup("mark", attach_type::SOCK_CREATE),
        "bpf_get_current_task and storage of sockets in cgroup programs (Linux 5.10), type \
         information and cgroup2",
    ),
    spec(
        "taupe_keep",
        AttachPoint::Cgroup("keep", attach_type::CGROUP_EGRESS),
        "storage of sockets in cgroup programs (Linux 5.9)",
    ),
    spec(
        "taupe_fork",
        AttachPoint::Tracepoint("sched_process_fork"),
        TRACE,
    ),
    spec(
        "taupe_exec",
        AttachPoint::Tracepoint("sched_process_exec"),
        TRACE,
    ),
    spec(
        "taupe_exit",
        AttachPoint::Tracepoint("sched_process_exit"),
        TRACE,
    ),
    spec("taupe_learn", AttachPoint::Iterator("task"), TASKS),
    spec("taupe_verdicts", AttachPoint::Iterator("task"), TASKS),
    spec("taupe_adopt", AttachPoint::Iterator("task"), TASKS),
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

    use crate::programs::mode::TRAFFIC_CONTROL_OBJECT;

    /// `bpf_skc_to_mptcp_sock`. Its caller must hold the socket's lock; see `bpf/subflow.h`.
    const SKC_TO_MPTCP_SOCK: i32 = 196;
    /// `BPF_JMP | BPF_CALL`.
    const CALL: u8 = 0x85;

    #[test]
    fn mptcp_connections_are_looked_up_only_by_hooks_with_the_socket_locked() {
        let object = Object::parse(TRAFFIC_CONTROL_OBJECT).expect("an object");
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
