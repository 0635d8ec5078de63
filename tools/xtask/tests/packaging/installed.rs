//! `packaging/install` by the name that `uname -s` gives.

use crate::place::{Place, shells};
use std::collections::BTreeSet;

const EVERYWHERE: [(&str, u32); 7] = [
    ("bin/taupe", 0o755),
    ("bin/taupe-device", 0),
    ("share/man/man1/taupe.1", 0o644),
    ("share/man/man5/taupe.conf.5", 0o644),
    ("share/bash-completion/completions/taupe", 0o644),
    ("share/zsh/site-functions/_taupe", 0o644),
    ("share/fish/vendor_completions.d/taupe.fish", 0o644),
];

/// The files for the start of the system, and their modes.
fn at_boot(system: &str) -> &'static [(&'static str, u32)] {
    match system {
        "Linux" => &[
            ("lib/systemd/system/taupe@.service", 0o644),
            ("lib/systemd/system/taupe-hooks@.service", 0o644),
            ("lib/systemd/system/taupe-lock@.service", 0o644),
        ],
        "FreeBSD" => &[("etc/rc.d/taupe", 0o755)],
        "Darwin" => &[
            ("libexec/taupe-launchd", 0o755),
            ("share/taupe/tunnel.plist", 0o644),
        ],
        _ => &[],
    }
}

#[test]
fn each_system_gets_its_files_and_loses_them_again() {
    for system in ["Linux", "FreeBSD", "Darwin", "SunOS"] {
        // busybox has a `uname` and an `install` of its own, which it prefers.
        for shell in shells()
            .iter()
            .filter(|shell| !shell[0].ends_with("busybox"))
        {
            let place = Place::new(system);
            let output = place.install(shell, &[], &[]);
            assert!(output.status.success(), "{system} {shell:?}: {output:?}");
            let mut expected: BTreeSet<_> = EVERYWHERE.into();
            expected.extend(at_boot(system));
            let expected = expected.into_iter();
            let expected = expected.map(|(file, mode)| (file.to_owned(), mode));
            assert_eq!(place.files(), expected.collect(), "{system} {shell:?}");

            let said = String::from_utf8_lossy(&output.stdout);
            for (file, _) in place.files() {
                let line = place.prefix().join(&file).display().to_string();
                assert!(said.contains(&line), "{line}: {said}");
            }
            assert_eq!(said.contains("systemctl"), system == "Linux", "{said}");
            assert_eq!(
                said.contains("local_startup"),
                system == "FreeBSD",
                "{said}"
            );

            let output = place.install(shell, &["--uninstall"], &[]);
            assert!(output.status.success(), "{system} {shell:?}: {output:?}");
            assert_eq!(place.files(), BTreeSet::new(), "{system} {shell:?}");
        }
    }
}

#[test]
fn aliases_are_links_and_the_library_is_for_linux() {
    for system in ["FreeBSD", "Darwin"] {
        let place = Place::new(system);
        let output = place.install(&shells()[0], &[], &["LIBRARY"]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert_eq!(place.files(), BTreeSet::new());

        place.installed(&["ALIASES"]);
        let files = place.files();
        for name in ["wg", "wg-quick"] {
            for folder in ["bin", "share/bash-completion/completions"] {
                let link = format!("{folder}/{name}");
                assert!(files.contains(&(link.clone(), 0)), "{link}: {files:?}");
            }
        }
        place.install(&shells()[0], &["--uninstall"], &[]);
        assert_eq!(place.files(), BTreeSet::new());
    }
}

#[test]
fn an_installer_without_pages_names_the_commands_of_its_system() {
    for (system, command) in [
        ("Linux", "make build pages"),
        ("FreeBSD", "--example pages"),
    ] {
        let place = Place::new(system);
        std::fs::remove_file(place.folder.join("target/release/pages/taupe.1")).expect("removed");
        let output = place.install(&shells()[0], &[], &[]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(command), "{said}");
        assert_eq!(place.files(), BTreeSet::new());
    }
}
