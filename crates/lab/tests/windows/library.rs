//! C programs with `taupe.dll`.

use crate::wine::{built, launcher, root, succeed};
use std::fs;
use std::process::Command;
use taupe_lab::process::run;
use taupe_lab::sandbox::{scratch, step};
use taupe_lab::{Error, Result};

/// Those of the library's own tests that need nothing of Unix, built by mingw as others' would
/// be and linked with the import library.
pub(crate) fn programs() -> Result<()> {
    let [env, prefix, wine] = launcher()?;
    let tests = root().join("crates/ffi/tests/c");
    let dll = built().join("taupe.dll");
    let beside = scratch("taupe.dll");
    fs::copy(&dll, &beside).map_err(Error::io(dll.display().to_string()))?;
    for source in ["boringtun.c", "workflow_2021.c", "additions.c", "threads.c"] {
        step(source);
        let program = scratch(source).with_extension("exe");
        // The variant with POSIX threads, for programs that have some.
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
