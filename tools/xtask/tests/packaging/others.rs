//! The packages for Arch Linux and Nix, without these systems.

use crate::place::{Place, REPOSITORY};
use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

const VERSION: &str = env!("CARGO_PKG_VERSION");

#[test]
fn pkgbuild_puts_the_files_into_its_package() {
    let place = Place::new("Linux");
    symlink(REPOSITORY, place.folder.join(format!("taupe-{VERSION}"))).expect("a link");
    let mut bash = Command::new("bash");
    bash.args(["-euc", r#"source "$1" && package"#, "bash"]);
    bash.arg(format!("{REPOSITORY}/packaging/arch/PKGBUILD"));
    bash.current_dir(&place.folder);
    bash.env("CARGO_TARGET_DIR", place.folder.join("target"));
    bash.env("pkgdir", place.prefix());
    let output = bash.output().expect("bash");
    assert!(output.status.success(), "{output:?}");
    let files: Vec<_> = place.files().into_iter().map(|(file, _)| file).collect();
    for file in [
        "usr/bin/taupe",
        "usr/lib/systemd/system/taupe@.service",
        "usr/lib/taupe/take-down.sh",
        "usr/share/doc/taupe/README.md",
        "usr/share/licenses/taupe/NOTICES",
        "usr/share/man/man1/taupe.1",
    ] {
        assert!(files.iter().any(|it| it == file), "no {file}: {files:?}");
    }
    let notices = place.prefix().join("usr/share/licenses/taupe/NOTICES");
    let notices = fs::read_to_string(notices).expect("notices");
    for part in ["\nrustix-", "\nThe Rust standard library:\n"] {
        assert!(notices.contains(part), "no {part:?} in the notices");
    }
    let install = fs::read_to_string(format!("{REPOSITORY}/packaging/arch/taupe.install"));
    assert!(
        install
            .expect("a file")
            .contains("sh /usr/lib/taupe/take-down.sh")
    );
}

#[test]
fn both_have_the_version_of_the_workspace() {
    for (file, line) in [
        ("arch/PKGBUILD", format!("pkgver={VERSION}\n")),
        ("nix/package.nix", format!("version = \"{VERSION}\";\n")),
    ] {
        let text = fs::read_to_string(format!("{REPOSITORY}/packaging/{file}"));
        assert!(text.expect("a file").contains(&line), "{file}: no {line}");
    }
}
