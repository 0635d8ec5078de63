//! `cargo xtask`: checks of the workspace itself. README.md describes the commands.

mod arrows;
mod bpf_mutants;
mod drawing;
mod graph;
mod linked;
mod lint;
mod mutants;
mod test_programs;
mod tokens;
mod vector_code;
mod workspace;

use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask arrows [--write]\n       cargo xtask bpf-mutants [--new MINUTES [FILES] | --again FILES]\n       cargo xtask lint [--write | --list]\n       cargo xtask linked FILE\n       cargo xtask mutants [--new MINUTES | --changed MINUTES] [--package NAME]\n       cargo xtask tests --build\n       cargo xtask tests [--waiting | --others] [--only NAME] [--except NAME] [--beside N] [-- ARGUMENT…]\n       cargo xtask vector-code [--write | --list] PROGRAM";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let passed = match arguments[..] {
        ["arrows"] => arrows::check(),
        ["arrows", "--write"] => arrows::write(),
        ["bpf-mutants", ref rest @ ..] => bpf_mutants::run(rest).map_err(Into::into),
        ["linked", path] => linked::check(path),
        ["lint"] => lint::check(),
        ["lint", "--write"] => lint::write(),
        ["lint", "--list"] => lint::list(),
        ["mutants", ref rest @ ..] => mutants::run(rest).map_err(Into::into),
        ["tests", ref rest @ ..] => test_programs::run(rest).map(|()| true).map_err(Into::into),
        ["vector-code", ref rest @ ..] => vector_code::run(rest).map_err(Into::into),
        _ => Err(USAGE.into()),
    };
    match passed {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
