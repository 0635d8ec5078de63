//! Compares boringtun's library with Taupe's: the same C program sends packets through each.

#[path = "../tests/common/mod.rs"]
mod common;

use common::{Built, Library, Program, boringtun};

/// Runs of each program, in alternation. The benchmark reports the minimum of each figure, which
/// is disturbed least.
const ROUNDS: usize = 5;

fn figures(program: &Built, size: usize, least: &mut [f64; 4]) {
    let said = program.run(&[&size.to_string()]);
    let words = said.split_whitespace().skip(1);
    let figures = words.map(|word| word.parse::<f64>().expect("a figure"));
    for (least, figure) in least.iter_mut().zip(figures) {
        *least = least.min(figure);
    }
}

fn main() {
    // `cargo test --all-targets` runs this too, and must not measure.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let source = "benches/c/packets.c";
    let taupe = Program::new(source)
        .library(Library::Static)
        .with(&["-O2", "-DBATCH"]);
    let theirs = Program::new(source)
        .library(Library::Other(boringtun()))
        .with(&["-O2"]);
    let (taupe, theirs) = (taupe.build(), theirs.build());
    println!("ns for each packet     boringtun    taupe   batch   (times boringtun's speed)");
    for size in [64, 1420] {
        let [mut ours, mut other] = [[f64::MAX; 4]; 2];
        for _ in 0..ROUNDS {
            figures(&theirs, size, &mut other);
            figures(&taupe, size, &mut ours);
        }
        for (i, what) in ["write", "read"].into_iter().enumerate() {
            let (theirs, ours, batch) = (other[i], ours[i], ours[i + 2]);
            let (times, batch_times) = (theirs / ours, theirs / batch);
            println!(
                "{size:>6} B  {what:<12} {theirs:>9.0} {ours:>8.0} {batch:>7.0}   \
                 ({times:.2}, in batches {batch_times:.2})"
            );
        }
    }
}
