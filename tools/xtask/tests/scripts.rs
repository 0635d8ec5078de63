//! Scripts that check something, with mistakes that they must find; and `packaging/release`. Each runs in
//! a small copy of the repository.

#![cfg(target_os = "linux")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// A folder with one script of the repository. Removed when dropped.
struct Copy {
    folder: PathBuf,
    script: &'static str,
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Copy {
    fn of(script: &'static str) -> Self {
        let name = script.replace('/', "-");
        let folder = std::env::temp_dir().join(format!("taupe-{name}-{}", std::process::id()));
        let copy = Self { folder, script };
        let text = fs::read_to_string(Path::new(REPOSITORY).join(script)).expect("the script");
        copy.program(script, &text);
        copy
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, text).expect("a file");
    }

    fn program(&self, name: &str, text: &str) {
        // Another process writes it: if this one did, a child that another thread has just forked would
        // have it open for writing, and it could not be executed.
        self.write(&format!("{name}.text"), text);
        let mut shell = Command::new("sh");
        shell.args([
            "-c",
            r#"cat "$0.text" >"$0" && rm "$0.text" && chmod 755 "$0""#,
        ]);
        succeeds(&shell.arg(self.path(name)).output().expect("a shell"));
    }

    /// Returns the script's command, for which programs in `bin` precede the system's.
    fn command(&self, arguments: &[&str]) -> Command {
        let path = std::env::var("PATH").expect("a path");
        let path = format!("{}:{path}", self.path("bin").display());
        let mut command = Command::new(self.path(self.script));
        command.args(arguments).current_dir(&self.folder);
        command.env("PATH", path).env_remove("SIGNING_KEY");
        command.env("CARGO_TARGET_DIR", self.path("target"));
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("a shell")
    }
}

fn succeeds(output: &Output) {
    assert!(output.status.success(), "{output:?}");
}

fn fails(output: &Output, reason: &str) {
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{reason}: {output:?}");
    assert!(message.contains(reason), "{reason}: {message}");
}

#[test]
fn book_finds_pages_without_a_link_and_links_without_a_page() {
    let copy = Copy::of("scripts/book");
    for page in [
        "README",
        "ARCHITECTURE",
        "CONTRIBUTING",
        "SECURITY",
        "CHANGELOG",
    ] {
        copy.write(&format!("{page}.md"), "# Page\n");
    }
    let index = "# Documentation\n\n## Guides: how\n\n- [One](one.md)\n- [Two](two.md)\n";
    copy.write("docs/README.md", index);
    copy.write(
        "docs/one.md",
        "[two](two.md#part), [elsewhere](https://example.org)\n",
    );
    copy.write("docs/two.md", "# Two\n");
    let git = |words: &[&str]| {
        let mut git = Command::new("git");
        succeeds(
            &git.args(words)
                .current_dir(&copy.folder)
                .output()
                .expect("git"),
        );
    };
    git(&["init", "--quiet"]);
    git(&["add", "."]);
    succeeds(&copy.run(&["--check"]));
    copy.write("docs/README.md", &index.replace("- [Two](two.md)\n", ""));
    fails(
        &copy.run(&["--check"]),
        "docs/README.md does not name docs/two.md",
    );
    copy.write("docs/README.md", index);
    copy.write("docs/one.md", "[three](three.md)\n");
    let reason = "docs/one.md links to three.md, which does not exist";
    fails(&copy.run(&["--check"]), reason);
}

/// Stands for cargo: packages a crate from the folder of its name.
const CARGO: &str = r#"#!/bin/sh
mkdir -p "$CARGO_TARGET_DIR/package"
for argument; do
    case $argument in
        --package=*)
            crate=${argument#*=}
            tar -czf "$CARGO_TARGET_DIR/package/$crate-0.1.0.crate" "$crate-0.1.0"
            ;;
    esac
done
"#;

#[test]
fn crates_finds_incomplete_packages() {
    let copy = Copy::of("scripts/crates");
    copy.program("bin/cargo", CARGO);
    let text = fs::read_to_string(copy.path("scripts/crates")).expect("the script");
    let list = text
        .split_once("crates=(")
        .and_then(|(_, rest)| rest.split_once(')'));
    let crates: Vec<_> = list.expect("a list").0.split(' ').collect();
    let keys = [
        "description",
        "license",
        "readme",
        "keywords",
        "categories",
        "rust-version",
    ];
    let manifest: String = keys
        .iter()
        .map(|key| format!("{key} = \"of a test\"\n"))
        .collect();
    for name in &crates {
        for (file, text) in [
            ("Cargo.toml", &*manifest),
            ("README.md", ""),
            ("src/lib.rs", ""),
        ] {
            copy.write(&format!("{name}-0.1.0/{file}"), text);
        }
    }
    let whole = copy.run(&[]);
    succeeds(&whole);
    let result = format!("test result: {} passed; 0 failed;", crates.len());
    assert!(
        String::from_utf8_lossy(&whole.stdout).contains(&result),
        "{whole:?}"
    );
    let first = format!("{}-0.1.0", crates[0]);
    let without = manifest.replace("license", "licence");
    copy.write(&format!("{first}/Cargo.toml"), &without);
    fails(&copy.run(&[]), &format!("{} has no license", crates[0]));
    copy.write(&format!("{first}/Cargo.toml"), &manifest);
    fs::remove_file(copy.path(&first).join("README.md")).expect("a file");
    fails(&copy.run(&[]), "has no README.md");
}

#[test]
fn a_failed_release_leaves_no_sums() {
    let copy = Copy::of("packaging/release");
    copy.program("scripts/sbom", "#!/bin/sh\necho crates >\"$1\"\n");
    copy.write("packages/a.deb", "a package");
    copy.write("packages/b.rpm", "another");
    let there = |name: &str| copy.path("packages").join(name).exists();
    let release = || copy.command(&["packages"]);
    succeeds(&release().output().expect("a shell"));
    assert!(there("SHA256SUMS") && !there("SHA256SUMS.sig"));
    let mut check = Command::new("sha256sum");
    check
        .args(["--check", "SHA256SUMS"])
        .current_dir(copy.path("packages"));
    let checked = check.output().expect("sha256sum");
    succeeds(&checked);
    assert_eq!(String::from_utf8_lossy(&checked.stdout).lines().count(), 3);
    // The key is none.
    copy.write("key", "no key\n");
    let unsigned = release()
        .env("SIGNING_KEY", "key")
        .output()
        .expect("a shell");
    assert!(!unsigned.status.success(), "{unsigned:?}");
    assert!(!there("SHA256SUMS") && !there("SHA256SUMS.sig"));
    succeeds(&release().output().expect("a shell"));
    copy.program("scripts/sbom", "#!/bin/sh\nexit 1\n");
    let without_list = release().output().expect("a shell");
    assert!(!without_list.status.success(), "{without_list:?}");
    assert!(!there("SHA256SUMS"));
    let left = fs::read_dir(&copy.folder).expect("the folder").flatten();
    let names = left.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let scratch: Vec<_> = names.filter(|name| name.starts_with("packages.")).collect();
    assert!(scratch.is_empty(), "{scratch:?}");
}
