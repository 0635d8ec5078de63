//! The transparent client as users run it: a file, `taupe up`, and programs selected by name.

mod app;
mod boot;
mod browsers;
mod captive;
mod chatter;
mod closed;
mod diagnosis;
mod floods;
mod forwarding;
mod inspection;
mod kills;
mod leaks;
mod life;
mod marks;
mod names;
mod nested;
mod old;
mod processes;
mod prove;
mod resolvers;
mod roaming;
mod servers;
mod service;
mod top;
mod torrents;
mod tunnels;
mod units;
mod web;
mod wire;
mod world;

use std::time::Duration;
use taupe_lab::guest::Kernel;
use taupe_lab::packages::NSS_RESOLVE;
use taupe_lab::peers::Implementation;
use taupe_lab::sandbox::{Suite, SystemTest};

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let [_, chatter::WORD, rest @ ..] = &*words {
        chatter::main(rest);
    }
    if let [_, resolvers::WORD, rest @ ..] = &*words {
        resolvers::main(rest);
    }
    if let [_, kills::digger::WORD] = &*words {
        kills::digger::main();
    }
    let long = Duration::from_secs(300);
    let mut tests = vec![
        // The longest tests start first.
        SystemTest::new("no_transition_leaks", leaks::no_transition_leaks).limit(leaks::limit()),
        SystemTest::new("killed_processes", kills::killed_processes).limit(kills::limit()),
        SystemTest::new("browsers", browsers::one_in_and_one_out).limit(2 * long),
        SystemTest::new("chromium_by_quic", browsers::by_quic).limit(long),
        SystemTest::new(
            "windows_client_file_of_2021",
            life::windows_client_file_of_2021,
        )
        .limit(long),
        SystemTest::new("selected_and_unselected", life::selected_and_unselected).limit(long),
        SystemTest::new("killed_before_it_was_up", life::killed_before_it_was_up).limit(long),
        SystemTest::new("killed_then_up_then_down", life::killed_then_up_then_down).limit(long),
        SystemTest::new("killed_and_up_at_once", life::killed_and_up_at_once).limit(long),
        SystemTest::new("kill_switch_all_blocks_everything", closed::everybody).limit(long),
        SystemTest::new("kill_switch_off_blocks_nothing", closed::nobody).limit(long),
        SystemTest::new(
            "flow_limit_is_per_application",
            floods::flow_limit_is_per_application,
        )
        .limit(long),
        SystemTest::new("foreground", life::foreground).limit(long),
        SystemTest::new(
            "name_servers_in_a_local_network",
            diagnosis::name_servers_in_a_local_network,
        ),
        SystemTest::new(
            "missing_guarantees_are_reported",
            diagnosis::missing_guarantees_are_reported,
        ),
        SystemTest::new(
            "no_link_to_the_endpoint",
            diagnosis::no_link_to_the_endpoint,
        )
        .limit(long),
        SystemTest::new(
            "multicast_groups_on_the_link",
            diagnosis::multicast_groups_on_the_link,
        ),
        SystemTest::new(
            "application_removes_its_mark",
            diagnosis::application_removes_its_mark,
        ),
        SystemTest::new(
            "uplink_route_for_one_family_only",
            diagnosis::uplink_route_for_one_family_only,
        ),
        SystemTest::new(
            "local_captures_show_inner_packets",
            diagnosis::local_captures_show_inner_packets,
        ),
        SystemTest::new(
            "one_private_key_in_two_tunnels",
            diagnosis::one_private_key_in_two_tunnels,
        ),
        SystemTest::new("kernel_without_ipv6", diagnosis::kernel_without_ipv6),
        SystemTest::new("out_of_descriptors", diagnosis::out_of_descriptors),
        SystemTest::new(
            "file_is_not_saved_from_the_interface",
            life::file_is_not_saved_from_the_interface,
        )
        .limit(long),
        SystemTest::new(
            "symbolic_link_names_the_tunnel",
            life::symbolic_link_names_the_tunnel,
        )
        .limit(long),
        SystemTest::new("unsupported_settings_change_nothing", life::refused).limit(long),
        SystemTest::new("forwarded_traffic", forwarding::forwarded_traffic).limit(long),
        SystemTest::new("network_that_drops_udp", captive::network_that_drops_udp).limit(long),
        SystemTest::new("forwarded_dns", forwarding::forwarded_dns).limit(long),
        SystemTest::new(
            "hotspot_with_a_resolver",
            forwarding::hotspot_with_a_resolver,
        )
        .limit(long),
        SystemTest::new("all_down", tunnels::all_down),
        SystemTest::new(
            "opposite_rules_in_two_namespaces",
            tunnels::opposite_rules_in_two_namespaces,
        )
        .limit(long),
        SystemTest::new("two_tunnels_at_once", tunnels::two_tunnels_at_once).limit(long),
        SystemTest::new("several_uplinks", tunnels::several_uplinks).limit(long),
        SystemTest::new(
            "local_network_also_in_the_tunnel",
            tunnels::local_network_also_in_the_tunnel,
        )
        .limit(long),
        SystemTest::new("selected_web_server", servers::web).limit(long),
        SystemTest::new("selected_iperf3", servers::iperf3).limit(long),
        SystemTest::new("selected_torrent_client", torrents::seeded).limit(long),
        SystemTest::new(
            "up_again_resolves_the_endpoint",
            names::up_again_resolves_the_endpoint,
        )
        .limit(long),
        SystemTest::new(
            "up_again_with_a_local_resolver",
            names::up_again_with_a_local_resolver,
        )
        .limit(long),
        SystemTest::new(
            "endpoint_name_without_an_address",
            names::endpoint_name_without_an_address,
        )
        .limit(long),
        SystemTest::new(
            "network_change_triggers_a_look_up",
            names::network_change_triggers_a_look_up,
        )
        .limit(long),
        SystemTest::new("constant_network_changes", names::constant_network_changes).limit(long),
        SystemTest::new(
            "reload_with_an_unresolvable_endpoint",
            names::reload_with_an_unresolvable_endpoint,
        )
        .limit(long),
        SystemTest::new("resolver_on_this_machine", resolvers::on_this_machine).limit(long),
        SystemTest::new(
            "resolver_in_the_local_network",
            resolvers::in_the_local_network,
        )
        .limit(long),
        SystemTest::new("silent_name_server", resolvers::silent_name_server).limit(long),
        SystemTest::new("no_usable_name_server", resolvers::no_usable_name_server).limit(long),
        SystemTest::new("local_name_services", resolvers::local_name_services).limit(long),
        SystemTest::new("dns_of_forwarded_traffic", resolvers::of_guests).limit(long),
        SystemTest::new("dns_of_two_tunnels", resolvers::several::of_two_tunnels).limit(long),
        SystemTest::new(
            "flows_show_the_queried_resolver",
            resolvers::flows::with_the_server_asked,
        )
        .limit(long),
        SystemTest::new(
            "service_stop_keeps_blocking",
            service::service_stop_keeps_blocking,
        )
        .limit(long),
        SystemTest::new("service_main_process", service::service_main_process).limit(long),
        SystemTest::new(
            "locked_before_the_network",
            service::locked_before_the_network,
        )
        .limit(long),
        SystemTest::new("started_by_systemd", boot::from_the_first_unit_on).limit(long),
        SystemTest::new("units_of_systemd", units::with_and_without_commands).limit(long),
        SystemTest::new(
            "roaming_between_networks",
            roaming::roaming_between_networks,
        )
        .limit(long),
        SystemTest::new("nested_in_adapter_mode", nested::in_adapter_mode).limit(long),
        SystemTest::new("nested_in_transparent_mode", nested::in_transparent_mode).limit(long),
        SystemTest::new("nested_by_wireguard_go", nested::by_wireguard_go).limit(long),
        SystemTest::new("nested_silent_peer", nested::silence::of_the_outer_peer).limit(2 * long),
        SystemTest::new("nested_again_at_once", nested::again_at_once).limit(long),
        SystemTest::new("nested_by_name", nested::names::through_the_outer_tunnel).limit(long),
        SystemTest::new(
            "nested_by_name_without_dns",
            nested::names::by_the_servers_of_the_system,
        )
        .limit(long),
        SystemTest::new("nested_refusals", nested::refused).limit(long),
        SystemTest::new("locked_without_a_key", service::locked_without_a_key).limit(long),
        SystemTest::new("not_locked", service::not_locked).limit(long),
        SystemTest::new("select_while_up", app::select_while_up).limit(long),
        SystemTest::new(
            "reload_applies_edited_rules",
            app::reload_applies_edited_rules,
        )
        .limit(long),
        SystemTest::new(
            "app_command_beside_an_edited_file",
            app::app_command_beside_an_edited_file,
        )
        .limit(long),
        SystemTest::new("reload_is_atomic", app::reload_is_atomic).limit(long),
        SystemTest::new(
            "one_application_in_two_tunnels",
            app::one_application_in_two_tunnels,
        )
        .limit(long),
        SystemTest::new(
            "executable_renamed_while_it_runs",
            processes::executable_renamed_while_it_runs,
        )
        .limit(long),
        SystemTest::new("child_processes", processes::child_processes).limit(long),
        SystemTest::new("applications_of_one_user", processes::of_one_user).limit(long),
        SystemTest::new("symbolic_links_in_rules", processes::links).limit(long),
        SystemTest::new("child_processes_by_mark", processes::by_mark).limit(long),
        SystemTest::new("selected_by_mark", marks::selected_by_mark).limit(long),
        SystemTest::new("killed_by_mark", marks::killed_by_mark).limit(long),
        SystemTest::new("all_but_one_by_mark", marks::all_but_one_by_mark).limit(long),
        SystemTest::new("closed_by_mark", marks::closed_by_mark).limit(long),
        SystemTest::new("open_by_mark", marks::open_by_mark).limit(long),
        SystemTest::new("unsupported_by_mark", marks::unsupported_by_mark).limit(long),
        SystemTest::new("states_of_tunnels", inspection::status::states).limit(long),
        SystemTest::new("flows_of_applications", inspection::flows::connections).limit(long),
        SystemTest::new("live_view", top::live_view).limit(long),
        SystemTest::new("page_is_served", web::served).limit(long),
        SystemTest::new("page_switches_applications", web::switches).limit(long),
        SystemTest::new("page_from_a_terminal", web::in_a_terminal).limit(long),
        SystemTest::new("flows_follow", inspection::follow::to_the_end).limit(long),
        SystemTest::new(
            "explain_for_several_tunnels",
            inspection::explain::explained,
        )
        .limit(long),
        SystemTest::new(
            "state_of_another_version",
            inspection::status::state_of_another_version,
        )
        .limit(long),
        SystemTest::new("continuous_queries", inspection::status::continuous_queries).limit(long),
        SystemTest::new("states_in_adapter_mode", inspection::status::adapters).limit(long),
        SystemTest::new("messages_of_commands", inspection::messages::words).limit(long),
        SystemTest::new("doctor", inspection::doctor::doctor).limit(long),
        SystemTest::new("report_without_secrets", inspection::report::report).limit(long),
        SystemTest::new("prove_healthy", prove::healthy).limit(long),
        SystemTest::new("prove_everything_selected", prove::everything_selected).limit(long),
        SystemTest::new("prove_by_mark", prove::by_mark).limit(long),
        SystemTest::new("prove_planted_leaks", prove::planted_leaks).limit(long),
        SystemTest::new("prove_killed", prove::killed).limit(long),
        SystemTest::new("prove_all_blocked", prove::all_blocked).limit(long),
        SystemTest::new("prove_blind", prove::blind).limit(long),
        SystemTest::new("prove_lossy", prove::lossy).limit(long),
        SystemTest::new("prove_not_selected", prove::not_selected).limit(long),
        SystemTest::new("prove_ended_early", prove::ended_early).limit(long),
        SystemTest::new("existing_connections", app::existing_connections).limit(long),
    ];
    // `scripts/axe` fetches the program that examines the page.
    if std::env::var_os(web::browser::AXE).is_some() {
        tests.push(SystemTest::new("page_in_chromium", web::browser::in_chromium).limit(long));
        // `scripts/geckodriver` builds it.
        if std::env::var_os(web::driver::GECKODRIVER).is_some() {
            tests.push(SystemTest::new("page_in_firefox", web::browser::in_firefox).limit(long));
        }
    }
    // A long test, which needs another kernel.
    let with_old = std::env::var_os("DEBIAN_11").is_some();
    if with_old {
        tests.push(SystemTest::new("debian_11", old::debian_11).limit(old::LIMIT));
    }
    Suite::new(tests)
        .prepare(|| Implementation::Taupe.install().map(drop))
        .prepare(|| NSS_RESOLVE.unpack())
        .prepare(|| Implementation::WireguardGo.install().map(drop))
        .prepare(move || match with_old {
            true => Kernel::Debian11.install().map(drop),
            false => Ok(()),
        })
        // Browsers and the kernel's verifier each occupy a processor.
        .parallel(3)
        .main()
}
