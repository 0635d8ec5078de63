//! Taupe for Windows, run by Wine on a machine of the lab, and C programs built for Windows and
//! linked with `taupe.dll`.

mod library;
mod proxy;
mod wine;

use taupe_lab::peers::Implementation;
use taupe_lab::sandbox::{Suite, SystemTest};

fn main() {
    let suite = Suite::new(vec![
        SystemTest::new("a_file_through_socks", proxy::file),
        SystemTest::new("c_programs_with_the_dll", library::programs),
        SystemTest::new("the_dll_exports_the_header", library::exports),
    ]);
    suite
        .prepare(|| Implementation::Taupe.install().map(drop))
        .prepare(wine::prepare)
        .main()
}
