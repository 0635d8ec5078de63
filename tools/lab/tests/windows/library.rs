//! C programs with `taupe.dll`.

use crate::wine::{built, launcher, root, succeed};
use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use taupe_lab::process::run;
use taupe_lab::sandbox::{scratch, step};
use taupe_lab::{Error, Result, ensure};

/// The library's own tests that need nothing of Unix, built by mingw like other programs and linked
/// with the import library.
pub(crate) fn programs() -> Result<()> {
    let [env, prefix, wine] = launcher()?;
    let tests = root().join("crates/ffi/tests/c");
    let dll = built().join("taupe.dll");
    let beside = scratch("taupe.dll");
    fs::copy(&dll, &beside).map_err(Error::io(dll.display().to_string()))?;
    for source in ["boringtun.c", "workflow_2021.c", "additions.c", "threads.c"] {
        step(source);
        let program = scratch(source).with_extension("exe");
        // The compiler variant with POSIX threads, for programs that use threads.
        let mut compiler = Command::new("x86_64-w64-mingw32-gcc-posix");
        compiler.args([
            "-std=gnu11",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-O1",
            "-static",
        ]);
        compiler.arg("-I").arg(root().join("crates/ffi/include"));
        compiler.arg("-o").arg(&program).arg(tests.join(source));
        compiler.arg(built().join("libtaupe.dll.a"));
        succeed(&mut compiler)?;
        let mut command = Command::new(&env);
        command.args([&prefix, &wine]).arg(&program);
        run("Wine", command, None)?;
    }
    Ok(())
}

/// `taupe.dll` exports the functions of `taupe.h` and no others.
pub(crate) fn exports() -> Result<()> {
    let header = root().join("crates/ffi/include/taupe.h");
    let header = fs::read_to_string(&header).map_err(Error::io(header.display().to_string()))?;
    let code = header.lines().map(str::trim_start);
    let code = code.take_while(|line| *line != "#ifdef TAUPE_BORINGTUN_2021");
    let code = code.filter(|line| !line.starts_with("//"));
    let declared: BTreeSet<&str> = code
        .filter_map(|line| line.split_once('(')?.0.split([' ', '*']).next_back())
        .filter(|name| !name.is_empty())
        .collect();
    ensure!(declared.len() > 30, "only {declared:?} are declared");

    let mut tool = Command::new("x86_64-w64-mingw32-objdump");
    let output = succeed(tool.arg("-p").arg(built().join("taupe.dll")))?;
    let table = output
        .lines()
        .skip_while(|line| !line.contains("Ordinal/Name Pointer"));
    let table = table.skip(1).take_while(|line| !line.is_empty());
    let exported: BTreeSet<&str> = table
        .filter_map(|line| line.split_whitespace().next_back())
        .collect();
    let missing: Vec<_> = declared.difference(&exported).collect();
    let foreign: Vec<_> = exported.difference(&declared).collect();
    ensure!(
        missing.is_empty() && foreign.is_empty(),
        "missing: {missing:?}; not Taupe's: {foreign:?}"
    );
    Ok(())
}
