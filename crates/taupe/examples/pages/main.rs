//! Writes the manual pages and shell completions that `make install` installs into a folder.

#![forbid(unsafe_code)]

mod pages;

use std::env;
use std::io;
use std::path::Path;

fn main() -> io::Result<()> {
    let arguments: Vec<_> = env::args_os().skip(1).collect();
    let [folder] = arguments.as_slice() else {
        return Err(io::Error::other("usage: pages FOLDER"));
    };
    pages::write(Path::new(folder))
}
