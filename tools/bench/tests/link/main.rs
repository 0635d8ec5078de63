//! Links between the machines: rates, losses and delays match their settings.

mod emulated;
mod kernel;
mod mobile;
mod stream;

use taupe_lab::peers::Implementation;
use taupe_lab::sandbox::{Suite, SystemTest};

fn main() {
    Suite::new(vec![
        SystemTest::new("mobile_table", mobile::table),
        SystemTest::new("counters_are_exact", emulated::counters_are_exact),
        SystemTest::new("delays", emulated::delays),
        SystemTest::new("corruption_is_noticed", emulated::corruption_is_noticed),
        SystemTest::new(
            "tcp_gets_over_everything",
            emulated::tcp_gets_over_everything,
        ),
        SystemTest::new("rates", emulated::rates),
        SystemTest::new("changes_while_it_runs", emulated::changes_while_it_runs),
        SystemTest::new("leaves_nothing", emulated::leaves_nothing),
        SystemTest::new("outlives_its_machines", emulated::outlives_its_machines),
        SystemTest::new("limited", kernel::limited),
        SystemTest::new("lossy", kernel::lossy),
    ])
    .prepare(|| Implementation::Taupe.install().map(drop))
    .main()
}
