//! The same tests on kernel 6.1 of Debian 12, in a virtual machine. It is the oldest supported
//! kernel and has no tcx.

use crate::scene::install;
use std::time::Duration;
use taupe_lab::guest::{self, Guest, GuestOptions};
use taupe_lab::host::Host;
use taupe_lab::sandbox::{SystemTest, step};
use taupe_lab::{Result, ensure};

/// The core tests, among those that need only `ip`, `tc` and `tcpdump`. On an emulated processor
/// each takes some ten times as long.
const CORE: [&str; 9] = [
    "names_paths_and_folders",
    "sockets_from_before",
    "datagrams_by_inherited_sockets",
    "connections_that_are_inherited",
    "every_transport_in_both_families",
    "uplinks_come_while_it_is_dead",
    "a_filter_is_taken_away",
    "resolvers_of_this_machine",
    "a_flood_of_flows",
];

/// The other tests. They run with `DEBIAN_12=whole` in the environment, as in the long tests. If
/// `DEBIAN_12` has names, only these tests run.
const REST: [&str; 44] = [
    "a_verdict_stays_with_its_process",
    "started_by_another",
    "sockets_that_are_inherited",
    "connections_that_are_handed_over",
    "families_without_a_verdict",
    "a_chosen_server",
    "unchosen_services_from_the_tunnel",
    "the_daemon_is_killed",
    "a_vlan_is_an_uplink",
    "forwarded_as_it_is",
    "link_local_behind_a_router",
    "connections_of_mptcp",
    "subflows_of_others",
    "what_waits_for_a_neighbour",
    "a_filter_without_an_entry",
    "allowed_wins_and_the_rest",
    "started_before_the_rules",
    "rules_that_change",
    "rules_from_another_process",
    "nobody_is_held_back",
    "everybody_is_held_back",
    "paths_too_deep_to_tell",
    "only_in_its_own_namespace",
    "destinations_in_their_order",
    "a_chosen_server_in_the_clear",
    "a_number_is_used_again",
    "a_link_that_is_gone",
    "namespaces_that_are_gone",
    "uplinks_come_and_go",
    "a_bond_is_an_uplink",
    "a_tun_is_an_uplink",
    "wireguard_is_an_uplink",
    "two_tunnels_at_once",
    "filters_are_brought_back",
    "forwarded_while_it_is_dead",
    "guests_reached_in_the_clear",
    "guests_who_are_gone",
    "programs_are_replaced",
    "mounts_of_a_command_end",
    "resolvers_while_it_is_down",
    "a_question_from_before",
    "services_that_resolve",
    "sockets_without_a_known_owner",
    "a_flow_of_another_socket",
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
    // `tcpdump` looks up root; standard input must stay open.
    guest.run(
        "mkdir -p /etc /var/lib /run && echo root:x:0:0::/:/bin/sh > /etc/passwd &&
         mkfifo /tmp/open && cat /proc/version >&2",
    )?;
    let inside = guest::program(program.as_ref());
    let mut failed = Vec::new();
    let asked_for = asked_for();
    let tests: Vec<&str> = match asked_for.as_deref() {
        None => CORE.to_vec(),
        Some("whole") => [&CORE[..], &REST].concat(),
        Some(names) => names.split(',').collect(),
    };
    for test in tests {
        step(test);
        // As on the host, except that `/sys` cannot be mounted twice.
        let script = format!(
            "PATH=/lab:$PATH unshare -m -n -p -f --mount-proc=/proc \
             sh -c 'umount /sys; exec {inside} --sandboxed {test}' <> /tmp/open 2>&1"
        );
        if let Err(error) = guest.run_within(LIMIT, &script) {
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
