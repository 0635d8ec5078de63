//! The same tests on kernel 6.1 of Debian 12, in a virtual machine. It is the oldest supported
//! kernel and has no tcx.

use crate::application::install;
use std::time::Duration;
use taupe_lab::guest::{self, EBPF_CORE, Guest, GuestOptions};
use taupe_lab::host::Host;
use taupe_lab::sandbox::{SystemTest, step};
use taupe_lab::{Result, ensure};

/// The other tests. They run with `DEBIAN_12=whole` in the environment, as in the long tests. If
/// `DEBIAN_12` has names, only these tests run.
const REST: [&str; 56] = [
    "renamed_executables_keep_their_verdict",
    "children_inherit_across_fork_and_exec",
    "applications_of_one_user",
    "applications_of_one_user_by_marks",
    "processes_that_change_their_user",
    "rules_inherited_from_another_user",
    "reload_for_another_user",
    "inherited_sockets",
    "connections_passed_to_another_process",
    "refused_socket_families",
    "selected_server",
    "unselected_services_from_the_tunnel",
    "blocked_after_the_daemon_is_killed",
    "a_vlan_is_an_uplink",
    "forwarded_without_masquerading",
    "link_local_behind_a_router",
    "mptcp_connections",
    "mptcp_subflows_created_under_another_task",
    "packets_waiting_for_a_neighbour",
    "filter_without_a_map_entry",
    "allowed_wins_over_disallowed",
    "processes_older_than_the_rules",
    "children_while_rules_change",
    "rules_from_another_process",
    "kill_switch_off",
    "kill_switch_all",
    "paths_too_deep_to_compare",
    "only_in_its_own_namespace",
    "destination_classes",
    "selected_server_from_outside_the_tunnel",
    "reused_interface_index",
    "deleted_link",
    "pins_of_deleted_namespaces",
    "uplinks_come_and_go",
    "a_bond_is_an_uplink",
    "a_tun_is_an_uplink",
    "wireguard_is_an_uplink",
    "two_tunnels_at_once",
    "removed_filters_are_restored",
    "forwarded_without_a_daemon",
    "clients_reached_from_outside_the_tunnel",
    "packets_for_vanished_clients",
    "programs_are_replaced",
    "pins_outlive_a_mount_namespace",
    "local_resolvers_while_down",
    "dns_sockets_older_than_the_rules",
    "name_services_are_refused",
    "sockets_with_unknown_owner",
    "flow_of_another_socket",
    "packet_processes_bypass",
    "the_end_of_a_packet_process_blocks",
    "foreign_packet_processes",
    "a_packet_process_in_a_pid_namespace",
    "pins_read_while_rules_are_replaced",
    "succession_ends_deselected_conversations",
    "succession_with_a_socket_that_cannot_be_closed",
];

const LIMIT: Duration = Duration::from_secs(180);

pub(crate) fn tests() -> Vec<SystemTest> {
    let limit = match asked_for() {
        Some(_) => LIMIT * 12,
        // Beside other tests an emulated processor gets little CPU time.
        None => LIMIT * 15,
    };
    vec![SystemTest::new("debian_12", debian_12).limit(limit)]
}

fn asked_for() -> Option<String> {
    std::env::var("DEBIAN_12").ok()
}

fn debian_12() -> Result<()> {
    let program = install("application")?;
    let host = Host::new("yard")?;
    let equipment = GuestOptions {
        processors: 2,
        memory: 768,
        programs: vec![
            program.clone().into(),
            "/usr/bin/tcpdump".into(),
            "/sbin/tc".into(),
        ],
        ..GuestOptions::default()
    };
    let guest = Guest::boot_with(&host, "tap0", &[], &equipment)?;
    guest.run("cat /proc/version >&2")?;
    let mut failed = Vec::new();
    let asked_for = asked_for();
    let tests: Vec<&str> = match asked_for.as_deref() {
        None => EBPF_CORE.to_vec(),
        Some("whole") => [&EBPF_CORE[..], &REST].concat(),
        Some(names) => names.split(',').collect(),
    };
    for test in tests {
        step(test);
        if let Err(error) = guest.run_test("application", test, LIMIT * 3) {
            eprintln!("{error}");
            failed.push(test);
        }
    }
    ensure!(
        failed.is_empty(),
        "{failed:?} failed on {}",
        guest::version()?
    );
    Ok(())
}
