//! The list of a pack's files.

use crate::results;
use serde::{Deserialize, Serialize};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};
use taupe_lab::error::{Error, Result};

/// Version of the list's format.
pub(super) const FORMAT: u32 = 1;

/// Name of the list.
pub(super) const LIST: &str = "pack.json";

/// Name of the script that starts the lab.
pub(super) const START: &str = "taupe-lab";

/// Name of the folder with the root file system.
pub(super) const FILES: &str = "files";

/// The list of a pack's files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub(super) format: u32,
    /// Version of Taupe.
    pub(super) version: String,
    /// The commit from which it was built.
    pub(super) commit: Option<String>,
    /// Ids of the contestants that can run.
    pub(super) contestants: Vec<String>,
    /// The loader of all programs. All paths are relative to the root of the pack.
    pub(super) loader: PathBuf,
    /// The folders of the libraries.
    pub(super) library_path: Vec<PathBuf>,
    /// The program of the lab.
    pub(super) program: PathBuf,
    /// All files.
    pub(super) files: Vec<PackFile>,
}

/// A file of a pack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PackFile {
    pub(super) path: PathBuf,
    pub(super) size: u64,
    /// True if the file must be executable.
    pub(super) is_program: bool,
}

impl Manifest {
    /// Writes the list into the folder of a pack.
    pub(super) fn write(&self, folder: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self).map_err(|error| {
            Error::unmet(format!("cannot encode the list of a pack as JSON: {error}"))
        })?;
        let path = folder.join(LIST);
        fs::write(&path, text).map_err(Error::io(path.display().to_string()))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let list: Self = serde_json::from_str(text)
            .map_err(|error| format!("it is not the list of a pack: {error}"))?;
        if list.format != FORMAT {
            return Err(format!(
                "it has format {}, but this taupe-lab reads format {FORMAT}: start the taupe-lab \
                 of the pack",
                list.format
            ));
        }
        if let Some(path) = list.paths().find(|path| !is_plain(path)) {
            return Err(format!(
                "{} is not a path below the root of the pack",
                path.display()
            ));
        }
        Ok(list)
    }

    fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        let files = self.files.iter().map(|file| &file.path);
        let others = [&self.loader, &self.program];
        files.chain(&self.library_path).chain(others)
    }
}

/// Returns true if a relative path stays below its folder.
fn is_plain(path: &Path) -> bool {
    let mut parts = path.components();
    let is_plain = parts.all(|part| matches!(part, Component::Normal(_)));
    is_plain && path != Path::new("")
}

/// A pack on this machine, with all its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pack {
    pub(super) folder: PathBuf,
    pub(super) manifest: Manifest,
}

impl Pack {
    /// Opens a pack and checks that its files are there.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] or [`Error::Malformed`] for the list; [`Error::Unmet`] for a file that is
    /// missing or has another size.
    pub fn open(folder: &Path) -> Result<Self> {
        let list = folder.join(LIST);
        let manifest =
            Manifest::parse(&results::read_text(&list)?).map_err(|why| Error::Malformed {
                what: list.display().to_string(),
                why,
            })?;
        let shown = folder.display().to_string();
        let folder = fs::canonicalize(folder).map_err(Error::io(shown))?;
        let pack = Self { folder, manifest };
        pack.manifest
            .files
            .iter()
            .try_for_each(|file| pack.check(file))?;
        Ok(pack)
    }

    /// Returns the ids of its contestants.
    pub fn contestants(&self) -> &[String] {
        &self.manifest.contestants
    }

    /// Returns the path of a file of the pack on this machine.
    pub(super) fn path(&self, place: &Path) -> PathBuf {
        self.folder.join(FILES).join(place)
    }

    fn check(&self, file: &PackFile) -> Result<()> {
        let path = self.path(&file.path);
        let defect = |why: &str| {
            Error::unmet(format!(
                "{}: {why}; copy the pack again, or make it again with `taupe-lab pack`",
                path.display()
            ))
        };
        let Ok(data) = fs::metadata(&path) else {
            return Err(defect("the file is missing"));
        };
        if data.len() != file.size {
            let why = format!("it has {} bytes instead of {}", data.len(), file.size);
            return Err(defect(&why));
        }
        // Copying the pack may have lost the permission to execute.
        let mode = data.permissions().mode();
        if file.is_program && mode & 0o111 == 0 {
            let changed = fs::set_permissions(&path, fs::Permissions::from_mode(mode | 0o755));
            return changed.map_err(|_| defect("it cannot be executed"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        Manifest {
            format: FORMAT,
            version: "1".to_owned(),
            commit: None,
            contestants: vec!["direct".to_owned()],
            loader: "lib64/ld.so".into(),
            library_path: vec!["lib".into()],
            program: "usr/bin/taupe-lab".into(),
            files: vec![PackFile {
                path: "usr/bin/taupe-lab".into(),
                size: 4,
                is_program: true,
            }],
        }
    }

    #[test]
    fn lists_with_paths_elsewhere_are_refused() {
        let text = |manifest: &Manifest| serde_json::to_string(manifest).expect("JSON");
        assert_eq!(Manifest::parse(&text(&manifest())), Ok(manifest()));
        for path in ["/etc/passwd", "../x", "usr/../../x", ""] {
            let changes: [fn(&mut Manifest, PathBuf); 4] = [
                |list, path| list.files[0].path = path,
                |list, path| list.library_path[0] = path,
                |list, path| list.loader = path,
                |list, path| list.program = path,
            ];
            for change in changes {
                let mut list = manifest();
                change(&mut list, path.into());
                let error = Manifest::parse(&text(&list)).expect_err(path);
                assert!(error.contains("not a path below"), "{error}");
            }
        }
        let other = text(&manifest()).replace("\"format\":1", "\"format\":9");
        assert!(
            Manifest::parse(&other)
                .expect_err("format")
                .contains("format 9")
        );
        assert!(Manifest::parse("{}").is_err() && Manifest::parse("").is_err());
    }

    #[test]
    fn an_incomplete_pack_is_refused() -> Result<()> {
        let folder = std::env::temp_dir().join(format!("taupe-pack-{}", std::process::id()));
        let program = folder.join(FILES).join(&manifest().program);
        let above = program.parent().unwrap_or(&folder);
        fs::create_dir_all(above).map_err(Error::io("a folder"))?;
        let result = in_folder(&folder, &program);
        fs::remove_dir_all(&folder).map_err(Error::io("a folder"))?;
        result
    }

    fn in_folder(folder: &Path, program: &Path) -> Result<()> {
        let reason = || {
            Pack::open(folder).map_or_else(|error| error.to_string(), |pack| format!("{pack:?}"))
        };
        assert!(reason().contains(LIST), "{}", reason());
        manifest().write(folder)?;
        assert!(reason().contains("the file is missing"), "{}", reason());
        fs::write(program, "abc").map_err(Error::io("a file"))?;
        assert!(reason().contains("3 bytes instead of 4"), "{}", reason());
        fs::write(program, "abcd").map_err(Error::io("a file"))?;
        let pack = Pack::open(folder)?;
        assert_eq!(pack.contestants(), ["direct"]);
        let mode = fs::metadata(program).map_err(Error::io("a file"))?;
        assert_eq!(mode.permissions().mode() & 0o111, 0o111);
        Ok(())
    }
}
