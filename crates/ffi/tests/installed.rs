//! `make install LIBRARY=1` into a folder: programs find it by pkg-config, and `make uninstall`
//! leaves nothing.

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Removed when it is dropped.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().expect("a type").is_dir() {
            found.extend(files(&entry.path()));
        } else {
            found.push(entry.path());
        }
    }
    found
}

fn packaging(target: &Path, prefix: &Path, arguments: &[&str]) {
    let mut command = Command::new("packaging/install");
    command.current_dir(REPOSITORY).args(arguments);
    command
        .env("CARGO_TARGET_DIR", target)
        .env("PREFIX", prefix);
    command
        .env("LIBRARY", "1")
        .env_remove("DESTDIR")
        .env_remove("ALIASES");
    common::finish(command);
}

#[test]
fn an_installed_library_is_found_and_runs() {
    let folder = std::env::temp_dir().join(format!("taupe-ffi-install-{}", std::process::id()));
    let folder = Folder(folder);
    let (target, prefix) = (folder.0.join("target"), folder.0.join("prefix"));
    // What is installed besides is of no matter here.
    fs::create_dir_all(target.join("release/pages")).expect("a folder");
    symlink("/bin/true", target.join("release/taupe")).expect("a link");
    for page in ["taupe.1", "taupe.bash", "_taupe", "taupe.fish"] {
        fs::write(target.join("release/pages").join(page), "").expect("a file");
    }
    fs::create_dir_all(target.join("library")).expect("a folder");
    for library in ["libtaupe.a", "libtaupe.so"] {
        let built = common::built().join(library);
        symlink(built, target.join("library").join(library)).expect("a link");
    }
    packaging(&target, &prefix, &[]);

    let mut flags = Command::new("pkg-config");
    flags.args(["--cflags", "--libs", "taupe"]);
    flags.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
    let flags = common::finish(flags);
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (compiler, source) in [
        ("c++", "examples/tap.cpp"),
        ("cc", "examples/client.c"),
        ("cc", "tests/c/boringtun.c"),
    ] {
        let program = folder.0.join("program");
        let mut build = Command::new(compiler);
        build.arg(sources.join(source)).arg("-o").arg(&program);
        build.args(["-D_GNU_SOURCE", "-DWITH_COMPATIBLE_HEADER"]);
        build.args(flags.split_whitespace());
        common::finish(build);
        let mut run = Command::new(&program);
        run.env("LD_LIBRARY_PATH", prefix.join("lib"));
        // Without arguments the client says how it is used.
        if source != "examples/client.c" {
            common::finish(run);
        }
    }

    packaging(&target, &prefix, &["--uninstall"]);
    assert_eq!(files(&prefix), Vec::<PathBuf>::new());
}
