//! Checks that the tests which pages of evidence name exist.
//!
//! The last cell of each row of a table names tests: the path of a file in backquotes, then tests of
//! this file in backquotes, and maybe further files with their tests.

use std::fs;
use std::path::Path;

/// Pages whose tables are checked.
const PAGES: [&str; 1] = ["docs/evidence/defects-of-others.md"];

#[test]
fn named_tests_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |path: &str| fs::read_to_string(root.join(path)).ok();
    for page in PAGES {
        let text = read(page).expect(page);
        let errors = errors(&text, read);
        assert!(errors.is_empty(), "{page}:\n{}", errors.join("\n"));
    }
}

/// Returns the errors of a page with their lines. `read` returns the content of a file.
fn errors(page: &str, read: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let lines: Vec<&str> = page.lines().collect();
    let in_table = |line: &str| line.starts_with('|');
    let is_rule = |line: &str| in_table(line) && line.contains("---");
    let mut errors = Vec::new();
    let mut rows = 0;
    for (i, line) in lines.iter().enumerate() {
        let is_head = is_rule(line) || lines.get(i + 1).is_some_and(|next| is_rule(next));
        if in_table(line) && !is_head {
            rows += 1;
            let cells = line.trim_end().trim_end_matches('|').rsplit('|');
            let found = errors_of_cell(cells.into_iter().next().unwrap_or_default(), &read);
            errors.extend(found.into_iter().map(|error| format!("{}: {error}", i + 1)));
        }
    }
    if rows == 0 {
        errors.push("no table".to_owned());
    }
    errors
}

fn errors_of_cell(cell: &str, read: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut errors = Vec::new();
    let mut file: Option<(&str, String)> = None;
    let mut tests = 0;
    for name in cell.split('`').skip(1).step_by(2) {
        if name.contains('/') {
            file = read(name).map(|source| (name, source));
            if file.is_none() {
                errors.push(format!("no file {name}"));
            }
        } else if let Some((path, source)) = &file {
            tests += 1;
            if !has_test(source, name) {
                errors.push(format!("no test {name} in {path}"));
            }
        }
    }
    if tests == 0 && errors.is_empty() {
        errors.push("no test".to_owned());
    }
    errors
}

/// Returns true if the file has a test of this name: a function with the attribute `test`, a
/// function in `each_backend!`, or a system test.
fn has_test(source: &str, name: &str) -> bool {
    let lines: Vec<&str> = source.lines().map(str::trim_start).collect();
    let function = format!("fn {name}(");
    let above = |i: usize| lines[..i].iter().rev();
    let is_test = |(i, line): (usize, &&str)| {
        let mut attributes =
            above(i).take_while(|line| line.starts_with("#[") || line.starts_with("//"));
        let has_attribute = attributes.any(|line| *line == "#[test]");
        let parameter = line.strip_prefix(&function);
        let is_for_backends = source.contains("each_backend! {")
            && parameter.is_some_and(|rest| rest == "crypto) {" || rest == "_crypto) {");
        parameter.is_some() && (has_attribute || is_for_backends)
    };
    let compact: String = source.split_whitespace().collect();
    compact.contains(&format!("SystemTest::new(\"{name}\""))
        || lines.iter().enumerate().any(is_test)
}

#[test]
fn errors_are_found() {
    let read = |path: &str| {
        let source = "fn helper() {}\n/// A test.\n#[test]\n#[ignore]\nfn plain() {}\n\
            SystemTest::new(\n\"system\", f)\neach_backend! {\nfn backends(crypto) {\n}}";
        (path == "a/b.rs").then(|| source.to_owned())
    };
    let page = |cell: &str| format!("Text.\n\n| what | tests |\n|---|---|\n| x | {cell} |\n");
    let good = page("`a/b.rs`: `plain`, `system`, `backends`");
    assert_eq!(errors(&good, read), Vec::<String>::new());
    for (cell, expected) in [
        ("", "5: no test"),
        ("`a/b.rs`", "5: no test"),
        ("`plain`", "5: no test"),
        ("`a/b.rs`: `helper`", "5: no test helper in a/b.rs"),
        ("`a/b.rs`: `plai`", "5: no test plai in a/b.rs"),
        ("`a/c.rs`: `plain`", "5: no file a/c.rs"),
    ] {
        assert_eq!(errors(&page(cell), read), [expected]);
    }
    assert_eq!(errors("Text.\n", read), ["no table"]);
}
