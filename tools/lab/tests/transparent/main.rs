//! The transparent client as users run it: a file, `taupe up`, and programs selected by name.

mod app;
mod boot;
mod browsers;
mod captive;
mod chatter;
mod closed;
mod diagnosis;
mod floods;
mod followed;
mod forwarding;
mod leaks;
mod life;
mod marks;
mod names;
mod nested;
mod old;
mod processes;
mod resolvers;
mod roaming;
mod seeing;
mod servers;
mod service;
mod torrents;
mod tunnels;
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
    let long = Duration::from_secs(300);
    let mut tests = vec![
        // The longest tests start first.
        SystemTest::new("no_transition_leaks", leaks::no_transition_leaks).limit(leaks::limit()),
        SystemTest::new("browsers", browsers::one_in_and_one_out).limit(2 * long),
        SystemTest::new("chromium_by_quic", browsers::by_quic).limit(long),
        SystemTest::new("the_file_of_2021", life::the_file_of_2021).limit(long),
        SystemTest::new("chosen_and_not_chosen", life::chosen_and_not_chosen).limit(long),
        SystemTest::new("killed_then_up_then_down", life::killed_then_up_then_down).limit(long),
        SystemTest::new("killed_and_up_at_once", life::killed_and_up_at_once).limit(long),
        SystemTest::new("everybody_is_held_back", closed::everybody).limit(long),
        SystemTest::new("nobody_is_held_back", closed::nobody).limit(long),
        SystemTest::new("others_have_room", floods::others_have_room).limit(long),
        SystemTest::new("in_the_foreground", life::in_the_foreground).limit(long),
        SystemTest::new(
            "name_servers_in_a_local_network",
            diagnosis::name_servers_in_a_local_network,
        ),
        SystemTest::new("gaps_are_told", diagnosis::gaps_are_told),
        SystemTest::new("without_a_link", diagnosis::without_a_link).limit(long),
        SystemTest::new("what_the_link_sees", diagnosis::what_the_link_sees),
        SystemTest::new(
            "a_mark_that_is_taken_off",
            diagnosis::a_mark_that_is_taken_off,
        ),
        SystemTest::new(
            "a_family_without_a_route",
            diagnosis::a_family_without_a_route,
        ),
        SystemTest::new("what_captures_here_see", diagnosis::what_captures_here_see),
        SystemTest::new("one_key_twice", diagnosis::one_key_twice),
        SystemTest::new("without_ipv6", diagnosis::without_ipv6),
        SystemTest::new("without_descriptors", diagnosis::without_descriptors),
        SystemTest::new("the_file_stays", life::the_file_stays).limit(long),
        SystemTest::new("a_linked_file", life::a_linked_file).limit(long),
        SystemTest::new("what_is_not_there_changes_nothing", life::refused).limit(long),
        SystemTest::new("what_guests_send", forwarding::what_guests_send).limit(long),
        SystemTest::new("what_a_network_swallows", captive::what_a_network_swallows).limit(long),
        SystemTest::new("what_guests_ask", forwarding::what_guests_ask).limit(long),
        SystemTest::new(
            "a_hotspot_with_a_resolver",
            forwarding::a_hotspot_with_a_resolver,
        )
        .limit(long),
        SystemTest::new("opposite_rules", tunnels::opposite_rules).limit(long),
        SystemTest::new("two_at_once", tunnels::two_at_once).limit(long),
        SystemTest::new("several_uplinks", tunnels::several_uplinks).limit(long),
        SystemTest::new(
            "the_local_network_in_the_tunnel",
            tunnels::the_local_network_in_the_tunnel,
        )
        .limit(long),
        SystemTest::new("chosen_web_server", servers::web).limit(long),
        SystemTest::new("chosen_iperf3", servers::iperf3).limit(long),
        SystemTest::new("chosen_torrent_client", torrents::seeded).limit(long),
        SystemTest::new("up_again_by_name", names::up_again_by_name).limit(long),
        SystemTest::new(
            "up_again_by_a_resolver_here",
            names::up_again_by_a_resolver_here,
        )
        .limit(long),
        SystemTest::new(
            "a_name_without_an_address",
            names::a_name_without_an_address,
        )
        .limit(long),
        SystemTest::new(
            "a_new_network_hastens_look_ups",
            names::a_new_network_hastens_look_ups,
        )
        .limit(long),
        SystemTest::new("a_network_without_rest", names::a_network_without_rest).limit(long),
        SystemTest::new(
            "reload_without_an_address",
            names::reload_without_an_address,
        )
        .limit(long),
        SystemTest::new("resolvers_on_this_machine", resolvers::on_this_machine).limit(long),
        SystemTest::new(
            "a_resolver_in_the_local_network",
            resolvers::in_the_local_network,
        )
        .limit(long),
        SystemTest::new(
            "a_server_that_is_silent",
            resolvers::a_server_that_is_silent,
        )
        .limit(long),
        SystemTest::new(
            "servers_that_are_missing",
            resolvers::servers_that_are_missing,
        )
        .limit(long),
        SystemTest::new(
            "services_of_this_machine",
            resolvers::services_of_this_machine,
        )
        .limit(long),
        SystemTest::new("names_of_guests", resolvers::of_guests).limit(long),
        SystemTest::new("names_of_two_tunnels", resolvers::several::of_two_tunnels).limit(long),
        SystemTest::new("resolvers_told_as_asked", resolvers::told::as_asked).limit(long),
        SystemTest::new("stopped_and_closed", service::stopped_and_closed).limit(long),
        SystemTest::new(
            "the_process_of_a_service",
            service::the_process_of_a_service,
        )
        .limit(long),
        SystemTest::new(
            "locked_before_the_network",
            service::locked_before_the_network,
        )
        .limit(long),
        SystemTest::new("started_by_systemd", boot::from_the_first_unit_on).limit(long),
        SystemTest::new("another_address", roaming::another_address).limit(long),
        SystemTest::new("nested_in_adapter_mode", nested::in_adapter_mode).limit(long),
        SystemTest::new("nested_in_transparent_mode", nested::in_transparent_mode).limit(long),
        SystemTest::new("nested_by_wireguard_go", nested::by_wireguard_go).limit(long),
        SystemTest::new("nested_and_silent", nested::who_is_silent).limit(long),
        SystemTest::new("nested_again_at_once", nested::again_at_once).limit(long),
        SystemTest::new("nested_by_name", nested::names::through_the_outer_tunnel).limit(long),
        SystemTest::new(
            "nested_by_name_without_dns",
            nested::names::by_the_servers_of_the_system,
        )
        .limit(long),
        SystemTest::new("nested_and_refused", nested::refused).limit(long),
        SystemTest::new("locked_without_a_key", service::locked_without_a_key).limit(long),
        SystemTest::new("not_locked", service::not_locked).limit(long),
        SystemTest::new("chosen_while_up", app::chosen_while_up).limit(long),
        SystemTest::new("reloaded", app::reloaded).limit(long),
        SystemTest::new("edited_by_hand", app::edited_by_hand).limit(long),
        SystemTest::new("reloaded_whole_or_not", app::reloaded_whole_or_not).limit(long),
        SystemTest::new("in_two_files", app::in_two_files).limit(long),
        SystemTest::new("renamed_while_it_runs", processes::renamed_while_it_runs).limit(long),
        SystemTest::new("started_by_another", processes::started_by_another).limit(long),
        SystemTest::new("links_and_what_is_explained", processes::links).limit(long),
        SystemTest::new("started_by_another_by_mark", processes::by_mark).limit(long),
        SystemTest::new("chosen_by_mark", marks::chosen_by_mark).limit(long),
        SystemTest::new("marked_and_killed", marks::marked_and_killed).limit(long),
        SystemTest::new("all_but_one_by_mark", marks::all_but_one_by_mark).limit(long),
        SystemTest::new("closed_by_mark", marks::closed_by_mark).limit(long),
        SystemTest::new("open_by_mark", marks::open_by_mark).limit(long),
        SystemTest::new("not_by_mark", marks::not_by_mark).limit(long),
        SystemTest::new("states_of_tunnels", seeing::states).limit(long),
        SystemTest::new("connections_and_whose", seeing::connections).limit(long),
        SystemTest::new("connections_followed", followed::to_the_end).limit(long),
        SystemTest::new("explained_for_several", seeing::explained).limit(long),
        SystemTest::new("another_layout", seeing::another_layout).limit(long),
        SystemTest::new("looked_at_all_the_time", seeing::looked_at_all_the_time).limit(long),
        SystemTest::new("states_in_adapter_mode", seeing::adapters).limit(long),
        SystemTest::new("what_commands_say", seeing::words).limit(long),
        SystemTest::new("doctor", seeing::doctor).limit(long),
        SystemTest::new("report_without_secrets", seeing::report).limit(long),
        SystemTest::new("existing_connections", app::existing_connections).limit(long),
    ];
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
