//! The skeleton of a FreeBSD port.

use crate::place::{Place, REPOSITORY};
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

/// Blocks of a port's Makefile in their order, each with its variables in their order, as the
/// Porter's Handbook gives them (chapter 15), up to those blocks whose order is free.
const BLOCKS: [&str; 8] = [
    "PORTNAME PORTVERSION DISTVERSIONPREFIX DISTVERSION DISTVERSIONSUFFIX PORTREVISION PORTEPOCH \
     CATEGORIES MASTER_SITES PKGNAMEPREFIX PKGNAMESUFFIX DISTNAME EXTRACT_SUFX DISTFILES \
     DIST_SUBDIR EXTRACT_ONLY",
    "PATCH_SITES PATCHFILES PATCH_DIST_STRIP",
    "MAINTAINER COMMENT WWW",
    "LICENSE LICENSE_COMB LICENSE_GROUPS LICENSE_NAME LICENSE_TEXT LICENSE_FILE_APACHE20 \
     LICENSE_FILE_MIT LICENSE_PERMS",
    "DEPRECATED EXPIRATION_DATE FORBIDDEN BROKEN IGNORE ONLY_FOR_ARCHS ONLY_FOR_ARCHS_REASON \
     NOT_FOR_ARCHS NOT_FOR_ARCHS_REASON",
    "FETCH_DEPENDS EXTRACT_DEPENDS PATCH_DEPENDS BUILD_DEPENDS LIB_DEPENDS RUN_DEPENDS \
     TEST_DEPENDS",
    "FLAVORS",
    "USES USE_RC_SUBR",
];

const MANDATORY: [&str; 8] = [
    "PORTNAME",
    "DISTVERSION",
    "CATEGORIES",
    "MAINTAINER",
    "COMMENT",
    "WWW",
    "LICENSE",
    "USES",
];

fn path(file: &str) -> PathBuf {
    PathBuf::from(REPOSITORY).join(file)
}

fn read(file: &str) -> String {
    fs::read_to_string(path(file)).expect(file)
}

/// A variable of the Makefile, with the number of the block that it is in.
struct Variable {
    block: usize,
    name: String,
    value: String,
}

fn variables(makefile: &str) -> Vec<Variable> {
    let mut found = Vec::new();
    for (block, paragraph) in makefile.split("\n\n").enumerate() {
        for line in paragraph.lines() {
            let assigned = line
                .split_once('=')
                .filter(|_| !line.starts_with(['\t', '#']));
            if let Some((name, value)) = assigned {
                assert!(value.starts_with('\t'), "no tab after {name}=");
                found.push(Variable {
                    block,
                    name: name.to_owned(),
                    value: value.trim().to_owned(),
                });
            }
        }
    }
    found
}

#[test]
fn variables_are_in_the_order_of_the_handbook() {
    let variables = variables(&read("packaging/freebsd/port/Makefile"));
    let place = |name: &str| {
        let blocks = BLOCKS.iter().map(|block| block.split_whitespace());
        blocks.enumerate().find_map(|(block, mut names)| {
            let position = names.position(|known| known == name)?;
            Some((block, position))
        })
    };
    let placed = variables.iter().filter_map(|variable| {
        let place = place(&variable.name)?;
        Some((place, variable.block, &variable.name))
    });
    let placed: Vec<_> = placed.collect();
    for pair in placed.windows(2) {
        let [(before, above, _), (after, below, name)] = pair else {
            unreachable!("windows of two");
        };
        assert!(before < after, "{name} is too late");
        // A blank line separates blocks, and none is within a block.
        assert_eq!(before.0 == after.0, above == below, "{name}");
    }
    // Variables with a place come before all others.
    let last = placed.last().expect("variables").1;
    let first = variables
        .iter()
        .find(|variable| place(&variable.name).is_none());
    let first = first.expect("variables of a free order");
    assert!(first.block > last, "{}", first.name);
    for name in MANDATORY {
        assert!(placed.iter().any(|(_, _, found)| *found == name), "{name}");
    }
}

#[test]
fn values_are_those_of_the_workspace() {
    let makefile = read("packaging/freebsd/port/Makefile");
    let variables = variables(&makefile);
    let value = |name: &str| {
        let found = variables.iter().find(|variable| variable.name == name);
        found.map(|variable| variable.value.as_str()).expect(name)
    };
    let manifest = read("Cargo.toml");
    assert!(manifest.contains(&format!("\nversion = \"{}\"\n", value("DISTVERSION"))));
    let comment = value("COMMENT");
    assert!(comment.len() <= 70 && !comment.ends_with('.'), "{comment}");
    for variable in &variables {
        if let Some(file) = variable.value.strip_prefix("${WRKSRC}/") {
            assert!(path(file).exists(), "{file}");
        }
    }
    assert!(makefile.ends_with("\n.include <bsd.port.mk>\n"));
    // The ports tree replaces a link by the file, which it looks for by this name.
    let script = format!("packaging/freebsd/port/files/{}.in", value("USE_RC_SUBR"));
    assert_eq!(read(&script), read("packaging/freebsd/taupe.in"));
    // Without a release there is nothing to fetch, and no checksum of it.
    let has_sums = path("packaging/freebsd/port/distinfo").exists();
    assert_eq!(makefile.contains("\nBROKEN="), !has_sums);
    let lines = read("packaging/freebsd/port/pkg-descr");
    assert!(lines.lines().all(|line| line.len() <= 80), "{lines}");
}

/// Returns the commands of FreeBSD by the reference, which lists those of Linux: those that every system
/// has, and those that FreeBSD has of its own.
fn commands_of_freebsd() -> BTreeSet<String> {
    let source = read("crates/taupe/src/portable.rs");
    let list = source.split_once("const ONLY_ON_LINUX").expect("list").1;
    let list = list.split_once("= [").expect("list").1;
    let list = list.split_once(']').expect("list").0;
    let only_on_linux: BTreeSet<_> = list.split('"').skip(1).step_by(2).collect();
    let reference = read("docs/reference/commands.md");
    let commands = reference
        .lines()
        .filter_map(|line| line.strip_prefix("### taupe "));
    let commands = commands.filter(|command| !command.contains(' '));
    let elsewhere = commands.filter(|command| !only_on_linux.contains(command));
    elsewhere
        .chain(["device", "down", "save", "up"])
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_packing_list_has_the_files_that_are_installed() {
    let list = read("packaging/freebsd/port/pkg-plist");
    for (options, prefix) in [(&["ALIASES"][..], ""), (&[][..], "@comment ")] {
        let listed = list.lines().map(|line| line.replace("%%ALIASES%%", prefix));
        let listed = listed.filter(|line| !line.starts_with("@comment "));
        // Manual pages are compressed after installation. The rc.d script is added by USE_RC_SUBR.
        let listed = listed.map(|line| line.trim_end_matches(".gz").to_owned());
        let listed: BTreeSet<_> = listed.chain(["etc/rc.d/taupe".into()]).collect();

        let place = Place::new("FreeBSD");
        let commands = commands_of_freebsd();
        place.add_pages(commands.iter().map(String::as_str));
        place.installed(options);
        let installed: BTreeSet<_> = place.files().into_iter().map(|(file, _)| file).collect();
        assert_eq!(listed, installed, "edit packaging/freebsd/port/pkg-plist");
    }
}
