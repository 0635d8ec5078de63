//! Programs in C and C++, compiled by the machine's compiler and linked with the library, as
//! others' programs are.

mod common;

use common::{Library, Program};

#[test]
fn layouts_are_boringtun_s_in_c_and_cpp() {
    for language in ["c", "c++"] {
        for definitions in [&["-DPUBLISHED"][..], &["-DTAUPE_BORINGTUN_2021"], &[]] {
            let program = Program::new("layout.c")
                .language(language)
                .with(definitions);
            program.build().run(&[]);
        }
    }
}

#[test]
fn a_program_for_boringtun_runs() {
    for library in [Library::Shared, Library::Static] {
        Program::new("boringtun.c")
            .library(library)
            .build()
            .run(&[]);
    }
    let program = Program::new("boringtun.c").with(&["-DWITH_COMPATIBLE_HEADER"]);
    program.build().run(&[]);
}

#[test]
fn a_program_of_2021_runs() {
    Program::new("workflow_2021.c").build().run(&[]);
}

#[test]
fn what_taupe_adds_does_what_it_says() {
    Program::new("additions.c").build().run(&[]);
}

#[test]
fn threads_may_share_tunnels() {
    let said = Program::new("threads.c").build().run(&[]);
    println!("{said}");
}
