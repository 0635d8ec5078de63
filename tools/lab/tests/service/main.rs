//! Users without root: the service, its front, a message bus and polkit, as they are installed.

mod refusals;
mod users;
mod world;

use taupe_lab::peers::Implementation;
use taupe_lab::sandbox::{Suite, SystemTest};

fn main() {
    Suite::new(vec![
        SystemTest::new("own_processes_use_the_tunnel", users::own_processes),
        SystemTest::new("own_applications_use_the_tunnel", users::own_applications),
        SystemTest::new("others_see_nothing_of_it", users::others),
        SystemTest::new("keys_in_files_of_the_user", users::key_files),
        SystemTest::new("edited_file_is_applied", users::reload),
        SystemTest::new("listed_tunnels_of_a_group", users::listed),
        SystemTest::new("an_administrator_agrees", users::administrator),
        SystemTest::new("a_password_in_the_terminal", users::password),
        SystemTest::new("tunnels_outlive_the_service", users::restart),
        SystemTest::new("the_package_is_removed", users::removal),
        SystemTest::new("root_takes_a_users_tunnel_down", users::down_by_root),
        SystemTest::new("a_socket_of_systemd", users::passed_socket),
        SystemTest::new("without_the_service_as_before", users::without_service),
        SystemTest::new("nobody_to_ask_is_a_refusal", refusals::nobody_to_ask),
        SystemTest::new(
            "administrators_tunnels_are_refused",
            refusals::administrators_files,
        ),
        SystemTest::new("hostile_calls_on_the_bus", refusals::calls),
        SystemTest::new("hostile_descriptors", refusals::descriptors),
        SystemTest::new("the_socket_is_the_fronts", refusals::socket),
        SystemTest::new("the_front_is_never_root", refusals::front_as_root),
        SystemTest::new("too_many_calls_at_once", refusals::too_many),
        SystemTest::new("a_caller_that_goes_away", refusals::caller_goes_away),
        SystemTest::new(
            "without_polkit_nothing_is_permitted",
            refusals::without_polkit,
        ),
    ])
    .parallel(2)
    .prepare(|| Implementation::Taupe.install().map(drop))
    .main()
}
