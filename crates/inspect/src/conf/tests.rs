use super::{Compatibility, Conf, ConfError, access_through, first_with, interface};
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

/// A temporary folder, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str, files: &[&str]) -> Self {
        let name = format!("taupe-conf-{test}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).expect("folder");
        let path = path.canonicalize().expect("folder");
        for file in files {
            fs::write(path.join(file), "").expect("file");
        }
        Self(path)
    }

    fn find(&self, word: &str, compatibility: Compatibility) -> Result<Conf, ConfError> {
        Conf::find_in(&self.0, OsStr::new(word), compatibility)
    }

    fn refusal(&self, word: &str, compatibility: Compatibility) -> String {
        let refusal = self.find(word, compatibility).expect_err(word);
        refusal
            .to_string()
            .replace(&*self.0.to_string_lossy(), "FOLDER")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

use Compatibility::{Taupe, WgQuick};

#[test]
fn the_first_folder_that_has_the_file_is_taken() {
    let first = Folder::new("first", &["wg0.conf"]);
    let second = Folder::new("second", &["wg0.conf", "wg1.conf"]);
    let found = |name: &str| {
        let folders = [first.0.clone(), second.0.clone()];
        first_with(folders.into_iter(), OsStr::new(name))
    };
    assert_eq!(found("wg0").as_ref(), Some(&first.0));
    assert_eq!(found("wg1").as_ref(), Some(&second.0));
    assert_eq!(found("wg2"), None);
    // A path is not looked for in a folder.
    assert_eq!(found("../second/wg1"), None);
}

#[test]
fn a_name_means_a_file_in_the_folder_and_a_path_means_itself() {
    let folder = Folder::new("both", &["wg0.conf", "a=b+c_d.e-f0123.conf"]);
    for compatibility in [Taupe, WgQuick] {
        for (name, file) in [
            ("wg0", "wg0.conf"),
            ("a=b+c_d.e-f0123", "a=b+c_d.e-f0123.conf"),
        ] {
            let path = folder.0.join(file);
            for word in [name, &path.to_string_lossy()] {
                let conf = folder.find(word, compatibility).expect(word);
                assert_eq!(conf.interface.as_str(), name);
                assert_eq!(conf.path, path);
            }
        }
    }
}

#[test]
fn a_tunnel_is_named_after_a_link_and_uses_the_file_behind_it() {
    let folder = Folder::new("link", &["a-file-whose-name-is-long.conf"]);
    let file = folder.0.join("a-file-whose-name-is-long.conf");
    symlink(&file, folder.0.join("short.conf")).expect("link");
    for compatibility in [Taupe, WgQuick] {
        let conf = folder.find("short", compatibility).expect("found");
        assert_eq!(conf.interface.as_str(), "short");
        assert_eq!(conf.path, file);
    }
}

#[test]
fn wg_quick_has_the_messages_of_wg_quick() {
    let folder = Folder::new("quick", &["sixteen-bytes-ab.conf", "wg0.txt", "wg0"]);
    let at = |file: &str| folder.0.join(file).to_string_lossy().into_owned();
    for (word, words) in [
        ("wg1", "`FOLDER/wg1.conf' does not exist"),
        // A word that could be a name is taken as one.
        ("wg1.conf", "`FOLDER/wg1.conf.conf' does not exist"),
        (&at("wg1.conf"), "`FOLDER/wg1.conf' does not exist"),
        ("sixteen-bytes-ab", "`sixteen-bytes-ab' does not exist"),
        ("", "`' does not exist"),
    ] {
        assert_eq!(folder.refusal(word, WgQuick), words);
    }
    for word in [at("sixteen-bytes-ab.conf"), at("wg0.txt"), at("wg0")] {
        assert_eq!(
            folder.refusal(&word, WgQuick),
            "The config file must be a valid interface name, followed by .conf"
        );
    }
}

#[test]
fn reserved_names_are_refused() {
    let folder = Folder::new("all", &["all.conf", "default.conf", "interfaces.conf"]);
    for name in ["all", "default", "interfaces"] {
        let said = folder.refusal(name, Taupe);
        assert!(said.contains(&format!("called {name}: ")), "{said}");
        assert!(said.contains("rename the file"), "{said}");
        // `wg-quick` only fails when it creates the interface.
        folder.find(name, WgQuick).expect("found");
    }
}

#[test]
fn a_file_without_conf_in_its_name_is_advised_to_be_renamed() {
    // Tests run in the crate's folder.
    let folder = Folder::new("here", &["a.conf"]);
    let said = folder.refusal("Cargo.toml", Taupe);
    assert!(
        said.starts_with("there is no file FOLDER/Cargo.toml.conf; "),
        "{said}"
    );
    assert!(
        said.contains("end in \".conf\": rename the Cargo.toml"),
        "{said}"
    );
}

#[test]
fn errors_list_the_existing_files_and_advise() {
    let folder = Folder::new(
        "own",
        &["b.conf", "a.conf", "notes.txt", "sixteen-bytes-ab.conf"],
    );
    let at = |file: &str| folder.0.join(file).to_string_lossy().into_owned();
    for (word, words) in [
        ("wg1", "there is no file FOLDER/wg1.conf; FOLDER has: a, b"),
        ("./wg1.conf", "there is no file ./wg1.conf"),
        (
            "./a.conf",
            "there is no file ./a.conf; to use FOLDER/a.conf, give only its name",
        ),
    ] {
        assert_eq!(folder.refusal(word, Taupe), words);
    }
    for (word, part) in [
        (
            at("sixteen-bytes-ab.conf").as_str(),
            "\"sixteen-bytes-ab\" cannot be the name",
        ),
        (
            "sixteen-bytes-ab",
            "\"sixteen-bytes-ab\" cannot be the name",
        ),
        ("wg 0", "\"wg 0\" cannot be the name"),
        ("", "\"\" cannot be the name"),
        (&at("notes.txt"), "FOLDER/notes.txt is neither a name"),
    ] {
        let text = folder.refusal(word, Taupe);
        assert!(text.contains(part), "{text}");
        assert!(text.contains("make a link"), "{text}");
    }
    let empty = Folder::new("own-empty", &[]);
    assert_eq!(
        empty.refusal("wg1", Taupe),
        "there is no file FOLDER/wg1.conf; FOLDER has no file whose name ends in \".conf\""
    );
    let gone = Conf::find_in(Path::new("/nowhere/at/all"), OsStr::new("wg1"), Taupe);
    let text = gone.expect_err("gone").to_string();
    assert!(
        text.contains("there is no /nowhere/at/all: create it"),
        "{text}"
    );
}

#[test]
fn an_interface_has_a_name_without_its_file() {
    for (word, name) in [
        ("wg0", Some("wg0")),
        ("./wg0.conf", Some("wg0")),
        ("/etc/wireguard/wg0.conf", Some("wg0")),
        ("wg0.conf", Some("wg0")),
        ("./wg0", None),
        ("..conf", None),
        ("sixteen-bytes-ab", None),
        ("", None),
    ] {
        let found = interface(OsStr::new(word));
        assert_eq!(found.as_ref().map(|found| found.as_str()), name, "{word:?}");
    }
    assert_eq!(interface(OsStr::from_bytes(b"w\xff")), None);
}

#[test]
fn wg_quick_warns_by_the_modes_of_file_and_folder() {
    let folder = Folder::new("modes", &["wg0.conf"]);
    let file = folder.0.join("wg0.conf");
    for (file_mode, folder_mode, warns) in [
        (0o600, 0o755, false),
        (0o640, 0o755, false),
        (0o644, 0o755, true),
        (0o644, 0o700, false),
        (0o644, 0o711, false),
        (0o601, 0o711, true),
        (0o602, 0o777, true),
    ] {
        fs::set_permissions(&file, Permissions::from_mode(file_mode)).expect("mode");
        fs::set_permissions(&folder.0, Permissions::from_mode(folder_mode)).expect("mode");
        let conf = folder.find("wg0", Taupe).expect("found");
        assert_eq!(conf.quick_warns(), warns, "{file_mode:o} {folder_mode:o}");
    }
}

#[test]
fn a_file_is_as_accessible_as_its_folders() {
    for (folders, open) in [
        (&[0o755, 0o755][..], true),
        (&[0o711, 0o755], true),
        (&[0o744, 0o755], false),
        (&[0o755, 0o700], false),
        (&[0o750, 0o755], false),
    ] {
        let through = access_through(folders.iter().copied());
        assert_eq!(through & 0o644 != 0, open, "{folders:?}");
        assert_eq!(through & 0o602 != 0, open, "{folders:?}");
        assert_eq!(through & 0o711, 0, "{folders:?}");
    }
}
