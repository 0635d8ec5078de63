//! The packages for Arch Linux and Nix, without these systems.

use crate::place::{Place, REPOSITORY, program};
use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Runs a function of the recipe for Arch Linux with programs of all names, and returns the packaged
/// files.
fn packaged_by(function: &str) -> (Place, Vec<String>) {
    let place = Place::new("Linux");
    for name in ["taupe-web", "taupe-dbus"] {
        program(
            &place.folder.join("target/release").join(name),
            "#!/bin/sh\n",
        );
    }
    symlink(REPOSITORY, place.folder.join(format!("taupe-{VERSION}"))).expect("a link");
    fs::create_dir(place.prefix()).expect("a folder");
    let mut bash = Command::new("bash");
    bash.args(["-euc", r#"source "$1" && "$2""#, "bash"]);
    bash.arg(format!("{REPOSITORY}/packaging/arch/PKGBUILD"));
    bash.arg(function).current_dir(&place.folder);
    bash.env("CARGO_TARGET_DIR", place.folder.join("target"));
    bash.env("pkgdir", place.prefix());
    bash.env("srcdir", &place.folder);
    let output = bash.output().expect("bash");
    assert!(output.status.success(), "{output:?}");
    let files = place.files().into_iter().map(|(file, _)| file).collect();
    (place, files)
}

#[test]
fn pkgbuild_puts_the_files_into_its_package() {
    let (place, files) = packaged_by("package_taupe");
    for file in [
        "usr/bin/taupe",
        "usr/lib/systemd/system/taupe@.service",
        "usr/libexec/taupe-web",
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
fn pkgbuild_puts_the_service_into_a_package_of_its_own() {
    let (_place, service) = packaged_by("package_taupe-service");
    for file in [
        "usr/lib/systemd/system/taupe-dbus.service",
        "usr/lib/systemd/system/taupe-service.service",
        "usr/lib/systemd/system/taupe-service.socket",
        "usr/lib/sysusers.d/taupe-service.conf",
        "usr/libexec/taupe-dbus",
        "usr/share/dbus-1/system-services/org.taupe.Service1.service",
        "usr/share/dbus-1/system.d/org.taupe.Service1.conf",
        "usr/share/polkit-1/actions/org.taupe.policy",
        "usr/share/polkit-1/rules.d/taupe.rules",
    ] {
        assert!(service.iter().any(|it| it == file), "{file}: {service:?}");
    }
    // pacman refuses a file of another package.
    let (_place, taupe) = packaged_by("package_taupe");
    let both: Vec<_> = taupe.iter().filter(|file| service.contains(file)).collect();
    assert!(both.is_empty(), "{both:?}");
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
