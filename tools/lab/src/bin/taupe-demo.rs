//! `make demo`: transparent mode with evidence. `make demo-pq`: the post-quantum tutorial.
//!
//! Everything runs in private namespaces, which the kernel removes when this process ends, even if
//! it is killed. With `KEEP=1` they stay. `CAST=FILE` also writes the lines with their times to a file
//! for asciinema.
#![forbid(unsafe_code)]

use rustix::fs::MemfdFlags;
use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;
use taupe_lab::console;
use taupe_lab::demo::{self, Evidence, World};
use taupe_lab::error::{Error, Result};
use taupe_lab::peers::Implementation;
use taupe_lab::recording::Recording;
use taupe_lab::sandbox::{self, AttachedOutcome};
use taupe_lab::tutorial::{self, Machines};

const INSIDE: &str = "--inside";
const INSIDE_POST_QUANTUM: &str = "--inside-post-quantum";
const TUTORIAL: &str = include_str!("../../../../docs/tutorial-post-quantum.md");

fn main() -> ExitCode {
    let done = match std::env::args().nth(1).as_deref() {
        Some(INSIDE) => return inside(),
        Some(INSIDE_POST_QUANTUM) => return inside_post_quantum(),
        Some("--post-quantum") => Implementation::WireguardGo
            .install()
            .and_then(|_| outside(INSIDE_POST_QUANTUM, "make demo-pq")),
        _ => outside(INSIDE, "make demo"),
    };
    done.unwrap_or_else(|error| {
        console::warn(format_args!("demo: {error}"));
        ExitCode::FAILURE
    })
}

/// Follows the tutorial. The sandbox ends with it.
fn inside_post_quantum() -> ExitCode {
    let followed = sandbox::begin_attached(Arc::default()).and_then(|()| {
        let print = |line: &str| console::print(format_args!("{line}\n"));
        Machines::new()?.follow(&tutorial::steps(TUTORIAL)?, print)
    });
    match followed {
        Ok(()) => {
            console::print("\nall checks passed\n");
            ExitCode::SUCCESS
        }
        Err(error) => {
            console::print(format_args!("\nfailed checks: {}\n", error.one_line()));
            ExitCode::FAILURE
        }
    }
}

fn outside(inside: &str, command: &str) -> Result<ExitCode> {
    if !rustix::process::geteuid().is_root() {
        let own = std::env::current_exe().map_err(Error::io("own executable"))?;
        return Err(Error::unmet(format!(
            "network namespaces and eBPF take root: sudo {}",
            own.display()
        )));
    }
    let log = rustix::fs::memfd_create("log", MemfdFlags::CLOEXEC).map_err(Error::io("memory"))?;
    let mut log = File::from(log);
    let copy = log.try_clone().map_err(Error::io("dup"))?;
    let path = std::env::var_os("CAST").filter(|path| !path.is_empty());
    let recording = path.map(|path| Recording::create(Path::new(&path), command));
    let mut recording = recording.transpose()?;
    let print = |line: &str| {
        console::print(format_args!("{line}\n"));
        recording.as_mut().map_or(Ok(()), |it| it.add(line))
    };
    let (succeeded, first) = match sandbox::run_attached(inside, copy, print)? {
        AttachedOutcome::Ended(status) => (status.success(), None),
        AttachedOutcome::Detached { status, first } => (status == 0, Some(first)),
    };
    if !succeeded {
        let mut output = String::new();
        log.rewind()
            .and_then(|()| log.read_to_string(&mut output))
            .map_err(Error::io("log"))?;
        console::warn(format_args!("--- commands and their output\n{output}"));
    }
    if let Some(first) = first {
        console::print(demo::shell_instructions(first)?);
    }
    Ok(if succeeded {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn inside() -> ExitCode {
    let began = Instant::now();
    let keep = std::env::var_os("KEEP").is_some_and(|keep| !keep.is_empty() && keep != "0");
    let mut evidence = Evidence::default();
    let shown = sandbox::begin_attached(Arc::default()).and_then(|()| {
        let world = World::new()?;
        demo::run(&world, &mut evidence)?;
        if keep {
            world.taupe("up")?;
        }
        Ok(())
    });
    if let Err(error) = shown {
        evidence.abort(&error);
    }
    let took = began.elapsed().as_secs_f64();
    let status = match evidence.failed() {
        [] => {
            console::print(format_args!("\nall checks passed, in {took:.1} s\n"));
            0
        }
        failed => {
            console::print(format_args!("\nfailed checks: {}\n", failed.join("; ")));
            1
        }
    };
    if keep {
        sandbox::detach(status);
    }
    status.into()
}
