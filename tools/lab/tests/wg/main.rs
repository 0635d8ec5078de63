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
        SystemTest::new("show_any_answer", show::answers),
        SystemTest::new("show_several", show::several),
        SystemTest::new("show_handshakes_that_happen", show::handshakes),
        SystemTest::new("show_a_thousand_peers", show::thousand),
        SystemTest::new("set_says_the_same", set::same_words),
        SystemTest::new("set_does_the_same", set::same_effect),
        SystemTest::new("set_that_is_refused", set::refused),
        SystemTest::new("names_are_asked_for_again", set::retries),
        SystemTest::new("files_say_the_same", files::same_words),
        SystemTest::new("files_do_the_same", files::same_effect),
        SystemTest::new("files_as_shown_are_taken", files::round_trip),
        SystemTest::new("syncconf_keeps_what_stays", sync::keeps_sessions),
        SystemTest::new("syncconf_takes_away", sync::takes_away),
        SystemTest::new("keys", keys::keys),
        SystemTest::new("keys_in_files_that_all_can_read", keys::shared_files),
        SystemTest::new("the_kernels_devices", kernel::devices)
            .limit(guest::BOOT + Duration::from_secs(480)),
        SystemTest::new("a_key_for_a_file", own::key_for_a_file),
        SystemTest::new("taupe_shows_more", own::more),
        SystemTest::new("taupe_says_what_to_do", own::messages),
        SystemTest::new("secrets_are_not_repeated", own::secrets),
    ])
    .prepare(|| Implementation::Taupe.install().map(drop))
    .prepare(|| guest::install().map(drop))
    .main()
}
