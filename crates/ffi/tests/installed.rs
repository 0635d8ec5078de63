//! `make install LIBRARY=1` into a folder: programs find the library by pkg-config, it has the
//! right name and functions, and `make uninstall` leaves nothing.
//!
//! The test uses its own build of the library, or, if `TAUPE_LIBRARY` names a folder, the one that
//! `make library` has built there (scripts/test does both).

mod common;

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

const PACKAGE: &str = env!("CARGO_MANIFEST_DIR");

/// boringtun's functions.
const PUBLISHED: [&str; 14] = [
    "check_base64_encoded_x25519_key",
    "new_tunnel",
    "set_logging_function",
    "tunnel_free",
    "wireguard_force_handshake",
    "wireguard_read",
    "wireguard_stats",
    "wireguard_tick",
    "wireguard_write",
    "x25519_key_to_base64",
    "x25519_key_to_hex",
    "x25519_key_to_str_free",
    "x25519_public_key",
    "x25519_secret_key",
];

/// A folder with the files to install in `target`, and a prefix to install them to. Removed when
/// dropped.
struct Place(PathBuf);

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn released() -> Option<PathBuf> {
    env::var_os("TAUPE_LIBRARY").map(PathBuf::from)
}

impl Place {
    fn new(name: &str) -> Self {
        let name = format!("taupe-ffi-{name}-{}", std::process::id());
        let place = Self(env::temp_dir().join(name));
        let target = place.0.join("target");
        // Other installed files do not matter here.
        fs::create_dir_all(target.join("release/pages")).expect("a folder");
        symlink("/bin/true", target.join("release/taupe")).expect("a link");
        for page in ["taupe.1", "taupe.bash", "_taupe", "taupe.fish"] {
            fs::write(target.join("release/pages").join(page), "").expect("a file");
        }
        fs::create_dir_all(target.join("library")).expect("a folder");
        for library in ["libtaupe.a", "libtaupe.so"] {
            let built = released().unwrap_or_else(common::built).join(library);
            symlink(built, target.join("library").join(library)).expect("a link");
        }
        place
    }

    fn prefix(&self) -> PathBuf {
        self.0.join("prefix")
    }

    /// Runs the script and returns its output.
    fn install(&self, arguments: &[&str], settings: &[(&str, &Path)]) -> String {
        let mut command = Command::new("packaging/install");
        command.current_dir(Path::new(PACKAGE).join("../.."));
        command.args(arguments);
        for unset in ["DESTDIR", "ALIASES", "LIBDIR", "INCLUDEDIR"] {
            command.env_remove(unset);
        }
        command.env("CARGO_TARGET_DIR", self.0.join("target"));
        command.env("PREFIX", self.prefix()).env("LIBRARY", "1");
        command.envs(settings.iter().copied());
        common::finish(command)
    }

    /// Returns the flags that pkg-config prints for the library in `libraries`.
    fn flags(&self, libraries: &Path, arguments: &[&str]) -> Vec<String> {
        let mut command = Command::new("pkg-config");
        command.args(arguments).arg("taupe");
        command.env("PKG_CONFIG_PATH", libraries.join("pkgconfig"));
        let said = common::finish(command);
        said.split_whitespace().map(str::to_owned).collect()
    }

    /// Builds a program of the package with these flags.
    fn build(&self, compiler: &str, source: &str, flags: &[String]) -> PathBuf {
        let program = self.0.join("program");
        let mut build = Command::new(compiler);
        build.arg(Path::new(PACKAGE).join(source));
        build.arg("-o").arg(&program);
        build.args(["-D_GNU_SOURCE", "-DWITH_COMPATIBLE_HEADER"]);
        build.args(flags);
        common::finish(build);
        program
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

fn said(program: &str, arguments: &[&str], file: &Path) -> String {
    let mut command = Command::new(program);
    command.args(arguments).arg(file);
    common::finish(command)
}

#[test]
fn an_installed_library_is_found_and_runs() {
    let place = Place::new("install");
    let libraries = place.prefix().join("lib");
    let told = place.install(&[], &[]);
    // ld.so does not search a temporary folder.
    let hint = format!("-Wl,-rpath,{}", libraries.display());
    assert!(told.contains(&hint), "{told}");

    let flags = place.flags(&libraries, &["--cflags", "--libs"]);
    for (compiler, source) in [
        ("c++", "examples/tap.cpp"),
        ("cc", "examples/client.c"),
        ("cc", "tests/c/boringtun.c"),
    ] {
        let mut flags = flags.clone();
        flags.push(hint.clone());
        let program = place.build(compiler, source, &flags);
        // Without arguments the client prints its usage.
        if source != "examples/client.c" {
            common::finish(Command::new(&program));
        }
        if released().is_some() {
            let needed = said("readelf", &["-dW"], &program);
            assert!(
                needed.contains("Shared library: [libtaupe.so.0]"),
                "{needed}"
            );
        }
    }
    // The manual's program.
    let manual = Path::new(PACKAGE).join("../../docs/library.md");
    let manual = fs::read_to_string(manual).expect("the manual");
    let mut blocks = manual
        .split("```c\n")
        .filter_map(|rest| rest.split("```").next());
    let program = blocks.find(|block| block.contains("int main"));
    let source = place.0.join("manual.c");
    fs::write(&source, program.expect("a program")).expect("a file");
    let mut strict = flags.clone();
    strict.extend([&hint, "-Wall", "-Wextra", "-Werror"].map(str::to_owned));
    let program = place.build("cc", &source.display().to_string(), &strict);
    let said_so = common::finish(Command::new(&program));
    assert_eq!(said_so, "28 bytes have arrived\n");
    // The same as a fully static program.
    let mut flags = place.flags(&libraries, &["--static", "--cflags", "--libs"]);
    flags.push("-static".to_owned());
    let program = place.build("cc", "tests/c/boringtun.c", &flags);
    let needed = said("readelf", &["-dW"], &program);
    assert!(!needed.contains("NEEDED"), "{needed}");
    common::finish(Command::new(&program));
    // The same with the static library and the system's shared ones.
    let mut flags = place.flags(&libraries, &["--cflags"]);
    flags.push(libraries.join("libtaupe.a").display().to_string());
    flags.extend(place.flags(&libraries, &["--static", "--libs-only-l"]));
    flags.retain(|flag| flag != "-ltaupe");
    let program = place.build("cc", "tests/c/boringtun.c", &flags);
    let needed = said("readelf", &["-dW"], &program);
    assert!(
        needed.contains("[libc.so.6]") && !needed.contains("libtaupe"),
        "{needed}"
    );
    common::finish(Command::new(&program));

    place.install(&["--uninstall"], &[]);
    assert_eq!(files(&place.prefix()), Vec::<PathBuf>::new());
}

#[test]
fn a_library_exports_what_is_declared_and_survives_panics() {
    let place = Place::new("symbols");
    place.install(&[], &[]);
    let library = place.prefix().join("lib/libtaupe.so.0");
    let names = |arguments: &[&str]| -> BTreeSet<String> {
        let table = said("nm", arguments, &library);
        let last = table
            .lines()
            .filter_map(|line| line.split_whitespace().last());
        last.map(|name| name.split('@').next().unwrap_or(name).to_owned())
            .collect()
    };
    let header = fs::read_to_string(place.prefix().join("include/taupe.h")).expect("a header");
    let code = header.lines().filter(|line| !line.starts_with("//"));
    let code = code.take_while(|line| *line != "#ifdef TAUPE_BORINGTUN_2021");
    let mut declared = BTreeSet::new();
    for line in code {
        let called = line.split('(').next().filter(|_| line.contains('('));
        let name = called.and_then(|text| text.split([' ', '*']).next_back());
        declared.extend(name.filter(|name| !name.is_empty()).map(str::to_owned));
    }
    for name in PUBLISHED {
        assert!(declared.contains(name), "{name}");
    }
    assert!(declared.len() > 30, "{declared:?}");
    assert_eq!(names(&["-D", "--defined-only"]), declared);
    // A library with `panic = "abort"` does not use this symbol.
    let raised = names(&["-D", "--undefined-only"]);
    assert!(raised.contains("_Unwind_RaiseException"), "{raised:?}");
    if released().is_some() {
        let dynamic = said("readelf", &["-dW"], &library);
        assert!(
            dynamic.contains("Library soname: [libtaupe.so.0]"),
            "{dynamic}"
        );
    }
}

#[test]
fn installation_folders_can_be_chosen() {
    let place = Place::new("folders");
    let root = place.0.join("root");
    let (usr, libraries) = (Path::new("/usr"), Path::new("/usr/lib/some-linux-gnu"));
    let headers = Path::new("/opt/include");
    let chosen = [
        ("DESTDIR", root.as_path()),
        ("PREFIX", usr),
        ("LIBDIR", libraries),
        ("INCLUDEDIR", headers),
    ];
    // With DESTDIR, as packagers use it, the script prints nothing about this machine's ld.so.
    let told = place.install(&[], &chosen);
    assert!(!told.contains("ld.so"), "{told}");
    let description = root.join("usr/lib/some-linux-gnu/pkgconfig/taupe.pc");
    let description = fs::read_to_string(description).expect("taupe.pc");
    assert!(description.contains("libdir=${prefix}/lib/some-linux-gnu\n"));
    assert!(description.contains("includedir=/opt/include\n"));
    assert!(root.join("opt/include/taupe.hpp").exists());
    assert!(root.join("usr/lib/some-linux-gnu/libtaupe.a").exists());
    place.install(&["--uninstall"], &chosen);
    assert_eq!(files(&root), Vec::<PathBuf>::new());

    // `uninstall` with another folder leaves the library, and says so.
    place.install(&[], &chosen);
    let told = place.install(&["--uninstall"], &chosen[..2]);
    assert!(told.contains("LIBDIR"), "{told}");
    assert!(root.join("usr/lib/some-linux-gnu/libtaupe.a").exists());
    let told = place.install(&["--uninstall"], &chosen);
    assert!(!told.contains("LIBDIR"), "{told}");
    assert_eq!(files(&root), Vec::<PathBuf>::new());

    // In a folder that ld.so searches, its cache is updated. A fake `ldconfig` names that folder.
    let (libraries, tools) = (place.prefix().join("lib64"), place.0.join("tools"));
    fs::create_dir_all(&tools).expect("a folder");
    let ldconfig = tools.join("ldconfig");
    let script = format!(
        "#!/bin/sh\nif [ \"$1\" = -v ]; then echo '{}: (from /etc/ld.so.conf:1)'; else : >'{}'; fi\n",
        libraries.display(),
        tools.join("ran").display()
    );
    fs::write(&ldconfig, script).expect("a script");
    fs::set_permissions(&ldconfig, fs::Permissions::from_mode(0o755)).expect("executable");
    let mut path = tools.clone().into_os_string();
    path.push(":");
    path.push(env::var_os("PATH").unwrap_or_default());
    let path = PathBuf::from(path);
    let told = place.install(&[], &[("LIBDIR", &libraries), ("PATH", &path)]);
    assert!(
        tools.join("ran").exists() && !told.contains("rpath"),
        "{told}"
    );
    fs::remove_file(tools.join("ran")).expect("removed");
    let told = place.install(&[], &[("PATH", &path)]);
    assert!(
        !tools.join("ran").exists() && told.contains("rpath"),
        "{told}"
    );
}

#[test]
fn installation_paths_are_quoted_or_refused() {
    let place = Place::new("characters");
    let prefix = place.0.join("a&b|c%d");
    // A prefix may end with a slash.
    let ended = prefix.join("");
    let told = place.install(&[], &[("PREFIX", &ended), ("DESTDIR", Path::new("/"))]);
    // DESTDIR=/ is this machine.
    assert!(told.contains("-Wl,-rpath,"), "{told}");
    assert!(!told.contains("//"), "{told}");
    let read = |file: &str| fs::read_to_string(prefix.join(file)).expect("a file");
    let description = read("lib/pkgconfig/taupe.pc");
    let line = format!("prefix={}\n", prefix.display());
    assert!(description.starts_with(&line), "{description}");
    assert!(
        description.contains("\nlibdir=${prefix}/lib\n"),
        "{description}"
    );
    assert!(!description.contains('@'), "{description}");
    let unit = read("lib/systemd/system/taupe@.service");
    let program = prefix.join("bin/taupe").display().to_string();
    let line = format!("\nExecStart={} up ", program.replace('%', "%%"));
    assert!(unit.contains(&line), "{unit}");

    for refused in ["a b", "a\"b", "a'b", "a\\b", "a$b"] {
        let prefix = place.0.join(refused);
        let mut command = Command::new("packaging/install");
        command.current_dir(Path::new(PACKAGE).join("../.."));
        command.env("CARGO_TARGET_DIR", place.0.join("target"));
        command.env("PREFIX", &prefix).env_remove("DESTDIR");
        let output = command.output().expect("it runs");
        assert_eq!(output.status.code(), Some(2), "{refused}");
        assert!(!prefix.exists(), "{refused}");
    }
}
