//! Libraries of programs, as the loader of this machine finds them.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};
use std::process::Command;
use taupe_lab::error::{Error, Result};
use taupe_lab::process;

/// Returns the libraries of a program and its loader. A statically linked program has none.
///
/// # Errors
///
/// [`Error::Unmet`] with the libraries that are missing; the error of `ldd`.
pub(super) fn of(program: &Path) -> Result<Vec<PathBuf>> {
    let mut command = Command::new("ldd");
    command.arg(program).env("LC_ALL", "C");
    let found = process::attempt("this machine", command, None)?;
    let what = || format!("output of `ldd {}`", program.display());
    let text = format!("{}{}", found.stdout, found.stderr);
    if is_static(&text) {
        return Ok(Vec::new());
    }
    if found.status != Some(0) {
        return Err(Error::Malformed {
            what: what(),
            why: text,
        });
    }
    parse(&found.stdout).map_err(|why| Error::Malformed { what: what(), why })
}

fn is_static(text: &str) -> bool {
    ["statically linked", "not a dynamic executable"]
        .iter()
        .any(|words| text.contains(words))
}

/// Parses the output of `ldd`.
fn parse(text: &str) -> Result<Vec<PathBuf>, String> {
    let mut paths = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (name, found) = line.split_once(" => ").unwrap_or(("", line));
        if found.starts_with("not found") {
            return Err(format!("{name} is not installed"));
        }
        // The line ends with the address of the library in memory.
        let path = found.rsplit_once(" (0x").map_or(found, |(path, _)| path);
        match path.starts_with('/') {
            true => paths.push(PathBuf::from(path)),
            // The kernel's own library has no file.
            false if path.starts_with("linux-vdso") || path.starts_with("linux-gate") => {}
            false => return Err(format!("it has the line `{line}`")),
        }
    }
    Ok(paths)
}

/// Returns the loader among libraries.
///
/// # Errors
///
/// [`Error::Unmet`] unless there is exactly one.
pub(super) fn loader(libraries: &BTreeSet<PathBuf>) -> Result<PathBuf> {
    let name = |path: &Path| path.file_name()?.to_str().map(str::to_owned);
    let is_loader = |path: &&PathBuf| name(path).is_some_and(|name| name.starts_with("ld-"));
    let loaders: Vec<&PathBuf> = libraries.iter().filter(is_loader).collect();
    match loaders[..] {
        [loader] => Ok(loader.clone()),
        _ => Err(Error::unmet(format!(
            "the programs have the loaders {loaders:?}, but a pack must have exactly one: make the \
             pack on a machine with one C library"
        ))),
    }
}

/// Returns the place of a library below the root of the pack. It is the library's path on this
/// machine, because the loader looks there.
///
/// # Errors
///
/// [`Error::Unmet`] for a path that is relative or contains `..`.
pub(super) fn place(library: &Path) -> Result<PathBuf> {
    let mut parts = library.components();
    let is_absolute = parts.next() == Some(Component::RootDir);
    let rest = parts.as_path();
    let is_plain = parts.all(|part| matches!(part, Component::Normal(_)));
    if is_absolute && is_plain {
        return Ok(rest.to_owned());
    }
    Err(Error::unmet(format!(
        "the path of the library {} is relative or contains `..`",
        library.display()
    )))
}

/// Returns the folders of libraries.
pub(super) fn folders(libraries: &BTreeSet<PathBuf>) -> Vec<PathBuf> {
    let folders = libraries.iter().filter_map(|library| library.parent());
    let folders: BTreeSet<&Path> = folders.collect();
    folders.into_iter().map(Path::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LDD: &str = "\tlinux-vdso.so.1 (0x00007ffe66d2f000)\n\
        \tlibiperf.so.0 => /lib/x86_64-linux-gnu/libiperf.so.0 (0x00007f9ffbd43000)\n\
        \tlibc.so.6 => /opt/a (0x1)/libc.so.6 (0x00007f9ffbb62000)\n\
        \t/lib64/ld-linux-x86-64.so.2 (0x00007f9ffbd8e000)\n";

    #[test]
    fn libraries_are_those_that_the_loader_finds() {
        let expected = [
            "/lib/x86_64-linux-gnu/libiperf.so.0",
            "/opt/a (0x1)/libc.so.6",
            "/lib64/ld-linux-x86-64.so.2",
        ];
        let found = parse(LDD).expect("libraries");
        assert_eq!(found, expected.map(PathBuf::from));
        assert_eq!(parse(""), Ok(Vec::new()));
    }

    #[test]
    fn missing_libraries_are_named() {
        let text = LDD.replace("/opt/a (0x1)/libc.so.6 (0x00007f9ffbb62000)", "not found");
        assert_eq!(parse(&text), Err("libc.so.6 is not installed".to_owned()));
        let odd = parse("\tlibx.so => libx.so (0x1)\n").expect_err("no path");
        assert!(odd.contains("libx.so => libx.so"), "{odd}");
        assert!(is_static("\tnot a dynamic executable\n") && is_static("\tstatically linked\n"));
        assert!(!is_static(LDD));
    }

    #[test]
    fn places_are_below_the_root() {
        let place = |path: &str| place(Path::new(path)).ok();
        assert_eq!(place("/lib64/ld.so"), Some("lib64/ld.so".into()));
        for path in ["lib/x.so", "/lib/../x.so", "", "../x"] {
            assert_eq!(place(path), None, "{path}");
        }
        let libraries = ["usr/lib/a.so", "lib/b.so", "usr/lib/c.so"];
        let libraries = libraries.map(PathBuf::from).into();
        assert_eq!(folders(&libraries), ["lib", "usr/lib"].map(PathBuf::from));
    }

    #[test]
    fn a_pack_has_one_loader() {
        let set = |names: &[&str]| names.iter().map(PathBuf::from).collect::<BTreeSet<_>>();
        let one = set(&["/lib/libc.so.6", "/lib64/ld-linux-x86-64.so.2"]);
        assert_eq!(
            loader(&one).ok(),
            Some("/lib64/ld-linux-x86-64.so.2".into())
        );
        for wrong in [
            set(&["/lib/libc.so.6"]),
            set(&["/lib/ld-musl-x86_64.so.1", "/lib64/ld-linux-x86-64.so.2"]),
        ] {
            let error = loader(&wrong).expect_err("not one").to_string();
            assert!(error.contains("exactly one"), "{error}");
        }
    }

    #[test]
    fn libraries_of_this_program() -> Result<()> {
        let own = std::env::current_exe().map_err(Error::io("own executable"))?;
        let found: BTreeSet<PathBuf> = of(&own)?.into_iter().collect();
        assert!(loader(&found)?.is_file(), "{found:?}");
        Ok(())
    }
}
