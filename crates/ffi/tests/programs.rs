//! Programs in C and C++, compiled by the machine's compiler and linked with the library, as
//! others' programs are.

mod common;

use common::{Library, Program};

#[test]
fn layouts_are_boringtun_s_in_c_and_cpp() {
    for language in ["c", "c++"] {
        for definitions in [&["-DPUBLISHED"][..], &[]] {
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
