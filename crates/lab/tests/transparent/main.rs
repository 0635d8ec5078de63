//! The transparent client, as a person uses it: a file, `taupe up`, and programs
//! by their names.

mod life;
mod world;

use std::time::Duration;
use taupe_lab::peers::Implementation;
use taupe_lab::sandbox::{Suite, SystemTest};

fn main() {
    let long = Duration::from_secs(300);
    Suite::new(vec![
        SystemTest::new("the_file_of_2021", life::the_file_of_2021).limit(long),
        SystemTest::new("chosen_and_not_chosen", life::chosen_and_not_chosen).limit(long),
        SystemTest::new("killed_then_up_then_down", life::killed_then_up_then_down).limit(long),
        SystemTest::new("in_the_foreground", life::in_the_foreground).limit(long),
        SystemTest::new("what_is_not_there_changes_nothing", life::refused).limit(long),
    ])
    .prepare(|| Implementation::Taupe.install().map(drop))
    .main()
}
