#![deny(unsafe_code)]
//! Secret data is marked as undefined while the cryptography works on it. Valgrind (memcheck)
//! reports each branch that depends on undefined data, and each address that is computed from it: both
//! take a time that depends on the data.
//!
//! `scripts/constant-time` runs this, with the suppressions of `declassified.supp`: the places where
//! such a branch is intended, because what it depends on is public.

mod cases;
#[cfg(target_arch = "x86_64")]
mod planted_avx512;

use crabgrind::memcheck::{MemState, mark_memory};
use crabgrind::valgrind::{RunningMode, count_errors, running_mode};
use std::process::ExitCode;

/// Marks a value's bytes as secret.
pub(crate) fn classify<T: ?Sized>(value: &T) {
    mark(value, MemState::Undefined);
}

/// Marks a value's bytes as public.
pub(crate) fn declassify<T: ?Sized>(value: &T) {
    mark(value, MemState::Defined);
}

fn mark<T: ?Sized>(value: &T, state: MemState) {
    let at: *const T = value;
    let marked = mark_memory(at.cast(), size_of_val(value), state);
    marked.expect("Valgrind");
}

/// An operation on secret data.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) run: Box<dyn Fn()>,
    /// True if the operation leaks on purpose, to show that the method finds a leak.
    pub(crate) leaks: bool,
}

fn main() -> ExitCode {
    // They stay in the program for `scripts/vector-code`.
    #[cfg(target_arch = "x86_64")]
    std::hint::black_box(planted_avx512::ALL);
    if running_mode() != RunningMode::Valgrind {
        eprintln!("this program finds nothing without Valgrind: run scripts/constant-time");
        return ExitCode::FAILURE;
    }
    let (mut passed, mut failed) = (0, 0);
    for case in cases::all() {
        let before = count_errors();
        (case.run)();
        let found = count_errors() - before;
        let is_right = (found > 0) == case.leaks;
        let expected = if case.leaks { " (planted)" } else { "" };
        println!(
            "{}: {found} places{expected} {}",
            case.name,
            if is_right { "ok" } else { "FAILED" }
        );
        match is_right {
            true => passed += 1,
            false => failed += 1,
        }
    }
    println!("test result: {passed} passed; {failed} failed; 0 ignored");
    match failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}
