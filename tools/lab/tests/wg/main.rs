//! Taupe called as `wg` behaves like Debian's `wg`: the outputs are compared byte by byte, and the
//! effects on a device line by line.

mod compare;
mod differences;
mod fake;
mod files;
mod kernel;
mod keys;
mod own;
mod set;
mod show;
mod sync;
mod words;

use std::time::Duration;
use taupe_lab::guest;
use taupe_lab::peers::Implementation;
use taupe_lab::sandbox::{Suite, SystemTest};

fn main() {
    Suite::new(vec![
        SystemTest::new("words", words::words),
        SystemTest::new("show_a_device", show::device),
        SystemTest::new("show_invalid_answers", show::answers),
        SystemTest::new("show_several", show::several),
        SystemTest::new("show_real_handshakes", show::handshakes),
        SystemTest::new("show_a_thousand_peers", show::thousand),
        SystemTest::new("set_has_the_same_errors", set::same_errors),
        SystemTest::new("set_has_the_same_effect", set::same_effect),
        SystemTest::new("set_refused_by_the_device", set::refused),
        SystemTest::new("set_retries_name_look_ups", set::retries),
        SystemTest::new("files_have_the_same_errors", files::same_errors),
        SystemTest::new("files_have_the_same_effect", files::same_effect),
        SystemTest::new("showconf_round_trip", files::round_trip),
        SystemTest::new("syncconf_keeps_sessions", sync::keeps_sessions),
        SystemTest::new("syncconf_removes_missing_settings", sync::takes_away),
        SystemTest::new("keys", keys::keys),
        SystemTest::new("key_file_permissions_are_warned_of", keys::shared_files),
        SystemTest::new("devices_of_the_kernel", kernel::devices)
            .limit(guest::BOOT + Duration::from_secs(480)),
        SystemTest::new("key_given_as_a_file_name", own::key_for_a_file),
        SystemTest::new("taupe_shows_more", own::more),
        SystemTest::new("errors_have_a_remedy", own::messages),
        SystemTest::new("secrets_are_not_repeated", own::secrets),
    ])
    .prepare(|| Implementation::Taupe.install().map(drop))
    .prepare(|| guest::install().map(drop))
    .main()
}
