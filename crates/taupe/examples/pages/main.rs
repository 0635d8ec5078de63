//! Writes the manual pages and shell completions that `make install` installs into a folder, or the
//! reference of commands into a file:
//!
//! ```sh
//! cargo run -p taupe --example pages -- FOLDER
//! cargo run -p taupe --example pages -- --reference docs/reference/commands.md
//! ```

#![forbid(unsafe_code)]

mod pages;
mod reference;

use std::env;
use std::fs;
use std::io;
use std::path::Path;

fn main() -> io::Result<()> {
    let arguments: Vec<_> = env::args_os().skip(1).collect();
    match arguments.as_slice() {
        [option, file] if option == "--reference" => fs::write(file, reference::markdown()),
        [folder] => pages::write(Path::new(folder)),
        _ => Err(io::Error::other("usage: pages FOLDER | --reference FILE")),
    }
}
