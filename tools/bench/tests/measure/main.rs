//! The measurements on a bare link, checked against independent sources.

mod flood;
mod guest;
mod load;
mod round_trips;
mod throughput;
mod tunnel;
mod usage;

use taupe_bench::contestant::{self, Contestant};
use taupe_bench::pair::Link;
use taupe_bench::session::Session;
use taupe_lab::Result;
use taupe_lab::error::Error;
use taupe_lab::peers::Implementation;
use taupe_lab::sandbox::{Suite, SystemTest};

fn main() -> ! {
    let tests: Vec<SystemTest> = [
        throughput::tests(),
        round_trips::tests(),
        usage::tests(),
        load::tests(),
        tunnel::tests(),
        flood::tests(),
        guest::tests(),
    ]
    .into_iter()
    .flatten()
    .collect();
    // Measurements need all cores, so tests run one at a time.
    Suite::new(tests)
        .prepare(|| taupe_lab::guest::install().map(drop))
        .prepare(|| Implementation::WireguardGo.install().map(drop))
        .prepare(|| Implementation::Taupe.install().map(drop))
        .parallel(2)
        .main()
}

/// Returns two machines without a tunnel.
fn direct(link: &Link) -> Result<Session> {
    start("direct", link)
}

/// Returns two machines connected by a contestant.
fn start(id: &str, link: &Link) -> Result<Session> {
    Session::start(&*find(id)?, "measured", link)
}

fn find(id: &str) -> Result<Box<dyn Contestant>> {
    contestant::find(id).ok_or_else(|| Error::unmet(format!("there is no contestant {id}")))
}
